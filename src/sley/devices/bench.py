"""A bench: an engine with a plan on devices, ready to be timed and checked at any size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sley.codegen import Engine
from sley.devices.buffers import RankBuffers, arguments
from sley.devices.calls import PreparedCall
from sley.devices.device import Device
from sley.devices.executor import Executor
from sley.engine.check import CheckedBuffers, Promise
from sley.engine.memory import allocate
from sley.engine.pattern import Pattern
from sley.engine.program import buffer_sizes
from sley.engine.types import DataType
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.jobs.measure import Measurement


class CheckedData:
    """Arrays on the ranks' devices for calls of a plan up to `most` elements a block, with a
    pattern that can be checked, between guard zones. K507, R507 where devices or the
    host have not enough memory."""

    def __init__(
        self,
        plan: Plan,
        devices: Sequence[Device],
        dtype: DataType,
        reduce_op: ReduceOp,
        most: int,
    ) -> None:
        self.plan, self.dtype, self.reduce_op = plan, dtype, reduce_op
        self._promises = [Promise.of(plan, rank) for rank in range(plan.collective.ranks)]
        width = max(promise.width for promise in self._promises)
        self._pattern = Pattern.make(dtype, reduce_op, width)
        self._buffers = RankBuffers.of(plan, devices, most, dtype)

    def arguments(self, count: int) -> tuple[list[Any], list[Any] | None]:
        """Inputs and outputs of a call of `count` elements a block."""
        return arguments(self._buffers, count, self.dtype)

    def fill(self, count: int) -> None:
        """Fresh data for a call of `count` elements a block."""
        for own in self._buffers:
            checked = self._checked(own, count)
            checked.fill()
            for memory, host in zip(own.memory, checked.memory, strict=False):
                memory.write(host.array)

    def wrong(self, count: int) -> int:
        """Elements of all ranks that are not what a call on what `fill` left promises, and those
        that were written outside the arrays."""
        wrong = 0
        for own in self._buffers:
            checked = self._checked(own, count)
            for memory, host in zip(own.memory, checked.memory, strict=False):
                memory.read(host.array)
                wrong += -(-memory.overwritten(host.array.nbytes) // self.dtype.size_bytes)
            wrong += checked.wrong()
        return wrong

    def measurement(self, count: int, time_us: float, wrong: int) -> Measurement:
        """The line of a call of `count` elements a block that took `time_us`."""
        return Measurement.of(self.plan, count, self.dtype, self.reduce_op, time_us, wrong)

    def _checked(self, own: RankBuffers, count: int) -> CheckedBuffers:
        sizes = buffer_sizes(self.plan, own.rank, count)
        in_place = self.plan.collective.in_place
        elements = sizes.data if in_place else sizes.input + sizes.output
        promise = self._promises[own.rank]
        return allocate(
            lambda: CheckedBuffers(own.rank, promise, sizes, count, self._pattern, in_place),
            f"the test data of rank {own.rank}",
            elements * self.dtype.size_bytes,
        )


class Bench:
    """An engine with a plan on devices, to be timed and checked on test data.

    devices, slots, slot_bytes, threads, timeout_s: as `Executor` has them. Its kernels are
    compiled when it is made. Errors: K5xx, R5xx.
    """

    def __init__(
        self,
        data: CheckedData,
        devices: Sequence[Device],
        engine: Engine,
        *,
        slots: int | None,
        slot_bytes: int | None,
        threads: int,
        timeout_s: float,
    ) -> None:
        self._data = data
        self._executor = Executor(
            data.plan,
            devices,
            engine=engine,
            slots=slots,
            slot_bytes=slot_bytes,
            threads=threads,
            timeout_s=timeout_s,
        )
        self._places = list(dict.fromkeys(devices))
        self._streams = [device.stream() for device in self._places]
        self._call(0)

    def time_us(self, count: int, *, warmup: int, iterations: int) -> float:
        """Time of one call of `count` elements a block: `iterations` calls back to back, each
        started without waiting for the one before, by the host's clock until the last one is done
        on all devices, divided by their number."""
        call = self._prepared(count)
        self._calls(call, warmup)
        start = time.perf_counter()
        self._calls(call, iterations)
        return (time.perf_counter() - start) / iterations * 1e6

    def count_wrong(self, count: int) -> int:
        """Runs once on fresh test data: the number of elements, over all ranks, that are not what
        the collective promises, or were written outside the arrays."""
        self._data.fill(count)
        self._call(count)
        return self._data.wrong(count)

    def _call(self, count: int) -> None:
        self._prepared(count)()

    def _prepared(self, count: int) -> PreparedCall:
        inputs, outputs = self._data.arguments(count)
        return self._executor.prepare(
            inputs,
            outputs,
            count=count,
            dtype=self._data.dtype.name,
            reduce_op=self._data.reduce_op,
        )

    def _calls(self, call: PreparedCall, number: int) -> None:
        for _ in range(number):
            call(self._streams)
        for device, stream in zip(self._places, self._streams, strict=True):
            device.synchronize(stream)
        self._executor.synchronize()
