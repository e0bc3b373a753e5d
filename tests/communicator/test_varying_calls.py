"""Calls of varying counts on communicators; AllToAlls that some ranks make with equal counts."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import two_step_alltoallv
from sley.communicator import Call, Communicator, Network, Parts, Settings
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from support.processes.rank_processes import End, start
from support.processes.threads_group import Ranks

COUNT = 100
QUICK_S = 5.0
Array = np.ndarray[Any, Any]


def sent(sender: int, receiver: int, count: int) -> Array:
    return np.arange(count, dtype=np.int32) + 1000 * sender + 100_000 * receiver


def exchange(comm: Communicator, counts: list[list[int]], async_op: bool, plan: Any = None) -> None:
    """An AllToAllV, with the plan if there is one; checks the result."""
    own, ranks = comm.rank, range(comm.ranks)
    given = [sent(own, r, counts[own][r]) for r in ranks]
    taken = [np.full(counts[s][own], -1, np.int32) for s in ranks]
    if plan is None:
        comm.all_to_all_v(given, taken, async_op=async_op).wait()
    else:
        comm.run(plan, given, taken, async_op=async_op).wait()
    for s in ranks:
        np.testing.assert_array_equal(taken[s], sent(s, own, counts[s][own]))


def many(comm: Communicator, with_plan: bool) -> list[str]:
    plan = sley.compile(two_step_alltoallv(2, 2)) if with_plan else None
    rng = random.Random(7)
    for turn in range(60):
        counts = [
            [rng.choice((0, 0, 1, 2, 300, 40_000)) for _ in range(comm.ranks)]
            for _ in range(comm.ranks)
        ]
        exchange(comm, counts, turn % 3 == 0, plan)
        sizes = [row[0] for row in counts]
        taken = [np.full(size, -1.0) for size in sizes]
        comm.all_gather_v(np.full(sizes[comm.rank], comm.rank * 1.0), taken).wait()
        for rank, part in enumerate(taken):
            assert (part == rank).all()
    return [row.plan for row in comm.stats()]


def over(hosts: int) -> dict[str, Any]:
    return {
        "settings": Settings(timeout_s=10, use_cache=False, network=Network.TCP),
        "environ": lambda rank: {"SLEY_HOST_ID": str(rank % hosts), "SLEY_NICS": "lo"},
    }


@pytest.mark.parametrize(("hosts", "with_plan"), [(1, False), (2, False), (1, True)])
def test_counts_that_vary_arrive_whole(hosts: int, with_plan: bool) -> None:
    ends = start(4, many, with_plan, **over(hosts)).ends()
    assert [end.error for end in ends] == [""] * 4
    first = "two-step-alltoallv" if with_plan else "all-pairs-alltoallv"
    assert ends[0].value == [first, "all-pairs-allgatherv"]


def equal(comm: Communicator, count: int, async_op: bool) -> None:
    """An AllToAll of equal counts, which other ranks may make with counts of their own."""
    data = np.concatenate([sent(comm.rank, r, count) for r in range(comm.ranks)])
    out = np.zeros_like(data)
    places = data.ctypes.data, data.nbytes, out.ctypes.data, out.nbytes
    call = Call("all_to_all", *places, count, DATA_TYPES["int32"], may_vary=True)
    comm.endpoint.submit(call, async_op=async_op, owners=(data, out)).wait()
    right = np.concatenate([sent(s, comm.rank, count) for s in range(comm.ranks)])
    np.testing.assert_array_equal(out, right)


def takes_turns(comm: Communicator, count: int, reduced: int) -> None:
    counts = [[count] * comm.ranks] * comm.ranks
    for turn in range(40):
        if turn >> comm.rank & 1:
            exchange(comm, counts, turn % 5 == 0)
        else:
            equal(comm, count, async_op=turn % 3 == 0)
        if turn % 5 == 0 or reduced > 3:
            comm.all_reduce(total := np.ones(reduced))
            assert (total == comm.ranks).all()


# The large ones are those whose copy method is found by trying.
@pytest.mark.parametrize(
    ("hosts", "count", "reduced"), [(1, COUNT, 3), (2, COUNT, 3), (1, 20_000, 400_000)]
)
def test_ranks_with_equal_counts_join_those_whose_counts_vary(
    hosts: int, count: int, reduced: int
) -> None:
    ends = start(4, takes_turns, count, reduced, **over(hosts)).ends()
    assert [end.error for end in ends] == [""] * 4


def takes_turns_in_chunks(comm: Communicator) -> None:
    def direct(p: sley.lang.ChunkProgram) -> None:
        for s, r, c in np.ndindex(comm.ranks, comm.ranks, 2):
            p.chunk(s, "in", r * 2 + c).copy(r, "out", s * 2 + c)

    collective = sley.AllToAllV(comm.ranks, chunks=2)
    comm.endpoint.plans.register(
        sley.compile(sley.lang.trace(collective, direct, name="in-chunks"))
    )
    for count in (1, 2, 5):
        if comm.rank == 0:
            exchange(comm, [[count] * comm.ranks] * comm.ranks, async_op=False)
        else:
            equal(comm, count, async_op=False)


def test_ranks_with_equal_counts_miss_the_last_elements_of_chunks() -> None:
    ends = start(3, takes_turns_in_chunks, settings=Settings(use_cache=False)).ends()
    assert [end.error for end in ends] == [""] * 3


def asynchronous(comm: Communicator) -> None:
    """Calls of both kinds are in flight together."""
    works, checks = [], []
    for turn in range(12):
        data = np.arange(comm.ranks * 5) + 100 * comm.rank
        out = np.zeros_like(data)
        checks.append(out)
        if turn >> comm.rank & 1:
            works.append(
                comm.all_to_all_v(
                    list(data.reshape(-1, 5)), list(out.reshape(-1, 5)), async_op=True
                )
            )
        else:
            places = data.ctypes.data, data.nbytes, out.ctypes.data, out.nbytes
            call = Call("all_to_all", *places, 5, DATA_TYPES["int64"], may_vary=True)
            works.append(comm.endpoint.submit(call, async_op=True, owners=(data, out)))
        total = np.ones(4)
        works.append(comm.all_reduce(total, async_op=True))
    for work in works:
        work.wait()
    own = np.arange(5) + 5 * comm.rank
    for out in checks:
        np.testing.assert_array_equal(
            out.reshape(-1, 5), [own + 100 * s for s in range(comm.ranks)]
        )


def test_calls_in_flight_keep_their_order_though_some_vary() -> None:
    assert [end.error for end in start(3, asynchronous).ends()] == [""] * 3


def dies(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os._exit(1)
    equal(comm, COUNT, async_op=False)


def calls_another(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.all_reduce(np.ones(COUNT))
    equal(comm, COUNT, async_op=False)


def another_beside_varying(comm: Communicator) -> None:
    if comm.rank == 1:
        comm.all_reduce(np.ones(COUNT))
    exchange(comm, [[COUNT] * comm.ranks] * comm.ranks, async_op=False)


def sends_too_much(comm: Communicator) -> None:
    counts = [[3, 1, 2]] * 3
    taken = [np.zeros(row[comm.rank]) for row in counts]
    given = [np.ones(size + ((comm.rank, r) == (1, 2))) for r, size in enumerate(counts[0])]
    comm.all_to_all_v(given, taken)
    comm.barrier()


def sent_twice(p: sley.lang.ChunkProgram) -> None:
    """Rank 0 sends two cells together, puts another part into one of them, and sends them again."""
    for source, cell in ((1, 1), (0, 0)):
        p.chunk(source, "in", 0).copy(0, "scratch", cell)
    p.chunk(0, "scratch", 0, count=2).copy(2, "out", 0)
    p.chunk(2, "in", 0).copy(0, "scratch", 0)
    p.chunk(0, "scratch", 0, count=2).copy(3, "scratch", 0)
    for cell, place in ((0, 2), (1, 1)):
        p.chunk(3, "scratch", cell).copy(3, "out", place)
    for rank, source in np.ndindex(4, 4):
        if (rank, source) not in ((2, 0), (2, 1), (3, 2), (3, 1)):
            p.chunk(source, "in", 0).copy(rank, "out", source)


def test_parts_that_are_sent_twice_keep_what_was_there_before() -> None:
    plan = sley.compile(sley.lang.trace(sley.AllGatherV(4), sent_twice, name="sent-twice"))
    parts = [np.arange(count) + 1000 * (r + 1) for r, count in enumerate((300, 300, 0, 2))]

    def gathers(comm: Communicator) -> None:
        for _ in range(20):
            out = [np.zeros_like(part) for part in parts]
            comm.run(plan, [parts[comm.rank]], out)
            for taken, part in zip(out, parts, strict=True):
                np.testing.assert_array_equal(taken, part)

    with Ranks(4, settings=Settings(slot_bytes=1024, use_cache=False)) as ranks:
        ranks.each(gathers)


def runs_another_plan(comm: Communicator) -> None:
    """Each rank's plan has a channel of its own, so no message shows the difference."""

    def on_own_channel(p: sley.lang.ChunkProgram) -> None:
        for s, r in np.ndindex(2, 2):
            p.chunk(s, "in", r).copy(r, "out", s, **({} if s == r else {"channel": comm.rank}))

    plan = sley.compile(sley.lang.trace(sley.AllToAllV(2), on_own_channel, name="own-channel"))
    comm.run(plan, [np.ones(3)] * 2, [np.ones(3), np.ones(3)])


def coded(ends: list[End], *codes: str) -> None:
    for end in ends:
        assert any(code in end.error for code in codes), end
        assert end.seconds < QUICK_S


def test_a_rank_that_dies_before_it_says_what_it_does_is_named() -> None:
    ends = start(3, dies).ends()
    coded([ends[0], ends[2]], "N620")


def test_a_rank_that_calls_something_else_is_an_error_on_all() -> None:
    coded(start(3, calls_another).ends(), "N622")


def test_a_rank_that_calls_something_else_than_a_varying_call_is_an_error_on_all() -> None:
    coded(start(3, another_beside_varying).ends(), "N622")


def test_a_rank_that_runs_another_plan_of_varying_counts_is_an_error_on_all() -> None:
    ends = start(2, runs_another_plan).ends()
    coded(ends, "N622")
    assert "run of float64" in ends[0].error


def test_a_part_of_another_count_is_an_error_that_names_both() -> None:
    ends = start(3, sends_too_much).ends()
    coded(ends, "N631", "N630")
    assert "2 elements from rank 1" in ends[2].error
    assert "3 elements" in ends[2].error


@pytest.mark.parametrize(
    ("given", "taken", "text"),
    [
        ([np.ones(1)], [np.ones(1), np.ones(1)], "2 arrays as all_to_all_v's data"),
        (np.ones((2, 1)), [np.ones(1), np.ones(1)], "ndarray"),
        ([np.ones(1), np.ones(1, int)], [np.ones(1), np.ones(1)], "one type"),
        ([np.ones(1), None], [np.ones(1), np.ones(1)], "NoneType"),
    ],
)
def test_parts_that_do_not_fit_are_refused(given: Any, taken: Any, text: str) -> None:
    with Ranks(2) as ranks, pytest.raises(SleyError, match=text) as error:
        ranks.comms[0].all_to_all_v(given, taken)
    assert error.value.code == "N627"


def test_parts_that_overlap_are_refused() -> None:
    memory = np.zeros(10)
    with Ranks(2) as ranks:
        comm = ranks.comms[0]
        for given, taken in (
            ([memory[:3], memory[3:5]], [memory[4:6], memory[6:]]),
            ([np.ones(1), np.ones(1)], [memory[:5], memory[4:]]),
        ):
            with pytest.raises(SleyError, match="share memory"):
                comm.all_to_all_v(given, taken)


def test_one_input_may_go_to_several_ranks() -> None:
    def same(comm: Communicator) -> None:
        data = np.arange(4) + comm.rank
        out = [np.zeros(4, int), np.zeros(4, int)]
        comm.all_to_all_v([data, data], out)
        assert [part.tolist() for part in out] == [[0, 1, 2, 3], [1, 2, 3, 4]]

    with Ranks(2) as ranks:
        ranks.each(same)


def test_a_count_above_the_largest_of_a_plan_is_refused() -> None:
    program = sley.lang.trace(
        sley.AllToAllV(2, 8),
        lambda p: [p.chunk(s, "in", r).copy(r, "out", s) for s in range(2) for r in range(2)],
        name="small",
    )
    plan = sley.compile(program)
    given, taken = [np.ones(9), np.ones(1)], [np.ones(9), np.ones(1)]
    with Ranks(2) as ranks:
        comm = ranks.comms[0]
        with pytest.raises(SleyError, match="from 0 to 8"):
            comm.run(plan, given, taken)
        with pytest.raises(SleyError, match="no count, as those of alltoallv"):
            comm.run(plan, given, taken, count=1)
        comm.endpoint.plans.register(plan)
        with pytest.raises(SleyError, match="from 0 to 8"):
            comm.all_to_all_v(given, taken)


def test_parts_have_the_counts_of_the_output() -> None:
    assert Parts.of([(0, 1)], [(0, 0), (0, 2)]).output == (0, 2)
