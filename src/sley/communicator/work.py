"""Work: a call that may still be under way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from sley.errors import SleyError
from sley.ir.tables import NONE

Explain = Callable[[Any], SleyError | None]
"""The error that an outcome of the engine is; None for a good one."""


_PIECE_S = 0.1


class Work:
    """A call under way. The arrays that it is about are kept until it has ended, whoever lets go of
    this object.

    source: after a receive has ended, the rank that it was from.
    """

    __slots__ = ("_error", "_explain", "_lock", "_ticket", "source")

    def __init__(self, ticket: Any, explain: Explain, kept: tuple[Any, ...] = ()) -> None:
        self._ticket, self._explain = ticket, explain
        if kept:
            ticket.on_done(lambda kept=kept: None)
        self.source = NONE
        self._error: SleyError | None = None
        self._lock = threading.Lock()

    def is_done(self) -> bool:
        """Whether the call has ended, well or not."""
        return self._ticket is None or bool(self._ticket.is_done())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the end of the call, and raises what went wrong; False if it has not ended
        within `timeout_s`, which leaves it at work."""
        if self._ticket is not None:
            if not self._await(timeout_s):
                return False
            self._finish()
        if self._error is not None:
            raise self._error
        return True

    def error(self) -> SleyError | None:
        """What went wrong; None for a call that is at work or ended well."""
        if self._ticket is not None and self._ticket.is_done():
            self._finish()
        return self._error

    def on_done(self, then: Callable[[], None]) -> None:
        """Calls `then` when the call has ended, in the thread that ends it; at once if it has."""
        if self._ticket is None:
            then()
        else:
            self._ticket.on_done(then)

    def _await(self, timeout_s: float | None) -> bool:
        """Waits in pieces: between them, Python's handlers of signals have their turn."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._await_briefly(_PIECE_S if end is None else _left_s(end)):
            if end is not None and time.monotonic() >= end:
                return False
        return True

    def _await_briefly(self, timeout_s: float) -> bool:
        return bool(self._ticket.wait(timeout_s))

    def _finish(self) -> None:
        with self._lock:
            ticket = self._ticket
            if ticket is None:
                return
            self._error = self._explain(ticket.outcome)
            self.source = ticket.rank
            self._ticket = None


def _left_s(end: float) -> float:
    return min(_PIECE_S, max(0.0, end - time.monotonic()))


class Done(Work):
    """A call that has ended well already."""

    __slots__ = ()

    def __init__(self, source: int = NONE) -> None:
        super().__init__(None, lambda _: None)
        self.source = source


DONE = Done()
