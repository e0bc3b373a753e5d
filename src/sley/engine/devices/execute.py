"""Execution: one run of a plan on devices, with arrays copied from and to the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sley.engine.arguments import check_inputs
from sley.engine.check import GUARD_BYTES, GuardedBuffer
from sley.engine.devices.device import Device, Memory
from sley.engine.devices.executor import Executor
from sley.engine.devices.settings import Settings
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.engine.program import buffer_sizes
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
        buffers = DeviceBuffers(plan, devices, call.count, call.dtype)
        for own, array in zip(buffers.memory, call.arrays, strict=True):
            first = GuardedBuffer(len(array), call.dtype)
            first.array.view(array.dtype)[:] = array
            own[0].write(first)
        arrays = buffers.arrays(call.count)
        executor(*arrays, count=call.count, dtype=call.dtype.name, reduce_op=call.reduce_op)
    outputs = []
    for own, sizes in zip(buffers.memory, call.sizes, strict=True):
        last = GuardedBuffer(sizes.data if call.in_place else sizes.output, call.dtype)
        own[-1].read(last)
        output = last.array[sizes.output_start : sizes.output_start + sizes.output]
        outputs.append(output.view(call.array).copy())
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


class DeviceBuffers:
    """The ranks' arrays on their devices, for calls of at most `count` elements a block.

    memory: of each rank, input and output; in place: the data alone. devices: each rank's. K507 if
    a device hasn't enough memory.
    """

    def __init__(self, plan: Plan, devices: Sequence[Device], count: int, dtype: DataType) -> None:
        self._plan, self._dtype = plan, dtype
        self.memory = [
            [GuardedMemory(device, n * dtype.size_bytes) for n in self._lengths(rank, count)]
            for rank, device in enumerate(devices)
        ]

    def arrays(self, count: int) -> tuple[list[Any], list[Any] | None]:
        """The inputs and outputs of a call of `count` elements a block, for an Executor."""
        rows = [
            [
                one.row(self._dtype, n)
                for one, n in zip(own, self._lengths(rank, count), strict=True)
            ]
            for rank, own in enumerate(self.memory)
        ]
        in_place = self._plan.collective.in_place
        return [row[0] for row in rows], None if in_place else [row[1] for row in rows]

    def _lengths(self, rank: int, count: int) -> tuple[int, ...]:
        in_place = self._plan.collective.in_place
        return buffer_sizes(self._plan, rank, count).lengths(in_place)[: 1 if in_place else 2]
