"""Stats: statistics of the calls of open communicators, and the log (SLEY_DEBUG)."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from sley.errors import counted
from sley.errors.aside import fork_safe
from sley.errors.runtime import R514
from sley.ir.sizes import SizeRange

logger = logging.getLogger("sley")

_LEVELS = {"WARN": logging.WARNING, "INFO": logging.INFO, "DEBUG": logging.DEBUG}

OPEN: WeakSet[Any] = WeakSet()
"""The open communicators of this process, on processors and on devices, by what counts their calls;
on devices also while they are made."""
OPEN_LOCK = fork_safe(threading.Lock())
"""Held while OPEN is changed, or read, which fails while it changes."""


class CallStats(NamedTuple):
    """The calls of a communicator that one plan has run.

    begin_bytes, end_bytes: the sizes that the plan is for (None: no end). calls: successful ones.
    size_bytes: of all of them, as nccl-tests counts sizes. time_us: the average of a call on this
    rank, with its waits for other ranks. algbw_GBps: size_bytes / time, in 10^9 bytes a second.
    origin: where the plan comes from: "default" (the library), "user", "policy" (the tuner), or
    "trial" if it was only compared with the policy's plan.
    cached, streamed, attached: calls whose messages were copied that way (`settings.Copies`).
    Calls on devices are counted when they start; their times are 0.
    """

    communicator: str
    rank: int
    kind: str
    plan: str
    origin: str
    protocol: str
    in_place: bool
    begin_bytes: int
    end_bytes: int | None
    calls: int
    size_bytes: int
    time_us: float = 0.0
    algbw_GBps: float = 0.0  # noqa: N815
    cached: int = 0
    streamed: int = 0
    attached: int = 0

    def __repr__(self) -> str:
        return (
            f"CallStats({self.communicator} rank {self.rank}, {self.kind}, "
            f"{SizeRange(self.begin_bytes, self.end_bytes)}: {self.plan}, {self.protocol}, "
            f"{self.origin}, {counted(self.calls, 'call')}"
            + (f", {self.time_us:.1f} us each, {self.algbw_GBps:.2f} GB/s" if self.time_us else "")
            + ")"
        )


def added_up(rows: Sequence[CallStats]) -> list[CallStats]:
    """The rows with those of equal plans, kinds and sizes as one: a plan was loaded again when the
    network had changed."""
    found: dict[tuple[object, ...], CallStats] = {}
    for row in rows:
        key = (row.kind, row.plan, row.origin, row.protocol, row.in_place, *row[7:9])
        before = found.get(key)
        found[key] = row if before is None else _sum(before, row)
    return list(found.values())


def _sum(one: CallStats, other: CallStats) -> CallStats:
    words = ("calls", "size_bytes", "cached", "streamed", "attached")
    sums = {word: getattr(one, word) + getattr(other, word) for word in words}
    time_us = one.time_us * one.calls + other.time_us * other.calls
    return one._replace(
        **sums,
        time_us=time_us / max(sums["calls"], 1),
        algbw_GBps=sums["size_bytes"] / time_us / 1e3 if time_us else 0.0,
    )


def log_to_stderr() -> None:
    """Logs to standard error at the level that SLEY_DEBUG names (WARN, INFO, DEBUG); without it,
    warnings, if the program has no handlers of its own. Errors: R514 for another word."""
    word = os.environ.get("SLEY_DEBUG", "")
    level = _LEVELS.get(word.upper())
    if word and level is None:
        raise R514.error(
            expected=f"SLEY_DEBUG to be one of {', '.join(_LEVELS)}",
            found=f"SLEY_DEBUG={word!r}",
            remedy="Give one of these words, or leave it out.",
        )
    own = [handler for handler in logger.handlers if isinstance(handler, _Handler)]
    if any(handler.is_asked_for or level is None for handler in own):
        return
    for handler in own:
        logger.removeHandler(handler)
    logger.addHandler(_Handler(is_asked_for=level is not None))
    if level is not None:
        logger.setLevel(level)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]
    """Logs to standard error. is_asked_for: even if the program has handlers of its own."""

    def __init__(self, *, is_asked_for: bool) -> None:
        super().__init__()
        self.is_asked_for = is_asked_for
        self.setFormatter(logging.Formatter("sley %(levelname)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        if self.is_asked_for or not logging.root.handlers:
            self.stream = sys.stderr  # the one of now, as Python's own last resort does
            super().emit(record)


def opened(kind: type[Any] = object) -> list[Any]:
    """The members of OPEN, or those of a class."""
    with OPEN_LOCK:
        return [each for each in OPEN if isinstance(each, kind)]


def stats() -> list[CallStats]:
    """Statistics of all open communicators of this process: a row for each plan that has run."""
    rows = [row for endpoint in opened() for row in endpoint.stats()]
    return sorted(rows, key=lambda row: (row.communicator, row.kind, row.begin_bytes))
