"""Processes that end without closing their communicator."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RANKS = 2

HEAD = """
import sys, threading, time
import numpy as np
from sley.communicator import Communicator, FolderStore, Settings

rank = int(sys.argv[1])
comm = Communicator(FolderStore(sys.argv[2]), rank, 2, settings=Settings(use_cache=False))
data = [np.ones(1 << 20, np.float32) for _ in range(8)]
"""

ENDS = {
    "calls and messages at work": """
works = [comm.all_reduce(x, async_op=True) for x in data[:4]]
works += [comm.recv(x, 1 - rank, async_op=True) for x in data[4:]]
""",
    "callbacks that want Python": """
for x in data:
    comm.all_reduce(x, async_op=True).on_done(lambda: sum(range(100_000)))
""",
    "threads that wait for a message and for a call": """
threading.Thread(target=comm.recv, args=(data[0], 1 - rank), daemon=True).start()
work = comm.all_reduce(data[1], async_op=True) if rank == 0 else None
if work:
    threading.Thread(target=work.wait, daemon=True).start()
time.sleep(0.2)
""",
    "calls that the other rank never makes, and a thread that waits in one": """
if rank == 0:
    works = [comm.all_reduce(x, async_op=True) for x in data[1:]]
    threading.Thread(target=comm.all_reduce, args=(data[0],), daemon=True).start()
time.sleep(0.2)
""",
}


def ends_of(code: str, folder: Path) -> list[tuple[int, str]]:
    """The exit code of each rank, and what it wrote to standard error."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", HEAD + code, str(rank), str(folder)],
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    ends = []
    for process in started:
        _, said = process.communicate(timeout=60)
        ends.append((process.returncode, said))
    return ends


@pytest.mark.parametrize("what", ENDS)
def test_a_process_ends_well_with(what: str, tmp_path: Path) -> None:
    for code, said in ends_of(ENDS[what], tmp_path):
        assert code == 0, said


def test_an_exception_with_calls_at_work_is_told(tmp_path: Path) -> None:
    code = ENDS["calls and messages at work"] + "\nraise ZeroDivisionError"
    for end, said in ends_of(code, tmp_path):
        assert end == 1, said
        assert "ZeroDivisionError" in said.splitlines()[-1]


def test_threads_that_want_python_at_the_very_end_stand_still(tmp_path: Path) -> None:
    """Without what Python calls at exit, as in an embedding that forgets it."""
    code = "import atexit; atexit._clear()\n" + ENDS["callbacks that want Python"]
    for end, said in ends_of(code, tmp_path):
        assert end == 0, said


def test_the_others_hear_that_a_process_which_ends_has_left(tmp_path: Path) -> None:
    code = "comm.recv(data[0], 0) if rank == 1 else time.sleep(0.2)"
    (leaver, _), (waiter, said) = ends_of(code, tmp_path)
    assert (leaver, waiter) == (0, 1)
    assert "N623" in said


def test_an_exception_ends_the_calls_on_devices_of_the_others(tmp_path: Path) -> None:
    code = """
from sley.communicator import DeviceCommunicator

on = DeviceCommunicator(FolderStore(sys.argv[2]), rank, 2, "threads", name="on", types=["int32"])
on.barrier()
if rank == 0:
    comm = None  # which would tell them, too
    raise ZeroDivisionError
on.barrier()
"""
    (_, raised), (_, said) = ends_of(code, tmp_path)
    assert "ZeroDivisionError" in raised
    assert "N623" in said


def test_communicators_on_devices_are_left_by_processes_that_end_or_fork(tmp_path: Path) -> None:
    """Without a wait for the other rank, which ends later here."""
    code = """
import os
from sley.communicator import DeviceCommunicator
from sley.engine.devices import Settings, ThreadsDevice

options = {"name": "devices", "types": ["int32"], "kernels": Settings(timeout_s=100)}
on = DeviceCommunicator(FolderStore(sys.argv[2]), rank, 2, ThreadsDevice(), **options)
if not os.fork():
    os._exit(0)
while rank and not on._opening.rendezvous.descriptions[0].process.is_gone():
    time.sleep(0.01)
"""
    assert ends_of(code, tmp_path) == [(0, "")] * RANKS
