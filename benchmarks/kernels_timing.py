"""Timers of calls on a device, and the order of timed runs.

On a GPU a batch of calls waits behind a gate until all of it is enqueued, with events before and
after it. So Python's time to start a kernel doesn't count, and every engine, also NCCL, is timed in
the same way. On threads the host's clock measures the time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import numpy as np

from sley.engine.devices import Device
from sley.errors import SleyError

Start = Callable[[list[Any]], None]
"""Starts one call on streams."""

CALLS = 20
"""The most calls of a batch: a stream accepts about a thousand launches before it blocks."""

BATCH_US = 4000.0
"""The time that the calls of a batch fill, with at most CALLS calls."""

COMPILING_US = 1e6
"""A first call that takes longer than this includes the compilation of kernels, and is repeated."""


class Timer(Protocol):
    """Times calls on one device."""

    how: str
    """A description for the results."""

    def streams(self, number: int) -> list[Any]:
        """New streams."""

    def time_us(self, start: Start, streams: list[Any], calls: int) -> float:
        """The average time of a call in a batch. streams: the streams of its work."""


class HostTimer:
    """A timer for devices whose work the host's clock can time: threads."""

    how = "the host's clock around back-to-back calls"

    def __init__(self, device: Device) -> None:
        self._device = device

    def streams(self, number: int) -> list[Any]:
        return [self._device.stream() for _ in range(number)]

    def time_us(self, start: Start, streams: list[Any], calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            start(streams)
        for stream in streams:
            self._device.synchronize(stream)
        return (time.perf_counter() - begin) / calls * 1e6


class CudaTimer:
    """A timer for a GPU: events around a batch of calls that starts when all of it is enqueued, or,
    with gate=False, at once."""

    def __init__(self, device: Any, *, gate: bool = True) -> None:
        from cuda.bindings import driver

        self._device, self._cu = device, driver
        self._main = device.stream()
        self._gate = device.allocate_host(64)
        with self._current():
            self._begin, self._end = self._event(timing=True), self._event(timing=True)
            self._joints = [self._event(timing=False) for _ in range(129)]
        self._gated = gate and self._can_gate()
        self.how = "CUDA events around back-to-back calls" + (
            ", enqueued before the first one starts" if self._gated else ", no gate"
        )

    def streams(self, number: int) -> list[Any]:
        return [self._device.stream() for _ in range(number)]

    def time_us(self, start: Start, streams: list[Any], calls: int) -> float:
        with self._batch(streams):
            for _ in range(calls):
                start(streams)
        return self._elapsed_us() / calls

    def copy(self, dst: int, src: int, size_bytes: int, stream: Any) -> None:
        """Starts a copy within the device's memory."""
        with self._current():
            self._call(self._cu.cuMemcpyDtoDAsync, dst, src, size_bytes, self._raw(stream))

    @contextmanager
    def _batch(self, streams: list[Any]) -> Iterator[None]:
        """Holds back the work on `streams` until the end of the with block, between events.

        Until then nothing may wait for the device. Freeing memory waits, so garbage collection is
        off.
        """
        word = self._gate.array[:4].view(np.uint32)
        word[0] = 0 if self._gated else 1
        gc.disable()
        try:
            with self._current():
                if self._gated:
                    self._wait_for_gate()
                self._record(self._begin, self._main)
                for stream in streams:
                    self._follow(stream, self._begin)
            yield
            with self._current():
                for stream, joint in zip(streams, self._joints, strict=False):
                    self._record(joint, stream)
                    self._follow(self._main, joint)
                self._record(self._end, self._main)
        finally:
            word[0] = 1
            gc.enable()
            self._device.synchronize(self._main)

    def _elapsed_us(self) -> float:
        with self._current():
            ms = self._call(self._cu.cuEventElapsedTime, self._begin, self._end)
        return float(ms) * 1e3

    def _raw(self, stream: Any) -> Any:
        from sley.engine.devices.cuda.streams import stream_address

        return self._cu.CUstream(stream_address(stream))

    def _event(self, *, timing: bool) -> Any:
        flags = self._cu.CUevent_flags
        flag = flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING
        return self._call(self._cu.cuEventCreate, flag.value)

    def _record(self, event: Any, stream: Any) -> None:
        self._call(self._cu.cuEventRecord, event, self._raw(stream))

    def _follow(self, stream: Any, event: Any) -> None:
        self._call(self._cu.cuStreamWaitEvent, self._raw(stream), event, 0)

    def _wait_for_gate(self) -> None:
        self._call(
            self._cu.cuStreamWaitValue32,
            self._raw(self._main),
            self._gate.address,
            1,
            self._cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ.value,
        )

    def _can_gate(self) -> bool:
        self._gate.array[:4].view(np.uint32)[0] = 1
        try:
            with self._current():
                self._wait_for_gate()
        except TurnError:
            return False
        self._device.synchronize(self._main)
        return True

    @contextmanager
    def _current(self) -> Iterator[None]:
        self._call(self._cu.cuCtxPushCurrent, self._device.native.context)
        try:
            yield
        finally:
            self._call(self._cu.cuCtxPopCurrent)

    @staticmethod
    def _call(function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the driver: its value. Raises TurnError for an error."""
        result, *values = function(*arguments)
        if result:
            raise TurnError(f"{function.__name__}: {result.name}")
        return values[0] if values else None


def timer_of(device: Device, *, gate: bool = True) -> Timer:
    """The timer for a device."""
    return CudaTimer(device, gate=gate) if device.platform == "cuda" else HostTimer(device)


class TurnError(Exception):
    """A turn failed; the message gives the reason."""


class Runnable(Protocol):
    """A run that takes turns: an engine with a plan, a communicator, a peer, a copy. label: what it
    is; `prepare` may add what it does at a size."""

    label: dict[str, Any]

    def prepare(self, count: int) -> str:
        """Prepares for calls of `count` elements a block, and checks one: the reason why it can't,
        or an empty text. Raises TurnError or SleyError, too."""

    def time_us(self, count: int, calls: int) -> float:
        """The time of a call. Raises TurnError or SleyError."""


@dataclass
class Measured:
    """The times of one run for one count. us: the time of a call in each round. failure: the reason
    why there are none."""

    label: dict[str, Any]
    us: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def median_us(self) -> float:
        return median(self.us) if self.us else float("nan")

    def row(self) -> dict[str, Any]:
        """The row of the results."""
        if self.failure:
            return {**self.label, "failure": self.failure}
        rounds = [round(us, 3) for us in self.us]
        return {**self.label, "us": rounds, "median_us": round(self.median_us, 3)}


def in_turn(
    runs: Sequence[Runnable],
    count: int,
    rounds: int,
    what: Mapping[str, Any],
    tell: Callable[[dict[str, Any]], object] = lambda label: None,
) -> list[Measured]:
    """Times all runs of one count, one after another in each round. A run that fails gets no more
    turns. what: further words of each label. tell: called with a run's label before each of its
    turns."""
    found, calls = [], []
    for run in runs:
        tell({**run.label, **what})
        one = Measured({})
        calls.append(_calls(run, one, count))
        one.label = {**run.label, **what}
        found.append(one)
    for turn in range(rounds):
        for run, one, number in zip(runs, found, calls, strict=True):
            if one.failure:
                continue
            tell({**one.label, "round": turn})
            try:
                one.us.append(run.time_us(count, number))
            except (TurnError, SleyError) as error:
                one.failure = words(error)
    return found


def _calls(run: Runnable, one: Measured, count: int) -> int:
    """Warms up, and returns the number of calls of a batch; 0 if the run fails."""
    try:
        one.failure = run.prepare(count)
        if one.failure:
            return 0
        us = run.time_us(count, 2)
        if us > COMPILING_US:
            us = run.time_us(count, 1)
    except (TurnError, SleyError) as error:
        one.failure = words(error)
        return 0
    return int(np.clip(BATCH_US / max(us, 1e-3), 1, CALLS))


def words(error: Exception) -> str:
    """An error in one line."""
    if not isinstance(error, SleyError):
        return str(error)
    first = error.diagnostics[0]
    return f"{first.rule.title}: {first.found}"
