"""Refused and failing calls on a GPU, which stays usable."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from sley.devices import Engine
from sley.errors import SleyError
from support.gpu_checks import Sums, executor, wrong
from support.gpu_needed import needs_gpu
from support.gpu_plans import hanging, ring

pytestmark = needs_gpu()

ENGINES = pytest.mark.parametrize("engine", Engine, ids=lambda e: e.value)
TIMEOUT_S = 1.0
PATIENCE_S = 30.0
"""By then a call with that timeout must have ended."""


@ENGINES
def test_a_plan_that_hangs_ends_and_the_device_stays_usable(engine: Engine, gpu: Any) -> None:
    check_hang(gpu, engine)


def check_hang(device: Any, engine: Engine) -> None:
    on = executor(hanging(), device, engine=engine, timeout_s=TIMEOUT_S)
    call = Sums(device, 3, 64).arrays
    begin = time.monotonic()
    with pytest.raises(SleyError) as caught:
        on(call)
    assert time.monotonic() - begin < PATIENCE_S
    found = caught.value.diagnostics[0]
    assert found.rule.code == "K508"
    assert "waits for a message from rank" in found.found
    assert re.search(r"rank \d, block 0, step 0 \(recv_reduce_send\), tile 0", str(caught.value))
    with pytest.raises(SleyError, match="K511"):
        on(call)
    assert wrong(executor(ring(3), device, engine=engine), device, 1003) == 0


@ENGINES
def test_more_blocks_than_fit_are_refused(engine: Engine, gpu: Any) -> None:
    instances = -(-gpu.multiprocessors // 4) + 1  # of 8 ranks with 1024 threads a block, which
    plan = ring(8, instances=instances)  # a multiprocessor holds twice at most
    with pytest.raises(SleyError, match="K506"):
        wrong(executor(plan, gpu, engine=engine, threads=1024), gpu, 1003)
    assert wrong(executor(ring(3), gpu, engine=engine), gpu, 1003) == 0


def test_more_memory_than_there_is_is_refused(gpu: Any) -> None:
    check_memory(gpu, 1 << 12)


def check_memory(device: Any, slots: int) -> None:
    with pytest.raises(SleyError, match="K507"):
        executor(ring(3), device, slots=slots, slot_bytes=1 << 30)
    assert wrong(executor(ring(3), device), device, 1003) == 0
