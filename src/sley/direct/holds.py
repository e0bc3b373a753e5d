"""Holds: which instructions must wait until a direct message has been taken, because they
overwrite it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np

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
from sley.verify.messages import Messages

WORD = 64
"""Bits of a number."""

MOST_WORDS = 2**22
"""Numbers of a table of bits: 32 MiB. Larger ones are slower, as they fall out of the caches."""

Pairs: TypeAlias = tuple[LongArray, LongArray]
"""Edges: the instructions at which they begin, and those at which they arrive."""


def all_holds(plan: Plan, lies: BoolArray, level: IntArray) -> Edges:
    """The holds of a plan: CSR, instruction -> the sends after which it is the first to write a
    chunk of their message.

    lies: bool (instructions,), the sends whose data lie at the sender. level: of an abstract run.
    Conflicting accesses are ordered, so at every chunk those of higher level come later; and who
    writes it after the first one comes after that one anyway.
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
    """The holds without those that the happens-before order and the other holds imply: the
    transitive reduction of both, as far as it is about holds.

    holds: CSR, instruction -> sends whose messages must have been taken before it starts; together
        with the happens-before order they must have no circle.

    In a ring, for example, the result that overwrites a chunk has been made from what its reader
    read before.
    """
    rows = len(plan.instructions)
    reader = messages.receive_of[holds.target].astype(np.int64)
    pairs = reader, holds.source.astype(np.int64)
    order = _Order.of(rows, _happens_before(plan, messages), pairs)
    needed = np.ones(len(holds), bool)
    readers = distinct(reader)
    readers = readers[np.argsort(order.level[readers], kind="stable")]
    width = WORD * max(MOST_WORDS // max(rows, 1), 1)
    for start in range(0, len(readers), width):
        order.drop_implied(readers[start : start + width], needed)
    return Edges.from_pairs(rows, holds.source[needed], holds.target[needed])


def _happens_before(plan: Plan, messages: Messages) -> Pairs:
    """Pairs of instructions, the first of which happens before the second, that imply all others:
    neighbours in a block, waits, and messages."""
    second = np.ones(len(plan.instructions), bool)
    second[plan.block_offset[:-1][np.diff(plan.block_offset) > 0]] = False
    after = np.flatnonzero(second)
    return (
        np.concatenate([after - 1, plan.waits.target, messages.send]),
        np.concatenate([after, plan.waits.source, messages.receive]),
    )


@dataclass(frozen=True)
class _Order:
    """The happens-before order and the holds, as edges sorted by where they arrive.

    level: int32 (instructions,), a linear extension of both. before, after: int64 (edges,), the
    instructions of each edge. hold: int64 (edges,), the number of the hold that it is, or NONE.
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
        """Clears `needed` for the holds that are for what one of `readers` takes, and for which
        this has another way to the instruction that is held.

        A row of `passed` says which of the readers an instruction comes after, or is, a bit each.
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
