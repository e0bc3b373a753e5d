"""Ranks that are stopped (SIGSTOP, a debugger, a frozen container) anywhere between their start and
their end: every other rank ends in time, with a coded error or successfully."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Communicator, FolderStore, Settings
from sley.communicator.rendezvous.gather import GRACE_S
from sley.errors.disk_cache import PATIENCE_S
from support.processes import rank_processes
from support.processes.rank_processes import Started
from support.processes.stopping import Place, outcomes, state, stop_at

TIMEOUT_S = 1.5
IN_TIME_S = TIMEOUT_S + PATIENCE_S + GRACE_S + 4.0
"""The timeout, the waits for the cache and for the store, and time for a busy machine."""


def living(comm: Communicator, folder: str) -> str:
    """A rank's whole life: calls, messages, a second communicator, and its end."""
    comm.barrier()
    data = np.ones(777, np.float32)
    comm.all_reduce(data, op="max")
    comm.all_reduce(np.ones(300_000, np.float32), async_op=True).wait()
    if comm.rank == 0:
        comm.send(data, 1)
    elif comm.rank == 1:
        comm.recv(data, 0)
    with Communicator(
        FolderStore(folder), comm.rank, comm.ranks, name="second", settings=comm.endpoint.settings
    ) as second:
        second.all_gather(data, np.empty(777 * comm.ranks, np.float32))
    comm.barrier()
    return "lived"


_START = "sley.communicator.rendezvous.bootstrap"
_OPEN = "sley.communicator.opening"
_ENDPOINT = "sley.communicator.endpoint.Endpoint"
_CACHE = "sley.errors.disk_cache"

QUICK = [
    Place(f"{_CACHE}._keep"),  # with the lock of the plan that the others need
    Place(f"{_START}.exchange_descriptors", 1),
]

PLACES = [
    # Initialization: the store, the description, the host's sockets, the memory, the engine.
    Place("sley.communicator.endpoint.bootstrap"),
    Place("sley.communicator.endpoint.bootstrap", 1),
    Place("sley.communicator.rendezvous.stores.FolderStore._put", 1),
    Place("sley.communicator.rendezvous.stores.FolderStore._put", 0, is_after=True),
    Place("sley.communicator.rendezvous.stores.FolderStore._find", 1, call=2),
    Place("sley.communicator.rendezvous.stores.FolderStore._find", 0, call=2),
    Place("sley.communicator.rendezvous.stores.FolderStore._delete"),
    Place(f"{_START}.listen", 0, is_after=True),
    Place(f"{_START}._exchange_descriptions", 0, is_after=True),
    Place(f"{_START}._exchange_descriptions", 1, is_after=True),
    Place(f"{_START}.exchange_descriptors", 0),
    Place(f"{_START}.exchange_descriptors", 0, is_after=True),
    Place("sley.communicator.rendezvous.local._Leader._tell"),
    Place("sley.communicator.rendezvous.local._take", 1),
    Place("sley.communicator.memory.Memory.make", 1, is_after=True),
    Place("sley.communicator.memory.Memory.fabric"),
    Place("sley.communicator.memory.Memory.fabric", 1, is_after=True),
    Place(f"{_OPEN}._plans", 1),
    Place(f"{_OPEN}.connect"),
    Place("sley.communicator.endpoint.open_core", 0, is_after=True),
    # The first call of a size: its plan, its compilation, the cache, the engine.
    Place("sley.communicator.ready.ReadyCalls._make", 0),
    Place("sley.communicator.ready.ReadyCalls._make", 1, is_after=True),
    Place("sley.compiler.compile", 0),
    Place("sley.compiler.compile", 1, is_after=True),
    Place("sley.communicator.selection.plan_cache.encode"),
    Place(f"{_CACHE}._open_lock", 0, is_after=True),
    Place(f"{_CACHE}._Turn._look", 0, is_after=True),
    Place(f"{_CACHE}._keep", 1),
    Place(f"{_CACHE}._keep", 0, is_after=True),
    Place(f"{_CACHE}._close_lock"),
    Place(f"{_CACHE}._find", 1),
    Place("sley.communicator.loading.Loader.load", 1, call=2),
    Place(f"{_ENDPOINT}.submit", 0, call=3),
    Place(f"{_ENDPOINT}._run", 1, is_after=True),
    Place("sley.communicator.messages.Messages.send"),
    Place("sley.communicator.messages.Messages.recv", 1),
    # The second communicator of a running job.
    Place("sley.communicator.endpoint.bootstrap", 1, call=2),
    Place(f"{_START}.exchange_descriptors", 0, is_after=True, call=2),
    Place("sley.communicator.endpoint.open_core", 1, call=2),
    # The end.
    Place(f"{_ENDPOINT}.close", 0),
    Place(f"{_ENDPOINT}.close", 1),
    Place(f"{_ENDPOINT}.close", 1, is_after=True),
    Place(f"{_ENDPOINT}.close", 0, call=2),
]


def begin(place: Place, folder: Path, hosts: int) -> Started:
    def environ(rank: int) -> dict[str, str]:
        host = {"SLEY_HOST_ID": str(rank % hosts), "SLEY_NICS": "lo"}
        return {"SLEY_CACHE_DIR": str(folder / "cache"), **host}

    store = str(folder / "store")
    return rank_processes.start(
        3,
        living,
        store,
        settings=Settings(timeout_s=TIMEOUT_S),
        environ=environ,
        enter=place.prepare,
        folder=store,
    )


def check(*stopped: tuple[Started, Place]) -> None:
    for (_, place), ends in zip(stopped, outcomes(*stopped), strict=True):
        for rank, end in ends.items():
            assert end.value == "lived" or end.error, (place, rank, end)
            assert "Traceback" not in end.error, (place, rank, end)  # an error without a code
            assert end.seconds < IN_TIME_S, (place, rank, end)


def test_some_places_hold_no_other_rank_up(tmp_path: Path) -> None:
    check(*[(begin(place, tmp_path / str(place), 1), place) for place in QUICK])


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_no_place_holds_another_rank_up(place: Place, hosts: int, tmp_path: Path) -> None:
    check((begin(place, tmp_path, hosts), place))


def calling(comm: Communicator) -> float:
    data = np.ones(777, np.float32)
    comm.all_reduce(data, op="max")
    return float(data.sum())


def stop_with_lock(rank: int) -> None:
    stop_at(f"{_CACHE}._keep")


def test_a_stopped_process_of_another_job_holds_no_rank_up(tmp_path: Path) -> None:
    def job(enter: Callable[[int], None] | None) -> Started:
        return rank_processes.start(
            2,
            calling,
            settings=Settings(timeout_s=TIMEOUT_S),
            environ=lambda _: {"SLEY_CACHE_DIR": str(tmp_path / "cache")},
            enter=enter,
        )

    other = job(stop_with_lock)  # the rank that has the lock of the plan stops first
    while not any(state(pid) == "T" for pid in other.pids):
        time.sleep(0.01)
    ends = job(None).ends()
    assert list(tmp_path.rglob("*.lock"))
    for process in other.processes:
        process.kill()
    other.ends()
    for end in ends:
        assert end.value == 777, end
        assert end.seconds < IN_TIME_S
