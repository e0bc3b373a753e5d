"""Failures of calls between hosts: a rank that dies or stops, and a cable that is cut."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sley.communicator import Communicator, Network, Settings
from support.processes import networks, rank_processes
from support.processes.stopping import state

TIMEOUT_S = 2.0
QUICK_S = 2.0


def settings(network: Network) -> Settings:
    return Settings(timeout_s=TIMEOUT_S, use_cache=False, network=network)


def two_hosts(rank: int) -> dict[str, str]:
    """Hosts of two ranks each, which reach one another over the loopback interface."""
    return {"SLEY_HOST_ID": str(rank // 2), "SLEY_NICS": "lo"}


def working(comm: Communicator, signal_number: int | None) -> None:
    data = np.ones(50_000, np.float32)
    for turn in range(100_000):
        if signal_number is not None and comm.rank == 1 and turn == 10:
            os.kill(os.getpid(), signal_number)
        comm.all_reduce(data)


@pytest.mark.parametrize("network", [Network.TCP, Network.AUTO])
def test_a_rank_of_another_host_that_dies_is_named(network: Network) -> None:
    started = rank_processes.start(
        4, working, signal.SIGKILL, settings=settings(network), environ=two_hosts
    )
    ends = started.ends()
    for rank in (0, 2, 3):
        assert "N620" in ends[rank].error, ends[rank]
        assert "rank 1" in ends[rank].error
        assert ends[rank].seconds < TIMEOUT_S + QUICK_S


def test_a_rank_of_another_host_that_stands_still_ends_the_call() -> None:
    started = rank_processes.start(
        4, working, signal.SIGSTOP, settings=settings(Network.TCP), environ=two_hosts
    )
    while state(started.pids[1]) != "T":
        time.sleep(0.05)
    started.wait_for(0, 2, 3)
    os.kill(started.pids[1], signal.SIGKILL)
    ends = started.ends()
    for rank in (0, 2, 3):
        assert "N621" in ends[rank].error or "N608" in ends[rank].error, ends[rank]


RANK_0_ENDS = """
import os, sys, time
import numpy as np
from sley.communicator import Communicator, FolderStore, Settings
rank, folder = int(sys.argv[1]), sys.argv[2]
with Communicator(FolderStore(folder), rank, 3, settings=Settings(timeout_s=3)) as comm:
    if rank == 0:
        if os.fork() == 0:  # keeps the connections open
            time.sleep(5)
        os._exit(0)
    comm.all_reduce(np.ones(3_000_000, np.float32))
"""


def test_ucx_closes_without_unfinished_sends(tmp_path: Path) -> None:
    """With unfinished sends, UCX warns and then corrupts the heap."""
    pytest.importorskip("libucx")
    command = [sys.executable, "-c", RANK_0_ENDS]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            env=os.environ
            | {"SLEY_HOST_ID": str(rank % 2), "UCX_LOG_FILE": str(tmp_path / f"log-{rank}")},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    _, error = ranks[1].communicate(timeout=60)
    assert ranks[1].returncode == 1, error
    assert "N620" in error
    assert "WARN" not in (tmp_path / "log-1").read_text()
    ranks[2].communicate(timeout=60)
    ranks[0].communicate(timeout=60)


def calling(comm: Communicator, folder: Path) -> None:
    data = np.ones(50_000, np.float32)
    comm.all_reduce(data)
    (folder / str(comm.rank)).touch()
    while True:
        comm.all_reduce(data)


@pytest.mark.skipif(not networks.is_possible(), reason="needs network namespaces, so root")
@pytest.mark.parametrize(
    "network", [Network.TCP, pytest.param(Network.AUTO, marks=pytest.mark.slow)]
)
def test_a_cable_that_is_cut_ends_the_call_on_both_sides(network: Network, tmp_path: Path) -> None:
    with networks.cable() as cable:
        started = rank_processes.start(
            2,
            calling,
            tmp_path,
            settings=settings(network),
            environ=cable.environ,
            enter=cable.enter,
        )
        end = time.monotonic() + rank_processes.GIVEN_UP_S
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
            time.sleep(0.05)
        cable.cut()
        begin = time.monotonic()
        ends = started.ends()
        assert time.monotonic() - begin < TIMEOUT_S + 2 * QUICK_S
    for end in ends:
        assert any(code in end.error for code in ("N621", "N624", "N608")), end
        assert "all_reduce of 50000 x float32" in end.error
