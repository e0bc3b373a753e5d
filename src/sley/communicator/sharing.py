"""Sharing: what processes of a host share once, however many communicators connect them.

Each process passes the others two descriptors, of its heap and of its sign of life. A process that
gets the same file again uses what it has.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from sley.engine import native
from sley.engine.memory import allocate
from sley.errors.aside import fork_safe

_T = TypeVar("_T")


class _OfFiles(Generic[_T]):
    """Objects over files: one for each file, as long as anything uses it."""

    def __init__(self, make: Callable[[int], _T]) -> None:
        self._make = make
        self._made: WeakValueDictionary[tuple[int, int], _T] = WeakValueDictionary()
        self._lock = fork_safe(threading.Lock())

    def of(self, fd: int) -> _T:
        """The object over the file of a descriptor, which stays the caller's. Errors: N610."""
        with self._lock:
            found = self._made.get(_identity(fd))
            if found is None:
                found = allocate(lambda: self._make(fd), "another process' memory", 0)
                self._made[_identity(fd)] = found
            return found

    def put(self, fd: int, one: _T) -> None:
        """Makes `one` the object over the file of a descriptor."""
        with self._lock:
            self._made[_identity(fd)] = one


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


HEAPS = _OfFiles(lambda fd: native.Heap(fd))
"""The heaps of processes of this host, this one's too."""

LIVES = _OfFiles(lambda fd: native.Descriptor(fd))
"""The signs of life of processes of this host: descriptors that become readable when they end."""

_own_life: list[int] = []
"""The ends of a pipe: to read, and to write. Only this process has the latter, so the system closes
it when the process ends."""
_lock = fork_safe(threading.Lock())


def sign_of_life() -> int:
    """The descriptor of this process' sign of life, to pass to others. Errors: N610."""
    with _lock:
        if not _own_life:
            _own_life.extend(allocate(lambda: os.pipe2(os.O_CLOEXEC), "a pipe", 0))
        return _own_life[0]


def _leave_life_to_parent() -> None:
    while _own_life:
        os.close(_own_life.pop())


# A forked child, such as a loader of data, must not hide its parent's end.
os.register_at_fork(after_in_child=_leave_life_to_parent)
