"""Random calls between threads: every kind, type, reduction and size, in and out of place, in
private memory and in the heap, in parts that are apart, blocking and not."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.algorithms import recursive_doubling_allgather
from sley.communicator import Communicator
from sley.ir.words import ReduceOp
from support.generators.random_steps import KINDS, REDUCING, Step, begin
from support.machines.meaning import drawn_from, results
from support.processes.threads_group import Ranks

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


@st.composite
def steps(draw: st.DrawFn, number: int) -> Step:
    kind = draw(st.sampled_from(KINDS))
    dtype = draw(st.sampled_from(["float32", "float64", "float16", "int8", "int32", "int64"]))
    ops = drawn_from(dtype) if kind in REDUCING else [ReduceOp.SUM]
    return Step(
        kind,
        draw(st.one_of(st.integers(0, 40), st.integers(0, 70_000))),
        dtype,
        draw(st.sampled_from(ops)),
        draw(st.integers(0, number - 1)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.booleans()),
    )


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
                own = np.ravel(found[rank][at])
                np.testing.assert_array_equal(own, wanted[rank].astype(step.dtype))


def test_a_message_of_several_parts_that_are_apart_is_one_piece() -> None:
    """Recursive doubling sends the parts of several ranks in a message."""
    step = Step("all_gather", 12, "int32", ReduceOp.SUM, 0, False, False, False, apart=True)
    with Ranks(4) as four:
        four.each(lambda comm: comm.plans.register(recursive_doubling_allgather(4)))

        def run(comm: Communicator) -> Any:
            work, out = begin(comm, step, np.arange(12) + 100 * comm.rank)
            work.wait()
            return out

        for found in four.each(run):
            np.testing.assert_array_equal(found[:, 0] // 100, [0, 1, 2, 3])
            np.testing.assert_array_equal(found % 100, [range(12)] * 4)
