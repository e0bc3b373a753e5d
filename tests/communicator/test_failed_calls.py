"""Failures of calls: an error on one rank becomes an error on every live rank, and names the
rank."""

from __future__ import annotations

import errno
import os
import re
import resource
import signal
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley.communicator import Communicator, Settings
from sley.communicator.calls import describe_record, record_of
from sley.communicator.failures import Failure, Failures
from sley.communicator.heap import empty
from sley.engine.outcomes import Status
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from support.processes.rank_processes import End, start
from support.processes.stopping import Place, outcomes, stop
from support.processes.threads_group import Ranks

QUICK_S = 5.0
"""More than any of these errors needs, on a busy machine; the timeout is twice that."""


LINE = re.compile("  (expected|found):")


def coded(ends: list[End], code: str, *but: int) -> None:
    for rank, end in enumerate(ends):
        if rank not in but:
            assert code in end.error, (rank, end)


def dies(comm: Communicator, rank: int, calls: int) -> None:
    data = np.ones(100_000, np.float32)
    for number in range(1000):
        if comm.rank == rank and number == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(data, op=ReduceOp.MAX)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank_is_named_on_the_others(rank: int) -> None:
    ends = start(3, dies, rank, 5).ends()
    coded(ends, "N620", rank)
    assert ends[rank].exit == -signal.SIGKILL
    for other in {0, 1, 2} - {rank}:
        assert f"rank {rank} no longer has a process" in ends[other].error
        assert "all_reduce of 100000 x float32" in ends[other].error
        assert ends[other].seconds < QUICK_S


def stops(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.all_reduce(np.ones(10, np.float32))


def test_a_stopped_rank_ends_the_call_on_all() -> None:
    begun = start(3, stops, settings=Settings(timeout_s=1, use_cache=False))
    begun.wait_for(0, 2)
    os.kill(begun.pids[1], signal.SIGCONT)
    ends = begun.ends()
    for rank in (0, 2):
        error = ends[rank].error
        assert "N621" in error
        assert "found:    rank 1 neither moved nor waited" in error
        assert "within the timeout of" in error
        assert "rank 1's latest call is call 1, barrier; this rank's is 2" in error
        assert ends[rank].seconds < QUICK_S
    assert "this rank neither moved nor waited" in ends[1].error


def works(comm: Communicator) -> None:
    data = np.ones(20_000, np.float32)
    for number in range(100):
        comm.all_reduce(data[: 5 if number % 3 else None])
        if number % 7 == 0:
            comm.broadcast(data, number % 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_stops_at_any_moment_is_named_on_all(seed: int) -> None:
    rng = Random(seed)
    place = Place("sley.communicator.endpoint.Endpoint._run", rng.randrange(4), seed % 2 > 0)
    place = place._replace(call=rng.randrange(1, 100))
    begun = start(4, works, settings=Settings(timeout_s=1), enter=place.prepare)
    (ends,) = outcomes((begun, place))
    for end in ends.values():
        assert f"found:    rank {place.rank} neither moved nor waited" in end.error, end


def waits_for_a_message(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        stop()
    comm.recv(np.ones(10, np.float32), 1)


def test_a_rank_that_stops_before_it_sends_is_named() -> None:
    begun = start(2, waits_for_a_message, settings=Settings(timeout_s=1))
    (ends,) = outcomes((begun, Place("", 1)))
    assert "found:    rank 1 neither moved nor waited" in ends[0].error


def test_who_waits_longest_for_one_another_is_named_to_the_other() -> None:
    """Nobody stands still: each waits for a message. The first to give up says what it waited for,
    the other one who gave up."""
    with Ranks(2, Settings(timeout_s=0.3, use_cache=False)) as group:
        errors = group.errors(lambda comm: comm.recv(np.ones(4), 1 - comm.rank))
    codes = [error.code for error in errors if isinstance(error, SleyError)]
    assert sorted(codes) == ["N608", "N621"]
    assert f"rank {codes.index('N621')} gave up" in str(errors[codes.index("N608")])


def differs(comm: Communicator, what: str) -> None:
    odd = comm.rank == 2
    comm.barrier()
    if what == "size":
        comm.all_reduce(np.ones(11 if odd else 10, np.float32))
    elif what == "large size":
        comm.all_reduce(np.ones(2_000_001 if odd else 2_000_000, np.float32))
    elif what == "type":
        comm.all_reduce(np.ones(10, np.float32 if odd else np.int32))
    elif what == "reduction":
        comm.all_reduce(np.ones(10, np.float32), op=ReduceOp.MAX if odd else ReduceOp.SUM)
    elif what == "root":
        # A root that only sends may end its call; its messages then stand in the next one's way.
        comm.broadcast(np.ones(10, np.float32), 2 if odd else 0)
        comm.all_reduce(np.ones(10, np.float32))
    elif what == "kind":
        getattr(comm, "broadcast" if odd else "all_reduce")(np.ones(10, np.float32))
    elif what == "place":
        data = np.ones(10, np.float32)
        comm.all_reduce(data, out=data if odd else np.ones(10, np.float32))


@pytest.mark.parametrize(
    ("what", "usual", "odd"),
    [
        ("size", "all_reduce of 10 x float32, SUM", "all_reduce of 11 x float32, SUM"),
        ("large size", "all_reduce of 2000000 x float32", "all_reduce of 2000001 x float32"),
        ("type", "all_reduce of 10 x int32", "all_reduce of 10 x float32"),
        ("reduction", "all_reduce of 10 x float32, SUM", "all_reduce of 10 x float32, MAX"),
        ("kind", "all_reduce of 10 x float32, SUM", "broadcast of 10 x float32, root 0"),
    ],
)
def test_calls_that_differ_are_an_error_on_all(what: str, usual: str, odd: str) -> None:
    ends = start(3, differs, what).ends()
    coded(ends, "N622")
    for end in ends:
        assert end.seconds < QUICK_S
        wanted, found = (line for line in end.error.splitlines() if LINE.match(line))
        assert usual in wanted + found
        assert odd in wanted + found
        assert "plan" not in wanted + found


def test_roots_that_differ_are_an_error_on_all() -> None:
    ends = start(3, differs, "root").ends()
    coded(ends, "N622")
    for end in ends:
        assert end.seconds < QUICK_S


def test_plans_that_differ_are_an_error_on_all() -> None:
    ends = start(3, differs, "place").ends()
    coded(ends, "N622")
    for rank, end in enumerate(ends):
        assert "all_reduce of 10 x float32, SUM, with the same plan" in end.error
        assert "different plans on this rank and rank" in end.error
        assert f"{'in' if rank == 2 else 'out of'} place" in end.error.split("note:")[-1]


def goes(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        return
    comm.all_reduce(np.ones(10, np.float32))


def test_a_rank_that_left_is_named() -> None:
    ends = start(3, goes).ends()
    coded(ends, "N623", 1)
    assert "rank 1 has closed the communicator" in ends[0].error
    assert ends[1].error == ""


def closes_early(comm: Communicator) -> Any:
    """Rank 0 sends its part and closes, while rank 1 waits for the late part of rank 2."""
    if comm.rank == 2:
        time.sleep(0.1)
    out = np.zeros(300 if comm.rank == 1 else 0, np.float32)
    comm.gather(np.full(100, comm.rank, np.float32), out, root=1)
    return float(out.sum())


def test_a_rank_that_is_done_may_close_while_others_work() -> None:
    assert [end.value for end in start(3, closes_early).ends()] == [0.0, 300.0, 0.0]


def after_a_failure(comm: Communicator) -> list[str]:
    calls = [
        lambda: comm.all_reduce(np.ones(10 + comm.rank, np.float32)),
        lambda: comm.all_reduce(np.ones(10, np.float32)),
        lambda: comm.barrier(async_op=True).wait(),
        lambda: comm.send(np.ones(10, np.float32), 1 - comm.rank),
    ]
    errors = []
    for call in calls:
        try:
            call()
        except SleyError as error:
            errors.append(str(error))
    return errors


def test_no_call_goes_through_after_a_failure() -> None:
    for rank, end in enumerate(start(2, after_a_failure).ends()):
        first, *later = end.value
        assert "N622" in first
        assert len(later) == 3
        for error in later:
            assert "N630" in error
            call = f"sley, rank {rank}, all_reduce of {10 + rank} x float32, SUM: N622"
            assert call in error.split("found:")[1]


def after_work_nobody_waited_for(comm: Communicator) -> None:
    work = comm.all_reduce(np.ones(10 + comm.rank, np.float32), async_op=True)
    while not work.is_completed():
        time.sleep(0.01)
    comm.all_reduce(np.ones(10, np.float32))


def test_a_failure_that_nobody_heard_of_is_told_by_the_next_call() -> None:
    ends = start(2, after_work_nobody_waited_for).ends()
    coded(ends, "N630")
    for end in ends:
        assert "N622" in end.error.split("found:")[1]


def test_types_of_the_same_bytes_are_told_apart() -> None:
    def moves(comm: Communicator) -> None:
        comm.broadcast(np.zeros(4, np.uint32 if comm.rank else np.int32))
        comm.barrier()  # the root gets no message

    def sends(comm: Communicator) -> None:
        if comm.rank == 0:
            comm.send(np.zeros(4, np.float32), 1)
        else:
            comm.recv(np.zeros(4, "S4"), 0)
        comm.barrier()

    for calls, code in ((moves, "N622"), (sends, "N631")):
        with Ranks(2) as ranks:
            errors = ranks.errors(calls)
        assert all(isinstance(error, SleyError) for error in errors)
        assert any(code in str(error) for error in errors)


class Records:
    """What an error asks of a fabric, as the test wants it."""

    def __init__(self, calls: list[tuple[int, int, int]], culprit: int) -> None:
        self.ranks, self._calls = len(calls), calls
        self.failure = int(Failure.MISMATCHED), culprit

    def call_of(self, rank: int) -> tuple[int, int, int]:
        return self._calls[rank]


_WHATS = [
    record_of(kind, DATA_TYPES["float32"].number, ReduceOp.SUM, 0, digest)
    for kind in ("all_reduce", "broadcast")
    for digest in (b"aaa", b"bbb")
]
_CALLS = st.tuples(st.integers(0, 2), st.sampled_from(_WHATS), st.integers(1, 2))


@given(st.lists(_CALLS, min_size=2, max_size=4), st.data())
def test_an_error_names_two_calls_that_differ(calls: list[tuple[int, int, int]], data: Any) -> None:
    rank, culprit = (data.draw(st.integers(0, len(calls) - 1)) for _ in range(2))
    status = data.draw(st.sampled_from([Status.ABORTED, Status.MISMATCHED]))
    report = (int(status), 0.0, culprit, 0, [], False)
    error = Failures(Records(calls, culprit), rank, "sley").error(report, "it", 1.0)
    assert error is not None
    assert error.code == "N622"
    told = error.diagnostics[0]
    assert told.expected.removeprefix("on every rank ") not in told.found
    number, what, count = calls[rank]
    if any(number == same > 0 and [what, count] != other for same, *other in calls):
        assert describe_record(what, count) in told.expected


def test_a_communicator_can_be_made_again_after_a_failure(tmp_path: Any) -> None:
    folder = str(tmp_path)
    coded(start(3, differs, "size", folder=folder).ends(), "N622")
    ends = start(3, closes_early, folder=folder).ends()
    assert [end.value for end in ends] == [0.0, 300.0, 0.0]


def starves(comm: Communicator) -> None:
    data = np.zeros(64 << 20, np.uint8)
    comm.all_to_all(data[: 1 << 20], data[: 1 << 20])
    if comm.rank == 1:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + (8 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
    comm.all_to_all(data, data)  # in place, which takes scratch for half of it


def test_a_rank_without_memory_is_named_on_all() -> None:
    ends = start(2, starves).ends()
    coded(ends, "N625")
    assert "this rank has too little" in ends[1].error
    assert "rank 1 has too little" in ends[0].error


def small_files(_: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))


def no_nameless_files(rank: int) -> None:
    """As a container's seccomp filter may refuse them."""

    def refuse(*_: Any) -> int:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if rank == 1:
        os.memfd_create = refuse


def few_descriptors(free: int, rank: int) -> None:
    """Leaves rank 1 so many descriptors."""
    if rank != 1:
        return
    listed = list(Path("/proc/self/fd").iterdir())
    taken = {int(path.name) for path in listed if path.is_symlink()}  # not that of the list
    limit = next(n for n in range(1 << 16) if len(set(range(n)) - taken) == free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def meets(comm: Communicator) -> None:
    comm.barrier()


@pytest.mark.parametrize(
    ("enter", "code", "words"),
    [
        (no_nameless_files, "R507", "seccomp"),
        (partial(few_descriptors, 1), "N610", "a local socket"),
        (partial(few_descriptors, 3), "N610", "a descriptor for the heap"),
        (partial(few_descriptors, 4), "N610", "a descriptor for a pipe"),
        (partial(few_descriptors, 12), "N610", "a descriptor for another process' memory"),
    ],
)
def test_a_rank_without_memory_at_the_start_tells_the_others(
    enter: Any, code: str, words: str
) -> None:
    ends = start(3, meets, enter=enter).ends()
    assert code in ends[1].error
    assert words in ends[1].error
    for end in (ends[0], ends[2]):
        assert "N608" in end.error
        assert code in end.error
        assert "rank 1" in end.error
        assert end.seconds < QUICK_S


def test_a_limit_of_the_sizes_of_files_is_named() -> None:
    (end,) = start(1, meets, enter=small_files).ends()
    assert "R507" in end.error
    assert "ftruncate: File too large" in end.error
    assert "ulimit -f" in end.error


def few_addresses(room: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + room
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def has_no_room_for(comm: Communicator, what: str) -> None:
    data = np.zeros(32 << 20, np.uint8)
    if what == "heaps":
        comm.broadcast(data)  # makes the connections
        data = empty(32 << 20, "uint8") if comm.rank == 0 else data
    if comm.rank == 1:
        few_addresses(4 << 20)  # enough for Python, too little for connections and data
    if what == "heaps":  # rank 0's data are pulled
        comm.broadcast(data)
    elif what == "messages":
        comm.send(data, 0) if comm.rank else comm.recv(data, 1)
    else:
        comm.all_reduce(data)


@pytest.mark.parametrize("what", ["connections", "messages", "heaps"])
def test_a_rank_without_addresses_in_a_call_is_named_on_all(what: str) -> None:
    ends = start(2, has_no_room_for, what).ends()
    assert "N625" in ends[0].error
    assert "rank 1 has too little" in ends[0].error
    assert ("R507" if what == "connections" else "N625") in ends[1].error
    assert "ulimit -v" in ends[1].error
    assert max(end.seconds for end in ends) < QUICK_S


def has_no_thread(comm: Communicator, makes: str) -> None:
    if comm.rank == 1:
        os.setuid(SOMEBODY)
        resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    data = np.zeros(1000)
    other = 1 - comm.rank
    if makes == "call":
        work = comm.all_reduce(data, async_op=True)
    else:
        work = comm.recv(data, other, async_op=True)
    try:
        work.wait()
    finally:
        with pytest.raises(SleyError, match="N630"):
            comm.all_reduce(data)


SOMEBODY = 54321


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody without processes")
@pytest.mark.parametrize("makes", ["call", "message"])
def test_a_rank_without_a_thread_is_named_on_all(makes: str) -> None:
    ends = start(2, has_no_thread, makes).ends()
    coded(ends, "N625")
    assert "this rank can't start one" in ends[1].error
    assert "ulimit -u" in ends[1].error
    assert "rank 1 can't start one" in ends[0].error
    assert max(end.seconds for end in ends) < QUICK_S


def dies_among_many(comm: Communicator) -> None:
    comm.all_reduce(data := np.ones(1000))
    if comm.rank == 1:
        os._exit(1)
    comm.all_reduce(data)


def test_the_rank_that_died_comes_before_what_waits_for_it() -> None:
    ends = start(6, dies_among_many).ends()
    for rank in (0, 2, 3, 4, 5):
        lines = ends[rank].error.splitlines()
        (number,) = [n for n, line in enumerate(lines) if "rank 1 no longer has a process" in line]
        assert number <= 4, ends[rank].error
