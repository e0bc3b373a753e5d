"""When memory of CudaDevices is freed, over the stand-in: never while a call is half launched, and
not before every device of an executor is done."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from fake_driver import FakeDriver
from fake_driver.cases_executor import RANKS, arrays, ring, stand_in, values
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.cuda import CudaDevice


def on_two(fake: FakeDriver) -> tuple[Executor, list[CudaDevice], list[Any]]:
    """An executor with ranks on two devices, after one call, and its arrays."""
    fake.set(devices=2)
    devices = [CudaDevice.open(rank % 2) for rank in range(RANKS)]
    stand_in(fake, ring(), Engine.GENERATED)
    on = Executor(ring(), devices, Settings(timeout_s=60))
    data = arrays(devices, [np.full(100, 1.0)] * RANKS)
    on(data)
    return on, devices, data


def test_memory_that_is_dropped_between_two_launches_is_freed_after_them(fake: FakeDriver) -> None:
    on, devices, data = on_two(fake)
    dropped = [devices[0].allocate(64)]
    fake.at_launch(dropped.clear)
    fake.journal()
    on(data)
    made = [line.split()[0] for line in fake.journal()]
    assert made.count("cuMemFree") == 1
    launches = [k for k, entry in enumerate(made) if entry == "cuLaunchKernelEx"]
    assert len(launches) == 2
    assert launches[0] < launches[1] < made.index("cuMemFree")
    assert values(devices[1], data[1]).tolist() == [16.0] * 100


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_dropped_executor_frees_when_all_its_devices_are_done(
    in_a_cycle: bool, fake: FakeDriver
) -> None:
    gc.collect()
    before = [fake.used(device) for device in (0, 1)]
    on, devices, data = on_two(fake)
    held: list[Any] = [on]
    if in_a_cycle:
        held.append(held)
    with_arrays = [sum(a.memory.size_bytes for a in data[place::2]) for place in (0, 1)]
    on(data, streams=[device.stream() for device in devices[:2]])
    fake.journal()
    del on, held
    gc.collect()
    for device in devices[:2]:
        device.synchronize(None)
    made = fake.journal()
    assert made[: made.index("cuMemFree")].count("cuEventQuery") >= 2
    used = [fake.used(device) - b for device, b in zip((0, 1), before, strict=True)]
    assert used == with_arrays
    assert values(devices[0], data[0]).tolist() == [16.0] * 100
