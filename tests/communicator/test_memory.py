"""The memory that a communicator uses and frees."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Communicator, LocalStore, Settings
from sley.communicator.heap import empty
from sley.errors import SleyError
from support.processes import rank_processes
from support.processes.soak import Holding
from support.processes.threads_group import Ranks

RANKS = 4
MIB = 1 << 20
DATA_BYTES = 16 * MIB


def large_calls(comm: Communicator) -> list[int]:
    """The bytes that a rank holds after large calls, each of another plan that needs scratch."""
    data = np.ones(DATA_BYTES // 4, np.float32)
    held = []
    for turn in range(2):  # the first one makes what is made once
        comm.all_to_all(data, data)
        held.append(Holding.now().own_bytes)
        for root in range(RANKS):
            comm.reduce(data if turn else data[:4000], root=root)
            held.append(Holding.now().own_bytes)
    return held[RANKS + 1 :]


def test_calls_share_their_scratch() -> None:
    """A reduction has a quarter of the data in scratch, whoever is the root."""
    settings = Settings(timeout_s=30, use_cache=False)
    for end in rank_processes.start(RANKS, large_calls, settings=settings).ends():
        assert not end.error, end.error
        assert max(end.value) - end.value[0] < DATA_BYTES / 4, end.value


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def descriptors() -> list[str]:
    """The files that this process has open, sorted."""
    names = []
    for fd in Path("/proc/self/fd").iterdir():
        try:
            names.append(str(fd.readlink()))
        except FileNotFoundError:  # that of the folder itself
            continue
    return sorted(names)


def segments() -> int:
    """How many segments this process has open."""
    return sum("memfd:sley" in name for name in descriptors())


def mappings() -> int:
    """How many segments this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:sley")


@pytest.mark.usefixtures("no_collector")
def test_a_closed_communicator_leaves_no_segment_to_the_collector() -> None:
    found = []
    for turn in range(4):
        with Communicator(LocalStore(), 0, 1, name=f"turn {turn}") as comm:
            data = np.ones(1000, np.float32)
            comm.all_reduce(data)
            comm.all_reduce(data, async_op=True).wait()
            comm.send(data, 0, async_op=True)
            comm.recv(data, 0)
        del comm
        found.append(segments())
    assert found == found[:1] * len(found)


@pytest.mark.usefixtures("no_collector")
def test_a_closed_communicator_that_is_kept_holds_nothing() -> None:
    empty(1)  # the heap stays for ever
    before = descriptors(), mappings()
    group = Ranks(3)
    group.each(lambda comm: comm.all_reduce(np.ones(1000, np.float32)))
    group.each(lambda comm: comm.barrier(async_op=True).wait())
    assert mappings() > before[1]
    group.close()
    assert (descriptors(), mappings()) == before


def test_a_closed_communicator_refuses_calls_and_has_no_statistics() -> None:
    data = np.ones(10)
    group = Ranks(2)
    group.each(lambda comm: comm.all_reduce(data.copy()))
    group.close()
    comm = group.comms[0]
    comm.close()
    comm.abort()
    comm.endpoint.set_timeout(1.0)
    assert comm.stats() == []
    for call in (
        lambda: comm.all_reduce(data),
        lambda: comm.barrier(async_op=True),
        lambda: comm.send(data, 1),
        lambda: comm.recv(data),
        lambda: comm.all_to_all_v([data] * 2, [data.copy(), data.copy()]),
    ):
        with pytest.raises(SleyError, match="N623"):
            call()
