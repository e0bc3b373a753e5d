"""Errors of calls: what the engine's outcome means, in words."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

from sley.communicator.records import describe_record
from sley.errors import Place, Rule, SleyError
from sley.errors.calls import N620, N621, N622, N623, N624, N625, N626
from sley.runtime.outcomes import Outcome, Status, describe
from sley.runtime.program import Loaded


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


_CAUSES: Mapping[Failure, tuple[Rule, str, str]] = {
    Failure.DIED: (N620, "every rank to live until the call ends", "has no process any more"),
    Failure.LEFT: (N623, "every rank to take part in the call", "has closed the communicator"),
    Failure.CUT: (N624, "every rank to be within reach", "is out of reach: nothing comes through"),
    Failure.NO_MEMORY: (N625, "memory for the call's scratch", "has none"),
    Failure.STALLED: (N626, "every rank to get on", "gave up: nothing had moved for its timeout"),
    Failure.GAVE_UP: (N626, "every rank to get on", "gave up: it was aborted"),
}
"""The rule for each cause that is one rank's, what was expected, and what that rank did."""


def call_error(
    fabric: Any,
    rank: int,
    name: str,
    what: str,
    loaded: Loaded | None,
    report: Any,
    timeout_s: float,
) -> SleyError | None:
    """The error that the outcome of a call is; None for a good one.

    name: of the communicator. what: the call, in words. loaded: its plan; None for a message from
    rank to rank. report: as the engine gives it, None for a good one.
    """
    if report is None:
        return None
    outcome = Outcome.of(report)
    kind, culprit = (int(part) for part in fabric.failure)
    failure = Failure(kind)
    if outcome.status is Status.MISMATCHED:
        failure, culprit = Failure.MISMATCHED, outcome.rank
    elif outcome.status is Status.NO_MEMORY:
        failure = Failure.NO_MEMORY
    elif failure is Failure.STALLED and culprit == rank:
        failure = Failure.NONE  # this rank is the one to say what it waits for
    places, notes = ([], []) if loaded is None else describe(loaded, {rank: outcome})
    at = [Place(detail=f"{name}, rank {rank}, {what}"), *places]
    if failure is Failure.NONE:
        return N621.error(
            at=at,
            expected=f"something to move on some rank within the timeout of {timeout_s:g} s",
            found=notes[0] if notes else "nothing moved",
            notes=notes[1:] + _lagging(fabric, rank),
        )
    if failure is Failure.MISMATCHED:
        expected, found = f"{what} on every rank", _other_call(fabric, culprit)
        return N622.error(at=at, expected=expected, found=found, notes=notes)
    who = "this rank" if culprit == rank else f"rank {culprit}"
    rule, expected, found = _CAUSES[failure]
    return rule.error(at=at, expected=expected, found=f"{who} {found}", notes=notes)


def _other_call(fabric: Any, rank: int) -> str:
    sequence, what, count = fabric.call_of(rank)
    if sequence == 0:
        return f"something else on rank {rank}"
    return f"on rank {rank} call {sequence}, {describe_record(what, count)}"


def _lagging(fabric: Any, rank: int) -> list[str]:
    """A line for each rank that has not come to this rank's call."""
    own, _, _ = fabric.call_of(rank)
    lines = []
    for other in range(fabric.ranks):
        sequence, what, count = fabric.call_of(other)
        if sequence < own:
            at = f"at call {sequence}, {describe_record(what, count)}" if sequence else "at no call"
            lines.append(f"rank {other} is {at}; this rank at call {own}")
    return lines
