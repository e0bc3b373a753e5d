"""Random calls between threads: every kind, type, reduction, size, in and out of place, private and
in the heap, now and later."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from communicator.group import Ranks
from communicator.meaning import results
from sley.communicator import Communicator
from sley.ir.words import ReduceOp
from sley.runtime.heap import empty

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
PARTS = {"reduce_scatter", "all_to_all", "scatter"}  # of these, a rank gives a part for each rank

_open: list[Ranks] = []


@pytest.fixture(scope="module", autouse=True)
def _close() -> Iterator[None]:
    yield
    while _open:
        _open.pop().close()
    ranks.cache_clear()


@cache
def ranks(number: int) -> Ranks:
    _open.append(Ranks(number))
    return _open[-1]


@dataclass(frozen=True)
class Step:
    kind: str
    count: int
    dtype: str
    op: ReduceOp
    root: int
    in_place: bool
    in_heap: bool
    is_async: bool

    def size(self, number: int) -> int:
        return self.count * (number if self.kind in PARTS else 1)


@st.composite
def steps(draw: st.DrawFn, number: int) -> Step:
    kind = draw(st.sampled_from(KINDS))
    ops = list(ReduceOp) if kind in REDUCING else [ReduceOp.SUM]
    return Step(
        kind,
        draw(st.one_of(st.integers(0, 40), st.integers(0, 70_000))),
        draw(st.sampled_from(["float32", "float64", "float16", "int8", "int32", "int64"])),
        draw(st.sampled_from(ops)),
        draw(st.integers(0, number - 1)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )


def make(step: Step, size: int) -> Any:
    return empty(size, step.dtype) if step.in_heap else np.zeros(size, step.dtype)


def begin(comm: Communicator, step: Step, given: Any) -> tuple[Any, Any]:
    """Starts a step; the work, and the array in which its result will be."""
    n, rank, later = step.count, comm.rank, {"is_async": step.is_async}
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
        return comm.all_gather(out, data, **later), out
    if step.kind == "reduce_scatter":
        out = data[rank * n : (rank + 1) * n] if step.in_place else make(step, n)
        return comm.reduce_scatter(out, data, step.op, **later), out
    if step.kind == "all_to_all":
        out = data if step.in_place else make(step, comm.ranks * n)
        return comm.all_to_all(out, data, **later), out
    if step.kind == "gather":
        out = make(step, comm.ranks * n) if rank == step.root else None
        return comm.gather(out, data, step.root, **later), out
    out = make(step, n)
    return comm.scatter(out, data if rank == step.root else None, step.root, **later), out


@given(st.data())
def test_random_calls_do_what_they_promise(data: st.DataObject) -> None:
    number = data.draw(st.integers(1, 5))
    todo = data.draw(st.lists(steps(number), min_size=1, max_size=6))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    given_to = [
        [rng.integers(1, 4, step.size(number)).astype(step.dtype) for _ in range(number)]
        for step in todo
    ]

    def run(comm: Communicator) -> list[Any]:
        begun = [begin(comm, s, g[comm.rank]) for s, g in zip(todo, given_to, strict=True)]
        for work, _ in begun:
            work.wait()
        return [out for _, out in begun]

    found = ranks(number).each(run)
    for at, step in enumerate(todo):
        wanted = results(step.kind, [g.astype(float) for g in given_to[at]], step.op, step.root)
        for rank in range(number):
            if wanted[rank] is not None:
                np.testing.assert_array_equal(found[rank][at], wanted[rank].astype(step.dtype))
