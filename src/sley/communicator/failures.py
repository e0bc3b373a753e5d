"""Errors of calls: what the engine's outcome means, in words."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import combinations

from sley.communicator.calls import Work, describe_record, differ_in_plan
from sley.engine import native
from sley.engine.outcomes import MOST_PLACES, Outcome, Report, Status, describe
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


@dataclass(frozen=True)
class Message:
    """A message from rank to rank, in words.

    words: this rank's end of it. counterpart: the other end that it needs.
    """

    words: str
    counterpart: str


_FEW_PLACES = 2
"""How many stuck instructions an error names that is another rank's: that rank comes first."""


class Failures:
    """The failed calls of a communicator on this rank: each as an error, and the first of them.

    fabric: of the communicator. latest: the latest asynchronous collective, if its end may not have
    been looked at yet.
    """

    __slots__ = ("_fabric", "_first", "_lock", "_name", "_rank", "latest")

    def __init__(self, fabric: native.Fabric, rank: int, name: str) -> None:
        self._fabric, self._rank, self._name = fabric, rank, name
        self.latest: Work | None = None
        self._first: SleyError | None = None
        self._lock = threading.Lock()

    def look_at_latest(self) -> None:
        """Remembers the error of the latest asynchronous collective, if it has ended with one. For
        collectives that have ended after it."""
        if self.latest is not None:
            self.latest.error()

    def error(
        self,
        report: Report | None,
        words: str,
        timeout_s: float,
        *,
        loaded: Loaded | None = None,
        message: Message | None = None,
    ) -> SleyError | None:
        """The error that the outcome of a call is; None for a good one.

        report: the outcome as the engine gives it, None for a good one. words: the call. loaded:
        its plan; None for a message from rank to rank, which `message` describes. A call that ends
        because an earlier one failed gets N630, with the words of the first error.
        """
        if report is None:
            return None
        outcome = Outcome.of(report)
        place = Place(detail=f"{self._name}, rank {self._rank}, {words}")
        if outcome.status is Status.ABORTED and self._first is not None:
            first = self._first.diagnostics[0]
            return N630.error(
                at=place,
                expected="a communicator of which no call has failed",
                found=f"{first.places[0]}: {first.code} {first.rule.name}: {first.found}",
            )
        ended = _Ended(self._fabric, self._rank, place, loaded, outcome, timeout_s, message)
        error = ended.error()
        with self._lock:
            self._first = self._first or error
        return error


def _who(rank: int, other: int) -> str:
    return "this rank" if other == rank else f"rank {other}"


@dataclass(frozen=True)
class _Ended:
    """A call that has ended badly on a rank."""

    fabric: native.Fabric
    rank: int
    place: Place
    loaded: Loaded | None
    outcome: Outcome
    timeout_s: float
    message: Message | None
    records: list[tuple[int, int, int]] = field(init=False)
    """The call that each rank is at: its number (0 where there is none), record and count."""

    def __post_init__(self) -> None:
        calls = [self.fabric.call_of(rank) for rank in range(self.fabric.ranks)]
        object.__setattr__(self, "records", calls)

    def error(self) -> SleyError:
        outcome, rank = self.outcome, self.rank
        kind, culprit = self.fabric.failure
        failure = Failure(kind)
        if outcome.status is Status.MISMATCHED:
            failure, culprit = Failure.MISMATCHED, outcome.rank
        elif outcome.status is Status.NO_MEMORY:
            failure, culprit = Failure.NO_MEMORY, rank
        if failure is Failure.MISMATCHED:
            return self._mismatch(culprit)
        if failure is Failure.NONE or (failure is Failure.STALLED and culprit == rank):
            return self._stall()
        at, notes = self._stuck(_FEW_PLACES)
        rule, expected, found = _CAUSES[failure]
        return rule.error(
            at=at, expected=expected, found=f"{_who(rank, culprit)} {found}", notes=notes
        )

    def _stuck(self, most: int) -> tuple[list[Place], list[str]]:
        """Where the call stands, and a line for each instruction that waits, `most` at most."""
        if self.loaded is None:
            return [self.place], []
        places, notes = describe(self.loaded, {self.rank: self.outcome}, most)
        return [self.place, *places], notes

    def _stall(self) -> SleyError:
        """This rank is the one that gave up: it says what it waits for."""
        at, notes = self._stuck(MOST_PLACES)
        own = self.records[self.rank][0]
        return N621.error(
            at=at,
            expected=f"something to move on some rank within the timeout of {self.timeout_s:g} s",
            found=notes[0] if notes else "nothing moved",
            notes=notes[1:] + [line for n, line in self._elsewhere() if n < own],
        )

    def _mismatch(self, culprit: int) -> SleyError:
        at, notes = self._stuck(_FEW_PLACES)
        who = _who(self.rank, culprit)
        if self.message is not None and self.outcome.status is Status.MISMATCHED:
            found = f"one of {self.outcome.size_bytes} bytes, {who}'s"
            return N631.error(at=at, expected=self.message.counterpart, found=found)
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
        number, record, count = self.records[rank]
        return f"call {number}, {describe_record(record, count)}" if number else "no call"

    def _elsewhere(self) -> list[tuple[int, str]]:
        """The number of its call and a line for each rank that is at another call than this."""
        own = self.records[self.rank][0]
        return [
            (number, f"rank {other} is at {self._call(other)}; this rank at call {own}")
            for other, (number, _, _) in enumerate(self.records)
            if number != own
        ]
