"""Outcomes: an engine's reports, and the error made of those of a failed run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum

from sley.engine.program import Loaded
from sley.errors import Place, SleyError, counted
from sley.errors.runtime import R502, R513
from sley.errors.verifier import V201
from sley.ir.tables import NONE

MOST_PLACES = 8
"""How many stuck instructions an error names; a large plan has thousands."""


class Status(IntEnum):
    """How a rank's call ended (the engine's numbers)."""

    DONE = 0
    STALLED = 1
    ABORTED = 2
    ABSENT = 3
    MISMATCHED = 4
    NO_MEMORY = 5
    VARYING = 6
    MISFIT = 7


class Reason(IntEnum):
    """What a stuck instruction waits for (the engines' numbers). READING: the receiver's read of a
    message in the sender's memory (the direct protocol). CALL: the peer's call to be the same."""

    NONE = 0
    INSTRUCTION = 1
    MESSAGE = 2
    SLOT = 3
    READING = 4
    CALL = 5


@dataclass(frozen=True)
class Stuck:
    """An instruction that is stuck at `tile`. instruction: its row in its rank's program, NONE
    after the last one. target: the instruction or the connection that it waits for. calls: this
    rank's call and the peer's in words, for CALL."""

    instruction: int
    tile: int
    reason: Reason
    target: int
    calls: tuple[str, str] = ("", "")


Report = tuple[int, float, int, int, list[tuple[int, int, int, int]], bool]
"""An `Outcome` as the plain values that the engine returns, which can be sent."""


@dataclass(frozen=True)
class Outcome:
    """The report of a rank's engine on a call. rank: the rank that didn't arrive (ABSENT) or made
    another call (MISMATCHED); NONE without; the chunk of the output to which a chunk of another
    length came (MISFIT). size_bytes: of a point-to-point message, at its other end; the elements of
    that chunk. varied: whether a call of equal counts ran with varying ones (VARYING is within the
    engine)."""

    status: Status
    seconds: float
    rank: int
    size_bytes: int
    stuck: tuple[Stuck, ...]
    varied: bool = False

    @classmethod
    def of(cls, report: Report) -> Outcome:
        status, seconds, rank, size_bytes, stuck, varied = report
        rows = tuple(Stuck(i, tile, Reason(reason), target) for i, tile, reason, target in stuck)
        return cls(Status(status), seconds, rank, size_bytes, rows, varied)


def failure(loaded: Loaded, outcomes: Mapping[int, Outcome], timeout_s: float) -> SleyError | None:
    """The error made of the ranks' outcomes; None if every rank finished."""
    failed = {rank: o for rank, o in outcomes.items() if o.status is not Status.DONE}
    if not failed:
        return None
    for rank, outcome in sorted(failed.items()):
        if outcome.status is Status.ABSENT:
            return R513.error(
                at=Place(detail=f"rank {outcome.rank}"),
                expected=f"every rank at the start of the call within {timeout_s:g} s",
                found=f"rank {rank} waited for rank {outcome.rank}",
            )
        if outcome.status is Status.MISFIT:  # of a plan that isn't proven: the counts agree
            return V201.error(
                at=Place(detail=f"rank {rank} out[{outcome.rank}]"),
                expected="the chunk that the collective promises there",
                found=f"a chunk of another length, {counted(outcome.size_bytes, 'element')}",
            )
    places, lines = describe(loaded, failed)
    return R502.error(
        at=places,
        expected=f"something to move on some rank within {timeout_s:g} s",
        found=lines[0] if lines else f"ranks {sorted(failed)} gave up",
        notes=lines[1:],
    )


def describe(
    loaded: Loaded, outcomes: Mapping[int, Outcome], most: int = MOST_PLACES
) -> tuple[list[Place], list[str]]:
    """Places where ranks are stuck, at most `most`, and for each a line with the reason."""
    # The rank that timed out comes first; the others report their state when they were aborted.
    order = sorted(outcomes.items(), key=lambda item: (item[1].status is not Status.STALLED, item))
    stuck = [(rank, s) for rank, outcome in order for s in outcome.stuck]
    places, lines = [], []
    for rank, s in stuck[:most]:
        if s.instruction == NONE:
            lines.append(f"rank {rank} is done, and waits for {_target_words(loaded, rank, s)}")
            continue
        row = loaded.programs[rank].first_row + s.instruction
        place = loaded.plan.place(row)
        places.append(replace(place, detail=f"{place.detail}, tile {s.tile}"))
        lines.append(f"{place.detail} waits for {_target_words(loaded, rank, s)}")
    if len(stuck) > most:
        lines.append(f"and {len(stuck) - most} more instructions wait")
    return places, lines


def _target_words(loaded: Loaded, rank: int, stuck: Stuck) -> str:
    if stuck.reason is Reason.INSTRUCTION:
        return loaded.plan.place(loaded.programs[rank].first_row + stuck.target).detail
    wiring, connection = loaded.wiring, stuck.target
    channel = f"on channel {wiring.channel[connection]}"
    if stuck.reason is Reason.MESSAGE:
        return f"a message from rank {wiring.src[connection]} {channel}"
    if stuck.reason is Reason.CALL:
        own, other = stuck.calls
        return f"rank {wiring.src[connection]} to make {own}; it makes {other}"
    if stuck.reason is Reason.READING:
        return f"rank {wiring.dst[connection]} to read what it was sent {channel}"
    slots = f"all {wiring.slots} taken"
    return f"a free slot to rank {wiring.dst[connection]} {channel} ({slots})"
