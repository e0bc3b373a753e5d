"""The package sley-kernels over the stand-in: its kernels run where no compiler is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import sley
from fake_driver import FakeDriver, refused
from fake_driver.cases_executor import RANKS, arrays, ring, values
from sley.engine.devices import Engine, Executor, Settings
from sley.engine.devices.cuda import CudaDevice, compiler
from sley.engine.devices.tables import structure
from sley.engine.kernels import Kernels, Platform, Variant, prebuilt
from sley.engine.types import DATA_TYPES
from support.devices.device_calls import threads

SUM = Variant(Platform.CUDA, DATA_TYPES["float32"].number, sley.ReduceOp.SUM)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with the code of one text: in place of machine code the stand-in takes the same
    kernels for CPUs. No compiler is there afterwards."""
    kernels, engine = Kernels.of(ring()), Engine.INTERPRETED
    package = tmp_path / prebuilt.PACKAGE
    package.mkdir()
    major, _ = compiler.version()
    (package / "__init__.py").write_text(f"CUDA = ({major}, 0)\nLEAST = (8, 0)\n")
    variant = Variant(Platform.CPU, SUM.dtype, SUM.reduce_op)
    library = threads().compiled(kernels.source(engine, variant))
    code = f"library {structure('Call').itemsize} {library}\n".encode() + bytes(1)
    (package / prebuilt.file_of(kernels.source(engine, SUM))).write_bytes(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, prebuilt.PACKAGE, raising=False)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    return package


@pytest.mark.usefixtures("whole_texts", "package")
def test_prebuilt_kernels_need_no_compiler(fake: FakeDriver) -> None:
    fake.set(devices=2)
    devices = [CudaDevice(rank % 2) for rank in range(RANKS)]
    data = arrays(devices, [np.arange(1000) + rank for rank in range(RANKS)])
    Executor(ring(), devices, Settings(Engine.INTERPRETED))(data)
    for device, array in zip(devices, data, strict=True):
        assert values(device, array).tolist() == (4 * np.arange(1000) + 6).tolist()
    # What the package lacks is compiled, and needs a compiler.
    for changed in (Settings(Engine.GENERATED), Settings(Engine.INTERPRETED, threads=256)):
        refused("K501", Executor(ring(), devices, changed), data)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("older", [{"capability": 75}, {"driver_version": 12080}])
def test_code_that_a_machine_does_not_run_is_left_alone(
    fake: FakeDriver, older: dict[str, int]
) -> None:
    CudaDevice(0)
    fake.set(**older)
    refused("K501", CudaDevice, 0)
