"""Communicators of two ranks beside one another, over the stand-in, where each piece of memory is a
file."""

from __future__ import annotations

import gc
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from fake_driver import FakeDriver
from fake_driver.cases_communicator import on_all, stand_in
from fake_driver.cases_executor import arrays, values
from sley.communicator import DeviceCommunicator
from sley.engine.devices.cuda import CudaDevice
from support.devices import communicators

MANY = int(os.environ.get("SLEY_MANY", 5))

ALLOCATING = ("cuMemAlloc", "cuMemCreate", "cuMemHostAlloc", "cuMemHostRegister")


def opened(devices: list[CudaDevice], number: int) -> list[DeviceCommunicator]:
    return communicators.opened(devices, types=["float32"], name=f"number {number}")


def held(fake: FakeDriver) -> Any:
    """MiB on a device, descriptors, sockets and threads of this process."""
    ends = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    sockets = sum(end.startswith("socket:") for end in ends)
    threads = len(list(Path("/proc/self/task").iterdir()))
    return np.array([fake.used(0) / 2**20, len(ends), sockets, threads])


def test_further_communicators_take_little(fake: FakeDriver) -> None:
    """Two ranks have 32 MiB of slots, counters and scratch each. Their plans are laid out once, and
    share what they allocate."""
    fake.set(memory_bytes=80 << 30, multiprocessors=132)
    devices = [CudaDevice.open(rank) for rank in range(2)]
    gc.collect()  # of other tests
    used, made = fake.used(0), [opened(devices, 0)]
    fake.journal()
    made.append(opened(devices, 1))
    allocations = Counter(entry for entry in fake.journal() if entry in ALLOCATING)
    assert allocations == dict(zip(ALLOCATING, (6, 4, 2, 2), strict=True))
    before = held(fake)
    made += [opened(devices, 2 + number) for number in range(MANY)]
    grown = (held(fake) - before) / MANY
    assert (grown <= [32.5, 18, 0, 1]).all(), grown
    assert len({id(comm._core.links.tables) for comms in made for comm in comms if comm._core}) == 1

    stand_in(fake, made[0][0], 64)
    for comms in (made[0], made[-1]):
        data = arrays(devices, [np.full(64, rank + 1.0) for rank in range(2)])
        on_all(comms, lambda rank, comms=comms, data=data: comms[rank].all_reduce(data[rank]))
        assert values(devices[1], data[1]).tolist() == [3.0] * 64
    for comms in made:
        on_all(comms, lambda rank, comms=comms: comms[rank].close())
    assert fake.used(0) - used == data[0].memory.size_bytes
