"""Turns: the calls of a communicator that replans, one after another; and which of them are over
when its ranks meet again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias, TypeVar

from sley.communicator.calls import Work, check_wait
from sley.errors import SleyError

T = TypeVar("T")


class Why(Enum):
    """Why a rank meets the others again: for `Communicator.replan`, because the network cut a rank
    off, or because nothing moved, which may have the same cause."""

    PLANNED = "planned"
    CUT = "cut"
    STALLED = "stalled"


@dataclass(frozen=True)
class Standing:
    """Where a rank stands when it meets the others.

    finished: the calls that are over on this rank, numbered from 1 in the order of the requests.
    why: why it comes. is_spoiled: whether it can't repeat the call after them: it has begun, and
    its input may have been overwritten.
    """

    finished: int
    why: Why
    is_spoiled: bool = False

    @property
    def words(self) -> dict[str, str]:
        """The same for the other ranks, as `bootstrap(offered=...)` takes it."""
        spoiled = str(int(self.is_spoiled))
        return {"finished": str(self.finished), "why": self.why.value, "spoiled": spoiled}

    @classmethod
    def of(cls, words: Mapping[str, str]) -> Standing:
        """Reads what `words` wrote."""
        return cls(int(words["finished"]), Why(words["why"]), words["spoiled"] == "1")


Meeting: TypeAlias = Sequence[Standing]
"""The standings of all ranks, by rank."""


def last_over(standings: Meeting) -> int:
    """The number of the last call that no rank makes again, by all ranks' standings.

    A call that some rank has finished can't be repeated: that rank's memory has gone on. The next
    one has been finished by none, and is repeated, or made by ranks that haven't come to it yet,
    if no rank has spoiled it.
    """
    most = max(one.finished for one in standings)
    return most + any(one.is_spoiled for one in standings if one.finished == most)


def may_go_on(standings: Meeting, *, has_changed: bool) -> bool:
    """Whether the ranks go on. A stall without a change of the network has another cause, such as
    a rank that has not made the call, and would only be repeated."""
    reasons = {one.why for one in standings}
    return Why.CUT in reasons or Why.STALLED not in reasons or has_changed


@dataclass(frozen=True)
class Cut:
    """A call that the network has ended. is_spoiled: as of `Standing`. error: the call's, if the
    ranks don't go on."""

    why: Why
    is_spoiled: bool
    error: SleyError


_MOST_MEETINGS = 3
"""How often a call is repeated at most."""


class TurnWork(Work):
    """A call that waits for its turn, or has ended."""

    __slots__ = ("_future",)

    def __init__(self, future: Future[None]) -> None:
        super().__init__(None, lambda _: None)
        self._future = future

    def is_completed(self) -> bool:
        return self._future.done()

    def wait(self, timeout_s: float | None = None) -> bool:
        check_wait(timeout_s)
        try:
            most = threading.TIMEOUT_MAX
            self._future.result(None if timeout_s is None else min(float(timeout_s), most))
        except TimeoutError:
            return False
        return True

    def error(self) -> SleyError | None:
        error = self._future.exception() if self._future.done() else None
        return error if isinstance(error, SleyError) else None

    def on_done(self, then: Callable[[], None]) -> None:
        self._future.add_done_callback(lambda _: then())


class Turns:
    """Runs calls one after another, in the order of the requests: those that don't wait in a thread
    of its own, so that they, too, can meet the other ranks.

    finished: the calls that are over on this rank. over: those that no rank makes again, and
    elsewhere: those that some rank had finished, by the last meeting.
    """

    def __init__(self) -> None:
        self.finished = self.over = self.elsewhere = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="sley-turns")
        self._thread: int | None = None
        self._last: Future[None] | None = None

    def make(self, run: Callable[[], Cut | None], meet: Callable[[Cut, Standing], Meeting]) -> bool:
        """Makes the next call: runs it, and again after each meeting by which it is not over.
        Whether it has finished. Errors: those of `run` and `meet`."""
        number, meetings = self.finished + 1, 0
        # Ends: a call that is spoiled is over after the meeting.
        while self.over < number:
            cut = run()
            if cut is None:
                break
            meetings += 1
            is_spoiled = cut.is_spoiled or meetings > _MOST_MEETINGS
            self.meet(replace(cut, is_spoiled=is_spoiled), meet)
        is_finished = self.over < number
        self.finished = number
        return is_finished

    def meet(self, cut: Cut, meet: Callable[[Cut, Standing], Meeting]) -> Meeting:
        """Meets the other ranks, and notes what all conclude from their standings. Errors: those of
        `meet`."""
        standing = Standing(max(self.finished, self.over), cut.why, cut.is_spoiled)
        standings = meet(cut, standing)
        self.over = last_over(standings)
        self.elsewhere = max(one.finished for one in standings)
        return standings

    def is_own_thread(self) -> bool:
        """Whether this is the thread that runs calls, which must not wait for one."""
        return self._thread == threading.get_ident()

    def run(self, call: Callable[[], T]) -> T:
        """Runs a call in this thread, after those before it."""
        last = self._last
        if last is not None:
            last.exception()
        with self._lock:
            return call()

    def submit(self, call: Callable[[], None]) -> TurnWork:
        """Runs a call in the other thread."""
        self._last = self._pool.submit(self._serve, call)
        return TurnWork(self._last)

    def close(self) -> None:
        """Waits for the calls that were requested, which find the communicator closed."""
        self._pool.shutdown()

    def _serve(self, call: Callable[[], None]) -> None:
        self._thread = threading.get_ident()
        with self._lock:
            call()
