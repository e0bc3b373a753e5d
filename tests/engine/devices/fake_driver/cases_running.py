"""Measuring, comparing and executing on CudaDevices over the stand-in: memory between guard zones,
names of devices, streams of several devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import sley
from fake_driver import FakeDriver, refused
from fake_driver.cases_executor import ring, stand_in
from sley.cli import main
from sley.engine.check import GuardedBuffer
from sley.engine.devices import Engine
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.execute import GuardedMemory
from sley.engine.devices.names import open_devices
from sley.engine.types import DATA_TYPES


def numbers(*arguments: Any) -> list[int]:
    return [d.ordinal for d in open_devices(*arguments) if isinstance(d, CudaDevice)]


def test_names_deal_ranks_to_gpus(fake: FakeDriver) -> None:
    assert numbers("cuda", 4) == [0, 0, 1, 1]
    assert numbers("cuda", 1) == [0]
    assert numbers("cuda", 4, 3) == [0, 0, 0, 1]
    assert numbers("cuda:1,0", 2) == [1, 0]
    refused("K510", open_devices, "cuda:2", 1)
    refused("K510", open_devices, "cuda", 5, 2)


@pytest.mark.parametrize(("devices", "engine"), zip(("cuda:0", "cuda"), Engine, strict=True))
def test_a_plan_is_measured_and_checked(fake: FakeDriver, devices: str, engine: Engine) -> None:
    plan = ring()
    stand_in(fake, plan, engine)
    found = sley.run(plan, [0, 1000, 5000], devices=devices, engine=engine, iterations=2)
    assert [(m.count, m.wrong) for m in found] == [(0, 0), (250, 0), (1250, 0)]
    inputs = [np.arange(10, dtype=np.float32) + rank for rank in range(4)]
    for output in sley.execute(plan, inputs, devices=devices, engine=engine):
        assert output.tolist() == sum(inputs).tolist()


def test_a_kernel_of_another_reduction_is_found_wrong(fake: FakeDriver) -> None:
    plan = ring()
    stand_in(fake, plan, Engine.GENERATED, sley.ReduceOp.MAX)
    (found,) = sley.run(plan, [1000], devices="cuda:0", iterations=1)
    assert found.wrong > 0


def test_guard_zones_lie_around_a_row(device: CudaDevice) -> None:
    memory, kind = GuardedMemory(device, 400), DATA_TYPES["int32"]
    written = GuardedBuffer(10, kind)
    written.array[:] = range(10)
    memory.write(written)
    row = memory.row(kind, 10)
    assert row.__cuda_array_interface__["shape"] == (10,)
    back = np.empty(40, np.uint8)
    device.read(row.memory, 0, back)
    assert back.view(np.int32).tolist() == list(range(10))
    device.write(row.memory, 40, np.zeros(3, np.uint8))
    device.write(row.memory, -2, np.zeros(2, np.uint8))
    memory.read(written)
    assert written.count_overwritten() == 5


def test_run_takes_gpus(fake: FakeDriver) -> None:
    plan = ring()
    options = ["ring-allreduce", "--ranks", "4", "--in-place", "--device", "cuda", "-n", "1"]
    stand_in(fake, plan, Engine.GENERATED)
    result = CliRunner().invoke(main, ["run", *options, "--ranks-per-gpu", "4", "--threads", "64"])
    assert result.exit_code == 0, result.output
    assert "4 thread blocks of 64 threads, generated code" in result.stdout
    # The interpreter's launches run generated code too: results are what is looked at.
    result = CliRunner().invoke(main, ["run", *options, "-e", "2K", "--engine", "both"])
    assert result.exit_code == 0, result.output
    assert "(device 0) and " in result.stdout
