"""Measurement: plans on devices over sizes, and generated code against the interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from sley.engine import measure
from sley.engine.check import CheckedBuffers, Pattern, Promise
from sley.engine.devices.calls import PreparedCall
from sley.engine.devices.device import Device
from sley.engine.devices.execute import DeviceBuffers
from sley.engine.devices.executor import Executor
from sley.engine.devices.settings import Settings
from sley.engine.kernels import Engine, refuse_varying_plan
from sley.engine.measure import Comparison, Measurement, Sweep
from sley.engine.memory import allocate
from sley.engine.program import buffer_sizes
from sley.ir.plan import Plan


def run(
    plan: Plan,
    sweep: Sweep,
    devices: Sequence[Device],
    settings: Settings | None = None,
    *,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Run `plan` on devices, once for each size, timed and checked as `sweep` says.

    devices: each rank's, from `open_devices`. settings: by default with generated code. progress:
    called with each measurement as it is made. All memory for data is allocated before the first
    size runs.

    Calls are started from Python one after the other, without a graph. On a GPU a start takes as
    long as a small call: at small sizes the times are those of the starts.

    Raises SleyError with the rules K5xx and R5xx.
    """
    refuse_varying_plan(plan)
    settings = settings or Settings(Engine.GENERATED)
    bench = Bench(CheckedData(plan, devices, sweep), devices, settings)
    return measure.measure(plan, bench, sweep, progress)


def compare(
    plan: Plan,
    sweep: Sweep,
    devices: Sequence[Device],
    settings: Settings | None = None,
    *,
    rounds: int = 5,
    progress: Callable[[], None] | None = None,
) -> list[Comparison[Engine]]:
    """Run `plan` with each engine, and compare their times at each size.

    Both use the same plan, arrays, thread blocks, threads and slots. The order of their runs,
    `rounds` and `progress`: as for `sley.engine.measure.compare`; other arguments: as for `run`.

    Raises SleyError with the rules K5xx and R5xx.
    """
    refuse_varying_plan(plan)
    settings = settings or Settings()
    data = CheckedData(plan, devices, sweep)
    benches = {engine: Bench(data, devices, replace(settings, engine=engine)) for engine in Engine}
    return measure.compare(plan, benches, sweep, rounds, progress)


class CheckedData:
    """Arrays on the ranks' devices for the calls of a sweep, between guard zones, filled with the
    test pattern. K507, R507 if a device or the host hasn't enough memory."""

    def __init__(self, plan: Plan, devices: Sequence[Device], sweep: Sweep) -> None:
        self.plan = plan
        self._promises = [Promise.of(plan, rank) for rank in range(plan.collective.ranks)]
        self._width = max(promise.width for promise in self._promises)
        most = max(sweep.counts(plan), default=0)
        self.buffers = DeviceBuffers(plan, devices, most, sweep.kind)
        self.filled = 0

    def fill(self, count: int, sweep: Sweep) -> None:
        """Fresh data for a call of `count` elements a block."""
        for rank, own in enumerate(self.buffers.memory):
            checked = self._host_buffers(rank, count, sweep)
            checked.fill()
            for memory, host in zip(own, checked.memory, strict=False):
                memory.write(host)
        self.filled = max(self.filled, count)

    def count_wrong(self, count: int, sweep: Sweep) -> int:
        """The number of wrong elements of all ranks after a call on the data of `fill`, and of
        elements written outside the arrays."""
        wrong = 0
        for rank, own in enumerate(self.buffers.memory):
            checked = self._host_buffers(rank, count, sweep)
            for memory, host in zip(own, checked.memory, strict=False):
                memory.read(host)
            wrong += checked.count_wrong()
        return wrong

    def _host_buffers(self, rank: int, count: int, sweep: Sweep) -> CheckedBuffers:
        sizes = buffer_sizes(self.plan, rank, count)
        in_place = self.plan.collective.in_place
        pattern = Pattern.make(sweep.kind, sweep.reduce_op, self._width)
        promise = self._promises[rank]
        return allocate(
            lambda: CheckedBuffers(rank, promise, sizes, count, pattern, in_place),
            f"the test data of rank {rank}",
            sum(sizes.lengths(in_place)) * sweep.kind.size_bytes,
        )


class Bench:
    """A plan on devices, timed and checked on test data; see `sley.engine.measure.Bench`."""

    def __init__(self, data: CheckedData, devices: Sequence[Device], settings: Settings) -> None:
        self._data = data
        self._executor = Executor(data.plan, devices, settings)
        self._places = list(dict.fromkeys(devices))
        self._streams = [device.stream() for device in self._places]

    def time_us(self, count: int, sweep: Sweep) -> float:
        """See `sley.engine.measure.Bench`. Each call is started without waiting for the one before;
        the host's clock stops when the last one is done on all devices. Arrays are filled only
        once: a call's time doesn't depend on their values."""
        if count > self._data.filled:
            self._data.fill(count, sweep)
        call = self._prepare(count, sweep)
        self._make(call, sweep.warmup)
        start = time.perf_counter()
        self._make(call, sweep.iterations)
        return (time.perf_counter() - start) / sweep.iterations * 1e6

    def count_wrong(self, count: int, sweep: Sweep) -> int:
        """See `sley.engine.measure.Bench`."""
        self._data.fill(count, sweep)
        self._prepare(count, sweep)()
        return self._data.count_wrong(count, sweep)

    def _prepare(self, count: int, sweep: Sweep) -> PreparedCall:
        return self._executor.prepare(
            *self._data.buffers.arrays(count),
            count=count,
            dtype=sweep.dtype,
            reduce_op=sweep.reduce_op,
        )

    def _make(self, call: PreparedCall, number: int) -> None:
        for _ in range(number):
            call(self._streams)
        for device, stream in zip(self._places, self._streams, strict=True):
            device.synchronize(stream)
        self._executor.synchronize()
