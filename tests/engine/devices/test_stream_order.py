"""The order of execution: calls on several streams, launches of a call, streams themselves."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.engine.devices import Engine, Launching, ThreadsDevice
from sley.engine.devices.device import Launch
from support.devices.device_calls import TIMEOUT_S, executor, threads
from support.inputs.prefix_sums import prefix_sums

RANKS = 3
LAUNCHING = pytest.mark.parametrize("launching", Launching, ids=lambda way: way.value)


def ring() -> sley.Plan:
    return sley.compile(build("ring-allreduce", ranks=RANKS, in_place=True))


def ones() -> list[Any]:
    return [np.ones(600, np.int32) for _ in range(RANKS)]


def launched(patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What devices start from now on: names of kernels, and numbers of blocks."""
    found: list[tuple[str, int]] = []
    launch = ThreadsDevice.launch

    def noted(self: ThreadsDevice, program: Any, one: Launch, stream: Any) -> None:
        found.append((one.function, one.blocks))
        launch(self, program, one, stream)

    patch.setattr(ThreadsDevice, "launch", noted)
    return found


@LAUNCHING
def test_a_call_waits_for_those_on_other_streams(launching: Launching) -> None:
    """Else both would begin at the same count of tiles."""
    on = executor(ring(), engine=Engine.INTERPRETED, launching=launching)
    launches = 1 if launching is Launching.TOGETHER else RANKS
    first, second = ([threads().stream() for _ in range(launches)] for _ in range(2))
    gate = Event()
    first[-1].start(lambda: gate.wait(TIMEOUT_S))
    data = ones()
    for number in range(8):
        on(data, streams=(first, second)[number % 2])
    assert data[0][0] == 1
    gate.set()
    on(data)
    assert (np.array(data) == RANKS**9).all()


def test_divisions_start_behind_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU with few queues would start no run behind a division that waits for it."""
    on = executor(
        sley.compile(prefix_sums(4)), engine=Engine.INTERPRETED, launching=Launching.BY_RANK
    )
    found = launched(monkeypatch)
    data = [np.full(600, rank, np.int32) for rank in (6, 8, 10, 12)]
    on(data, reduce_op=sley.ReduceOp.AVG)
    assert [name for name, _ in found] == ["sley_run"] * 4 + ["sley_divide"] * 2
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


def test_everybody_who_waits_for_a_stream_waits() -> None:
    """One who waits takes nothing from another."""
    stream, gate = threads().stream(), Event()
    stream.start(lambda: gate.wait(TIMEOUT_S))
    waiting = [Thread(target=lambda: threads().synchronize(stream)) for _ in range(2)]
    for one in waiting:
        one.start()
        one.join(0.1)
    assert all(one.is_alive() for one in waiting)
    gate.set()
    for one in waiting:
        one.join(TIMEOUT_S)
    assert not any(one.is_alive() for one in waiting)


def test_an_error_on_a_stream_is_reported() -> None:
    stream = threads().stream()
    stream.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        threads().synchronize(stream)
    threads().synchronize(stream)


def test_devices_of_one_number_are_one() -> None:
    """To wait for a device is to wait for all streams of it, whoever made them."""
    stream, done = ThreadsDevice(7).stream(), []
    gate = Event()
    stream.start(lambda: (gate.wait(0.2), done.append(1)))
    ThreadsDevice(7).synchronize(None)
    assert done
