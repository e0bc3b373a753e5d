"""One call of any kind, with its memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.communicator import Communicator
from sley.communicator.heap import empty
from sley.ir.words import ReduceOp

KINDS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
]
REDUCING = {"all_reduce", "reduce_scatter", "reduce"}
PARTS = {"reduce_scatter", "all_to_all", "scatter"}  # a rank's input has a part for each rank


@dataclass(frozen=True)
class Step:
    kind: str
    count: int
    dtype: str
    op: ReduceOp
    root: int
    in_place: bool
    in_heap: bool
    async_op: bool

    def size(self, number: int) -> int:
        return self.count * (number if self.kind in PARTS else 1)


def make(step: Step, size: int) -> Any:
    return empty(size, step.dtype) if step.in_heap else np.zeros(size, step.dtype)


def begin(comm: Communicator, step: Step, given: Any) -> tuple[Any, Any]:
    """Starts a step; returns the work and the array of its result."""
    n, rank, later = step.count, comm.rank, {"async_op": step.async_op}
    data = make(step, len(given))
    data[:] = given
    if step.kind in ("broadcast", "reduce"):
        arguments = (step.root, step.op) if step.kind == "reduce" else (step.root,)
        return getattr(comm, step.kind)(data, *arguments, **later), data
    if step.kind == "all_reduce":
        out = data if step.in_place else make(step, n)
        return comm.all_reduce(data, step.op, out=out, **later), out
    if step.kind == "all_gather":
        out = make(step, comm.ranks * n)
        if step.in_place:
            out[rank * n : (rank + 1) * n] = data
            data = out[rank * n : (rank + 1) * n]
        return comm.all_gather(data, out, **later), out
    if step.kind == "reduce_scatter":
        out = data[rank * n : (rank + 1) * n] if step.in_place else make(step, n)
        return comm.reduce_scatter(data, out, step.op, **later), out
    if step.kind == "all_to_all":
        out = data if step.in_place else make(step, comm.ranks * n)
        return comm.all_to_all(data, out, **later), out
    if step.kind == "gather":
        out = make(step, comm.ranks * n) if rank == step.root else None
        return comm.gather(data, out, step.root, **later), out
    out = make(step, n)
    return comm.scatter(data if rank == step.root else None, out, step.root, **later), out
