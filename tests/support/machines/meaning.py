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
BITWISE = {
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}
"""Computed here for whole numbers only."""


def drawn_from(dtype: str) -> list[ReduceOp]:
    """The reductions of a type whose results `results` computes."""
    return [op for op in ReduceOp if op not in BITWISE or np.dtype(dtype).kind in "iu"]


def results(kind: str, data: list[Data], op: ReduceOp, root: int) -> list[Data | None]:
    """Each rank's output for the ranks' inputs; None where nothing is promised."""
    ranks, stack = len(data), np.stack(data)
    if op in BITWISE:
        total = BITWISE[op].reduce(stack.astype(np.int64), axis=0).astype(float)
    else:
        total = _REDUCE[op](stack, axis=0)
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
