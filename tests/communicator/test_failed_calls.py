"""What goes wrong on one rank ends in an error on every rank that lives, which names it."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from communicator.processes import End, start
from sley.communicator import Communicator, Settings
from sley.ir.words import ReduceOp

QUICK_S = 5.0
"""More than any of these errors needs, on a busy machine; the timeout is twice that."""


def coded(ends: list[End], code: str, *but: int) -> None:
    for rank, end in enumerate(ends):
        if rank not in but:
            assert code in end.error, (rank, end)


def dies(comm: Communicator, rank: int, calls: int) -> None:
    data = np.ones(100_000, np.float32)
    for number in range(1000):
        if comm.rank == rank and number == calls:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_reduce(data, ReduceOp.MAX)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_killed_rank(rank: int) -> None:
    ends = start(3, dies, rank, 5).ends()
    coded(ends, "N620", rank)
    assert ends[rank].exit == -signal.SIGKILL
    for other in {0, 1, 2} - {rank}:
        assert f"rank {rank} has no process any more" in ends[other].error
        assert "all_reduce of 100000 x float32" in ends[other].error
        assert ends[other].seconds < QUICK_S


def stops(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.all_reduce(np.ones(10, np.float32))


def test_a_stopped_rank() -> None:
    begun = start(3, stops, settings=Settings(timeout_s=1, use_cache=False))
    time.sleep(6)
    os.kill(begun.pids[1], signal.SIGCONT)
    ends = begun.ends()
    assert sorted(end.error[:4] for end in ends) != ["", "", ""]
    for rank in (0, 2):
        assert "N621" in ends[rank].error or "N626" in ends[rank].error, ends[rank]
        assert ends[rank].seconds < QUICK_S
    stalled = next(end.error for end in ends if "N621" in end.error)
    assert "within the timeout of" in stalled
    assert "rank 1 is at call 1, barrier" in stalled


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
        comm.all_reduce(np.ones(10, np.float32), ReduceOp.MAX if odd else ReduceOp.SUM)
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
    "what", ["size", "large size", "type", "reduction", "root", "kind", "place"]
)
def test_calls_that_differ(what: str) -> None:
    ends = start(3, differs, what).ends()
    coded(ends, "N622")
    for end in ends:
        assert end.seconds < QUICK_S


def goes(comm: Communicator) -> None:
    comm.barrier()
    if comm.rank == 1:
        return
    comm.all_reduce(np.ones(10, np.float32))


def test_a_rank_that_left() -> None:
    ends = start(3, goes).ends()
    coded(ends, "N623", 1)
    assert "rank 1 has closed the communicator" in ends[0].error
    assert ends[1].error == ""


def finishes_early(comm: Communicator) -> Any:
    """The root of a broadcast may go as soon as its own part is done."""
    data = np.full(1000, comm.rank, np.float32)
    comm.broadcast(data, 0)
    if comm.rank != 0:
        time.sleep(0.1)
    return float(data.sum())


def test_who_is_done_may_go() -> None:
    assert [end.value for end in start(3, finishes_early).ends()] == [0.0, 0.0, 0.0]


def after_a_failure(comm: Communicator) -> list[str]:
    errors = []
    for _ in range(2):
        try:
            comm.all_reduce(np.ones(10 + comm.rank, np.float32))
        except Exception as error:
            errors.append(str(error))
    return errors


def test_no_call_goes_through_after_a_failure() -> None:
    for end in start(2, after_a_failure).ends():
        assert len(end.value) == 2
        assert all("N622" in error for error in end.value)


def test_made_again_after_a_failure(tmp_path: Any) -> None:
    folder = str(tmp_path)
    coded(start(3, differs, "size", folder=folder).ends(), "N622")
    ends = start(3, finishes_early, folder=folder).ends()
    assert [end.value for end in ends] == [0.0, 0.0, 0.0]
