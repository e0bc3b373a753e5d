"""Fixtures that the cases share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fake_driver import FakeDriver
from sley.devices.cuda import CudaDevice, driver


@pytest.fixture
def fake() -> Iterator[FakeDriver]:
    fake = FakeDriver()
    yield fake
    fake.reset()
    driver.bindings.cache_clear()


@pytest.fixture
def device(fake: FakeDriver) -> CudaDevice:
    device = CudaDevice.open(0)
    fake.journal()
    return device
