"""A waiting rank yields its core to others."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from sley.communicator import Communicator, Network, Settings
from support.processes import rank_processes

LATE_S = 0.6
MOST = 0.1
"""The part of the time for which a waiting rank may be at work. A thread that yields all the time
takes all of it, one that naps for 50 microseconds a sixth."""


def recv(comm: Communicator, data: np.ndarray) -> None:
    comm.recv(data, 1) if comm.rank == 0 else comm.send(data, 0)


def recv_later(comm: Communicator, data: np.ndarray) -> None:
    comm.recv(data, 1, async_op=True).wait() if comm.rank == 0 else comm.send(data, 0)


def all_reduce(comm: Communicator, data: np.ndarray) -> None:
    comm.all_reduce(data)


def all_reduce_later(comm: Communicator, data: np.ndarray) -> None:
    comm.all_reduce(data, async_op=True).wait()


def barrier(comm: Communicator, data: np.ndarray) -> None:
    comm.barrier()


WAITS = (recv, recv_later, all_reduce, all_reduce_later, barrier)


def waiting(comm: Communicator) -> dict[str, tuple[float, float]]:
    """For each kind of wait: the seconds that rank 0 was at work, and those that it took."""
    data, found = np.ones(4, np.float32), {}
    for wait in WAITS:
        wait(comm, data)  # what is made the first time
        comm.barrier()
        if comm.rank == 1:
            time.sleep(LATE_S)
        work, begin = time.process_time(), time.monotonic()
        wait(comm, data)
        found[wait.__name__] = (time.process_time() - work, time.monotonic() - begin)
    return found


def own_host(rank: int) -> dict[str, str]:
    return {"SLEY_HOST_ID": str(rank), "SLEY_NICS": "lo"}


@pytest.fixture(scope="module", params=["one host", "two hosts"])
def found(request: pytest.FixtureRequest) -> dict[str, tuple[float, float]]:
    if request.param == "one host":
        started = rank_processes.start(2, waiting)
    else:
        settings = Settings(timeout_s=10, use_cache=False, network=Network.TCP)
        started = rank_processes.start(2, waiting, settings=settings, environ=own_host)
    end = started.ends()[0]
    assert not end.error, end.error
    value: dict[str, tuple[float, float]] = end.value
    return value


@pytest.mark.parametrize("wait", WAITS)
def test_a_long_wait_takes_no_core(
    wait: Callable[[Communicator, np.ndarray], None], found: dict[str, tuple[float, float]]
) -> None:
    at_work_s, took_s = found[wait.__name__]
    assert took_s > LATE_S / 2
    assert at_work_s < MOST * took_s
