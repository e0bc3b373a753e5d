"""Refused and failing calls on a GPU, which stays usable."""

from __future__ import annotations

from typing import Any

import pytest

from sley.engine.devices import Engine
from sley.errors import SleyError
from support.devices.gpu_checks import check_hang, check_memory, executor, wrong
from support.devices.gpu_needed import needs_gpu
from support.devices.gpu_plans import ring

pytestmark = needs_gpu()

ENGINES = pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)


@ENGINES
def test_a_plan_that_hangs_ends_and_the_device_stays_usable(engine: Engine, gpu: Any) -> None:
    check_hang(gpu, engine)


@ENGINES
def test_more_blocks_than_fit_are_refused(engine: Engine, gpu: Any) -> None:
    instances = -(-gpu.multiprocessors // 4) + 1  # of 8 ranks with 1024 threads a block, which
    plan = ring(8, instances=instances)  # a multiprocessor holds twice at most
    with pytest.raises(SleyError, match="K506"):
        wrong(executor(plan, gpu, engine=engine, threads=1024), gpu, 1003)
    assert wrong(executor(ring(3), gpu, engine=engine), gpu, 1003) == 0


def test_more_memory_than_there_is_is_refused(gpu: Any) -> None:
    check_memory(gpu, 1 << 12)
