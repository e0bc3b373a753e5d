"""Errors of calls: what the engine's outcome means, in words."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from sley.communicator.records import describe_record
from sley.errors import Place, SleyError
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


def call_error(
    fabric: Any, rank: int, name: str, what: str, loaded: Loaded | None, report: Any
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
    places, notes = ([], []) if loaded is None else describe(loaded, {rank: outcome})
    place = Place(detail=f"{name}, rank {rank}, {what}")
    at = [place, *places]
    if outcome.status is Status.NO_MEMORY or failure is Failure.NO_MEMORY:
        return N625.error(
            at=at, expected="memory for the call's scratch", found=f"none on rank {culprit}"
        )
    if outcome.status is Status.MISMATCHED or failure is Failure.MISMATCHED:
        other = outcome.rank if outcome.status is Status.MISMATCHED else culprit
        return N622.error(
            at=at, expected=f"{what} on every rank", found=_other_call(fabric, other), notes=notes
        )
    if failure is Failure.DIED:
        return N620.error(
            at=at,
            expected="every rank to live until the call ends",
            found=f"the process of rank {culprit} has ended",
            notes=notes,
        )
    if failure is Failure.LEFT:
        mine = culprit == rank
        found = "this rank has" if mine else f"rank {culprit} has"
        return N623.error(
            at=at,
            expected="every rank to take part in the call",
            found=f"{found} closed the communicator",
            notes=notes,
        )
    if failure is Failure.CUT:
        return N624.error(
            at=at,
            expected=f"rank {culprit} to be within reach",
            found="nothing comes through",
            notes=notes,
        )
    if failure is Failure.GAVE_UP or (failure is Failure.STALLED and culprit != rank):
        stalled = failure is Failure.STALLED
        why = "nothing had moved for its timeout" if stalled else "it was aborted"
        return N626.error(
            at=at,
            expected="every rank to get on",
            found=f"rank {culprit} gave up: {why}",
            notes=notes,
        )
    return N621.error(
        at=at,
        expected="something to move on some rank within the timeout",
        found=notes[0] if notes else "nothing moved",
        notes=notes[1:] + _lagging(fabric, rank),
    )


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
