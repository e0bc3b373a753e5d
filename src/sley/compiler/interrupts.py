"""Interrupts: turns that Ctrl-C ends in processes that otherwise ignore it, as an executor's do."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext


class TurnInterrupted(KeyboardInterrupt):
    """Ctrl-C during a turn that is `interruptible`, or before it."""


class _Interrupts:
    """What a process does on Ctrl-C that ignores it but for turns: it ends this one and all later
    ones, since some are on their way. came: whether it came. in_turn: whether a turn runs."""

    came = in_turn = False

    def note(self, _number: int, _frame: object) -> None:
        self.came = True
        if self.in_turn:
            self.in_turn = False
            raise TurnInterrupted

    @contextmanager
    def turn(self) -> Iterator[None]:
        signal.signal(signal.SIGINT, self.note)
        if self.came:
            raise TurnInterrupted
        self.in_turn = True
        try:
            yield
        finally:
            self.in_turn = False


_INTERRUPTS = _Interrupts()


def interruptible() -> AbstractContextManager[None]:
    """A turn that Ctrl-C ends in a process that ignores it between turns. Does nothing in others,
    nor in threads, which get no signals."""
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, _INTERRUPTS.note)
    in_main = threading.current_thread() is threading.main_thread()
    return _INTERRUPTS.turn() if ignored and in_main else nullcontext()
