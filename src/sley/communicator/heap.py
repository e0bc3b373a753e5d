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

from sley.communicator.sharing import HEAPS
from sley.engine import native
from sley.engine.memory import HostBytes, allocate, memory_of_machine
from sley.engine.native import LARGEST
from sley.engine.types import Array, data_type
from sley.errors.aside import fork_safe
from sley.errors.runtime import R514
from sley.ir.sizes import size_in_bytes
from sley.ir.words import is_integer

HEAP_VARIABLE = "SLEY_HEAP_BYTES"
"""The environment variable with the most memory that the arrays of a heap may take together."""

_ALIGNMENT = 1 << 16  # a little more than the pages of most machines
_LEAST_PART = 64 << 20

Span = tuple[int, int]
"""(first byte, end) within the heap."""


@dataclass
class Heap:
    """Memory from which arrays are allocated. Its addresses grow with its arrays.

    most_bytes: the most that the arrays may take together. file: what the other processes of the
    host map.
    """

    most_bytes: int
    file: native.Heap = field(init=False)

    def __post_init__(self) -> None:
        self.file = allocate(native.Heap, "the heap", 0)
        self._free: list[Span] = []
        self._end = self._used = 0
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
        block = HostBytes(self.file.address(start, size), size_bytes)
        weakref.finalize(block, self._release, start, start + size)
        return np.asarray(block)

    def _take(self, size: int) -> int:
        with self._lock:
            self._collect()
            if self._used + size > self.most_bytes:
                taken = f"{self._used:,} of {self.most_bytes:,} bytes are taken"
                raise OSError(errno.EDQUOT, f"{taken} ({HEAP_VARIABLE}, or the machine's memory)")
            # The first free span that is large enough.
            at = next((k for k, (a, b) in enumerate(self._free) if b - a >= size), None)
            if at is None:
                self._grow(size)
                at = len(self._free) - 1
            start, end = self._free[at]
            self.file.reserve(start, size)
            self._free[at] = (start + size, end)
            self._used += size
            return start

    def _grow(self, size: int) -> None:
        """Adds a part with room for `size`: as large as all parts so far, so that they stay few, or
        smaller where the process' addresses are limited. A gap keeps the spans of parts apart."""
        part = max(size, self._end, _LEAST_PART)
        # Ends: the part is halved until it is no larger than what is asked for.
        while True:
            try:
                start = self.file.grow(part + _ALIGNMENT)
                break
            except OSError:
                if part == size:
                    raise
                part = max(size, part // 2 // _ALIGNMENT * _ALIGNMENT)
        self._end = start + part + _ALIGNMENT
        self._free.append((start, start + part))

    def _release(self, start: int, end: int) -> None:
        """Frees a span. The garbage collector calls it anytime in any thread, so without locks."""
        if not self.is_inherited:
            self.file.release(start, end - start)
            self._returned.append((start, end))

    def _collect(self) -> None:
        """Joins the returned spans to the free ones."""
        # Only this thread takes (the lock is held), and others only add: so what was counted is
        # there.
        back = [self._returned.popleft() for _ in range(len(self._returned))]
        self._used -= sum(end - start for start, end in back)
        free: list[Span] = []
        for span in sorted([*self._free, *back]):
            if free and free[-1][1] == span[0]:
                free[-1] = (free[-1][0], span[1])
            elif span[0] < span[1]:
                free.append(span)
        self._free = free


_heaps: list[Heap] = []
_lock = fork_safe(threading.Lock())


def heap() -> Heap:
    """This process' heap. Its arrays may take as much as the machine's memory, or as
    SLEY_HEAP_BYTES. Errors: R507, R514."""
    with _lock:
        if not _heaps or _heaps[-1].is_inherited:
            made = Heap(_most_bytes())
            HEAPS.put(made.file.fd, made.file)
            _heaps.append(made)
        return _heaps[-1]


def _most_bytes() -> int:
    text = os.environ.get(HEAP_VARIABLE)
    if not text:
        return memory_of_machine()
    found = size_in_bytes(text)
    if found is None:
        raise R514.error(
            expected=f"{HEAP_VARIABLE} as a number of bytes, such as 64G",
            found=f"{HEAP_VARIABLE}={text!r}",
            remedy="Give that, or leave it out.",
        )
    return found


def empty(shape: int | tuple[int, ...], dtype: str | DTypeLike = "float32") -> Array:
    """A NumPy array of zeros that the other ranks of this host can read in place, so collectives
    needn't copy it for them first.

    shape: elements, or a tuple of sizes. dtype: one of `sley.engine.DATA_TYPES`, by name or as
    NumPy's; of a type that NumPy lacks it has the bits. Errors: R504, R507, R514."""
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if not all(is_integer(size) and 0 <= size <= LARGEST for size in sizes):
        raise R514.error(expected="shape as integers from 0 on", found=f"shape={shape!r}")
    kind = data_type(dtype if isinstance(dtype, str) else np.dtype(dtype).name)
    elements = math.prod(map(int, sizes))
    return heap().empty(elements * kind.size_bytes).view(kind.array).reshape(sizes)
