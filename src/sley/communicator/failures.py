"""Failures: the outcomes of failed calls as errors."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import combinations

from sley.communicator.calls import Work, describe_record, differ_in_plan
from sley.communicator.loading import LoadedPlan
from sley.engine import native
from sley.engine.outcomes import MOST_PLACES, Outcome, Report, Status, describe
from sley.errors import Diagnostic, Place, Rule, SleyError, counted
from sley.errors.calls import N620, N621, N622, N623, N624, N625, N630, N631, N633, N635
from sley.errors.communicator import N608


class Failure(IntEnum):
    """Why a communicator failed, as numbered by the engine."""

    NONE = 0
    STALLED = 1
    DIED = 2
    MISMATCHED = 3
    LEFT = 4
    CUT = 5
    NO_MEMORY = 6
    GAVE_UP = 7
    UNREADABLE = 8
    MISFIT = 9
    STILL = 10
    NO_THREAD = 11


_CAUSES: Mapping[Failure, tuple[Rule, str, str]] = {
    Failure.DIED: (N620, "every rank to live until the call ends", "no longer has a process"),
    Failure.LEFT: (N623, "every rank to make the call", "has closed the communicator"),
    Failure.CUT: (N624, "every rank to be reachable", "can't be reached over the network"),
    Failure.NO_MEMORY: (
        N625,
        "memory for the call's scratch and connections, and addresses for data of other ranks",
        "has too little",
    ),
    Failure.NO_THREAD: (
        N625,
        "a thread for asynchronous calls",
        "can't start one: its user or container has reached the limit (ulimit -u)",
    ),
    Failure.UNREADABLE: (
        N633,
        "the memory of a call to exist until the call ends",
        "gave memory that is gone, or that other ranks may not read",
    ),
    Failure.MISFIT: (
        N631,
        "parts of the counts that their receivers expect",
        "got a part of another count",
    ),
    Failure.STALLED: (N608, "every rank to continue", "gave up: nothing had moved for its timeout"),
    Failure.GAVE_UP: (N608, "every rank to continue", "gave up: it was aborted"),
    Failure.MISMATCHED: (
        N622,
        "the same calls on every rank, and messages of their receives' size and type",
        "sent data that doesn't match: a part of a different call, or a message of another size or "
        "type",
    ),
}
"""For each failure that one rank caused: the rule, what was expected, and what the rank did."""


@dataclass(frozen=True)
class Message:
    """This rank's end of a point-to-point message in words, the end that must match it, and its
    size."""

    words: str
    counterpart: str
    size_bytes: int


_FEW_PLACES = 2
"""How many stuck instructions an error names that another rank caused."""


class Failures:
    """Makes the errors of a communicator's failed calls on this rank, and keeps the first.

    latest: the latest asynchronous collective, whose outcome may not have been seen yet.
    """

    __slots__ = ("_fabric", "_first", "_lock", "_name", "_rank", "latest")

    def __init__(self, fabric: native.Fabric, rank: int, name: str) -> None:
        self._fabric, self._rank, self._name = fabric, rank, name
        self.latest: Work | None = None
        self._first: SleyError | None = None
        self._lock = threading.Lock()

    def look_at_latest(self) -> None:
        """Makes the error of the latest asynchronous collective if it has failed, so that it is the
        first, before those of later collectives."""
        if self.latest is not None:
            self.latest.error()

    def error(
        self,
        report: Report | None,
        words: str,
        timeout_s: float,
        *,
        plan: LoadedPlan | None = None,
        counts: tuple[int, ...] = (),
        message: Message | None = None,
    ) -> SleyError | None:
        """The error of a call's outcome; None for a good one.

        report: the outcome as the engine gives it, None for a good one. words: the call. plan: what
        ran it; None for a point-to-point message, which `message` describes. counts: of the parts
        of the rank's output, if they vary. A call that ends because an earlier one failed gets
        N630, with the first error in words.
        """
        if report is None:
            return None
        outcome = Outcome.of(report)
        if outcome.status is Status.DONE:
            return None
        place = Place(detail=f"{self._name}, rank {self._rank}, {words}")
        if outcome.status is Status.ABORTED and self._first is not None:
            return failed_before(place, self._first.diagnostics[0])
        ended = _Ended(self._fabric, self._rank, place, plan, outcome, timeout_s, message, counts)
        error = ended.error()
        with self._lock:
            self._first = self._first or error
        return error


def caused(
    failure: Failure, rank: int, culprit: int, at: Place | list[Place], notes: Sequence[str] = ()
) -> SleyError:
    """The error, on `rank`, of a failure that one rank caused."""
    rule, expected, found = _CAUSES[failure]
    return rule.error(at=at, expected=expected, found=f"{_who(rank, culprit)} {found}", notes=notes)


def failed_before(place: Place, first: Diagnostic) -> SleyError:
    """N630 for a call after the one that failed first."""
    return N630.error(
        at=place,
        expected="a communicator without a failed call",
        found=first.brief,
    )


def cut_short(place: Place, is_finished: bool) -> SleyError:
    """N635 for a call during which the network changed. is_finished: whether a rank had finished
    it."""
    why = "a rank had finished it" if is_finished else "its input may have been overwritten"
    return N635.error(
        at=place,
        expected="a network that lasts until the call ends, or a call that can be repeated",
        found=f"an interface failed, and {why}",
        notes=["the communicator goes on: make further calls"],
    )


def with_reason(error: SleyError, why: SleyError) -> SleyError:
    """The error of a call after which the ranks couldn't meet again, with the reason."""
    first, *rest = error.diagnostics
    note = f"the ranks could not go on: {why.diagnostics[0].brief}"
    return SleyError([replace(first, notes=(*first.notes, note)), *rest])


def closed(name: str, rank: int, *, is_inherited: bool) -> SleyError:
    """N623 for a call of a rank that has closed its communicator, or whose process was forked from
    the rank's."""
    return N623.error(
        at=Place(detail=f"{name}, rank {rank}"),
        expected="a communicator that is open",
        found="the communicator of the process that forked this one"
        if is_inherited
        else "this rank has closed it",
    )


def _who(rank: int, other: int) -> str:
    return "this rank" if other == rank else f"rank {other}"


@dataclass(frozen=True)
class _Ended:
    """A call that has failed on this rank."""

    fabric: native.Fabric
    rank: int
    place: Place
    plan: LoadedPlan | None
    outcome: Outcome
    timeout_s: float
    message: Message | None
    counts: tuple[int, ...]
    records: list[tuple[int, int, int]] = field(init=False)
    """Each rank's current call: its number (0: none), record and count."""

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
        if outcome.status is Status.MISFIT:
            return self._misfit()
        if failure is Failure.MISMATCHED:
            return self._mismatch(culprit)
        if failure is Failure.STILL:
            return self._stall(culprit)
        if failure is Failure.NONE or (failure is Failure.STALLED and culprit == rank):
            return self._stall()
        return caused(failure, rank, culprit, *self._stuck(_FEW_PLACES))

    def _stuck(self, most: int) -> tuple[list[Place], list[str]]:
        """The places of at most `most` instructions that wait, and a line for each. The lines of
        sley's own algorithms would not help a user."""
        if self.plan is None:
            return [self.place], []
        places, notes = describe(self.plan.loaded, {self.rank: self.outcome}, most)
        return [self.place, *(places if self.plan.origin == "user" else ())], notes

    def _stall(self, still: int | None = None) -> SleyError:
        """The error of a call in which nothing moves: it names the rank that stands still, if one
        was seen, and what this rank waits for."""
        at, notes = self._stuck(MOST_PLACES)
        own = self.records[self.rank][0]
        if still is not None:
            notes.insert(
                0,
                f"{_who(self.rank, still)} neither moved nor waited: it is stopped, or "
                "has not made the call",
            )
        return N621.error(
            at=at,
            expected=f"something to move on some rank within the timeout of {self.timeout_s:g} s",
            found=notes[0] if notes else "nothing moved",
            notes=notes[1:] + [line for n, line in self._other_calls() if n < own],
        )

    def _misfit(self) -> SleyError:
        """The error of the rank where a chunk came that doesn't fit its place."""
        assert self.plan is not None  # no message
        c = self.plan.loaded.plan.collective
        part, index = divmod(self.outcome.rank, c.chunks)
        each = f" in chunk {index} of {c.chunks} of it" if c.chunks > 1 else ""
        return N631.error(
            at=self.place,
            expected=f"{counted(self.counts[part], 'element')} from rank {part}, the count of its "
            "part of the output",
            found=f"{counted(self.outcome.size_bytes, 'element')}{each}",
        )

    def _mismatch(self, culprit: int) -> SleyError:
        at, notes = self._stuck(_FEW_PLACES)
        who = _who(self.rank, culprit)
        if self.message is not None and self.outcome.status is Status.MISMATCHED:
            size_bytes = self.outcome.size_bytes
            is_other_type = size_bytes == self.message.size_bytes
            of_type = " of elements of another type" if is_other_type else ""
            found = f"one of {size_bytes} bytes{of_type}, {who}'s"
            return N631.error(at=at, expected=self.message.counterpart, found=found)
        pair = self._find_different(culprit)
        if pair is not None:
            return self._different_calls(*pair, at, notes)
        rule, expected, found = _CAUSES[Failure.MISMATCHED]
        if self.message is not None:
            rule = N631
        elif self.outcome.status is Status.MISMATCHED:
            expected = f"parts of {self._call(self.rank)}"
            found = "sent a part of another call"
        notes = notes + [line for n, line in self._other_calls() if n > 0]
        return rule.error(at=at, expected=expected, found=f"{who} {found}", notes=notes)

    def _find_different(self, culprit: int) -> tuple[int, int] | None:
        """Two ranks whose calls of the same number differ: preferably this rank and the culprit,
        else this rank and another, else any two."""
        order = sorted(range(len(self.records)), key=lambda r: (r != self.rank, r != culprit))
        for one, other in combinations(order, 2):
            (number, *mine), (same, *others) = self.records[one], self.records[other]
            if 0 < number == same and mine != others:
                return one, other
        return None

    def _different_calls(
        self, one: int, other: int, at: list[Place], notes: list[str]
    ) -> SleyError:
        (number, mine, count), (_, others, other_count) = self.records[one], self.records[other]
        if count == other_count and differ_in_plan(mine, others):
            if self.plan is not None and one == self.rank:
                plan = self.plan.loaded.plan
                place = "in place" if plan.collective.in_place else "out of place"
                notes = [*notes, f"this rank's plan is {plan.name}, {place}"]
            return N622.error(
                at=at,
                expected=f"on every rank {self._call(one)}, with the same plan",
                found=f"different plans on {_who(self.rank, one)} and rank {other}: their user "
                "plans differ, or only one of the calls is in place",
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

    def _other_calls(self) -> list[tuple[int, str]]:
        """For each rank that is at another call than this one: the call's number, and a line."""
        own = self.records[self.rank][0]
        return [
            (number, f"rank {other}'s latest call is {self._call(other)}; this rank's is {own}")
            for other, (number, _, _) in enumerate(self.records)
            if number != own
        ]
