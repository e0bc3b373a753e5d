"""Hangs: one abstract run, as a graph of waiting; meetings, for plans in instruction order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from sley.errors import Diagnostic, SleyError, counted, shortened
from sley.errors.verifier import V203
from sley.ir.connections import Messages
from sley.ir.graph import find_cycle, levels
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, offsets_of, spans
from sley.ir.words import LoopOrder


@dataclass(frozen=True)
class Run:
    """The result of an abstract run.

    level: int32 (instructions,), the earliest step at which each instruction can run. Ordered
        instructions have different levels.
    events: int32 (events,), the same of each event.
    meetings: int64 (instructions,), in instruction order the number of each one's meeting; empty
        in tile order.
    """

    level: IntArray
    events: IntArray
    meetings: LongArray
    diagnostics: list[Diagnostic]


def run_abstractly(
    plan: Plan,
    messages: Messages,
    slots: int,
    *,
    per_chunk: bool,
    holds: Edges | None = None,
    one_slot_bytes: int | None = None,
) -> Run:
    """The abstract run of one tile with `slots` slots on every connection; V203 if it can't end.

    per_chunk: whether a message of several chunks takes a slot for each of them. The network of
    blocks and FIFOs is determinate, so a run ends if and only if the graph of waiting has no
    cycle. In tile order one tile decides, since after it every FIFO is empty again; in instruction
    order `check_meetings` decides about the tiles that pile up.
    holds: CSR, instruction -> sends whose messages must have been read before it starts, for the
        same tile: additional waiting in plans with direct messages (docs/machine.md). Holds change
        no meeting: an instruction that overwrites a message is ordered after its send, and so needs
        everything that the send needs, including its receive.
    one_slot_bytes: the largest call in which every message would take one slot, if the runtime
        takes one for each chunk only in larger calls; for the notes of V203.
    """
    events = Events.of(plan, per_chunk)
    level = levels(events.total, *_waiting(plan, messages, slots, events, holds))
    found, meetings = list[Diagnostic](), np.zeros(0, np.int64)
    if (level == NONE).any():
        # Built again rather than kept: a plan that ends has no use for it, and it is large.
        before, behind = _waiting(plan, messages, slots, events, holds)
        predecessors = Edges.from_pairs(events.total, behind, before)
        found.append(
            _describe(plan, predecessors, level, messages, slots, events, holds, one_slot_bytes)
        )
    elif plan.loop_order is LoopOrder.INSTRUCTION:
        meetings, found = check_meetings(plan, messages)
    return Run(level[events.offset[:-1]], level, meetings, found)


def _waiting(
    plan: Plan, messages: Messages, slots: int, events: Events, holds: Edges | None
) -> tuple[IntArray, IntArray]:
    """The graph of waiting, as pairs of events: the first comes before the second."""
    before, behind = wait_pairs(plan, messages, slots, events)
    if holds is not None:
        held = hold_pairs(messages, holds, events)
        before, behind = np.append(before, held[0]), np.append(behind, held[1])
    return before, behind


def run_of(plan: Plan, messages: Messages) -> Run:
    """The abstract run of a plan with its own settings; SleyError (V203) if it hangs."""
    run = run_abstractly(plan, messages, plan.slots, per_chunk=plan.per_chunk)
    if run.diagnostics:
        raise SleyError(run.diagnostics)
    return run


@dataclass(frozen=True)
class Events:
    """The events of a run: event offset[i] + c is part c of a tile of instruction i. An instruction
    has one part, or one for each chunk."""

    parts: LongArray
    offset: LongArray

    @classmethod
    def of(cls, plan: Plan, per_chunk: bool) -> Events:
        count = plan.instructions.count.astype(np.int64)
        parts = np.maximum(count, 1) if per_chunk else np.ones_like(count)
        return cls(parts, offsets_of(parts))

    @property
    def total(self) -> int:
        return int(self.offset[-1])

    def instruction(self, event: int) -> int:
        return int(np.searchsorted(self.offset, event, side="right")) - 1

    def all_of(self, rows: np.ndarray) -> LongArray:
        """The events of the instructions `rows`, one instruction after another."""
        # In nearly all plans each instruction has one, whose number is its own.
        one_each = self.total == len(self.parts)
        return rows if one_each else spans(self.offset[rows], self.parts[rows])[1]


def wait_pairs(
    plan: Plan, messages: Messages, slots: int, events: Events
) -> tuple[IntArray, IntArray]:
    """Pairs of events, the first of which must come before the second, without holds.

    An event waits for its predecessor in its block, for its waits, and for the message that it
    receives; the send of message m on a connection waits for the receive of message m - slots.
    """
    # 32 bits, as `levels` reads: large plans have a hundred million pairs.
    offset = events.offset.astype(np.int32)
    first, last = offset[:-1], offset[1:] - 1
    same_block = np.ones(events.total, bool)
    same_block[first[plan.block_offset[:-1][np.diff(plan.block_offset) > 0]]] = False
    after = np.flatnonzero(same_block).astype(np.int32)
    put = events.all_of(messages.send).astype(np.int32)
    taken = events.all_of(messages.receive).astype(np.int32)
    pairs = [(after - 1, after), (last[plan.waits.target], first[plan.waits.source]), (put, taken)]
    connection = np.repeat(messages.connection, events.parts[messages.send])
    # Messages are sorted by connection: `slots` places on, on the same one, is the message that
    # reuses the slot.
    if slots < len(put):
        same = connection[slots:] == connection[:-slots]
        pairs.append((taken[:-slots][same], put[slots:][same]))
    before, behind = (np.concatenate(column) for column in zip(*pairs, strict=True))
    return before, behind


def hold_pairs(messages: Messages, holds: Edges, events: Events) -> tuple[IntArray, IntArray]:
    """Pairs of events as in `wait_pairs`, one for each hold: the receive of the message comes
    before the instruction with the hold. The plan must have no groups."""
    taken, offset = messages.receive_of[holds.target], events.offset.astype(np.int32)
    return offset[taken + 1] - 1, offset[holds.source]


def _describe(
    plan: Plan,
    predecessors: Edges,
    level: IntArray,
    messages: Messages,
    slots: int,
    events: Events,
    holds: Edges | None,
    one_slot_bytes: int | None,
) -> Diagnostic:
    """V203 for one cycle of waiting."""
    cycle = find_cycle(predecessors, level == NONE)
    rows = [events.instruction(event) for event in cycle]
    # Parts of one instruction in a row count once, also where the whole cycle is in one.
    rows = [row for k, row in enumerate(rows) if row != rows[k - 1]] or rows[:1]
    notes = [
        f"{plan.label(here)} {_reason(plan, messages, holds, here, there)} {plan.label(there)}"
        for here, there in zip(rows, rows[1:] + rows[:1], strict=True)
    ]
    by_chunk = bool(events.parts.max() > 1)
    hang = V203.diagnostic(
        at=[plan.place(rows[0])],
        expected=f"no cycle of waits with {counted(slots, 'slot')} a connection",
        found=f"{len(rows)} instructions that wait for one another"
        + (", where every chunk of a message takes a slot" if by_chunk else ""),
        remedy=_PER_CHUNK if by_chunk else "",
        notes=[*shortened(notes), _enough_slots(plan, messages, slots, by_chunk, holds)],
    )
    if not by_chunk or _hangs(plan, messages, slots, False, holds):
        return hang
    if one_slot_bytes is None:
        note = (
            f"it does not hang with {counted(slots, 'slot')} if every message takes one, as long "
            "as all of its chunks fit into a slot together"
        )
        return replace(hang, notes=(*hang.notes, note))
    size = size_text(one_slot_bytes)
    note = f"it does not hang in calls up to {size}, where every message takes one slot"
    remedy = f"Limit its calls to this size (maxBytes, --max-bytes {size}), or reorder it."
    return replace(hang, notes=(*hang.notes, note), remedy=remedy)


def _hangs(
    plan: Plan, messages: Messages, slots: int, per_chunk: bool, holds: Edges | None
) -> bool:
    events = Events.of(plan, per_chunk)
    pairs = _waiting(plan, messages, slots, events, holds)
    return bool((levels(events.total, *pairs) == NONE).any())


def _enough_slots(
    plan: Plan, messages: Messages, slots: int, per_chunk: bool, holds: Edges | None
) -> str:
    """The least number of slots with which a plan does not hang, as a note; with `slots` it
    does."""
    sizes = Events.of(plan, per_chunk).parts[messages.send]
    most = int(np.bincount(messages.connection, sizes).max(initial=1))
    if _hangs(plan, messages, most, per_chunk, holds):  # no send waits for a slot
        return "the plan hangs with any number of slots"
    few, enough = slots, most  # more slots never make a plan hang
    while enough - few > 1:
        middle = (few + enough) // 2
        if _hangs(plan, messages, middle, per_chunk, holds):
            few = middle
        else:
            enough = middle
    return f"the plan does not hang with {counted(enough, 'slot')} or more"


_PER_CHUNK = (
    "Compile the plan for such connections: sley compile WHAT -o FILE.xml, with --schedule msccl "
    "if WHAT is a file with a plan; in Python sley.compile(..., per_chunk=True)."
)


def _reason(plan: Plan, messages: Messages, holds: Edges | None, here: int, there: int) -> str:
    """Why instruction `here` waits for `there`."""
    if there in messages.send[messages.receive == here].tolist():
        return "waits for the message of"
    if plan.block[here] == plan.block[there]:
        return "comes after"
    if there in plan.waits[here].tolist():
        return "waits for"
    if holds is not None and there in messages.receive[np.isin(messages.send, holds[here])]:
        return "overwrites chunks that must first be read by"
    return "waits for a free slot, which needs"


def check_meetings(plan: Plan, messages: Messages) -> tuple[LongArray, list[Diagnostic]]:
    """The meetings of a plan in instruction order, int64 (instructions,): the number of each one's
    meeting. V203 if it hangs with many tiles. It must not hang with a single tile.

    In instruction order every instruction runs all tiles before the next one of its block. A sender
    whose receiver isn't current stops after a few tiles, whatever the number of slots: both ends of
    a message must be current together. With enough tiles an instruction can end only if every
    instruction that it needs has ended or is the current one of its block: the other end of each of
    its messages, and its waits. So the run is a sequence of meetings: the largest set of current
    instructions that need none outside the set runs all its tiles and ends. Its end never blocks
    others. So if at some point there is no such set, no run ends; and a run that ends by meetings
    does so with any number of tiles and slots.
    """
    needs = _needs(plan, messages)
    ended = np.zeros(len(plan.instructions), bool)
    number = np.full(len(ended), NONE, np.int64)
    at, end = plan.block_offset[:-1].copy(), plan.block_offset[1:]
    # Ends: each round ends an instruction or finds the hang.
    for k in count():
        busy = np.flatnonzero(at < end)
        if not len(busy):
            break
        current = at[busy]
        dropped = _drop(needs, ended, current)
        meeting = dropped == NONE
        if not meeting.any():
            return number, [_no_meeting(plan, needs, ended, current, dropped)]
        ended[current[meeting]] = True
        number[current[meeting]] = k
        at[busy[meeting]] += 1
    return number, []


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


def _no_meeting(
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
