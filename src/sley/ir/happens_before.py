"""The happens-before order of a plan's instructions, and the pairs of conflicting accesses.

The unit of this order is the element (docs/machine.md, "Order, races and hangs"): an engine may
move a message in pieces, so an instruction that receives and sends passes on the first elements
before it has the last ones.
"""

from __future__ import annotations

from bisect import bisect_right
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

    def reaches(
        self, first: int, second: int, *, whole: bool = False, within_rank: bool = False
    ) -> bool:
        """Whether `first` happens before `second`. Searches the blocks and waits of their rank
        first, which order most pairs, and only then messages over other ranks.

        whole: whether every element of `first` must come before every element of `second`;
            otherwise it suffices that elements with one place in their messages are ordered.
        within_rank: whether blocks and waits alone must order them.
        """
        return self._begin(first, second, whole, within_rank, {}) != NONE

    def path(self, first: int, second: int, *, whole: bool = False) -> list[int]:
        """Instructions from one that is `first`, or comes after it in its block, to `second`, each
        ordered before the next one by a block, a wait or a message; empty if there are none. whole:
        as of `reaches`."""
        after: dict[int, int] = {}
        found = [self._begin(first, second, whole, False, after)]
        if found == [NONE]:
            return []
        # Ends: what comes next is ordered after it.
        while (row := found[-1]) != second:
            goal = after[row]
            sources, rows = self._edges(self._block[goal], NONE, goal)
            ends = [to for source, to in zip(sources, rows, strict=True) if source == row]
            found += [to for to in ends[-1:] if to != goal]
            found.append(goal)
        return found

    def _begin(
        self, first: int, second: int, whole: bool, within_rank: bool, after: dict[int, int]
    ) -> int:
        """The first instruction of `path`, NONE without one.

        after: gets the instruction that was searched when each one was found: it comes next, or one
            before it in its block.
        """
        if not self._first:
            self._index()
        starts = [(second, NONE)]
        begin = self._search(first, starts, after, within_rank=True)
        if begin == NONE and not within_rank:
            after.clear()
            starts = self._ended_before(second, after) if whole else starts
            begin = self._search(first, starts, after)
        return begin

    def _edges(self, block: int, after: int, last: int) -> tuple[memoryview[int], memoryview[int]]:
        """The sources and the rows of the edges to the rows of a block behind `after` up to
        `last`."""
        here = self._first[block], self._first[block + 1]
        edges = slice(bisect_right(self._rows, after, *here), bisect_right(self._rows, last, *here))
        return self._sources[edges], self._rows[edges]

    def _ended_before(self, row: int, after: dict[int, int]) -> list[tuple[int, int]]:
        """The latest instructions that have ended, with all their elements, before an instruction
        moves its first one, each with what comes next. They come before it, or before an
        instruction that passes its message on, in a block or by a wait. after: as of `_begin`."""
        # The chain of messages grows while it is read: by a sender, or by several of a group.
        found, chain = list[tuple[int, int]](), [row]
        # Ends: a sender has a lower level than its receiver.
        for at in chain:
            block = self._block[at]
            if at and self._block[at - 1] == block:
                found.append((at - 1, at))
            for source in self._edges(block, at - 1, at)[0]:
                if self._rank[source] == self._rank[at]:  # by a wait
                    found.append((source, at))
                else:
                    after[source] = at
                    chain.append(source)
        return found

    def _search(
        self,
        first: int,
        seconds: list[tuple[int, int]],
        after: dict[int, int],
        *,
        within_rank: bool = False,
    ) -> int:
        """An instruction that is `first`, or comes after it in its block, found by a search
        backwards from `seconds`, each with what comes next; NONE without one. after: as of
        `_begin`.

        A row of a block implies all rows before it, so each row is searched only once; rows of the
        level of `first` or below can't come after `first`.
        """
        rank = self._rank[first]
        goal, floor = self._block[first], self._level[first]
        passed: dict[int, int] = {}
        stack = list(seconds)
        while stack:
            row, to = stack.pop()
            block = self._block[row]
            if block == goal and row >= first:
                after[row] = to
                return row
            low = passed.get(block, NONE)
            if row <= low:
                continue
            passed[block] = row
            after[row] = to
            here = self._first[block], self._first[block + 1]
            start = max(
                bisect_right(self._rows, low, *here), bisect_right(self._levels, floor, *here)
            )
            for source in self._sources[start : bisect_right(self._rows, row, *here)]:
                behind = self._level[source] > floor or source == first
                if behind and not (within_rank and self._rank[source] != rank):
                    stack.append((source, row))
        return NONE

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
