"""Threads: the device of every machine. A thread block is a thread of this process.

It runs the same generated code as a GPU, over primitives for CPUs, so that every plan's kernels can
be tested without a GPU and under sanitizers. For fast collectives on CPUs use `sley.engine`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sley.engine import native
from sley.engine.devices.device import Bytes, Device, Memory, Program, Window
from sley.engine.types import DATA_TYPES
from sley.errors import SleyError
from sley.errors.devices import K503, K506, K510, K513, K517
from sley.errors.disk_cache import cached

_COMPILERS = ("c++", "g++", "clang++")
_FLAGS = (  # -Og: most kernels run a few times; it compiles in 3/4 of the time that -O1 takes
    *("-std=c++17", "-Og", "-fno-strict-aliasing", "-ffp-contract=off"),
    *("-pthread", "-shared", "-fPIC"),
)
_MOST_THREADS = 4096
_LOG_LINES = 20


class ThreadsDevice(Device):
    """Threads of this process. number: identifies one of several such devices.

    flags: additional compiler options, for sanitizers.
    """

    platform = "cpu"
    blocks = 64  # it starts more, but machines have no more cores

    def __init__(self, number: int = 0, *, flags: Sequence[str] = ()) -> None:
        self.number = number
        self.name = f"threads of this machine (device {number})"
        self._flags = tuple(flags)
        self.native: native.ThreadsDevice = _device(number)
        self._default = self.stream()

    @property
    def identity(self) -> bytes:  # type: ignore[override]
        """See `Device.identity`. Not its number alone: a process can't share another one's."""
        return f"{os.getpid()} {self.number}".encode()

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

    def build(self, text: str, functions: Sequence[str]) -> Program:
        library = str(self.compiled(text))
        return {name: self.native.function(library, name) for name in functions}

    def has(self, text: str) -> bool:
        return False

    def compile_later(self, text: str) -> None:
        pass

    def compiled(self, text: str) -> Path:
        """The shared object that the compiler makes of a text, in the cache on disk. K513 without a
        compiler, K503 if the text doesn't compile."""
        compiler = _compiler()
        command = [compiler, *_FLAGS, *self._flags]
        key = [text, *command, _version(compiler)]
        return cached(key, ".so", lambda path: _compile(command, text, path))

    def reach(self, other: Device) -> None:
        """See `Device.reach`. Threads can access all memory of their process."""

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

    def capacity(self, program: Program, function: str, threads: int) -> int:
        return _MOST_THREADS

    def array(self, memory: Memory, dtype: str, elements: int) -> Any:
        kind = DATA_TYPES[dtype].array
        array: Bytes = memory.owner.array(memory.address, elements * kind.itemsize)
        return array.view(kind)

    def default_stream(self) -> _Stream:
        return self._default

    def stream(self) -> _Stream:
        return _Stream(self.native.stream())

    def stream_address(self, stream: Any) -> int:
        if not isinstance(stream, _Stream):
            raise K517.error(expected="a stream as `stream()` makes it", found=f"{stream!r}")
        return stream.made.address


@dataclass(frozen=True, eq=False)
class _Stream:
    made: native.Resource


def too_few(blocks: int, started: int) -> SleyError:
    """K506 for a kernel with more blocks than it has started threads."""
    return K506.error(
        expected=f"{blocks} threads at once, one for each block",
        found=f"{started} that this machine starts",
    )


@cache
def _device(number: int) -> native.ThreadsDevice:
    """The device in C++ that all of one number share."""
    made = native.ThreadsDevice()
    atexit.register(_finish, made, os.getpid())
    return made


# Streams that a forked child inherits have no threads there.
os.register_at_fork(after_in_child=_device.cache_clear)


def _finish(device: native.ThreadsDevice, process: int) -> None:
    """Waits for all streams: when the process ends, kernels would lose their memory."""
    if process == os.getpid():
        with suppress(SleyError):
            device.synchronize(None)


def _compiler() -> str:
    names = [os.environ["CXX"]] if os.environ.get("CXX") else _COMPILERS
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        raise K513.error(expected=f"one of {', '.join(names)} on the PATH", found="none of them")
    return found


@cache
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
