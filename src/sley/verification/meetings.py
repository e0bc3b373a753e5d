"""Meetings: whether a plan in instruction order hangs with many tiles.

In instruction order every instruction runs all tiles before the next one of its block. A sender
whose receiver isn't current stops after a few tiles, whatever the number of slots: both ends of a
message must be current together. With enough tiles an instruction can end only if every instruction
that it needs has ended or is the current one of its block: the other end of each of its messages,
and its waits. So the run is a sequence of meetings: the largest set of current instructions that
need none outside the set runs all its tiles and ends. Its end never blocks others. So if at some
point there is no such set, no run ends; and a run that ends by meetings does so with any number of
tiles and slots.
"""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic, shortened
from sley.errors.verifier import V203
from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, LongArray, spans


def check_meetings(plan: Plan, messages: Messages) -> list[Diagnostic]:
    """V203 for a plan in instruction order that hangs with many tiles. The plan must not hang with
    a single tile."""
    needs = _needs(plan, messages)
    ended = np.zeros(len(plan.instructions), bool)
    at, end = plan.block_offset[:-1].copy(), plan.block_offset[1:]
    # Ends: each round ends an instruction or finds the hang.
    while True:
        busy = np.flatnonzero(at < end)
        if not len(busy):
            return []
        current = at[busy]
        dropped = _drop(needs, ended, current)
        meeting = dropped == NONE
        if not meeting.any():
            return [_describe(plan, needs, ended, current, dropped)]
        ended[current[meeting]] = True
        at[busy[meeting]] += 1


def _needs(plan: Plan, messages: Messages) -> Edges:
    """Instruction -> the instructions that must have ended, or be current, for it to end. (The
    receive before, which frees a slot, is earlier in the block of the receive.)"""
    waits, send, receive = plan.waits, messages.send, messages.receive
    source = np.concatenate([waits.source, send, receive], dtype=np.int32)
    target = np.concatenate([waits.target, receive, send], dtype=np.int32)
    return Edges.from_pairs(len(plan.instructions), source, target)


def _drop(needs: Edges, ended: BoolArray, current: LongArray) -> LongArray:
    """For each current instruction the round in which it is dropped from the candidates for the
    next meeting, or NONE if it stays. Round 0 drops instructions that need one their block has not
    reached; round n, those that need one dropped in round n-1."""
    within = ended.copy()
    within[current] = True
    dropped = np.full(len(current), NONE)
    first = needs.offset[current]
    owner, edges = spans(first, needs.offset[current + 1] - first)
    needed = needs.target[edges]
    turn = 0
    # A dropped instruction is in no set that needs none outside, since it needs one that isn't; so
    # what stays is the largest such set, however the drops are ordered.
    while True:
        missing = np.zeros(len(current), bool)
        missing[owner[~within[needed]]] = True
        missing &= dropped == NONE
        if not missing.any():
            return dropped
        dropped[missing] = turn
        within[current[missing]] = False
        turn += 1


def _describe(
    plan: Plan, needs: Edges, ended: BoolArray, current: LongArray, dropped: LongArray
) -> Diagnostic:
    """V203 for one cycle: an instruction needs one that its block has not reached, because the
    block's current instruction needs another, and so on."""
    turn = dict(zip(current.tolist(), dropped.tolist(), strict=True))
    ahead = dict(zip(plan.block[current].tolist(), current.tolist(), strict=True))
    row = int(current[0])
    seen: dict[int, int] = {}
    notes: list[str] = []
    # Every current instruction was dropped, so each has a reason, and the walk must close.
    while row not in seen:
        seen[row] = len(notes)
        # Why it was dropped: an instruction not yet reached, else one dropped before.
        # NONE is least: an instruction that its block hasn't reached comes before those dropped
        # later.
        needed = min(
            (n for n in needs[row].tolist() if not ended[n]), key=lambda n: turn.get(n, NONE)
        )
        text = f"{plan.label(row)} needs {plan.label(needed)}"
        row = ahead[int(plan.block[needed])]
        notes.append(text if row == needed else f"{text}, which comes after {plan.label(row)}")
    cycle = notes[seen[row] :]
    return V203.diagnostic(
        at=[plan.place(row)],
        expected="in instruction order, both ends of every message current together",
        found=f"{len(cycle)} instructions that wait for one another when there are many tiles",
        remedy="Give each peer and direction a thread block of its own, or run tile by tile.",
        notes=shortened(cycle),
    )
