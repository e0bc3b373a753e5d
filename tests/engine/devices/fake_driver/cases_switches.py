"""Groups whose messages a switch moves, on CudaDevices over the stand-in: multicast objects are
made by the driver's rules, and freed; where there is no switch, single messages do the same."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import sley
from fake_driver import FakeDriver, refused
from fake_driver.cases_executor import arrays, stand_in, values
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.cuda import CudaDevice

RANKS = 3
OUT_OF_MEMORY, SYSTEM_NOT_READY = 2, 802
SETTINGS = Settings(slot_bytes=256, timeout_s=60)
THROUGH = "through the switch"


def nvls() -> sley.Plan:
    return sley.compile(sley.algorithms.nvls_allreduce(RANKS, in_place=True))


def several(fake: FakeDriver) -> list[CudaDevice]:
    fake.set(devices=RANKS)
    found = [CudaDevice.open(rank) for rank in range(RANKS)]
    fake.journal()
    return found


def check(on: Executor, devices: list[CudaDevice]) -> None:
    """Calls of several tiles, with elements left over, and of few elements."""
    for count in (1003, 2):
        data = arrays(devices, [np.arange(count) + rank for rank in range(RANKS)])
        for _ in range(2):
            on(data)
        expected = RANKS * (RANKS * np.arange(count) + 3)
        for device, array in zip(devices, data, strict=True):
            np.testing.assert_array_equal(values(device, array), expected)


@pytest.mark.parametrize("engine", Engine)
def test_a_plan_runs_through_the_switch(fake: FakeDriver, engine: Engine) -> None:
    devices, plan = several(fake), nvls()
    stand_in(fake, plan, engine, switches=True)
    on = Executor(plan, devices, Settings(engine=engine, slot_bytes=256, timeout_s=60))
    assert on.way_of_groups("float32") == THROUGH
    made = [entry for entry in fake.journal() if entry.startswith("cuMulticast")]
    assert made == [
        "cuMulticastGetGranularity",
        "cuMulticastCreate",
        *["cuMulticastAddDevice"] * RANKS,
        *["cuMulticastBindMem"] * RANKS,
    ]
    check(on, devices)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"multicast": 0}, "Stand-in (device 0) has no multicast"),
        ({"driver_version": 12000}, "a driver for CUDA 12.0 has no multicast"),
    ],
)
def test_without_multicast_messages_are_single(
    fake: FakeDriver, settings: dict[str, Any], why: str
) -> None:
    devices, plan = several(fake), nvls()
    fake.set(**settings)
    stand_in(fake, plan, Engine.GENERATED)
    on = Executor(plan, devices, SETTINGS)
    assert on.way_of_groups("float32") == f"as single messages, since {why}"
    check(on, devices)


def test_ranks_on_one_device_have_no_switch(fake: FakeDriver) -> None:
    device, _, _ = several(fake)
    on = Executor(nvls(), [device] * RANKS, SETTINGS)
    assert "on one device" in on.way_of_groups("float32")


def test_memory_behind_a_switch_is_freed(fake: FakeDriver) -> None:
    devices, plan = several(fake), nvls()
    gc.collect()
    before = [fake.used(rank) for rank in range(RANKS)]
    on = Executor(plan, devices, SETTINGS)
    held = [fake.used(rank) for rank in range(RANKS)]
    assert all(b + (2 << 20) < h for b, h in zip(before, held, strict=True))
    on.close()
    assert [fake.used(rank) for rank in range(RANKS)] == before
    on = Executor(plan, devices, SETTINGS)
    del on
    gc.collect()
    assert [fake.used(rank) for rank in range(RANKS)] == before


@pytest.mark.parametrize(
    ("entry", "error", "code"),
    [
        ("cuMemCreate", OUT_OF_MEMORY, "K507"),
        ("cuMulticastBindMem", SYSTEM_NOT_READY, "K501"),
        ("cuMemMap", OUT_OF_MEMORY, "K507"),
    ],
)
def test_what_the_driver_refuses_leaves_no_memory(
    fake: FakeDriver, entry: str, error: int, code: str
) -> None:
    devices, plan = several(fake), nvls()
    gc.collect()
    before = [fake.used(rank) for rank in range(RANKS)]
    fake.fail(entry, error)
    found = refused(code, Executor, plan, devices, SETTINGS)
    assert "letting a switch use memory of Stand-in (device 0) and" in str(found)
    del found
    gc.collect()
    assert [fake.used(rank) for rank in range(RANKS)] == before
