"""Threads as a device: arrays of a part of its memory, and streams as threads of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from sley.engine.devices import ThreadsDevice
from sley.engine.devices.device import Memory
from support.devices.device_calls import TIMEOUT_S, enqueue, threads

TESTS = Path(__file__).parents[2]
FORKED = """
import os, time
import numpy as np
from sley.engine.devices import Engine, ThreadsDevice
from support.devices.device_calls import enqueue, executor, threads, wrong
from support.devices.gpu_plans import ring

def made():
    return executor(ring(3), [ThreadsDevice()] * 3, engine=Engine.INTERPRETED)

on = made()
assert wrong(on, 100) == 0
child = os.fork()
if not child:
    os._exit(wrong(made(), 100))
assert os.waitpid(child, 0)[1] == 0
stream, data = threads().stream(), [np.ones(9, np.int32) for _ in range(3)]
for _ in range(9):
    on(data, streams=stream)
enqueue(stream, lambda: (time.sleep(0.1), print("sum", data[0][0], flush=True)))
child = os.fork()
if not child:
    raise SystemExit  # which doesn't wait for the parent's stream
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_piece_of_memory_is_written_read_and_shared() -> None:
    device = ThreadsDevice()
    made = device.native.allocate_shared(64)
    memory = Memory(made.address, 64, made)
    device.write(memory, 0, np.arange(64, dtype=np.uint8))
    piece = Memory(memory.address + 8, 16, memory.owner)
    array = device.array(piece, "int32", 3)
    assert array.ctypes.data == piece.address
    assert array.view(np.uint8).tolist() == list(range(8, 20))
    found = np.empty(4, np.uint8)
    device.read(piece, 2, found)
    assert found.tolist() == [10, 11, 12, 13]
    device.write(piece, 15, np.array([99], np.uint8))
    array[0] = -1
    descriptor = device.native.export_memory(memory.owner)
    attached = device.native.attach(descriptor, 64)
    os.close(descriptor)
    assert attached.address != memory.address
    shared = attached.array(attached.address + 8, 16)
    assert shared.tolist() == [255] * 4 + list(range(12, 23)) + [99]
    shared[:] = 0
    every = device.array(memory, "uint8", 64)
    assert every.tolist() == [*range(8), *[0] * 16, *range(24, 64)]


def test_a_child_has_its_own_streams_and_a_process_ends_after_its_streams() -> None:
    """Threads don't survive a fork; at the end, kernels would lose their memory."""
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"sum {3**9}\n", "")


def test_who_waits_for_a_stream_can_be_interrupted() -> None:
    stream, gate = threads().stream(), Event()
    enqueue(stream, lambda: gate.wait(TIMEOUT_S))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(KeyboardInterrupt):
            threads().synchronize(stream)
    finally:
        signal.signal(signal.SIGALRM, before)
    gate.set()
    threads().synchronize(stream)
