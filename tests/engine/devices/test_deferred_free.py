"""Memory of executors that fail or are dropped, and launches of calls by several threads."""

from __future__ import annotations

import gc
import threading
from typing import Any
from weakref import ref

import numpy as np
import pytest

import sley
from sley.engine.devices import Engine, Launching, ThreadsDevice
from sley.engine.native import LaunchTurn, release
from support.devices.device_calls import executor
from support.devices.gpu_plans import hanging, ring


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


def test_frees_wait_for_the_launches_of_any_thread() -> None:
    said: list[str] = []
    with LaunchTurn():
        other = threading.Thread(target=lambda: release(lambda: said.append("freed")))
        other.start()
        other.join()
        release(lambda: said.append("freed, too"))
        said.append("launched")
    assert said == ["launched", "freed", "freed, too"]
    release(lambda: release(lambda: said.append("by a free")))
    assert said[3:] == ["by a free"]
    with pytest.raises(OSError, match="launch"), LaunchTurn():
        release(lambda: said.append("behind a launch that failed"))
        raise OSError("a launch")
    assert said[4:] == ["behind a launch that failed"]


def test_calls_of_two_threads_are_launched_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise two devices could start them in different orders, and each wait for the other."""
    launch, made = ThreadsDevice.launch, list[str]()

    def noted(self: ThreadsDevice, program: Any, one: Any, stream: Any) -> None:
        made.append(threading.current_thread().name)
        threading.Event().wait(0.005)
        launch(self, program, one, stream)

    monkeypatch.setattr(ThreadsDevice, "launch", noted)
    ons = [
        executor(ring(3), engine=Engine.INTERPRETED, launching=Launching.BY_RANK) for _ in range(2)
    ]

    def call(number: int) -> None:
        ons[number]([np.zeros(8, np.int32) for _ in range(3)])

    workers = [threading.Thread(target=call, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(made) == 6
    assert len(set(made[:3])) == len(set(made[3:])) == 1, made
