"""Aside: system calls that may never return, in another thread, so that their caller can go on.

A file on a network file system, the lock of a stopped process, or a store that one serves may
answer late or never, and no timeout ends such a call.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
Lock = TypeVar("Lock", threading.Lock, "threading.RLock")


class LateError(Exception):
    """The function has not returned in time. Its thread is left to it."""


class _Thread:
    """A thread that runs one function after another."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        self.ends: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()
        threading.Thread(target=self._serve, name="sley-aside", daemon=True).start()

    def _serve(self) -> None:
        while (task := self.tasks.get()) is not None:
            try:
                self.ends.put((task(), None))
            except BaseException as error:
                self.ends.put((None, error))
            del task  # and what it refers to


_idle: list[_Thread] = []


def within(limit_s: float, function: Callable[..., T], *arguments: Any) -> T:
    """The result of `function(*arguments)`, or its error, if it ends in `limit_s` seconds.

    Errors: LateError. RuntimeError if the process may have no further thread.
    """
    try:
        thread = _idle.pop()
    except IndexError:
        thread = _Thread()
    thread.tasks.put(partial(function, *arguments))
    try:
        result, error = thread.ends.get(timeout=limit_s)
    except BaseException as ended:  # also Ctrl-C
        thread.tasks.put(None)  # it ends with its task, if ever
        if isinstance(ended, Empty):
            raise LateError from None
        raise
    _idle.append(thread)
    if error is not None:
        raise error
    found: T = result
    return found


# A forked child has no thread but the one that forked.
os.register_at_fork(after_in_child=_idle.clear)


def fork_safe(lock: Lock) -> Lock:
    """The lock, which a fork waits for, so that no child finds it held by a thread that it hasn't.
    A lock that is taken within another one is made first."""
    os.register_at_fork(
        before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release
    )
    return lock
