"""Memory of executors that fail."""

from __future__ import annotations

import gc
from weakref import ref

import numpy as np
import pytest

import sley
from sley.engine.devices import Engine
from support.devices.device_calls import executor
from support.devices.gpu_plans import hanging


def test_a_failed_executor_is_freed_without_the_garbage_collector() -> None:
    gc.collect()
    gc.disable()
    try:
        on = executor(hanging(), engine=Engine.INTERPRETED, timeout_s=0.05)
        data = [np.zeros(8, np.int32) for _ in range(3)]
        for code in ("K508", "R508"):
            with pytest.raises(sley.SleyError, match=code):
                on(data)
        seen = ref(on)
        del on
        assert seen() is None, "the error holds the executor, and the executor the error"
    finally:
        gc.enable()
