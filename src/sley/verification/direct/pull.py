"""Pulls: the messages of a plan that receivers pull from the senders' memory, and the holds that
protect them: the instructions that must wait until a message has been read, because they overwrite
it (docs/machine.md, protocol Direct)."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    Edges,
    IntArray,
    LongArray,
    Value,
    distinct,
    kept,
    neighbouring_writes,
    ordered_by,
    spans,
)
from sley.ir.words import SENDS, SENDS_SOURCE, Op, Protocol
from sley.verification.direct.staging import staged_messages, without_staged
from sley.verification.hangs import run_of
from sley.verification.verifier import messages_of

_WORD_BITS = 64
_MOST_WORDS = 2**22
"""The most 64-bit words of a table of bits: 32 MiB. Larger tables don't fit the caches."""

Pairs: TypeAlias = tuple[LongArray, LongArray]
"""Edges: their source instructions, and their target instructions."""


@dataclass(frozen=True, eq=False, repr=False)
class Pulls(Value):
    """The transport of a plan's messages: one row an instruction.

    pulled: bool, sends whose message the receiver reads in the sender's buffer; False for sends
        through a slot, and for other instructions.
    buffer: int8, index: int32, for a pulled message the first chunk of its data at the sender;
        NONE for others.
    holds: CSR, instruction -> pulled sends of the same rank whose messages must have been
        consumed, for the same tile, before it starts.
    """

    pulled: BoolArray
    buffer: ByteArray
    index: IntArray
    holds: Edges


@kept
def pulls(plan: Plan) -> Pulls:
    """The pulls and holds of a plan; none if its protocol isn't DIRECT.

    Every message whose data are in a buffer of the sender is pulled, except those whose holds would
    make the plan hang (`staging`). The plan must have been verified; SleyError (V202, V203) if its
    messages don't match or it hangs.
    """
    messages = messages_of(plan)
    rows, t = len(plan.instructions), plan.instructions
    holds, pulled = Edges.empty(rows), np.zeros(rows, bool)
    if plan.protocol is Protocol.DIRECT:
        # A recv_reduce_send leaves its result in no buffer of the sender.
        in_buffer = SENDS[t.op] & (t.op != Op.RECV_REDUCE_SEND)
        holds = all_holds(plan, in_buffer, run_of(plan, messages).level)
        staged = staged_messages(plan, messages, holds)
        pulled = in_buffer & ~staged
        holds = without_staged(holds, staged)
        if not plan.collective.varies:  # else the messages that imply a hold may be left out
            holds = needed_holds(plan, messages, holds)
    own = SENDS_SOURCE[t.op]
    return Pulls(
        pulled=pulled,
        buffer=np.where(pulled, np.where(own, t.src_buffer, t.dst_buffer), NONE),
        index=np.where(pulled, np.where(own, t.src_index, t.dst_index), NONE),
        holds=holds,
    )


def all_holds(plan: Plan, in_buffer: BoolArray, level: IntArray) -> Edges:
    """The holds of a plan: CSR, instruction -> the sends whose messages it is the first to
    overwrite, at least in a chunk.

    in_buffer: bool (instructions,), the sends whose data are in a buffer. level: of an abstract
    run. Conflicting accesses to a chunk are ordered, so those of higher level are later; later
    writes are already ordered after the first one.
    """
    t = plan.instructions
    writes, own = plan.overwrites, SENDS_SOURCE[t.op]
    parts = []
    for mask, cells_of, is_write, sent in (
        (writes, plan.destination_cells, True, in_buffer & ~own),
        (in_buffer & own, plan.source_cells, False, in_buffer),
    ):
        rows = np.flatnonzero(mask)
        owner, cell = spans(cells_of(rows), t.count[rows])
        parts.append((rows[owner], cell, np.full(len(cell), is_write), sent[rows[owner]]))
    row, cell, write, message = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = ordered_by(cell, level[row], row)
    row, cell, write, message = row[order], cell[order], write[order], message[order]
    _, after = neighbouring_writes(cell, write)
    overwritten = np.flatnonzero(message & (after != NONE))
    return Edges.from_pairs(len(t), row[after[overwritten]], row[overwritten])


def needed_holds(plan: Plan, messages: Messages, holds: Edges) -> Edges:
    """The holds that neither the happens-before order nor the other holds imply: those in the
    transitive reduction of both.

    holds: CSR, instruction -> sends whose messages must have been read before it starts; together
        with the happens-before order they must have no cycle.

    In a ring, for example, the result that overwrites a chunk depends on its reader's read.
    """
    rows = len(plan.instructions)
    reader = messages.receive_of[holds.target].astype(np.int64)
    pairs = reader, holds.source.astype(np.int64)
    order = _Order.of(rows, messages.happens_before(plan), pairs)
    # Without a cycle the transitive reduction is unique: implied holds can all go, in any order.
    needed = np.ones(len(holds), bool)
    readers = distinct(reader)
    readers = readers[np.argsort(order.level[readers], kind="stable")]
    width = _WORD_BITS * max(_MOST_WORDS // max(rows, 1), 1)
    # Readers of near levels together: a table is swept only from its first reader to its last hold.
    for start in range(0, len(readers), width):
        order.drop_implied(readers[start : start + width], needed)
    return Edges.from_pairs(rows, holds.source[needed], holds.target[needed])


@dataclass(frozen=True)
class _Order:
    """The happens-before order and the holds, as edges sorted by target.

    level: int32 (instructions,), a linear extension of both. before, after: int64 (edges,), source
    and target of each edge. hold: int64 (edges,), the edge's number among the holds, or NONE.
    """

    level: IntArray
    before: LongArray
    after: LongArray
    hold: LongArray

    @classmethod
    def of(cls, rows: int, happens: Pairs, holds: Pairs) -> _Order:
        before, after = (np.append(a, b) for a, b in zip(happens, holds, strict=True))
        level = levels(rows, before, after)
        hold = np.append(np.full(len(happens[0]), NONE), np.arange(len(holds[0])))
        order = ordered_by(level[after], after)
        return cls(level, before[order], after[order], hold[order])

    def drop_implied(self, readers: LongArray, needed: BoolArray) -> None:
        """Clears `needed` for each hold on a message of `readers` whose reader reaches the held
        instruction by another path.

        A row of `passed` has a bit for each reader: whether the instruction is it or follows it.
        """
        bit = np.full(len(self.level), NONE)
        bit[readers] = np.arange(len(readers))
        word, mask = bit // _WORD_BITS, np.uint64(1) << (bit % _WORD_BITS).astype(np.uint64)
        passed = np.zeros((len(self.level), -(-len(readers) // _WORD_BITS)), np.uint64)
        passed[readers, word[readers]] = mask[readers]
        own = (self.hold != NONE) & (bit[self.before] != NONE)
        arrival = self.level[self.after]
        low, high = self.level[readers].min() + 1, arrival[own].max() + 1
        bounds = np.searchsorted(arrival, np.arange(low, high + 1))
        # Level by level, since an edge's source has a lower level and its bits are final.
        for start, end in pairwise(bounds.tolist()):
            before, after = self.before[start:end], self.after[start:end]
            carried = passed[before]
            held = np.flatnonzero(own[start:end])
            reader = before[held]
            # The hold itself must not carry its reader, or each hold would imply itself.
            carried[held, word[reader]] &= ~mask[reader]
            first = np.flatnonzero(np.append(True, after[1:] != after[:-1]))
            passed[after[first]] |= np.bitwise_or.reduceat(carried, first, axis=0)
            implied = passed[after[held], word[reader]] & mask[reader] != 0
            needed[self.hold[start:end][held[implied]]] = False
            # Now it may: an implied hold has another path to the same instruction, so paths over it
            # are sound.
            np.bitwise_or.at(passed, (after[held], word[reader]), mask[reader])
