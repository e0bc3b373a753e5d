"""Many communicators of the same processes: what they share, and what each of them holds."""

from __future__ import annotations

import os
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Communicator, FolderStore, Settings
from sley.communicator.heap import empty
from support.processes.rank_processes import start

LARGE = 1 << 18
"""Elements of data that the other ranks read in place."""

SETTINGS = Settings(timeout_s=60)


def check(comm: Communicator, shared: np.ndarray, turn: int) -> None:
    """Reductions of data in the heap and outside; the former are pulled."""
    for data in (shared, np.empty(100, np.float32)):
        data[:] = comm.rank + turn
        comm.all_reduce(data)
        assert (data == sum(range(comm.ranks)) + turn * comm.ranks).all()


def descriptors() -> int:
    return sum(path.is_symlink() for path in Path("/proc/self/fd").iterdir())


def heaps_of_others() -> int:
    """The parts of other processes' heaps that this one has mapped."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:sley" in line and line.split()[1] == "r--s" for line in lines)


def makes_many(comm: Communicator, folder: str, number: int) -> tuple[float, int]:
    """Makes communicators, closes half of them, and makes as many again. Returns the descriptors of
    each, and the parts of others' heaps."""
    store = FolderStore(folder)

    def made(turn: int) -> Communicator:
        name = f"number {turn}"
        one = Communicator(store, comm.rank, comm.ranks, name=name, settings=SETTINGS)
        check(one, shared, turn)
        return one

    shared, half = empty(LARGE), number // 2
    check(comm, shared, 0)
    before = descriptors()
    held = [made(turn) for turn in range(number)]
    each = (descriptors() - before) / number
    for one in held[:half]:
        one.close()
    held = [*held[half:], *(made(turn) for turn in range(number, number + half))]
    for turn, one in enumerate(held):
        check(one, shared, turn)
    parts = heaps_of_others()
    for one in held:
        one.close()
    assert descriptors() == before
    check(comm, shared, 1)
    return each, parts


def limited(_: int, files: int) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (1 << 30 if files < 100 else 8 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


@pytest.mark.parametrize(
    ("ranks", "number"),
    [
        (3, 24),
        pytest.param(3, 200, marks=pytest.mark.slow),
        pytest.param(8, 200, marks=pytest.mark.slow),
    ],
)
def test_a_communicator_holds_one_descriptor_and_few_addresses(
    ranks: int, number: int, tmp_path: Path
) -> None:
    """On a machine of 2 TB, with few descriptors and 1 GB of addresses for 24 of 3 ranks."""
    begun = start(
        ranks,
        makes_many,
        str(tmp_path),
        number,
        settings=SETTINGS,
        environ=lambda rank: {"SLEY_HEAP_BYTES": "2048G"},
        enter=partial(limited, files=80 if number < 100 else 1024),
    )
    for end in begun.ends(within_s=300):
        assert not end.error, end.error
        assert end.value == (1, ranks - 1)


def crosses(comm: Communicator, folder: str) -> None:
    """Communicators with the same processes in another order, over another store, and of a part."""
    last = comm.ranks - 1
    arrays = [empty(LARGE) for _ in range(3)]
    store = FolderStore(folder)
    with Communicator(store, last - comm.rank, comm.ranks, settings=SETTINGS) as turned:
        part = None
        if comm.rank > 0:
            part = Communicator(store, last - comm.rank, last, name="part", settings=SETTINGS)
        for turn in range(3):
            for one in filter(None, (comm, turned, part)):
                check(one, arrays[turn], turn)
        for root in range(comm.ranks):
            arrays[0][:] = comm.rank
            turned.broadcast(arrays[0], last - root)
            assert (arrays[0] == root).all()
        if part is not None:
            part.close()


def test_communicators_of_other_orders_and_stores_find_the_right_heaps(tmp_path: Path) -> None:
    for end in start(3, crosses, str(tmp_path)).ends():
        assert not end.error, end.error


def forks(comm: Communicator, folder: str) -> int:
    shared = empty(LARGE)
    check(comm, shared, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with Communicator(FolderStore(folder), comm.rank, 3, settings=SETTINGS) as own:
                own_shared = empty(LARGE)
                for turn in range(3):
                    check(own, own_shared, turn)
            status = 0
        finally:
            os._exit(status)
    for turn in range(3):
        check(comm, shared, turn)
    return os.waitpid(child, 0)[1]


def test_forked_children_have_heaps_and_communicators_of_their_own(tmp_path: Path) -> None:
    for end in start(3, forks, str(tmp_path)).ends():
        assert not end.error, end.error
        assert end.value == 0
