"""Device: the hardware that runs kernels, a GPU or threads of this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.engine import native as cpp
from sley.errors import Diagnostic

Bytes = NDArray[np.uint8]

Program = Mapping[str, int]
"""The addresses of a program's kernels, by name."""


@dataclass(frozen=True)
class Memory:
    """A piece of a device's memory.

    address: in kernels. size_bytes: its length. owner: the object that keeps it alive.
    """

    address: int
    size_bytes: int
    owner: Any


@dataclass(frozen=True)
class Window:
    """Zeroed memory of several devices, which a switch reads and writes at once.

    parts: one on each device, in the devices' order, of one size; kernels on all of them can access
    it. through: the address in kernels, behind the switch, of the bytes of all parts from an offset
    on, a multiple of 256.
    """

    parts: tuple[Memory, ...]
    through: Callable[[int], int]


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host that kernels can access. address: in kernels; array: in Python; owner: the
    object that keeps it alive."""

    address: int
    array: Bytes
    owner: Any


class Launch(NamedTuple):
    """One launch of a kernel on a device.

    function: the kernel's name in its program. call: the bytes of the kernel's one argument, a
    structure by value. blocks, threads: the grid and the block. together: whether all blocks must
    be resident at the same time (a cooperative launch). keeps: an object that must stay alive until
    the kernel has ended; on GPUs, where memory is freed only then, nothing holds it.
    """

    function: str
    call: bytes
    blocks: int
    threads: int
    together: bool
    keeps: object = None


class Device(ABC):
    """Hardware that runs kernels. Two devices are equal if they are the same hardware."""

    native: cpp.Device
    """The device in C++ (`native/devices`)."""

    platform: str
    """The primitives that it runs: "cuda" or "cpu"."""

    queues: int | None = None
    """The most streams whose launches never wait for one another to start; None for any number."""

    identity: bytes
    """Equal for the same hardware in all processes that can share it."""

    blocks: int
    """How many thread blocks of any kernel it runs at once."""

    name: str
    """Its name in messages: "NVIDIA H100 80GB HBM3 (device 0)"."""

    @abstractmethod
    def build(self, text: str, functions: Sequence[str]) -> Program:
        """The program compiled from `text`, or taken from the cache on disk; it has the kernels
        named `functions`."""

    @abstractmethod
    def has(self, text: str) -> bool:
        """Whether `build` needn't compile a text, as far as is known."""

    def read_code(self, folder: Path) -> Diagnostic | None:
        """Lets `build` take machine code from a folder of plans that `sley package` wrote. Returns
        the problem if the folder has some, but none that this device runs."""
        return None

    @abstractmethod
    def compile_later(self, text: str) -> None:
        """Compile a text in the background, for a later `build`, if the device can."""

    def allocate(self, size_bytes: int) -> Memory:
        """Zeroed memory, aligned to 256 bytes, that other devices can access. K507 if memory runs
        out."""
        made = self.native.allocate(max(size_bytes, 1))  # some devices refuse to allocate nothing
        return Memory(made.address, size_bytes, made)

    def allocate_host(self, size_bytes: int) -> HostMemory:
        """Zeroed memory of the host that all devices of the process can access. K507 if memory runs
        out."""
        made = self.native.allocate_host(size_bytes)
        return HostMemory(made.address, made.array(made.address, size_bytes), made)

    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        """Copy bytes into `memory`; done when it returns."""
        self.native.write(memory.address + offset, np.ascontiguousarray(data))

    def read(self, memory: Memory, offset: int, data: Bytes) -> None:
        """Copy bytes out of `memory` into `data`; done when it returns."""
        self.native.read(data, memory.address + offset)

    @abstractmethod
    def reach(self, other: Device) -> None:
        """Let kernels on this device access memory of `other`, a device of this process; K509 if
        the hardware can't."""

    def carries_lines(self, other: bytes) -> bool:
        """Whether the 128 bytes that a warp on this device stores at once into memory of the device
        with this identity arrive as a whole, which LL128 relies on."""
        return self.native.carries_lines(other)

    @abstractmethod
    def lacks_switch(self, devices: Sequence[Device]) -> str:
        """Why no switch reads and writes memory of all of `devices`, of which this is the first, at
        once; empty if one does."""

    @abstractmethod
    def window(self, devices: Sequence[Device], size_bytes: int) -> Window:
        """A window of `devices`, of which this is the first and which share a switch, with at least
        `size_bytes` on each. K507 if memory runs out."""

    def view(self, array: Any, *, what: str) -> cpp.View:
        """A view of the caller's array on this device, without a copy, and without waiting for what
        computes it. what: its name in messages, "input of rank 3". K504 for an array on another
        device, K519 for one that isn't contiguous, R504 for an element type that kernels don't
        support."""
        return cpp.view(array, self.native, what)

    @abstractmethod
    def capacity(self, program: Program, function: str, threads: int) -> int:
        """The number of blocks of `threads` threads that the device can run at once."""

    @abstractmethod
    def array(self, memory: Memory, dtype: str, elements: int) -> Any:
        """The first `elements` elements of `memory` as a 1-D array that array libraries take."""

    @abstractmethod
    def default_stream(self) -> Any:
        """The stream of calls that name none: they run in order with the caller's other work."""

    @abstractmethod
    def stream(self) -> Any:
        """A new stream: its launches run in order, concurrently with those of other streams."""

    def is_captured(self, stream: Any) -> bool:
        """Whether a graph is being captured from `stream`."""
        return False

    @abstractmethod
    def stream_address(self, stream: Any) -> int:
        """The address of a stream that `stream()` made, or that the caller owns. K517 for anything
        else."""

    def launch(self, program: Program, launch: Launch, stream: Any) -> None:
        """Start a kernel on `stream`; don't wait for its end. K517 for a stream of another GPU. On
        GPUs it can be captured into a graph."""
        row = program[launch.function], *launch
        self.native.launch(row, self.stream_address(stream))

    def synchronize(self, stream: Any) -> None:
        """Wait until everything on `stream` is done, or on all streams of the device (None), on
        GPUs also those of other libraries. Raises the errors of kernels that failed, K518 during a
        capture."""
        self.native.synchronize(None if stream is None else self.stream_address(stream))
