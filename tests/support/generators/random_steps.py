"""One call of any kind, with its memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from sley.communicator import Call, Communicator, Parts
from sley.communicator.arrays import places_of
from sley.communicator.heap import empty
from sley.engine.types import DATA_TYPES
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


GATHERED = {"all_gather", "all_to_all", "gather"}  # so has its output


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
    apart: bool = False  # whether the parts of buffers out of place are apart, the last one first

    def size(self, number: int) -> int:
        return self.count * (number if self.kind in PARTS else 1)


def make(step: Step, size: int) -> Any:
    return empty(size, step.dtype) if step.in_heap else np.zeros(size, step.dtype)


def begin(
    comm: Any, step: Step, given: Any, new: Callable[[int], Any] | None = None, **options: Any
) -> tuple[Any, Any]:
    """Starts a step; returns the work and the array of its result. new: makes an array of so many
    elements. options: of the call, in place of the step's."""
    if step.apart and not step.in_place and step.kind in PARTS | GATHERED:
        return begin_apart(comm, step, given)
    new = new or partial(make, step)
    n, rank, later = step.count, comm.rank, options or {"async_op": step.async_op}
    data = new(len(given))
    data[:] = given
    if step.kind in ("broadcast", "reduce"):
        arguments = (step.op, step.root) if step.kind == "reduce" else (step.root,)
        return getattr(comm, step.kind)(data, *arguments, **later), data
    if step.kind == "all_reduce":
        out = data if step.in_place else new(n)
        return comm.all_reduce(data, out, step.op, **later), out
    if step.kind == "all_gather":
        out = new(comm.ranks * n)
        if step.in_place:
            out[rank * n : (rank + 1) * n] = data
            data = out[rank * n : (rank + 1) * n]
        return comm.all_gather(data, out, **later), out
    if step.kind == "reduce_scatter":
        out = data[rank * n : (rank + 1) * n] if step.in_place else new(n)
        return comm.reduce_scatter(data, out, step.op, **later), out
    if step.kind == "all_to_all":
        out = data if step.in_place else new(comm.ranks * n)
        return comm.all_to_all(data, out, **later), out
    if step.kind == "gather":
        out = new(comm.ranks * n) if rank == step.root else None
        if step.in_place and out is not None:
            out[rank * n : (rank + 1) * n] = data
            data = out[rank * n : (rank + 1) * n]
        return comm.gather(data, out, step.root, **later), out
    is_root = rank == step.root
    out = data[rank * n : (rank + 1) * n] if step.in_place and is_root else new(n)
    return comm.scatter(data if is_root else None, out, step.root, **later), out


def begin_apart(comm: Communicator, step: Step, given: Any) -> tuple[Any, Any]:
    """Starts a step on parts with as much unused memory after each; in reverse order."""
    is_root, rooted = comm.rank == step.root, step.kind in ("gather", "scatter")
    inputs = comm.ranks if step.kind in PARTS else 1
    outputs = comm.ranks if step.kind in GATHERED else 1
    source = make(step, 2 * inputs * step.count).reshape(inputs, 2, step.count)[::-1, 0]
    target = make(step, 2 * outputs * step.count).reshape(outputs, 2, step.count)[::-1, 0]
    source[:] = given.reshape(inputs, step.count)
    dtype = DATA_TYPES[step.dtype]
    blocks = Parts.of(
        places_of([] if step.kind == "scatter" and not is_root else list(source), dtype),
        places_of([] if step.kind == "gather" and not is_root else list(target), dtype),
    )
    root = step.root if rooted else 0
    call = Call(step.kind, 0, 0, 0, 0, step.count, dtype, step.op, root, blocks=blocks)
    work = comm.endpoint.submit(call, async_op=step.async_op, owners=(source, target))
    return work, target
