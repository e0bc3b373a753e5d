"""Errors of calls: what the engine's outcome means, in words."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations
from typing import Any

from sley.communicator.calls import Work, describe_record, differ_in_plan
from sley.engine.outcomes import Outcome, Status, describe
from sley.engine.program import Loaded
from sley.errors import Place, Rule, SleyError
from sley.errors.calls import N620, N621, N622, N623, N624, N625, N626, N630, N631, N633


class Failure(IntEnum):
    """Why a communicator failed (the engine's numbers)."""

    NONE = 0
    STALLED = 1
    DIED = 2
    MISMATCHED = 3
    LEFT = 4
    CUT = 5
    NO_MEMORY = 6
    GAVE_UP = 7
    UNREADABLE = 8


_CAUSES: Mapping[Failure, tuple[Rule, str, str]] = {
    Failure.DIED: (N620, "every rank to live until the call ends", "has no process any more"),
    Failure.LEFT: (N623, "every rank to take part in the call", "has closed the communicator"),
    Failure.CUT: (N624, "every rank to be within reach", "is out of reach: nothing comes through"),
    Failure.NO_MEMORY: (N625, "memory for the call's scratch", "has none"),
    Failure.UNREADABLE: (
        N633,
        "the memory of a call to stay until the call ends",
        "has memory in the call that is gone, or that others may not read",
    ),
    Failure.STALLED: (N626, "every rank to get on", "gave up: nothing had moved for its timeout"),
    Failure.GAVE_UP: (N626, "every rank to get on", "gave up: it was aborted"),
    Failure.MISMATCHED: (
        N622,
        "the same calls on every rank, and messages as large as their receives",
        "sent what doesn't fit: a part of a call that differs, or a message of another size",
    ),
}
"""The rule for each cause that is one rank's, what was expected, and what that rank did."""


class FirstError:
    """The first error of a communicator's calls on this rank; none at the start.

    latest: the latest asynchronous collective, if nobody may have heard yet of how it ended.
    """

    __slots__ = ("_error", "_lock", "latest")

    def __init__(self) -> None:
        self.latest: Work | None = None
        self._error: SleyError | None = None
        self._lock = threading.Lock()

    @property
    def error(self) -> SleyError | None:
        return self._error

    def keep(self, error: SleyError) -> None:
        """Keeps an error, unless there is one."""
        with self._lock:
            self._error = self._error or error

    def hear(self) -> None:
        """Keeps the error of the latest asynchronous collective, if it has ended with one. For
        collectives that have ended after it."""
        if self.latest is not None:
            self.latest.error()


@dataclass(frozen=True)
class Message:
    """A message from rank to rank, in words.

    what: this rank's end of it. wanted: the other end that it needs.
    """

    what: str
    wanted: str


def call_error(
    fabric: Any,
    rank: int,
    name: str,
    what: str,
    loaded: Loaded | None,
    report: Any,
    timeout_s: float,
    *,
    message: Message | None = None,
    first: FirstError | None = None,
) -> SleyError | None:
    """The error that the outcome of a call is; None for a good one.

    name: of the communicator. what: the call, in words. loaded: its plan; None for a message from
    rank to rank, which `message` tells of. report: as the engine gives it, None for a good one.
    first: the memory of the communicator's first error: N630 is for calls that end because of it.
    """
    if report is None:
        return None
    outcome = Outcome.of(report)
    first = FirstError() if first is None else first
    place = Place(detail=f"{name}, rank {rank}, {what}")
    if outcome.status is Status.ABORTED and first.error is not None:
        told = first.error.diagnostics[0]
        return N630.error(
            at=place,
            expected="a communicator of which no call has failed",
            found=f"{told.places[0]}: {told.code} {told.rule.name}: {told.found}",
        )
    error = _Ended(fabric, rank, place, loaded, outcome, timeout_s, message).error()
    first.keep(error)
    return error


def _who(rank: int, other: int) -> str:
    return "this rank" if other == rank else f"rank {other}"


@dataclass(frozen=True)
class _Ended:
    """A call that has ended badly on a rank."""

    fabric: Any
    rank: int
    place: Place
    loaded: Loaded | None
    outcome: Outcome
    timeout_s: float
    message: Message | None
    records: list[tuple[int, int, int]] = field(init=False)
    """What each rank is at: number of the call (0 where there is none), what, count."""

    def __post_init__(self) -> None:
        calls = [self.fabric.call_of(rank) for rank in range(self.fabric.ranks)]
        object.__setattr__(self, "records", calls)

    def error(self) -> SleyError:
        outcome, rank = self.outcome, self.rank
        kind, culprit = (int(part) for part in self.fabric.failure)
        failure = Failure(kind)
        if outcome.status is Status.MISMATCHED:
            failure, culprit = Failure.MISMATCHED, outcome.rank
        elif outcome.status is Status.NO_MEMORY:
            failure, culprit = Failure.NO_MEMORY, rank
        if failure is Failure.MISMATCHED:
            return self._mismatch(culprit)
        if failure is Failure.NONE or (failure is Failure.STALLED and culprit == rank):
            return self._stall()
        at, notes = self._stuck()
        rule, expected, found = _CAUSES[failure]
        return rule.error(
            at=at, expected=expected, found=f"{_who(rank, culprit)} {found}", notes=notes
        )

    def _stuck(self) -> tuple[list[Place], list[str]]:
        """Where the call stands, and a line for each instruction that waits."""
        if self.loaded is None:
            return [self.place], []
        places, notes = describe(self.loaded, {self.rank: self.outcome})
        return [self.place, *places], notes

    def _stall(self) -> SleyError:
        """This rank is the one that gave up: it says what it waits for."""
        at, notes = self._stuck()
        own = self.records[self.rank][0]
        return N621.error(
            at=at,
            expected=f"something to move on some rank within the timeout of {self.timeout_s:g} s",
            found=notes[0] if notes else "nothing moved",
            notes=notes[1:] + [line for n, line in self._elsewhere() if n < own],
        )

    def _mismatch(self, culprit: int) -> SleyError:
        at, notes = self._stuck()
        who = _who(self.rank, culprit)
        if self.message is not None and self.outcome.status is Status.MISMATCHED:
            found = f"one of {self.outcome.size_bytes} bytes, {who}'s"
            return N631.error(at=at, expected=self.message.wanted, found=found)
        pair = self._differing(culprit)
        if pair is not None:
            return self._other_call(*pair, at, notes)
        rule, expected, found = _CAUSES[Failure.MISMATCHED]
        if self.message is not None:
            rule = N631
        elif self.outcome.status is Status.MISMATCHED:
            expected = f"parts of {self._call(self.rank)}"
            found = "sent a part of another call"
        notes = notes + [line for n, line in self._elsewhere() if n > 0]
        return rule.error(at=at, expected=expected, found=f"{who} {found}", notes=notes)

    def _differing(self, culprit: int) -> tuple[int, int] | None:
        """Two ranks whose calls of the same number differ: this rank and the culprit, if these do,
        else this rank and another, else any."""
        order = sorted(range(len(self.records)), key=lambda r: (r != self.rank, r != culprit))
        for one, other in combinations(order, 2):
            (number, *mine), (same, *others) = self.records[one], self.records[other]
            if 0 < number == same and mine != others:
                return one, other
        return None

    def _other_call(self, one: int, other: int, at: list[Place], notes: list[str]) -> SleyError:
        (number, mine, count), (_, others, other_count) = self.records[one], self.records[other]
        if count == other_count and differ_in_plan(mine, others):
            if self.loaded is not None and one == self.rank:
                plan = self.loaded.plan
                place = "in place" if plan.collective.in_place else "out of place"
                notes = [*notes, f"this rank's plan is {plan.name}, {place}"]
            return N622.error(
                at=at,
                expected=f"on every rank {self._call(one)}, with the same plan",
                found=f"different plans on {_who(self.rank, one)} and rank {other}: other user "
                "plans, or in place on one of them only",
                notes=notes,
            )
        expected, found = f"on every rank {self._call(one)}", f"on rank {other} {self._call(other)}"
        if one != self.rank:
            expected = f"on every rank the same call {number}"
            found = f"on rank {one} {describe_record(mine, count)}; {found}"
        return N622.error(at=at, expected=expected, found=found, notes=notes)

    def _call(self, rank: int) -> str:
        number, what, count = self.records[rank]
        return f"call {number}, {describe_record(what, count)}" if number else "no call"

    def _elsewhere(self) -> list[tuple[int, str]]:
        """The number of its call and a line for each rank that is at another call than this."""
        own = self.records[self.rank][0]
        return [
            (number, f"rank {other} is at {self._call(other)}; this rank at call {own}")
            for other, (number, _, _) in enumerate(self.records)
            if number != own
        ]
