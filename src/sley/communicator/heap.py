"""Heap: memory of this process that the other ranks of the host can read in place."""

from __future__ import annotations

import errno
import math
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import DTypeLike

from sley.engine import native
from sley.engine.memory import HostBytes, allocate, reserve
from sley.engine.native import LARGEST
from sley.engine.types import Array, data_type
from sley.errors.runtime import R514
from sley.ir.words import is_integer

_ALIGNMENT = 1 << 16  # a little more than the pages of most machines

Span = tuple[int, int]
"""(first byte, end) within the heap."""


@dataclass
class Heap:
    """A sparse segment from which arrays are allocated.

    size_bytes: of its address range; only what is in use takes memory. segment: what the other
    ranks of the host map.
    """

    size_bytes: int
    segment: native.Segment = field(init=False)

    def __post_init__(self) -> None:
        self.segment = reserve(
            lambda: native.Segment.sparse(self.size_bytes), "the heap", self.size_bytes
        )
        self._start = int(self.segment.array.ctypes.data)
        self._free: list[Span] = [(0, self.size_bytes)]
        self._lock = threading.Lock()
        self._returned: deque[Span] = deque()
        self._owner = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the owner of the heap."""
        return self._owner != os.getpid()

    def empty(self, size_bytes: int) -> Array:
        """A uint8 array of zeros. Errors: R507."""
        size = -(-max(size_bytes, 1) // _ALIGNMENT) * _ALIGNMENT
        start = allocate(lambda: self._take(size), "an array of the heap", size)
        block = HostBytes(self._start + start, size_bytes)
        weakref.finalize(block, self._release, start, start + size)
        return np.asarray(block)

    def _take(self, size: int) -> int:
        with self._lock:
            self._collect()
            for at, (start, end) in enumerate(self._free):
                if end - start >= size:
                    self.segment.reserve(start, size)
                    self._free[at] = (start + size, end)
                    return start
        raise OSError(errno.ENOMEM, "the heap has no addresses left")

    def _release(self, start: int, end: int) -> None:
        """Frees a span. The garbage collector calls it anytime in any thread, so without locks."""
        if not self.is_inherited:
            self.segment.release(start, end - start)
            self._returned.append((start, end))

    def _collect(self) -> None:
        """Joins the returned spans to the free ones."""
        back = [self._returned.popleft() for _ in range(len(self._returned))]
        free: list[Span] = []
        for span in sorted([*self._free, *back]):
            if free and free[-1][1] == span[0]:
                free[-1] = (free[-1][0], span[1])
            elif span[0] < span[1]:
                free.append(span)
        self._free = free


_heaps: list[Heap] = []
_lock = threading.Lock()


def heap() -> Heap:
    """This process' heap, as large as the machine's memory."""
    with _lock:
        if not _heaps or _heaps[-1].is_inherited:
            _heaps.append(Heap(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
        return _heaps[-1]


def empty(shape: int | tuple[int, ...], dtype: str | DTypeLike = "float32") -> Array:
    """A NumPy array of zeros that the other ranks of this host can read in place, so collectives
    needn't copy it for them first.

    shape: elements, or a tuple of sizes. dtype: one of `sley.engine.DATA_TYPES`, by name or as
    NumPy's; bfloat16 arrays are uint16 bits. Errors: R504, R507, R514."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(is_integer(size) and 0 <= size <= LARGEST for size in sizes):
        raise R514.error(expected="shape as integers from 0 on", found=f"shape={shape!r}")
    kind = data_type(dtype if isinstance(dtype, str) else np.dtype(dtype).name)
    elements = math.prod(map(int, sizes))
    return heap().empty(elements * kind.size_bytes).view(kind.array).reshape(sizes)
