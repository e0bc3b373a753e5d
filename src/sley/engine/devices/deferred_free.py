"""Deferred free: frees devices' memory, but not while the launches of a call are half done.

A free waits until the device is idle. A kernel that waits for another one, which isn't launched
yet, would keep it waiting; and the garbage collector can free at any time, also between the two
launches, in the thread that makes them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
"""Held by a call while it launches, and by a thread while it frees. So the launches of one call
come after all of another's, on each device, whatever threads make the calls."""

_waiting: deque[Callable[[], object]] = deque()


def release(free: Callable[[], object]) -> None:
    """Frees now, or after the launches that are being made. free: raises nothing."""
    _waiting.append(free)
    _free_all()


@contextmanager
def launching() -> Iterator[None]:
    """A context for all launches of a call; only one thread at a time is in it."""
    try:
        with _lock:
            yield
    finally:
        _free_all()


def _free_all() -> None:
    # Another holder of the lock looks here when it has released it.
    while _waiting and _lock.acquire(blocking=False):
        try:
            while _waiting:
                _waiting.popleft()()
        finally:
            _lock.release()
