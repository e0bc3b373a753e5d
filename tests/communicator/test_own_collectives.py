"""User plans given with a call, including plans of custom collectives."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import Communicator
from sley.communicator.heap import empty
from sley.errors import SleyError
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.lang import ChunkProgram, trace
from support.processes.threads_group import Ranks

COUNT = 1003


def outputs(ranks: Ranks, plan: Plan, count: int = COUNT, **options: Any) -> list[Any]:
    def one(comm: Communicator) -> Any:
        data = np.arange(count, dtype=np.int32) + 10000 * comm.rank
        if plan.collective.in_place:
            comm.run(plan, data, **options)
            return data
        out = np.full(count, -1, np.int32)
        comm.run(plan, data, out, **options)
        return out

    return ranks.each(one)


@pytest.mark.parametrize("in_place", [False, True])
def test_an_own_collective_does_what_it_promises(in_place: bool) -> None:
    """Not a collective of any library: what a rank gets is the data of the one before."""
    plan = sley.compile(sley.algorithms.alltonext(2, 2, in_place=in_place))
    with Ranks(4) as ranks:
        for count in (1000, 4):
            found = outputs(ranks, plan, count)
            for rank in range(1, 4):
                assert (found[rank] == np.arange(count) + 10000 * (rank - 1)).all()


def test_messages_staged_in_one_place_are_not_mixed() -> None:
    """The root sends one chunk again and again while it grows, in one tile and in several."""
    size = 4
    sizes = [size, 0, 0, 0], [0, 1, 1, 1]
    sums = sley.Custom("sums", size, *sizes, lambda rank, index: [(0, k) for k in range(rank + 1)])

    def body(p: ChunkProgram) -> None:
        for rank in range(1, size):
            total = p.chunk(0, "in", 0).reduce(p.chunk(0, "in", rank))
            total.copy(rank, "out", 0)

    plan = sley.compile(trace(sums, body, name="sums"))
    for count in (COUNT, 200 * COUNT):

        def part(comm: Communicator, count: int = count) -> Any:
            data = np.arange(size * count * (comm.rank == 0), dtype=np.int32)
            out = np.full(count * (comm.rank > 0), -1, np.int32)
            comm.run(plan, data, out)
            return out

        rows = np.arange(size * count).reshape(size, count)
        with Ranks(size) as ranks:
            found = ranks.each(part)
        np.testing.assert_array_equal(np.stack(found[1:]), np.cumsum(rows, 0)[1:])


def test_data_are_not_overwritten_before_a_later_message_has_read_them() -> None:
    """Rank 1 reads rank 0's second chunk after rank 2's late message; rank 0 receives into it."""
    expected = {
        (0, 0): [(0, 0)],
        (0, 1): [(1, 2)],
        (1, 0): [(0, 0)],
        (1, 1): [(2, 0), (0, 1)],
        (1, 2): [(1, 2)],
        (2, 0): [(2, 0)],
    }
    sizes = [2, 3, 1]
    collective = sley.Custom(
        "late-read", 3, sizes, sizes, lambda rank, index: expected[rank, index], in_place=True
    )

    def body(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(1, "in", 0)
        late = p.chunk(2, "in", 0).copy(1, "in", 1)
        late.reduce(p.chunk(0, "in", 1))
        p.chunk(1, "in", 2).copy(0, "in", 1)

    plan = sley.compile(trace(collective, body, name="late-read"), protocol="direct")

    def run(comm: Communicator) -> Any:
        data = empty(sizes[comm.rank] * COUNT, np.int32)
        data[:] = 10**comm.rank
        if comm.rank == 2:
            time.sleep(0.1)
        comm.run(plan, data)
        return data.reshape(-1, COUNT)

    with Ranks(3) as ranks:
        first, second, _ = ranks.each(run)
    assert (first.T == [1, 10]).all()
    assert (second.T == [1, 101, 10]).all()


def test_plans_take_turns_with_calls() -> None:
    first = sley.compile(sley.algorithms.ring_allreduce(3, in_place=True))
    second = sley.compile(sley.algorithms.direct_alltonext(3))
    with Ranks(3) as ranks:

        def mixed(comm: Communicator) -> None:
            for turn in range(5):
                data = np.full(COUNT, comm.rank + turn, np.float32)
                works = [comm.run(first, data, op=ReduceOp.MAX, async_op=True)]
                total = np.ones(COUNT, np.float32)
                works.append(comm.all_reduce(total, async_op=True))
                out = np.zeros(COUNT, np.float32)
                comm.run(second, total, out)
                for work in works:
                    work.wait()
                assert (data == 2 + turn).all()
                assert (out == 3).all() or comm.rank == 0

        ranks.each(mixed)
        kinds = {row.kind for row in ranks.comms[0].stats()}
        assert kinds == {"run", "all_reduce"}


def test_a_plan_that_is_wrong_never_runs() -> None:
    plan = sley.compile(sley.algorithms.ring_allreduce(2, in_place=True))
    index = plan.instructions.src_index.copy()
    index[0] = 1 - index[0]  # another chunk than the one that is wanted
    wrong = replace(plan, instructions=replace(plan.instructions, src_index=index))
    with Ranks(2) as ranks:
        for error in ranks.errors(lambda comm: comm.run(wrong, np.ones(4, np.float32))):
            assert isinstance(error, SleyError)
            assert error.code.startswith("V2")
        ranks.each(lambda comm: comm.run(plan, np.ones(4, np.float32)))


def test_a_plan_for_other_ranks_or_slots_is_refused() -> None:
    plan = sley.compile(sley.algorithms.ring_allreduce(3, in_place=True))
    slots = sley.compile(sley.algorithms.ring_allreduce(2, in_place=True), slots=64)
    with Ranks(2) as ranks:
        for bad, code in ((plan, "N651"), (slots, "N652")):
            for error in ranks.errors(lambda comm, bad=bad: comm.run(bad, np.ones(6))):
                assert isinstance(error, SleyError)
                assert error.code == code, error


def test_arrays_that_do_not_fit_an_own_plan_are_refused() -> None:
    program = sley.algorithms.direct_alltonext(2)
    plan = sley.compile(program)
    inside = sley.compile(sley.algorithms.direct_alltonext(2, in_place=True))
    data, out = np.ones(6), np.ones(5)
    with Ranks(2) as ranks:

        def refused(comm: Communicator) -> None:
            for bad, found in (
                (lambda: comm.run(plan, data, out), "N627"),
                (lambda: comm.run(plan, data), "N627(?s:.*)remedy:   Give `out`, too."),
                (lambda: comm.run(inside, data, data.copy()), "N627(?s:.*)remedy:   Leave `out` o"),
                (lambda: comm.run(plan, data, data), "N627"),
                (lambda: comm.run(inside, data, count=5), "N627"),
                (lambda: comm.run(program, data, out), "C307"),  # type: ignore[arg-type]
            ):
                with pytest.raises(SleyError, match=found):
                    bad()

        ranks.each(refused)


def test_other_plans_on_other_ranks_are_an_error_on_all() -> None:
    plans = [
        sley.compile(sley.algorithms.ring_allreduce(2, in_place=True), instances=instances)
        for instances in (1, 2)
    ]
    with Ranks(2) as ranks:
        errors = ranks.errors(lambda comm: comm.run(plans[comm.rank], np.ones(64, np.float32)))
        assert all(isinstance(error, SleyError) and error.code == "N622" for error in errors)
        assert "run of 64 x float32" in str(errors[0])


def test_a_count_is_of_elements_that_are_made_of_words() -> None:
    """`count` is of elements, also on a rank that has no data."""
    plan = sley.compile(sley.algorithms.flat_gather(2, root=0))
    count = 5

    def gathered(comm: Communicator) -> Any:
        data = np.arange(count) + 1j * comm.rank
        out = np.zeros(2 * count if comm.rank == 0 else 0, complex)
        comm.run(plan, data, out, count=count)
        return out

    with Ranks(2) as ranks:
        both = np.concatenate([np.arange(count) + 1j * rank for rank in range(2)])
        assert (ranks.each(gathered)[0] == both).all()


@pytest.mark.parametrize(
    ("count", "name"),
    [(1000, "flat-reduce"), (20_000, "all-pairs-reduce"), (300_000, "ring-reduce")],
)
def test_a_reduce_changes_only_the_roots_data(count: int, name: str) -> None:
    def reduce(comm: Communicator) -> None:
        mine = np.arange(count, dtype=np.int32) % 7 + comm.rank
        data = mine.copy()
        comm.reduce(data, root=1)
        wanted = 3 * (np.arange(count) % 7) + 3 if comm.rank == 1 else mine
        np.testing.assert_array_equal(data, wanted)
        assert comm.plans.find("reduce", data.nbytes, in_place=True, root=1).plan.name == name

    with Ranks(3) as ranks:
        ranks.each(reduce)
