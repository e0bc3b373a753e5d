"""Calls of executors on threads of this machine, checked against the collective's promise."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sley
from sley.engine.check import CheckedBuffers, Pattern, Promise
from sley.engine.devices import Device, Executor, Settings, ThreadsDevice
from sley.engine.devices.cuda import CudaDevice
from sley.engine.devices.device import Launch
from sley.engine.devices.tables import structure
from sley.engine.program import buffer_sizes
from sley.engine.types import DATA_TYPES

TIMEOUT_S = 20.0

CHUNK_BYTES = 256
"""The bytes of a slot for each chunk: two lines of LL128, so that small calls have several
tiles."""


@cache
def threads(number: int = 0) -> ThreadsDevice:
    """A device that these tests share. Its compiler doesn't optimise: the tests compile many texts
    and make small calls."""
    return ThreadsDevice(number, flags=["-O0"])


def module_of(text: str, argument: str = "Call", device: ThreadsDevice | None = None) -> bytes:
    """A text's kernels for CPUs as a module that the stand-in for NVIDIA's driver runs. argument:
    the structure that is the argument of a kernel."""
    library = (device or threads()).compiled(text).read_bytes()
    head = f"library {structure(argument).itemsize} {len(library)}\n"
    return head.encode() + library + bytes(1)


def memory_of_threads() -> dict[int, int]:
    """The sizes of the files in which this process has memory of its own or of other processes, by
    their numbers."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            if link.readlink().name.startswith("memfd:sley"):
                file = link.stat()
                found[file.st_ino] = file.st_size
    return found


def enqueue(stream: Any, work: Callable[[], Any]) -> None:
    """Puts a function on a stream of threads, as a kernel."""
    kernel = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: (work(), 1)[1])
    program = {"work": ctypes.cast(kernel, ctypes.c_void_p).value or 0}
    threads().launch(program, Launch("work", b"", 1, 1, False, keeps=kernel), stream)


@contextmanager
def current(device: CudaDevice) -> Iterator[None]:
    """Makes a GPU's context current, for the driver's functions in cuda.bindings."""
    from cuda.bindings import driver as cu

    cu.cuCtxPushCurrent(device.native.context)
    try:
        yield
    finally:
        cu.cuCtxPopCurrent()


def small_slots(plan: sley.Plan) -> int:
    """The bytes of a slot that holds CHUNK_BYTES of each chunk of the longest message."""
    return CHUNK_BYTES * int(plan.instructions.count.max(initial=1))


def executor(plan: sley.Plan, devices: Sequence[Device] | None = None, **options: Any) -> Executor:
    """An executor with all ranks on the shared device, or on `devices`."""
    options = {"slot_bytes": small_slots(plan), "timeout_s": TIMEOUT_S} | options
    return Executor(plan, devices or [threads()] * plan.collective.ranks, Settings(**options))


def filled_buffers(
    plan: sley.Plan, count: int, dtype: str, reduce_op: sley.ReduceOp
) -> tuple[CheckedBuffers, ...]:
    """The buffers of each rank for one call, between guard zones, with values that can be checked
    afterwards."""
    c = plan.collective
    promises = [Promise.of(plan, rank) for rank in range(c.ranks)]
    pattern = Pattern.make(DATA_TYPES[dtype], reduce_op, promises[0].width)
    buffers = tuple(
        CheckedBuffers(r, p, buffer_sizes(plan, r, count), count, pattern, c.in_place)
        for r, p in enumerate(promises)
    )
    for one in buffers:
        one.fill()
    return buffers


@dataclass(frozen=True)
class Call:
    """The arrays of a call between guard zones, filled with values that can be checked
    afterwards."""

    buffers: tuple[CheckedBuffers, ...]
    in_place: bool
    count: int
    reduce_op: sley.ReduceOp

    @classmethod
    def of(
        cls,
        plan: sley.Plan,
        count: int,
        dtype: str = "int32",
        reduce_op: sley.ReduceOp = sley.ReduceOp.SUM,
    ) -> Call:
        buffers = filled_buffers(plan, count, dtype, reduce_op)
        return cls(buffers, plan.collective.in_place, count, reduce_op)

    @property
    def inputs(self) -> list[Any]:
        """The input of each rank; in place, its data."""
        return [b.memory[0].array for b in self.buffers]

    @property
    def outputs(self) -> list[Any] | None:
        """The output of each rank; None in place."""
        return None if self.in_place else [b.memory[1].array for b in self.buffers]

    def start(self, on: Executor, **options: Any) -> None:
        """Calls the executor."""
        on(self.inputs, self.outputs, count=self.count, reduce_op=self.reduce_op, **options)

    def wrong(self) -> int:
        """The number of wrong elements in all outputs, and of elements written outside the
        buffers."""
        return sum(b.count_wrong() for b in self.buffers)


def wrong(
    on: Executor,
    count: int,
    dtype: str = "int32",
    reduce_op: sley.ReduceOp = sley.ReduceOp.SUM,
) -> int:
    """Makes a call, and returns the number of wrong elements after it."""
    call = Call.of(on.plan, count, dtype, reduce_op)
    call.start(on)
    return call.wrong()
