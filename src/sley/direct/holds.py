"""Holds: the instructions that must wait until a direct message has been read, because they
overwrite it."""

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
    Edges,
    IntArray,
    LongArray,
    distinct,
    neighbouring_writes,
    ordered_by,
    spans,
)
from sley.ir.words import WRITES_DESTINATION

WORD = 64
"""Bits of a number."""

MOST_WORDS = 2**22
"""Numbers in a table of bits: 32 MiB. Larger tables don't fit the caches and are slower."""

Pairs: TypeAlias = tuple[LongArray, LongArray]
"""Edges: their source instructions, and their target instructions."""


def all_holds(plan: Plan, lies: BoolArray, level: IntArray) -> Edges:
    """The holds of a plan: CSR, instruction -> the sends of which it is the first to overwrite a
    chunk of their message.

    lies: bool (instructions,), the sends whose data stay at the sender. level: of an abstract run.
    Conflicting accesses are ordered, so accesses of higher level to a chunk are later ones; later
    writes to it are ordered after the first one already.
    """
    t, layout = plan.instructions, plan.layout
    writes = WRITES_DESTINATION[t.op]
    parts = []
    for mask, buffer, index in (
        (writes, t.dst_buffer, t.dst_index),
        (lies & ~writes, t.src_buffer, t.src_index),
    ):
        rows = np.flatnonzero(mask)
        owner, cell = spans(layout.cell(plan.rank[rows], buffer[rows], index[rows]), t.count[rows])
        parts.append((rows[owner], cell))
    row, cell = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = ordered_by(cell, level[row], row)
    row, cell = row[order], cell[order]
    _, after = neighbouring_writes(cell, writes[row])
    overwritten = np.flatnonzero(lies[row] & (after != NONE))
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
    needed = np.ones(len(holds), bool)
    readers = distinct(reader)
    readers = readers[np.argsort(order.level[readers], kind="stable")]
    width = WORD * max(MOST_WORDS // max(rows, 1), 1)
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
        level = levels(Edges.from_pairs(rows, before, after))
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
        word, mask = bit // WORD, np.uint64(1) << (bit % WORD).astype(np.uint64)
        passed = np.zeros((len(self.level), -(-len(readers) // WORD)), np.uint64)
        passed[readers, word[readers]] = mask[readers]
        own = (self.hold != NONE) & (bit[self.before] != NONE)
        arrival = self.level[self.after]
        low, high = self.level[readers].min() + 1, arrival[own].max() + 1
        bounds = np.searchsorted(arrival, np.arange(low, high + 1))
        for start, end in pairwise(bounds.tolist()):
            before, after = self.before[start:end], self.after[start:end]
            carried = passed[before]
            held = np.flatnonzero(own[start:end])
            reader = before[held]
            carried[held, word[reader]] &= ~mask[reader]
            first = np.flatnonzero(np.append(True, after[1:] != after[:-1]))
            passed[after[first]] |= np.bitwise_or.reduceat(carried, first, axis=0)
            implied = passed[after[held], word[reader]] & mask[reader] != 0
            needed[self.hold[start:end][held[implied]]] = False
            np.bitwise_or.at(passed, (after[held], word[reader]), mask[reader])
