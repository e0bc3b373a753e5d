"""Threads: the device of every machine. A thread block is a thread of this process.

It runs the same generated code as a GPU, over primitives for CPUs, so that every plan's kernels can
be tested without a GPU and under sanitizers. For fast collectives on CPUs use `sley.engine`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakSet

import numpy as np

from sley.engine import native
from sley.engine.devices.device import (
    Bytes,
    CallOrder,
    Device,
    HostMemory,
    Launch,
    Memory,
    Start,
    View,
    Window,
)
from sley.engine.devices.shared_files import map_bytes
from sley.engine.types import ARRAY_TYPES, DATA_TYPES, name_of
from sley.errors import Place
from sley.errors.devices import K503, K504, K506, K507, K510, K513, K514, K517, K519
from sley.errors.disk_cache import cached
from sley.errors.runtime import R504

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (
    *("-std=c++17", "-O1", "-fno-strict-aliasing", "-ffp-contract=off"),
    *("-pthread", "-shared", "-fPIC"),
)
_MOST_THREADS = 4096
_LOG_LINES = 20


class ThreadsDevice(Device):
    """Threads of this process. number: identifies one of several such devices.

    flags: additional compiler options, for sanitizers.
    """

    platform = "cpu"
    _streams: ClassVar[dict[int, WeakSet[_Stream]]] = {}
    """The streams by device number: devices with the same number are equal."""
    _lock: ClassVar[Lock] = Lock()

    def __init__(self, number: int = 0, *, flags: Sequence[str] = ()) -> None:
        self.number = number
        self.name = f"threads of this machine (device {number})"
        self._flags = tuple(flags)
        self._default = self.stream()

    @classmethod
    def open(cls, ordinal: int) -> ThreadsDevice:
        """The device numbered `ordinal`; K510 if it is negative."""
        if ordinal < 0:
            raise K510.error(expected="a number from 0", found=f"threads:{ordinal}")
        return cls(ordinal)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ThreadsDevice) and self.number == other.number

    def __hash__(self) -> int:
        return hash(("threads", self.number))

    def build(self, text: str, functions: Sequence[str]) -> ctypes.CDLL:
        compiler = _compiler()
        command = [compiler, *_FLAGS, *self._flags]
        key = [text, *command, _version(compiler)]
        library = cached(key, ".so", lambda path: _compile(command, text, path))
        return ctypes.CDLL(str(library))

    def allocate(self, size_bytes: int, *, exported: bool = False) -> Memory:
        """See `Device.allocate`. An anonymous file, which other processes open by its descriptor
        in this process."""
        try:
            descriptor = os.memfd_create("sley")
            os.ftruncate(descriptor, max(size_bytes, 1))
            return _map_file(descriptor, size_bytes)
        except OSError as problem:
            raise K507.error(expected=f"{size_bytes} bytes", found=str(problem)) from problem

    def allocate_host(self, size_bytes: int) -> HostMemory:
        array = np.zeros(size_bytes, np.uint8)
        return HostMemory(array.ctypes.data, array, array)

    def map_host(self, path: str, size_bytes: int) -> HostMemory:
        mapped = map_bytes(path, size_bytes)
        return HostMemory(mapped.ctypes.data, mapped, mapped)

    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        _bytes_of(memory, offset, len(data))[:] = data

    def read(self, memory: Memory, offset: int, data: Bytes) -> None:
        data[:] = _bytes_of(memory, offset, len(data))

    def reach(self, other: Device) -> None:
        """See `Device.reach`. Threads can access all memory of their process."""

    def carries_lines(self, other: Device | bytes) -> bool:
        """See `Device.carries_lines`. On CPUs a line's flag is stored after its data."""
        return True

    def lends(self, address: int, other: Device) -> bool:
        return True

    def lacks_switch(self, devices: Sequence[Device]) -> str:
        """See `Device.lacks_switch`. On CPUs the primitives do what a switch does."""
        return ""

    def window(self, devices: Sequence[Device], size_bytes: int) -> Window:
        """See `Device.window`. Behind the switch is a table: the number of parts, and addresses."""
        parts = tuple(self.allocate(size_bytes) for _ in devices)
        tables: dict[int, Bytes] = {}

        def through(offset: int) -> int:
            if offset not in tables:
                row = [len(parts), *(part.address + offset for part in parts)]
                tables[offset] = np.array(row, np.uint64).view(np.uint8)
            return tables[offset].ctypes.data

        return Window(parts, through)

    def export(self, memory: Memory) -> tuple[bytes, None]:
        descriptor = memory.owner.descriptor
        # Descriptor numbers are reused; handles must be unique.
        unique = os.fstat(descriptor).st_ino
        start = memory.address - memory.owner.address
        return f"{os.getpid()}:{descriptor}:{start}:{memory.size_bytes}:{unique}".encode(), None

    def attach(self, handle: bytes, descriptor: int | None = None) -> Memory:
        try:
            process, number, start, size, _ = map(int, handle.split(b":"))
        except ValueError:
            raise K514.error(
                expected="a handle as `export` makes them", found=f"{handle[:40]!r}"
            ) from None
        try:
            file = os.open(f"/proc/{process}/fd/{number}", os.O_RDWR)
            every = _map_file(file, start + size)
            return Memory(every.address + start, size, every.owner)
        except (OSError, ValueError) as problem:
            raise K514.error(
                expected=f"memory of process {process}", found=str(problem)
            ) from problem

    def view(self, array: Any, *, what: str) -> View:
        if not isinstance(array, np.ndarray):
            try:
                array = np.from_dlpack(array)
            except (AttributeError, TypeError, BufferError, RuntimeError) as problem:
                raise K504.error(
                    at=Place(detail=what),
                    expected="an array in the memory of the host",
                    found=f"{type(array).__name__} ({problem})",
                ) from None
        if not array.flags.c_contiguous:
            raise K519.error(
                at=Place(detail=what),
                expected="elements side by side",
                found=f"shape {array.shape}, strides {array.strides}",
            )
        name = name_of(array.dtype)
        if name not in ARRAY_TYPES:
            raise R504.error(expected=f"one of {', '.join(DATA_TYPES)}", found=f"{name} in {what}")
        return View(array.ctypes.data, array.size, name, bool(array.flags.writeable))

    def capacity(self, program: Any, function: str, threads: int) -> int:
        return _MOST_THREADS

    def array(self, memory: Memory, dtype: str, elements: int) -> Any:
        kind = DATA_TYPES[dtype].array
        return _bytes_of(memory, 0, elements * kind.itemsize).view(kind)

    def default_stream(self) -> _Stream:
        return self._default

    def stream(self) -> _Stream:
        stream = _Stream()
        with self._lock:
            self._streams.setdefault(self.number, WeakSet()).add(stream)
        return stream

    def order(self, abort: HostMemory) -> _ThreadsOrder:
        return _ThreadsOrder()

    def launch(self, program: Any, launch: Launch, stream: _Stream) -> None:
        kernel = getattr(program, launch.function)
        stream.start(lambda: _start(kernel, launch))

    def synchronize(self, stream: _Stream | None) -> None:
        with self._lock:
            every = list(self._streams[self.number])
        for each in every if stream is None else [stream]:
            each.join()


class _Stream:
    """A stream: runs its launches in order, one at a time."""

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sley")
        self._problems: list[Exception] = []

    def start(self, work: Callable[[], Any]) -> Future[None]:
        return self._worker.submit(self._run, work)

    def join(self) -> None:
        """Waits for all work started before; several threads may wait at the same time."""
        self.start(_nothing).result()
        if self._problems:
            raise self._problems.pop(0)

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            work()
        except Exception as problem:  # `join` raises it
            self._problems.append(problem)


class _ThreadsOrder(CallOrder):
    def __init__(self) -> None:
        self._behind: dict[int, tuple[_Stream, Future[None]]] = {}
        """The stream of each start of the last call, and a point behind it."""

    def wait(self) -> None:
        for _, last in self._behind.values():
            last.result()

    def prepare(self, starts: Sequence[Start]) -> Callable[[Sequence[Any], bool], bool]:
        # All runs are started before all divisions, as on GPUs.
        most = max((len(start.launches) for start in starts), default=0)
        turns = [
            (number, start, start.launches[turn])
            for turn in range(most)
            for number, start in enumerate(starts)
            if turn < len(start.launches)
        ]

        def begin(streams: Sequence[Any], recorded: bool) -> bool:
            for stream in streams:
                if not isinstance(stream, _Stream):
                    wanted = "a stream as `stream()` makes it"
                    raise K517.error(expected=wanted, found=f"{stream!r}")
            for number, stream in enumerate(streams):
                before, last = self._behind.get(number, (stream, None))
                if last is not None and before is not stream:
                    stream.start(last.result)
            with native.LaunchTurn():
                for number, start, launch in turns:
                    start.device.launch(start.program, launch, streams[number])
            for number, stream in enumerate(streams):
                self._behind[number] = stream, stream.start(_nothing)
            return True

        return begin


class _Mapping:
    """A mapped file, and an array over its bytes."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.descriptor = descriptor
        self._map = mmap.mmap(descriptor, max(size_bytes, 1))
        self.array: Bytes = np.frombuffer(self._map, np.uint8)
        self.address = self.array.ctypes.data

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


def _nothing() -> None:
    """Work that marks a point on a stream."""


def _start(kernel: Any, launch: Launch) -> None:
    """Runs a kernel; K506 if it has fewer threads than blocks. The argument keeps `launch.keeps`
    alive until the kernel has ended."""
    started = kernel(ctypes.c_char_p(launch.call), ctypes.c_int(launch.blocks))
    if started < launch.blocks:
        raise K506.error(
            expected=f"{launch.blocks} threads at once, one for each block",
            found=f"{started} that this machine starts",
        )


def _bytes_of(memory: Memory, offset: int, size_bytes: int) -> Bytes:
    """Bytes of `memory`, which may be a part of its owner's memory, from `offset` on."""
    start = memory.address - memory.owner.address + offset
    part: Bytes = memory.owner.array[start : start + size_bytes]
    return part


def _map_file(descriptor: int, size_bytes: int) -> Memory:
    mapping = _Mapping(descriptor, size_bytes)
    return Memory(mapping.address, size_bytes, mapping)


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise K513.error(expected=f"one of {', '.join(names)} on the PATH", found="none of them")
    return found


def _version(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True)
    return done.stdout


def _compile(command: Sequence[str], text: str, path: Path) -> None:
    done = subprocess.run(
        [*command, "-x", "c++", "-", "-o", str(path)], input=text, capture_output=True, text=True
    )
    if done.returncode:
        raise K503.error(
            expected="a text that compiles",
            found=f"{command[0]} ended with {done.returncode}",
            notes=done.stderr.splitlines()[:_LOG_LINES],
        )
