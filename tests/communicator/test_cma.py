"""Large messages that the kernel copies from one process to the other."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from communicator import processes
from sley.communicator import Communicator, Settings
from sley.runtime.heap import empty

LARGE = 1 << 20  # elements of a byte


def settings(cma: bool) -> Settings:
    return Settings(timeout_s=10, use_cache=False, cma=cma)


def allowed() -> bool:
    """Whether this system lets a process read another one of the same user."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"


needs_permission = pytest.mark.skipif(
    not allowed(), reason="kernel.yama.ptrace_scope keeps processes from reading one another"
)


def sent_early(comm: Communicator) -> bool:
    """Whether the root's broadcast ends before another rank has come to it."""
    data = np.full(2 * LARGE // 16, comm.rank, np.uint8)
    if comm.rank == 1:
        comm.barrier()
        time.sleep(0.3)
        comm.broadcast(data)
        return not data.any()
    comm.barrier()
    work = comm.broadcast(data, is_async=True)
    time.sleep(0.1)
    early = work.is_done()
    work.wait()
    return early


@pytest.mark.parametrize("cma", [pytest.param(True, marks=needs_permission), False])
def test_what_is_read_in_place_must_stay_there(cma: bool) -> None:
    """That the root waits for its reader shows who copies."""
    ends = processes.start(2, sent_early, settings=settings(cma)).ends()
    assert [end.error for end in ends] == ["", ""]
    assert ends[0].value is not cma
    assert ends[1].value is True


def all_kinds(comm: Communicator, counts: list[int]) -> None:
    n, rank = comm.ranks, comm.rank
    for count in counts:
        parts = np.arange(n * count, dtype=np.int32)
        out = np.zeros(n * count, np.int32)
        comm.all_gather(out, parts[:count] + rank)
        wanted = np.concatenate([parts[:count] + other for other in range(n)])
        np.testing.assert_array_equal(out, wanted)
        own = slice(rank * count, (rank + 1) * count)
        inside = np.zeros(n * count, np.int32)
        inside[own] = parts[:count] + rank
        comm.all_gather(inside, inside[own])
        np.testing.assert_array_equal(inside, wanted)
        comm.all_to_all(out, parts + 7 * rank)
        wanted = np.concatenate([parts[own] + 7 * other for other in range(n)])
        np.testing.assert_array_equal(out, wanted)
        inside = parts + 7 * rank
        comm.all_to_all(inside, inside)
        np.testing.assert_array_equal(inside, wanted)
        for root in range(n):
            comm.broadcast(data := parts + rank, root)
            np.testing.assert_array_equal(data, parts + root)
            comm.scatter(part := np.zeros(count, np.int32), parts * (root + 1), root)
            np.testing.assert_array_equal(part, parts[own] * (root + 1))
            comm.gather(out, part, root)
            left = wanted if root < rank else parts * (rank + 1)  # what the last gather here gave
            np.testing.assert_array_equal(out, parts * (root + 1) if rank == root else left)


@pytest.mark.parametrize("ranks", [2, 3])
def test_everything_that_only_moves_data(ranks: int) -> None:
    edge = (128 << 10) // 4
    counts = [edge - 1, edge, edge + 1, 2 * edge + 3, LARGE // 4 + 1, 3 * LARGE // 4]
    ends = processes.start(ranks, all_kinds, counts, settings=settings(True)).ends()
    assert [end.error for end in ends] == [""] * ranks


def dies(comm: Communicator) -> None:
    data = np.zeros(32 * LARGE, np.uint8)
    for turn in range(10_000):
        if comm.rank == 1 and turn == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_gather(np.empty(2 * len(data), np.uint8), data)


def test_a_rank_that_dies_while_it_is_read() -> None:
    ends = processes.start(2, dies, settings=settings(True)).ends()
    assert "N620" in ends[0].error
    assert ends[1].exit == -signal.SIGKILL


def sums(comm: Communicator, counts: list[int]) -> list[bytes]:
    found = []
    for count in counts:
        values = np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32)
        for array in (values.copy(), empty(count)):
            array[:] = values
            comm.all_reduce(array)
            found.append(hashlib.sha256(array.tobytes()).digest())
    return found


def test_a_sum_has_the_same_bits_however_its_parts_travel() -> None:
    """Staged, pulled from the heap or from another process; on every rank, and in every run."""
    counts = [1000, 300_001, 1_500_001]
    runs = [
        end.value
        for cma in (True, False, True)
        for end in processes.start(3, sums, counts, settings=settings(cma)).ends()
    ]
    private, shared = (run_of[::2] for run_of in (runs[0], runs[0][1:]))
    assert private == shared
    assert all(run == runs[0] for run in runs)
