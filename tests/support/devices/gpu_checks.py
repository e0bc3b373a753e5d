"""Calls on a device's memory, checked through copies on the host.

test_gpu_*.py run them on a GPU, and test_checks_on_threads.py on threads, which tests the checks
themselves.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import sley
from sley.engine.check import CheckedBuffers
from sley.engine.devices import Device, Engine, Executor, Settings
from sley.engine.devices.device import Memory
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from support.devices.device_calls import TIMEOUT_S, filled_buffers, small_slots
from support.devices.gpu_plans import hanging, ring

_GUARD_BYTES = 512
_GUARD_BYTE = 0x5C
_HANG_TIMEOUT_S = 1.0
_PATIENCE_S = 30.0
"""By then a call with that timeout must have ended."""


def executor(plan: sley.Plan, device: Device, **options: Any) -> Executor:
    """An executor with all ranks on one device."""
    options = {"slot_bytes": small_slots(plan), "timeout_s": TIMEOUT_S} | options
    return Executor(plan, [device] * plan.collective.ranks, Settings(**options))


def part(device: Device, memory: Memory, start: int, dtype: str, elements: int) -> Any:
    """An array of a piece of a device's memory, from byte `start` on."""
    if device.platform == "cpu":
        size = elements * DATA_TYPES[dtype].size_bytes
        whole = device.array(memory, "uint8", memory.size_bytes)
        return whole[start : start + size].view(DATA_TYPES[dtype].array)
    piece = Memory(memory.address + start, memory.size_bytes - start, memory.owner)
    return device.array(piece, dtype, elements)


@dataclass
class OnDevice:
    """An array of the host, in a device's memory between guard zones. shift: its distance in
    elements from an alignment of 256 bytes."""

    device: Device
    host: np.ndarray[Any, Any]
    dtype: str
    shift: int = 0
    memory: Memory = field(init=False)

    def __post_init__(self) -> None:
        self._start = _GUARD_BYTES + self.shift * self.host.itemsize
        image = np.full(self._start + self.host.nbytes + _GUARD_BYTES, _GUARD_BYTE, np.uint8)
        image[self._start : self._start + self.host.nbytes] = self.host.view(np.uint8)
        self.memory = self.device.allocate(len(image))
        self.device.write(self.memory, 0, image)

    @property
    def array(self) -> Any:
        """The array on the device; None if it has no elements."""
        if not len(self.host):
            return None
        return part(self.device, self.memory, self._start, self.dtype, len(self.host))

    def fetch(self) -> int:
        """Copies the array back to the host, and returns the number of changed bytes in the guard
        zones."""
        image = np.empty(self.memory.size_bytes, np.uint8)
        self.device.read(self.memory, 0, image)
        end = self._start + self.host.nbytes
        self.host.view(np.uint8)[:] = image[self._start : end]
        zones = np.concatenate([image[: self._start], image[end:]])
        return int(np.count_nonzero(zones != _GUARD_BYTE))


@dataclass(frozen=True)
class Call:
    """The arrays of a call, filled with values that can be checked afterwards. dtype: which the
    arrays alone don't tell for bfloat16, since theirs is uint16."""

    checked: tuple[CheckedBuffers, ...]
    arrays: tuple[tuple[OnDevice, OnDevice], ...]
    in_place: bool
    count: int
    dtype: str
    reduce_op: sley.ReduceOp

    @classmethod
    def of(
        cls,
        plan: sley.Plan,
        device: Device,
        count: int,
        dtype: str = "float32",
        reduce_op: sley.ReduceOp = sley.ReduceOp.SUM,
        shift: int = 0,
    ) -> Call:
        checked = filled_buffers(plan, count, dtype, reduce_op)
        arrays = tuple(
            (
                OnDevice(device, one.memory[0].array, dtype, shift),
                OnDevice(device, one.memory[1].array, dtype, shift),
            )
            for one in checked
        )
        return cls(checked, arrays, plan.collective.in_place, count, dtype, reduce_op)

    def start(self, on: Executor, **options: Any) -> None:
        """Calls the executor."""
        inputs = [first.array for first, _ in self.arrays]
        outputs = None if self.in_place else [second.array for _, second in self.arrays]
        options |= {"count": self.count, "dtype": self.dtype, "reduce_op": self.reduce_op}
        on(inputs, outputs, **options)

    def wrong(self) -> int:
        """The number of wrong elements in all outputs, and of bytes written outside the arrays."""
        outside = sum(array.fetch() for pair in self.arrays for array in pair)
        return outside + sum(one.count_wrong() for one in self.checked)


def wrong(on: Executor, device: Device, count: int, **options: Any) -> int:
    """Makes a call, and returns the number of wrong elements after it."""
    call = Call.of(on.plan, device, count, **options)
    if all(first.array is None for first, _ in call.arrays):
        return 0  # the type of a call without elements is unknown
    call.start(on)
    return call.wrong()


class Sums:
    """int32 data of successive calls of an AllReduce in place. With an odd number of ranks each
    call multiplies by an odd number, modulo 2^32, so that an error in any call stays visible."""

    def __init__(self, device: Device, ranks: int, count: int) -> None:
        assert ranks % 2
        self.ranks = ranks
        noise = np.random.default_rng(7)
        self._inputs = noise.integers(-(2**31), 2**31, (ranks, count)).astype(np.int32)
        self._on_device = [OnDevice(device, row.copy(), "int32") for row in self._inputs]

    @property
    def arrays(self) -> list[Any]:
        return [one.array for one in self._on_device]

    def wrong(self, calls: int) -> int:
        """The number of wrong elements after this number of calls."""
        outside = sum(one.fetch() for one in self._on_device)
        factor = pow(self.ranks, calls - 1, 2**32)
        total = self._inputs.astype(np.int64).sum(axis=0)
        expected = (total % 2**32 * factor % 2**32).astype(np.uint32).view(np.int32)
        found = np.stack([one.host for one in self._on_device])
        return outside + int(np.count_nonzero(found != expected))


def check_hang(device: Device, engine: Engine) -> None:
    """A plan that hangs ends with K508, and the device stays usable."""
    on = executor(hanging(), device, engine=engine, timeout_s=_HANG_TIMEOUT_S)
    call = Sums(device, 3, 64).arrays
    begin = time.monotonic()
    with pytest.raises(SleyError) as caught:
        on(call)
    assert time.monotonic() - begin < _PATIENCE_S
    found = caught.value.diagnostics[0]
    assert found.rule.code == "K508"
    assert "waits for a message from rank" in found.found
    assert re.search(r"rank \d, block 0, step 0 \(recv_reduce_send\), tile 0", str(caught.value))
    with pytest.raises(SleyError, match="R508"):
        on(call)
    assert wrong(executor(ring(3), device, engine=engine), device, 1003) == 0


def check_memory(device: Device, slots: int) -> None:
    """More memory than there is is refused, and the device stays usable."""
    with pytest.raises(SleyError, match="K507"):
        executor(ring(3), device, slots=slots, slot_bytes=1 << 30)
    assert wrong(executor(ring(3), device), device, 1003) == 0
