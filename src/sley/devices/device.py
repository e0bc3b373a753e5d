"""Device: where kernels run, a GPU or threads of this machine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class Memory:
    """A piece of a device's memory.

    address: as kernels see it. size_bytes: its length. owner: what keeps it alive.
    """

    address: int
    size_bytes: int
    owner: Any


@dataclass(frozen=True)
class HostMemory:
    """Memory of the host that kernels see. address: as kernels see it; array: as Python does."""

    address: int
    array: Bytes
    owner: Any


@dataclass(frozen=True)
class View:
    """An array of the caller's: address of its first element, number of elements, the name of
    their type as `sley.engine.DATA_TYPES` has it or BITS, and whether kernels may write it."""

    address: int
    elements: int
    dtype: str
    writable: bool


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel on a device.

    function: the kernel's name in its program. call: the bytes of the kernel's one argument, a
    structure by value. blocks, threads: the grid and the block. together: whether all blocks must
    be at work at the same time (a cooperative launch). keeps: what must stay alive until the kernel
    has ended; a device whose memory may be given back earlier holds it as long.
    """

    function: str
    call: bytes
    blocks: int
    threads: int
    together: bool
    keeps: object = None


class Event(ABC):
    """A point in the work on streams of a device."""

    @abstractmethod
    def set(self, stream: Any) -> None:
        """Put the point behind what was started on `stream` before."""

    @abstractmethod
    def hold(self, stream: Any) -> None:
        """Let what is started on `stream` later wait for the point, as it is set now."""


class Device(ABC):
    """Where kernels run. Two devices are equal if they are the same piece of hardware."""

    platform: str
    """Which primitives it takes: "cuda" or "cpu"."""

    name: str
    """What people call it: "NVIDIA H100 80GB HBM3 (device 0)"."""

    @abstractmethod
    def build(self, text: str, functions: Sequence[str]) -> Any:
        """The program made of a kernel's text, from the cache on disk where it lies there; holds
        the kernels called `functions`."""

    @abstractmethod
    def allocate(self, size_bytes: int) -> Memory:
        """Zeroed memory, aligned to 256 bytes, that other devices and processes can be given."""

    @abstractmethod
    def allocate_host(self, size_bytes: int) -> HostMemory:
        """Zeroed memory of the host that this device and all others of the process see."""

    @abstractmethod
    def write(self, memory: Memory, offset: int, data: Bytes) -> None:
        """Copy bytes into `memory`; done when it returns."""

    @abstractmethod
    def read(self, memory: Memory, offset: int, data: Bytes) -> None:
        """Copy bytes out of `memory` into `data`; done when it returns."""

    @abstractmethod
    def reach(self, other: Device) -> None:
        """Make memory of `other`, a device of this process, usable by kernels on this one; K509
        where the hardware can't."""

    @abstractmethod
    def export(self, memory: Memory) -> bytes:
        """A handle of `memory` for another process."""

    @abstractmethod
    def attach(self, handle: bytes) -> Memory:
        """The memory that another process exported, as this process sees it."""

    @abstractmethod
    def view(self, array: Any, *, what: str) -> View:
        """An array of the caller's on this device, without a copy. what: how messages call it,
        "the input of rank 3". K504 for another device, K505 where its elements don't lie side by
        side, R504 for a type that no kernel knows."""

    @abstractmethod
    def capacity(self, program: Any, function: str, threads: int) -> int:
        """How many blocks of `threads` threads the device holds at once."""

    @abstractmethod
    def array(self, memory: Memory, dtype: str, elements: int) -> Any:
        """The first `elements` elements of `memory` as a 1-D array that array libraries take."""

    @abstractmethod
    def default_stream(self) -> Any:
        """The stream that calls without one run on, in order with the caller's own work."""

    @abstractmethod
    def stream(self) -> Any:
        """A new stream, whose launches run in order and beside those of other streams."""

    @abstractmethod
    def is_captured(self, stream: Any) -> bool:
        """Whether what is started on `stream` goes into a graph, to run later; K517 for what is no
        stream of this device."""

    @abstractmethod
    def event(self) -> Event:
        """A new event, not yet set."""

    @abstractmethod
    def launch(self, program: Any, launch: Launch, stream: Any) -> None:
        """Start a kernel behind what was started on `stream` before: one of `stream()`, or the
        caller's own; doesn't wait for it."""

    @abstractmethod
    def synchronize(self, stream: Any) -> None:
        """Wait until everything on `stream` is done, or on all streams of the device (None)."""
