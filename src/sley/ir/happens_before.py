"""The happens-before order of a plan's instructions, and the pairs of conflicting accesses.

The unit of this order is the element (docs/machine.md, "Order, races and hangs"): an engine may
move a message in pieces, so an instruction that receives and sends passes on the first elements
before it has the last ones.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sley.ir.connections import Messages
from sley.ir.extension import load
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, IntArray, LongArray, ordered_by
from sley.ir.words import READS_SOURCE


class Hazards(NamedTuple):
    """Pairs of adjacent conflicting instructions at a cell, in the order of a run; a pair has an
    entry for each cell.

    first, second: int64 (pairs,), the instructions. cell: the cell that both access.
    aligned: bool (pairs,), whether the cell is the same chunk of both, counted from the first chunk
        of each.
    """

    first: LongArray
    second: LongArray
    cell: LongArray
    aligned: BoolArray


def hazards(plan: Plan, level: IntArray, *, unordered: bool = False) -> Hazards:
    """The adjacent conflicts of a plan. Errors: R512.

    level: int32 (instructions,), of an abstract run. A read is adjacent to the write before it; a
    write is adjacent to the write before it and to the reads since. If all these pairs are ordered,
    so are all other conflicts.
    unordered: leaves out pairs that one block or one wait orders, in large
        plans nearly all.
    """
    t = plan.instructions
    reads, writes = READS_SOURCE[t.op], plan.overwrites
    first, second, cell, aligned = load("sley.ir._graphs").conflicts(
        plan.layout.cells,
        order=ordered_by(level).astype(np.int32),
        count=t.count,
        read=_starts(plan.source_cells, reads),
        write=_starts(plan.destination_cells, writes),
        block=plan.block,
        wait_offset=plan.waits.offset,
        wait_target=plan.waits.target,
        unordered=unordered,
    )
    return Hazards(first.astype(np.int64), second.astype(np.int64), cell, aligned.astype(bool))


def _starts(cells: Callable[[LongArray], LongArray], accesses: BoolArray) -> LongArray:
    """int64 (instructions,): the first cell of each instruction's access, NONE without one."""
    start = np.full(len(accesses), NONE, np.int64)
    rows = np.flatnonzero(accesses)
    start[rows] = cells(rows)
    return start


@dataclass
class HappensBefore:
    """The order of one tile: blocks, waits, and from each send to its receive.

    It excludes the order that full FIFOs impose, which more slots would remove. Blocks and waits
    order whole instructions, a message each element that it carries. So a path from one instruction
    to another orders all their elements if a block or a wait is part of it; if it consists of
    messages alone, each passed on by the instruction that receives it, it orders elements with one
    place in their messages.
    """

    plan: Plan
    messages: Messages
    level: np.ndarray

    def __post_init__(self) -> None:
        # Memory views, which searches index faster than arrays.
        self._block, self._rank = self.plan.block.data, self.plan.rank.data
        self._level = np.ascontiguousarray(self.level).data
        # Filled by the first search: most plans need none.
        self._rows, self._levels, self._sources, self._first = [memoryview(b"")] * 4

    def reaches(self, first: int, second: int, *, whole: bool = False) -> bool:
        """Whether `first` happens before `second`. Searches the blocks and waits of their rank
        first, which order most pairs, and only then messages over other ranks.

        whole: whether every element of `first` must come before every element of `second`;
            otherwise it suffices that elements with one place in their messages are ordered.
        """
        if self.reaches_within_rank(first, second):
            return True
        return self._search(first, self._ended_before(second) if whole else [second])

    def reaches_within_rank(self, first: int, second: int) -> bool:
        """Whether blocks and waits of their rank alone order `first` before `second`."""
        if not self._first:
            self._index()
        return self._search(first, [second], within_rank=True)

    def _ended_before(self, row: int) -> list[int]:
        """The latest instructions that have ended, with all their elements, before an instruction
        moves its first one. They come before it, or before an instruction that passes its message
        on, in a block or by a wait."""
        # The chain of messages grows while it is read: by a sender, or by several of a group.
        found, chain = [], [row]
        # Ends: a sender has a lower level than its receiver.
        for at in chain:
            block = self._block[at]
            if at and self._block[at - 1] == block:
                found.append(at - 1)
            here = self._first[block], self._first[block + 1]
            edges = slice(bisect_left(self._rows, at, *here), bisect_right(self._rows, at, *here))
            for source in self._sources[edges]:
                by_wait = self._rank[source] == self._rank[at]
                (found if by_wait else chain).append(source)
        return found

    def _search(self, first: int, seconds: list[int], *, within_rank: bool = False) -> bool:
        """A search backwards from `seconds`.

        A row of a block implies all rows before it, so each row is searched only once; rows of the
        level of `first` or below can't come after `first`.
        """
        rank = self._rank[first]
        goal, floor = self._block[first], self._level[first]
        passed: dict[int, int] = {}
        stack = list(seconds)
        while stack:
            row = stack.pop()
            block = self._block[row]
            if block == goal and row >= first:
                return True
            low = passed.get(block, NONE)
            if row <= low:
                continue
            passed[block] = row
            here = self._first[block], self._first[block + 1]
            start = max(
                bisect_right(self._rows, low, *here), bisect_right(self._levels, floor, *here)
            )
            for source in self._sources[start : bisect_right(self._rows, row, *here)]:
                behind = self._level[source] > floor or source == first
                if behind and not (within_rank and self._rank[source] != rank):
                    stack.append(source)
        return False

    def _index(self) -> None:
        """Indexes the edges by target row: the row, its level, the edge's source row, and the first
        edge of each block."""
        plan, messages = self.plan, self.messages
        after = np.concatenate([plan.waits.source, messages.receive]).astype(np.int32)
        before = np.concatenate([plan.waits.target, messages.send]).astype(np.int32)
        order = np.argsort(after, kind="stable")
        after = after[order]
        self._rows, self._sources = after.data, before[order].data
        self._levels = self.level[after].data
        self._first = np.searchsorted(after, plan.block_offset).data
