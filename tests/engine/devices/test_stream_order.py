"""The order of execution: calls on several streams, launches of a call, streams themselves."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from threading import Event
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Launching, ThreadsDevice
from support.devices.device_calls import TIMEOUT_S, enqueue, executor, threads
from support.inputs.prefix_sums import prefix_sums

RANKS = 3
KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
LAUNCHING = pytest.mark.parametrize("launching", Launching, ids=lambda way: way.value)


def ring() -> sley.Plan:
    return sley.compile(build("ring-allreduce", ranks=RANKS, in_place=True))


def ones() -> list[Any]:
    return [np.ones(600, np.int32) for _ in range(RANKS)]


def launched(patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The kernels that threads run from now on: their names, and their numbers of blocks."""
    found, kernels, build = [], [], ThreadsDevice.build

    def noted(self: ThreadsDevice, text: str, functions: Sequence[str]) -> dict[str, int]:
        def noting(name: str, address: int) -> int:
            def run(call: int, blocks: int) -> int:
                found.append((name, blocks))
                return int(KERNEL(address)(call, blocks))

            kernels.append(KERNEL(run))
            return ctypes.cast(kernels[-1], ctypes.c_void_p).value or 0

        return {name: noting(name, at) for name, at in build(self, text, functions).items()}

    patch.setattr(ThreadsDevice, "build", noted)
    return found


@LAUNCHING
def test_a_call_waits_for_those_on_other_streams(launching: Launching) -> None:
    """Else both would begin at the same count of tiles."""
    on = executor(ring(), engine=Engine.INTERPRETED, launching=launching)
    launches = 1 if launching is Launching.TOGETHER else RANKS
    first, second = ([threads().stream() for _ in range(launches)] for _ in range(2))
    gate = Event()
    enqueue(first[-1], lambda: gate.wait(TIMEOUT_S))
    data = ones()
    for number in range(8):
        on(data, streams=(first, second)[number % 2])
    assert data[0][0] == 1
    gate.set()
    on(data)
    assert (np.array(data) == RANKS**9).all()


def test_only_ranks_that_divide_launch_divisions(monkeypatch: pytest.MonkeyPatch) -> None:
    on = executor(
        sley.compile(prefix_sums(4)), engine=Engine.INTERPRETED, launching=Launching.BY_RANK
    )
    found = launched(monkeypatch)
    data = [np.full(600, rank, np.int32) for rank in (6, 8, 10, 12)]
    on(data, reduce_op=sley.ReduceOp.AVG)
    assert sorted(name for name, _ in found) == ["sley_divide"] * 2 + ["sley_run"] * 4
    assert [set(array.tolist()) for array in data] == [{6}, {7}, {8}, {9}]


def test_an_average_of_final_reductions_takes_no_launch_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on = executor(ring(), engine=Engine.INTERPRETED)
    found = launched(monkeypatch)
    data = ones()
    on(data, reduce_op=sley.ReduceOp.AVG)
    assert [name for name, _ in found] == ["sley_run"]
    assert (np.array(data) == 1).all()


def test_nothing_starts_if_one_stream_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    on = executor(ring(), engine=Engine.INTERPRETED, launching=Launching.BY_RANK)
    found = launched(monkeypatch)
    with pytest.raises(sley.SleyError) as caught:
        on(ones(), streams=[threads().stream(), threads().stream(), "typo"])
    assert caught.value.code == "K517"
    assert not found
    data = ones()
    on(data)
    assert (np.array(data) == RANKS).all()


def test_devices_of_one_number_are_one() -> None:
    """To wait for a device is to wait for all streams of it, whoever made them."""
    stream, done = ThreadsDevice(7).stream(), []
    gate = Event()
    enqueue(stream, lambda: (gate.wait(0.2), done.append(1)))
    ThreadsDevice(7).synchronize(None)
    assert done
