"""Calls of two executors that fill the same devices, over the stand-in, whose multiprocessors have
room for few blocks."""

from __future__ import annotations

import os
from contextlib import ExitStack
from threading import Event
from typing import Any

import numpy as np
from cuda.bindings import driver as cu

from fake_driver import FakeDriver
from fake_driver.cases_executor import RANKS, arrays, ring, stand_in, values
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.cuda import CudaDevice
from support.devices.device_calls import current

ROUNDS = int(os.environ.get("SLEY_ROUNDS", 50))


def test_calls_of_two_executors_that_fill_the_devices_end(fake: FakeDriver) -> None:
    """Each could start on another device, and wait there for its ranks on the first one."""
    fake.set(devices=2, multiprocessors=1, blocks_each=RANKS // 2)
    devices = [CudaDevice(0), CudaDevice(1)] * (RANKS // 2)
    plan, gate = ring(), devices[0].allocate_host(8)
    stand_in(fake, plan, Engine.GENERATED)
    calls, data, streams = [], list[Any](), list[list[Any]]()
    for _ in range(2):
        on = Executor(plan, devices, Settings(timeout_s=60, slot_bytes=1024))
        data.append(arrays(devices, [np.zeros(64)] * RANKS))
        calls.append(on.prepare(data[-1]))
        streams.append([device.stream() for device in devices[:2]])
    with ExitStack() as stack:  # one of the calls can't start on the first device, one on the other
        for k in range(2):
            with current(devices[k]):
                address = streams[k][k].__cuda_stream__()[1]
                cu.cuStreamWaitValue32(cu.CUstream(address), gate.address, 1, 0)
        for call, own in zip(calls, streams, strict=True):
            call(own)
        stack.callback(gate.array.__setitem__, 0, 1)
        Event().wait(0.1)
    for number in range(ROUNDS):
        calls[number % 3 % 2](streams[number % 3 % 2])
        if number % 16 == 0:
            devices[0].synchronize(None)
    for call in calls:
        call()
    assert values(devices[1], data[0][1]).tolist() == [0.0] * 64
