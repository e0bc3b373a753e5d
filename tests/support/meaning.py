"""The results of calls, computed by NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.ir.words import ReduceOp

Data = NDArray[np.float64]

_REDUCE = {
    ReduceOp.SUM: np.add.reduce,
    ReduceOp.PRODUCT: np.multiply.reduce,
    ReduceOp.MIN: np.minimum.reduce,
    ReduceOp.MAX: np.maximum.reduce,
    ReduceOp.AVG: np.mean,
}


def results(kind: str, data: list[Data], op: ReduceOp, root: int) -> list[Data | None]:
    """Each rank's output for the ranks' inputs; None where nothing is promised."""
    ranks = len(data)
    total = _REDUCE[op](np.stack(data), axis=0)
    if kind == "all_reduce":
        return [total] * ranks
    if kind == "all_gather":
        return [np.concatenate(data)] * ranks
    if kind == "reduce_scatter":
        return list(np.split(total, ranks))
    if kind == "all_to_all":
        parts = [np.split(d, ranks) for d in data]
        return [np.concatenate([parts[src][dst] for src in range(ranks)]) for dst in range(ranks)]
    if kind == "broadcast":
        return [data[root]] * ranks
    if kind == "reduce":
        return [total if rank == root else data[rank] for rank in range(ranks)]
    if kind == "gather":
        return [np.concatenate(data) if rank == root else None for rank in range(ranks)]
    assert kind == "scatter"
    return list(np.split(data[root], ranks))
