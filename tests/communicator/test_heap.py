"""The heap: blocks are allocated and freed, and never overlap."""

from __future__ import annotations

import gc
import os
import resource
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.communicator import heap as heap_module
from sley.communicator import sharing
from sley.communicator.heap import Heap, _most_bytes, heap
from sley.errors import SleyError

MIB = 1 << 20


def test_an_array_is_zero_and_has_its_shape_and_type() -> None:
    array = sley.empty((3, 5), "int16")
    assert array.shape == (3, 5)
    assert array.dtype == np.int16
    assert not array.any()
    assert sley.empty(4, "bfloat16").dtype == np.uint16
    assert sley.empty(0).shape == (0,)
    assert sley.empty(()).shape == ()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 100_000)), max_size=20))
def test_blocks_never_overlap_and_all_come_back(steps: list[tuple[bool, int]]) -> None:
    own = Heap(4 * MIB)
    held: list[np.ndarray] = []
    for number, (takes, size) in enumerate(steps):
        if takes or not held:
            array = own.empty(size)
            assert not array.any()
            array[:] = number % 255 + 1
            held.append(array)
        else:
            held.pop(size % len(held))
        assert all((array == array[:1]).all() for array in held)
    held.clear()
    array = None
    assert own.empty(4 * MIB).nbytes == 4 * MIB


@pytest.mark.parametrize("text", ["a lot", "-1", "0", "1.5G"])
def test_a_size_of_the_heap_that_is_none_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLEY_HEAP_BYTES", text)
    with pytest.raises(SleyError, match="R514"):
        _most_bytes()


def test_the_arrays_of_a_heap_take_no_more_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEY_HEAP_BYTES", "3M")
    own = Heap(_most_bytes())
    kept = own.empty(2 * MIB)
    with pytest.raises(
        SleyError, match=r"(?s)2,097,152 of 3,145,728 bytes are taken.*Raise SLEY_HEAP_BYTES"
    ):
        own.empty(2 * MIB)
    del kept
    assert own.empty(3 * MIB).nbytes == 3 * MIB


def test_a_heap_takes_addresses_as_it_grows_and_few_where_they_are_limited() -> None:
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        return
    status = 1
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * os.sysconf("SC_PAGE_SIZE") + 700 * MIB
        resource.setrlimit(resource.RLIMIT_AS, (room, room))
        own = Heap(1 << 50)
        held = [own.empty(100 * MIB) for _ in range(6)]  # parts of 100 MB, 100, 200, and smaller
        for number, array in enumerate(held):
            array[:1000] = number
        assert all((array[:1000] == number).all() for number, array in enumerate(held))
        with pytest.raises(SleyError, match="R507"):
            own.empty(100 * MIB)
        status = 0
    finally:
        os._exit(status)


def test_a_view_keeps_its_memory() -> None:
    own = Heap(MIB)
    view = own.empty(MIB)[10:20]
    view[:] = 7
    gc.collect()
    with pytest.raises(SleyError, match="R507"):
        own.empty(1)
    assert (view == 7).all()


def test_memory_that_came_back_is_given_to_the_system() -> None:
    own = Heap(256 * MIB)
    array = own.empty(128 * MIB)
    array[:] = 1

    def used() -> int:
        return os.fstat(own.file.fd).st_blocks * 512

    assert used() >= 128 * MIB
    del array
    gc.collect()
    assert used() < MIB


@pytest.mark.parametrize("shape", [-1, 1.5, (3, -1), "3", None])
def test_an_invalid_shape_is_refused(shape: object) -> None:
    with pytest.raises(SleyError, match="R514"):
        sley.empty(shape)  # type: ignore[arg-type]


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(SleyError, match="R504"):
        sley.empty(3, "complex64")


def test_a_child_has_a_heap_of_its_own() -> None:
    before = heap()
    kept = before.empty(10)
    kept[:] = 3
    pid = os.fork()
    if pid == 0:
        own = heap()
        own.empty(10)[:] = 9
        os._exit(0 if own is not before and (kept == 3).all() else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert heap() is before
    assert (kept == 3).all()


@pytest.mark.parametrize(
    "lock", [heap_module._lock, sharing._lock, sharing.HEAPS._lock, sharing.LIVES._lock]
)
def test_a_forked_child_finds_no_lock_that_another_thread_held(lock: threading.Lock) -> None:
    held, forking = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            forking.wait(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        os._exit(not lock.acquire(timeout=1))
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
