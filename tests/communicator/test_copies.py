"""How large messages are copied between the ranks of a host."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Call, Communicator, Copies, LocalStore, Settings
from sley.communicator.heap import empty
from sley.engine.types import DATA_TYPES
from support.processes import rank_processes

LARGE = 1 << 20  # elements of a byte


def settings(cma: bool, copies: Copies = Copies.AUTO) -> Settings:
    return Settings(timeout_s=10, use_cache=False, cma=cma, copies=copies)


def allowed() -> bool:
    """Whether this system lets a process read another one of the same user."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    return os.geteuid() == 0 or not scope.exists() or scope.read_text().strip() == "0"


needs_permission = pytest.mark.skipif(
    not allowed(), reason="kernel.yama.ptrace_scope keeps processes from reading one another"
)


def sent_early(comm: Communicator, folder: Path, patience_s: float) -> bool:
    """Whether the root's scatter ends before another rank has come to it."""
    out, seen = np.ones(2 * LARGE, np.uint8), folder / "seen"
    comm.barrier()
    if comm.rank == 1:
        rank_processes.wait_for_file(seen)
        comm.scatter(None, out)
        return not out.any()
    end = time.monotonic() + patience_s
    work = comm.scatter(np.zeros(4 * LARGE, np.uint8), out, async_op=True)
    while not (early := work.is_completed()) and time.monotonic() < end:
        time.sleep(0.01)
    seen.touch()
    work.wait()
    return early


@pytest.mark.parametrize("cma", [pytest.param(True, marks=needs_permission), False])
def test_the_root_waits_for_its_reader_where_its_memory_is_read_in_place(
    cma: bool, tmp_path: Path
) -> None:
    """That the root waits for its reader shows who copies."""
    room = replace(settings(cma), slot_bytes=1 << 20)  # for the whole part
    patience_s = 0.1 if cma else 30.0  # one that waits for its reader never ends before it
    ends = rank_processes.start(2, sent_early, tmp_path, patience_s, settings=room).ends()
    assert [end.error for end in ends] == ["", ""]
    assert ends[0].value is not cma
    assert ends[1].value is True


def all_kinds(comm: Communicator, counts: list[int]) -> None:
    n, rank = comm.ranks, comm.rank
    for count in counts:
        parts = np.arange(n * count, dtype=np.int32)
        out = np.zeros(n * count, np.int32)
        comm.all_gather(parts[:count] + rank, out)
        wanted = np.concatenate([parts[:count] + other for other in range(n)])
        np.testing.assert_array_equal(out, wanted)
        own = slice(rank * count, (rank + 1) * count)
        inside = np.zeros(n * count, np.int32)
        inside[own] = parts[:count] + rank
        comm.all_gather(inside[own], inside)
        np.testing.assert_array_equal(inside, wanted)
        comm.all_to_all(parts + 7 * rank, out)
        wanted = np.concatenate([parts[own] + 7 * other for other in range(n)])
        np.testing.assert_array_equal(out, wanted)
        inside = parts + 7 * rank
        comm.all_to_all(inside, inside)
        np.testing.assert_array_equal(inside, wanted)
        for root in range(n):
            comm.broadcast(data := parts + rank, root)
            np.testing.assert_array_equal(data, parts + root)
            comm.scatter(parts * (root + 1), part := np.zeros(count, np.int32), root)
            np.testing.assert_array_equal(part, parts[own] * (root + 1))
            comm.gather(part, out, root)
            left = wanted if root < rank else parts * (rank + 1)  # what the last gather here gave
            np.testing.assert_array_equal(out, parts * (root + 1) if rank == root else left)

        data = (parts % 97 + rank).astype(np.float32)
        total = (n * (parts % 97) + n * (n - 1) // 2).astype(np.float32)
        comm.all_reduce(summed := data.copy())
        np.testing.assert_array_equal(summed, total)
        comm.reduce_scatter(data, summed[:count])
        np.testing.assert_array_equal(summed[:count], total[own])


EDGES = [4 << 10, 64 << 10, 128 << 10, 1 << 20]
"""Bytes of a chunk from which on there is a choice, a second tile, a third way, another rule."""

COUNTS = [edge // 4 + more for edge in EDGES for more in (-1, 0)]


@pytest.mark.parametrize(
    ("ranks", "copies"), [*((2, copies) for copies in Copies), (3, Copies.AUTO)]
)
def test_every_kind_of_call_is_right_in_every_way_of_copying(ranks: int, copies: Copies) -> None:
    counts = [*COUNTS, LARGE // 2 + 3]
    ends = rank_processes.start(ranks, all_kinds, counts, settings=settings(True, copies)).ends()
    assert [end.error for end in ends] == [""] * ranks


def in_turn(comm: Communicator, seed: int) -> None:
    """Calls of many plans, types and sizes, each often enough for all its ways."""
    rng = np.random.default_rng(seed)
    counts = [1500, 30_000, 100_000]
    cells = itertools.product(range(4), counts)
    todo = [(kind, "ifd"[(n + n // 3) % 3], count) for n, (kind, count) in enumerate(cells)]
    n, rank = comm.ranks, comm.rank
    for turn in range(12):
        for index in rng.permutation(len(todo)):
            kind, dtype, count = todo[index]
            base = (np.arange(n * count) + turn) % 53
            data = (base + rank).astype(dtype)
            own = slice(rank * count, (rank + 1) * count)
            total = n * base + n * (n - 1) // 2
            if kind == 0:
                found, wanted = data, total
                comm.all_reduce(found)
            elif kind == 1:
                found, wanted = np.zeros(count, dtype), total[own]
                comm.reduce_scatter(data, found)
            elif kind == 2:
                found, wanted = np.zeros_like(data), base + np.arange(n).repeat(count)
                comm.all_gather(data[own], found)
            else:
                found = np.zeros_like(data)
                wanted = np.tile(base[own], n) + np.arange(n).repeat(count)
                comm.all_to_all(data, found)
            np.testing.assert_array_equal(found, wanted.astype(dtype))


@pytest.mark.parametrize("slot_bytes", [None, 8192])
def test_calls_of_many_plans_in_turn_are_right(slot_bytes: int | None) -> None:
    """What one call tries is nothing to another, be its messages ever so small."""
    told = replace(settings(True), slot_bytes=slot_bytes)
    ends = rank_processes.start(3, in_turn, 5, settings=told).ends()
    assert [end.error for end in ends] == [""] * 3


def counted(comm: Communicator, calls: int) -> list[tuple[int, int, int]]:
    for count in (1000, LARGE):
        for _ in range(calls):
            comm.all_reduce(np.zeros(count, np.float32))
    return [(row.cached, row.streamed, row.attached) for row in comm.stats()]


@needs_permission
def test_all_ways_are_tried_and_counted() -> None:
    first, second = (end.value for end in rank_processes.start(2, counted, 40).ends())
    assert first == second
    (small, large) = first
    assert small == (40, 0, 0)
    assert min(large) >= 1
    assert sum(large) == 40


@pytest.mark.parametrize(
    ("copies", "wanted"),
    [
        (Copies.CACHED, (5, 0, 0)),
        (Copies.STREAMED, (0, 5, 0)),
        pytest.param(Copies.ATTACHED, (0, 0, 5), marks=needs_permission),
    ],
)
def test_only_the_way_that_is_asked_for_is_used(
    copies: Copies, wanted: tuple[int, int, int]
) -> None:
    for end in rank_processes.start(2, counted, 5, settings=settings(True, copies)).ends():
        assert end.value[1] == wanted


def test_a_rank_without_permission_warns(caplog: pytest.LogCaptureFixture) -> None:
    told = settings(False, Copies.ATTACHED)
    with caplog.at_level("WARNING", "sley"), Communicator(LocalStore(), 0, 1, settings=told):
        pass
    assert "copies are CACHED" in caplog.text


def test_without_permission_the_kernel_copies_nothing() -> None:
    for copies in (Copies.AUTO, Copies.ATTACHED):
        for end in rank_processes.start(2, counted, 40, settings=settings(False, copies)).ends():
            assert end.value[1][2] == 0


def gives_back(comm: Communicator, part: int, folder: Path) -> None:
    """Rank 1 unmaps a part of an AllGather in place before the other comes to it."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.munmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
    out = libc.mmap(None, ctypes.c_size_t(2 * LARGE), 3, 0x22, -1, ctypes.c_long(0))
    own = out + comm.rank * LARGE
    call = Call("all_gather", own, LARGE, out, 2 * LARGE, LARGE, DATA_TYPES["uint8"])
    gone = folder / "gone"
    if comm.rank != 1:
        rank_processes.wait_for_file(gone)
    work = comm.endpoint.submit(call, async_op=True)
    if comm.rank == 1:
        time.sleep(0.2)
        libc.munmap(out + part * LARGE, LARGE)
        gone.touch()
    work.wait()


@needs_permission
@pytest.mark.parametrize("part", [0, 1])
def test_memory_that_is_given_back_too_early_is_an_error_on_both_ranks(
    part: int, tmp_path: Path
) -> None:
    """What it sends, and what it receives into."""
    attached = settings(True, Copies.ATTACHED)
    ends = rank_processes.start(2, gives_back, part, tmp_path, settings=attached).ends()
    assert "N633" in ends[0].error
    assert "rank 1 gave memory that is gone" in ends[0].error
    assert "N633" in ends[1].error
    assert "this rank gave memory that is gone" in ends[1].error


def dies(comm: Communicator) -> None:
    data = np.zeros(32 * LARGE, np.uint8)
    for turn in range(10_000):
        if comm.rank == 1 and turn == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        comm.all_gather(data, np.empty(2 * len(data), np.uint8))


def test_a_rank_that_dies_while_it_is_read_is_noticed() -> None:
    ends = rank_processes.start(2, dies, settings=settings(True)).ends()
    assert "N620" in ends[0].error
    assert ends[1].exit == -signal.SIGKILL


def sums(comm: Communicator, counts: list[int], calls: int) -> set[bytes]:
    found = set()
    for count in counts:
        values = np.random.default_rng(comm.rank).standard_normal(count).astype(np.float32)
        for array in (values.copy(), empty(count)):
            for _ in range(calls):
                array[:] = values
                comm.all_reduce(array)
                found.add(hashlib.sha256(array.tobytes()).digest())
    return found


def test_a_sum_has_the_same_bits_however_its_parts_travel() -> None:
    """On every rank, and in every run."""
    counts = [1000, 300_001, 900_001]
    runs = [
        end.value
        for copies in (*Copies, Copies.AUTO)
        for calls in ([12] if copies is Copies.AUTO else [2])  # AUTO takes turns between all ways
        for end in rank_processes.start(
            3, sums, counts, calls, settings=settings(True, copies)
        ).ends()
    ]
    assert all(run == runs[0] for run in runs)
    assert len(runs[0]) == len(counts)
