"""Fixtures that the cases share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fake_driver import FakeDriver
from sley.engine.devices.cuda import CudaDevice
from sley.engine.kernels import KERNELS


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    fake = FakeDriver()
    yield fake
    fake.reset()


@pytest.fixture
def device(fake: FakeDriver) -> CudaDevice:
    device = CudaDevice.open(0)
    fake.journal()
    return device


@pytest.fixture
def whole_texts() -> None:
    """Keeps kernels as they are, which take NVRTC seconds each."""


@pytest.fixture(autouse=True)
def _empty_kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts empty kernels in place of sley's: the stand-in looks only at their names."""
    if "whole_texts" in request.fixturenames:
        return
    module = CudaDevice._module
    empty = "".join(f'extern "C" __global__ void {name}() {{}}\n' for name in KERNELS)

    def without_code(self: CudaDevice, text: str) -> Any:
        return module(self, empty if KERNELS[0] in text else text)

    monkeypatch.setattr(CudaDevice, "_module", without_code)
    monkeypatch.setattr(CudaDevice, "compile_later", lambda self, text: None)
