"""What processes of a host share once: heaps, and signs of life."""

from __future__ import annotations

import os
import select
import time
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Communicator
from sley.communicator.sharing import LIVES, sign_of_life
from sley.engine import native
from sley.engine.memory import HostBytes
from sley.errors import SleyError
from support.processes.meeting import descriptors
from support.processes.rank_processes import start

MIB = 1 << 20
TIMEOUT_MS = 30_000


def ends_in(fd: int, timeout_ms: int) -> bool:
    """Whether a sign of life has ended by then."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_ms))


def test_a_sign_of_life_ends_with_its_process_even_if_a_child_lives_on() -> None:
    here, there = os.pipe(), os.pipe()
    fd_of_child = sign_of_life()
    child = os.fork()
    if child == 0:
        fd_of_child = sign_of_life()  # another one than the parent's
        os.write(here[1], b"%d" % fd_of_child)
        if os.fork() == 0:
            os.close(there[1])
            os.read(there[0], 1)
            os._exit(0)
        os.read(there[0], 1)
        os._exit(0)
    number = int(os.read(here[0], 20))
    life = os.open(f"/proc/{child}/fd/{number}", os.O_RDONLY)
    try:
        assert not ends_in(life, 0)
        os.kill(child, 9)
        assert ends_in(life, TIMEOUT_MS)
        assert not ends_in(fd_of_child, 0)
    finally:
        os.waitpid(child, 0)
        for fd in (*here, *there, life):
            os.close(fd)


def test_one_file_has_one_object_as_long_as_it_is_used() -> None:
    own = native.Heap()
    first = LIVES.of(own.fd)
    assert LIVES.of(own.fd) is first
    before = descriptors()
    del first
    assert len(descriptors()) == len(before) - 1


def test_another_process_maps_a_heap_when_it_uses_it_and_what_was_added_later() -> None:
    own = native.Heap()
    other = native.Heap(own.fd)

    def addresses() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        spans = [line.split()[0].split("-") for line in lines if "memfd:sley" in line]
        return sum(int(end, 16) - int(start, 16) for start, end in spans)

    before = addresses()
    for size in (4 * MIB, 64 * MIB, MIB):
        own.reserve(start := own.grow(size), size)
        written = view(own.address(start, size), size)
        written[:] = size // MIB
        read = view(other.address(start, size), size)
        assert (read == size // MIB).all()
        assert read.ctypes.data != written.ctypes.data
    assert addresses() - before == 2 * 69 * MIB
    assert other.address(69 * MIB, 1) == 0
    unused = native.Heap(own.fd)
    assert addresses() - before == 2 * 69 * MIB
    del unused, other, own
    assert addresses() == before


def view(address: int, size: int) -> np.ndarray:
    return np.asarray(HostBytes(address, size))


def dies_beside_one_that_sleeps(comm: Communicator) -> float:
    if comm.rank == 1:
        os._exit(1)
    if comm.rank == 0:
        time.sleep(2)
        return 0.0
    began = time.monotonic()
    with pytest.raises(SleyError, match="N620"):
        comm.recv(np.zeros(10), 1)
    return time.monotonic() - began


def test_every_rank_notices_the_end_of_another_by_itself() -> None:
    ends = start(3, dies_beside_one_that_sleeps).ends()
    assert not ends[2].error, ends[2].error
    assert ends[2].value < 1.5
