"""Execution: one run of a plan on devices, with arrays copied from and to the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sley.engine.arguments import check_inputs
from sley.engine.check import GUARD_BYTES, GuardedBuffer
from sley.engine.devices.device import Device, Memory
from sley.engine.devices.executor import Executor
from sley.engine.devices.settings import Settings
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.engine.program import BufferSizes, buffer_sizes
from sley.engine.types import Array, DataType
from sley.errors.devices import K507
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp


def execute(
    plan: Plan,
    inputs: Sequence[Array],
    devices: Sequence[Device],
    settings: Settings | None = None,
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
) -> list[Array]:
    """Run `plan` once on `inputs`, NumPy arrays, and return each rank's output. For arrays that are
    on devices already use an `Executor`.

    devices: each rank's, from `open_devices`. The other arguments: as for
        `sley.communicator.jobs.execute`.

    Raises SleyError with the rules K5xx and R5xx.
    """
    call = check_inputs(plan, inputs, dtype, count, reduce_op)
    with Executor(plan, devices, settings) as executor:
        buffers = RankBuffers.of(plan, devices, call.count, call.dtype)
        for own, array in zip(buffers, call.arrays, strict=True):
            first = GuardedBuffer(len(array), call.dtype)
            first.array[:] = array
            own.memory[0].write(first)
        arrays = arrays_of(buffers, call.count, call.dtype)
        executor(*arrays, count=call.count, dtype=call.dtype.name, reduce_op=call.reduce_op)
    outputs = []
    for own, sizes in zip(buffers, call.sizes, strict=True):
        last = GuardedBuffer(_lengths(plan, sizes)[-1], call.dtype)
        own.memory[-1].read(last)
        outputs.append(last.array[sizes.output_start : sizes.output_start + sizes.output].copy())
    return outputs


class GuardedMemory:
    """Memory of a device for a row of at most `size_bytes` between two guard zones of GUARD_BYTES,
    as on the host. K507 if the device hasn't enough memory."""

    def __init__(self, device: Device, size_bytes: int) -> None:
        if size_bytes > LARGEST:
            raise K507.error(
                expected=f"{size_bytes:,} bytes of memory on {device.name}", found=BEYOND
            )
        self._device = device
        self._memory = device.allocate(size_bytes + 2 * GUARD_BYTES)

    def row(self, dtype: DataType, elements: int) -> Any:
        """The row as an array for an Executor."""
        size = elements * dtype.size_bytes
        part = Memory(self._memory.address + GUARD_BYTES, size, self._memory.owner)
        return self._device.array(part, dtype.name, elements)

    def write(self, row: GuardedBuffer) -> None:
        """Writes a row, and the guard zones around it."""
        self._device.write(self._memory, 0, row.memory)

    def read(self, row: GuardedBuffer) -> None:
        """Reads a row and the zones around it, in which `row` counts what changed since `write`."""
        self._device.read(self._memory, 0, row.memory)


@dataclass(frozen=True)
class RankBuffers:
    """A rank's arrays on its device: input and output; in place: the data alone."""

    plan: Plan
    rank: int
    memory: tuple[GuardedMemory, ...]

    @classmethod
    def of(
        cls, plan: Plan, devices: Sequence[Device], count: int, dtype: DataType
    ) -> list[RankBuffers]:
        """The arrays of all ranks, for calls of at most `count` elements a block. devices: each
        rank's. K507 if a device hasn't enough memory."""
        return [
            cls(
                plan,
                rank,
                tuple(
                    GuardedMemory(device, elements * dtype.size_bytes)
                    for elements in _lengths(plan, buffer_sizes(plan, rank, count))
                ),
            )
            for rank, device in enumerate(devices)
        ]

    def rows(self, count: int, dtype: DataType) -> list[Any]:
        """The arrays of a call of `count` elements a block."""
        lengths = _lengths(self.plan, buffer_sizes(self.plan, self.rank, count))
        return [
            memory.row(dtype, elements)
            for memory, elements in zip(self.memory, lengths, strict=True)
        ]


def _lengths(plan: Plan, sizes: BufferSizes) -> tuple[int, ...]:
    """The number of elements of each of a rank's arrays."""
    return (sizes.data,) if plan.collective.in_place else (sizes.input, sizes.output)


def arrays_of(
    buffers: Sequence[RankBuffers], count: int, dtype: DataType
) -> tuple[list[Any], list[Any] | None]:
    """The inputs and outputs of a call, as arguments of an Executor."""
    rows = [b.rows(count, dtype) for b in buffers]
    in_place = buffers[0].plan.collective.in_place
    return [row[0] for row in rows], None if in_place else [row[1] for row in rows]
