"""Misuse by callers: refused with a code where it can be detected, and harmless elsewhere."""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import sley
from sley.communicator import Communicator, LocalStore, Settings
from sley.communicator.heap import empty
from sley.errors import SleyError
from sley.ir.words import ReduceOp
from sley.lang import ChunkProgram, trace
from support.processes.rank_processes import start
from support.processes.threads_group import Ranks

N = 6


def read_only() -> np.ndarray[Any, Any]:
    array = np.ones(N, np.float32)
    array.flags.writeable = False
    return array


def _writes_input(p: ChunkProgram) -> None:
    for here in range(2):
        for there in range(2):
            c = p.chunk(here, "in", 0).copy(there, "out", here)
    c.copy(1, "in", 0)


WRITES_INPUT = sley.compile(trace(sley.AllGather(2), _writes_input, name="writes-input"))

REFUSED: dict[str, Callable[[Communicator], Any]] = {
    "none": lambda c: c.all_reduce(None),  # type: ignore[arg-type]
    "a list": lambda c: c.all_reduce([1.0, 2.0]),  # type: ignore[arg-type]
    "gaps": lambda c: c.all_reduce(np.ones(2 * N)[::2]),
    "objects": lambda c: c.recv(np.array([None] * N), 1 - c.rank),
    "not aligned": lambda c: c.all_reduce(np.zeros(4 * N + 1, np.uint8)[1:].view(np.float32)),
    "read-only": lambda c: c.all_reduce(read_only()),
    "read-only bytes": lambda c: c.all_reduce(np.frombuffer(bytes(16), np.int32)),
    "read-only out": lambda c: c.all_gather(np.ones(2, "i4"), np.frombuffer(bytes(16), np.int32)),
    "read-only receive": lambda c: c.recv(read_only(), 1 - c.rank),
    "root too large": lambda c: c.broadcast(np.ones(N), 2),
    "root of no kind": lambda c: c.reduce(np.ones(N), root=[0]),  # type: ignore[arg-type]
    "roots": lambda c: c.gather(np.ones(N), np.ones(2 * N), np.zeros(2, int)),  # type: ignore[arg-type]
    "negative tag": lambda c: c.send(np.ones(N), 1 - c.rank, -1),
    "tag of no kind": lambda c: c.send(np.ones(N), 1 - c.rank, "1"),  # type: ignore[arg-type]
    "shifted": lambda c: c.all_reduce((a := np.ones(2 * N))[:N], out=a[1 : N + 1]),
    "part of another": lambda c: c.all_gather(
        (a := np.ones(2 * N))[(1 - c.rank) * N : (2 - c.rank) * N], a
    ),
    "part of an element": lambda c: c.all_to_all(np.zeros(3, complex), np.zeros(3, complex)),
    "read-only input": lambda c: c.run(WRITES_INPUT, read_only(), np.zeros(2 * N, np.float32)),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_arguments_are_refused_before_anything_is_sent(what: str) -> None:
    with Ranks(2) as group:
        for error in group.errors(REFUSED[what]):
            assert isinstance(error, SleyError)
            assert error.code == "N627", error
        group.each(lambda comm: comm.all_reduce(np.ones(N)))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda c: c.all_reduce(np.ones(N), "max"), "all_reduce(data, op=...)"),
        (lambda c: c.all_reduce(np.ones(N), ReduceOp.MAX), "all_reduce(data, op=...)"),
        (lambda c: c.reduce(np.ones(N), 1), "reduce(data, root=...)"),
        (lambda c: c.reduce(np.ones(N), 1, "max"), "reduce(data, root=...)"),
    ],
)
def test_arguments_in_another_order_are_told_the_order(
    call: Callable[[Communicator], Any], named: str
) -> None:
    with Ranks(1) as group:
        (error,) = group.errors(call)
    assert isinstance(error, SleyError)
    assert error.code == "N627"
    assert "in the order data, out, op, root" in str(error)
    assert named in str(error)


def test_output_right_after_the_input_is_out_of_place() -> None:
    def sum_up(comm: Communicator) -> bool:
        whole = np.ones(200, np.float32)
        comm.all_reduce(whole[:100], out=whole[100:])
        return bool((whole[:100] == 1).all() and (whole[100:] == 2).all())

    with Ranks(2) as ranks:
        assert ranks.each(sum_up) == [True, True]


def test_read_only_memory_may_be_read() -> None:
    def read(comm: Communicator) -> Any:
        data = read_only() if comm.rank == 0 else np.zeros(N, np.float32)
        comm.broadcast(data)
        comm.reduce(read_only() if comm.rank == 0 else data, root=1)
        return data

    with Ranks(2) as group:
        first, second = group.each(read)
        assert (first == 1).all()
        assert (second == 2).all()


def unwritable(count: int) -> np.ndarray[Any, Any]:
    """Ones, in memory that the kernel lets nobody write."""
    values = np.ones(count, np.float32)
    with tempfile.TemporaryFile() as file:
        file.write(values)
        file.flush()
        return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.float32)


def _broadcast_in_two(p: ChunkProgram) -> None:
    for chunk in range(2):
        p.chunk(0, "in", chunk).copy(1, "out", chunk)


IN_TWO = trace(sley.Broadcast(2, 2, 0, in_place=True), _broadcast_in_two, name="in-two")


def reads(comm: Communicator, kind: str, count: int) -> list[float]:
    comm.plans.register(IN_TWO)
    reader = {"broadcast": 0, "reduce": 1}[kind]
    data = unwritable(count) if comm.rank == reader else np.zeros(count, np.float32)
    getattr(comm, kind)(data, root=0)
    return sorted({float(x) for x in data})


@pytest.mark.parametrize("count", [5, 100003])
@pytest.mark.parametrize("kind", ["broadcast", "reduce"])
def test_memory_that_a_rank_only_reads_is_not_written(kind: str, count: int) -> None:
    """Chunks of different lengths, whose last elements the engine handles on their own."""
    ends = start(2, reads, kind, count).ends()
    assert [end.value for end in ends] == [[1.0], [1.0]], ends


def _reduce_on_another(p: ChunkProgram, root: int, index: int) -> None:
    total = p.chunk(1 - root, "in", index).reduce(p.chunk(root, "in", index))
    for buffer in ("scratch", "out"):  # read twice, so that it is written
        total.copy(root, buffer, 0)


def _reduces_on_another(p: ChunkProgram) -> None:
    _reduce_on_another(p, 0, 0)


def _reduces_on_others(p: ChunkProgram) -> None:
    for rank in range(2):
        _reduce_on_another(p, rank, rank)


def reduce_read_only(comm: Communicator) -> None:
    comm.reduce(read_only(), root=0)


def reduce_scatter_read_only(comm: Communicator) -> None:
    data = np.ones(2 * N, np.float32)
    out = data[comm.rank * N : (comm.rank + 1) * N]
    data.flags.writeable = False
    comm.reduce_scatter(data, out)


@pytest.mark.parametrize(
    ("program", "call"),
    [
        (
            trace(sley.Reduce(2, 1, 0, in_place=True), _reduces_on_another, name="on-another"),
            reduce_read_only,
        ),
        (
            trace(sley.ReduceScatter(2, 1, in_place=True), _reduces_on_others, name="on-others"),
            reduce_scatter_read_only,
        ),
    ],
    ids=["reduce", "reduce_scatter"],
)
def test_read_only_memory_that_the_plan_writes_is_refused(
    program: sley.Program, call: Callable[[Communicator], None]
) -> None:
    with Ranks(2) as group:
        group.each(lambda comm: comm.plans.register(program))
        errors = group.errors(lambda comm: call(comm) if comm.rank == 1 else None)
        assert isinstance(errors[1], SleyError)
        assert errors[1].code == "N627", errors
        assert program.name in str(errors[1])
        group.each(lambda comm: comm.barrier())


@pytest.mark.parametrize("integer", [np.int8, np.uint8, np.int32, np.uint64])
def test_a_root_may_be_an_integer_of_numpy(integer: Callable[[int], Any]) -> None:
    def rooted(comm: Communicator) -> Any:
        root, data, all_data = integer(1), np.full(N, comm.rank), np.zeros(2 * N, int)
        comm.gather(data, all_data, root)
        comm.broadcast(data, root)
        return np.append(data, all_data)

    with Ranks(2) as group:
        first, second = group.each(rooted)
        assert (first == [1] * N + [0] * 2 * N).all()
        assert (second == [1] * N + [0] * N + [1] * N).all()


@pytest.mark.parametrize("timeout_s", ["a", [1], float("nan")])
def test_a_wait_takes_a_number_of_seconds(timeout_s: Any) -> None:
    def waits(comm: Communicator) -> None:
        works = [comm.barrier(async_op=True), comm.barrier()]
        works.append(comm.recv(np.ones(N), 1 - comm.rank, async_op=True))
        for work in works:
            with pytest.raises(SleyError, match="R514"):
                work.wait(timeout_s)
        assert not works[-1].wait(np.float32(0.01))
        comm.barrier()
        comm.send(np.ones(N), 1 - comm.rank)
        assert works[-1].wait(float("inf"))

    with Ranks(2) as group:
        group.each(waits)


def test_a_root_without_its_array_is_refused() -> None:
    def rootless(comm: Communicator) -> None:
        comm.scatter(None, np.ones(N), root=comm.rank)

    with Ranks(2) as group:
        assert all("root's array" in str(error) for error in group.errors(rootless))


@pytest.mark.parametrize(
    ("rank", "ranks"), [(2, 2), (-1, 2), (10**6, 2), (0, 0), (0, 2**31), ("0", 1), (0, None)]
)
def test_an_invalid_rank_is_refused(rank: Any, ranks: Any) -> None:
    with pytest.raises(SleyError, match="N603"):
        Communicator(LocalStore(), rank, ranks)


@pytest.mark.parametrize(
    "wrong",
    [
        {"slots": 1},
        {"slots": 2**40},
        {"slot_bytes": 63},
        {"slot_bytes": 2**62},
        {"channels": 0},
        {"channels": 2**31},
        {"plan_dir": 5},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SleyError, match="R514"):
        Settings(**wrong)


def forgets(comm: Communicator, turns: int) -> float:
    total = 0.0
    for turn in range(turns):
        comm.all_reduce(np.ones(1 << 20, np.float32), async_op=True)
        comm.barrier(async_op=True)
        comm.send(np.full(1 << 16, turn, np.uint8), 1 - comm.rank, async_op=True)
        comm.recv(got := np.zeros(1 << 16, np.uint8), 1 - comm.rank)
        gc.collect()
        comm.all_reduce(data := np.ones(1 << 20, np.float32))
        total += float(data.sum()) + float(got.sum() - turn * got.size)
    return total


def test_work_that_nobody_keeps_is_done_all_the_same() -> None:
    ends = start(2, forgets, 5).ends()
    assert [end.value for end in ends] == [5 * 2.0 * (1 << 20)] * 2, ends


def test_a_call_where_the_end_of_another_is_told_is_refused() -> None:
    def inner(comm: Communicator) -> str:
        found: list[BaseException] = []

        def call() -> None:
            for act in (comm.barrier, comm.close):
                try:
                    act()
                except SleyError as error:
                    found.append(error)

        work = comm.all_reduce(np.ones(1 << 20), async_op=True)
        work.on_done(call)
        comm.barrier(async_op=True).wait()
        return " ".join(error.code for error in found)  # type: ignore[attr-defined]

    with Ranks(2) as group:
        assert set(group.each(inner)) <= {"N632 N632", ""}  # at once, where it had ended


def drops(comm: Communicator) -> str:
    """Lets go of a communicator that has a callback to make."""
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.5)
        return "late"
    other = Communicator(LocalStore(), 0, 1)
    other.all_reduce(np.ones(1 << 22), async_op=True).on_done(lambda: None)
    del other
    gc.collect()
    return "dropped"


def test_a_communicator_that_nobody_keeps_is_closed() -> None:
    assert [end.value for end in start(2, drops).ends()] == ["dropped", "late"]


def forks(comm: Communicator) -> bool:
    comm.all_reduce(np.ones(N), async_op=True).wait()
    pid = os.fork()
    if pid == 0:
        try:
            comm.barrier()
        except SleyError as error:
            wrong = "forked" not in str(error)
        else:
            wrong = True
        comm.close()
        del comm
        gc.collect()
        sys.exit(int(wrong))
    _, status = os.waitpid(pid, 0)
    data = np.ones(N)
    comm.all_reduce(data)
    return status == 0 and bool((data == 2).all())


def test_a_call_in_a_forked_child_is_refused() -> None:
    assert [end.value for end in start(2, forks).ends()] == [True, True]


def test_arrays_of_the_heap_in_circles_are_given_back() -> None:
    """The collector may come at any point of taking a block, and give others back."""
    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        for _ in range(2000):
            circle: list[Any] = [empty(10)]
            circle.append(circle)
    finally:
        gc.set_threshold(*before)


def stops_while_read(comm: Communicator, private: bool) -> Any:
    count = 1 << 20
    data = np.zeros(count, np.float32) if private else empty(count)
    comm.broadcast(data)
    data[:] = 1 + comm.rank
    comm.barrier()
    if comm.rank == 1:
        pid = os.getpid()
        threading.Timer(0.0005, os.kill, (pid, signal.SIGSTOP)).start()
    try:
        comm.broadcast(data)
    except SleyError as error:
        data[:] = 99  # its own again
        if comm.rank == 0:
            time.sleep(0.5)
        return error.code
    return sorted({float(x) for x in data})


@pytest.mark.parametrize("private", [True, False])
def test_nobody_takes_what_was_overwritten_after_a_failure(private: bool) -> None:
    settings = Settings(timeout_s=1, use_cache=False)
    ranks = start(2, stops_while_read, private, settings=settings)
    ranks.wait_for(0)
    os.kill(ranks.pids[1], signal.SIGCONT)
    ends = ranks.ends()
    assert ends[1].value in ([1.0], "N621", "N623", "N608"), ends


def test_memory_that_cannot_be_written_is_refused() -> None:
    file = mmap.mmap(-1, 4096, prot=mmap.PROT_READ)
    with Ranks(2) as group:
        errors = group.errors(lambda comm: comm.all_reduce(np.frombuffer(file, np.float32)))
        assert all(isinstance(error, SleyError) for error in errors)
