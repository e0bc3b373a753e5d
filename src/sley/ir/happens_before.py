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
        """Whether `first` happens before `second`; see `path`."""
        return bool(self.path(first, second, whole=whole))

    def reaches_within_rank(self, first: int, second: int) -> bool:
        """Whether blocks and waits of their rank alone order `first` before `second`."""
        return bool(self.path(first, second, within_rank=True))

    def path(
        self, first: int, second: int, *, whole: bool = False, within_rank: bool = False
    ) -> list[int]:
        """Instructions from one that is `first`, or comes after it in its block, to `second`, each
        ordered before the next one by a block, a wait or a message; empty if there are none.
        Searches the blocks and waits of the rank first, which order most pairs, and only then
        messages over other ranks.

        whole: whether every element of `first` must come before every element of `second`;
            otherwise it suffices that elements with one place in their messages are ordered.
        within_rank: without messages.
        """
        if not self._first:
            self._index()
        own = self._search(first, [second], [NONE], [0], within_rank=True)
        if own or within_rank:
            return own
        rows, after, starts = self._ended_before(second) if whole else ([second], [NONE], [0])
        return self._search(first, rows, after, starts)

    def _ended_before(self, row: int) -> tuple[list[int], list[int], list[int]]:
        """The latest instructions that have ended, with all their elements, before an instruction
        moves its first one. They come before it, or before an instruction that passes its message
        on, in a block or by a wait. Returns hops, as of `_search`."""
        rows, after, ended = [row], [NONE], list[int]()
        # The chain of messages grows while it is read: by a sender, or by several of a group.
        chain = [0]
        # Ends: a sender has a lower level than its receiver.
        for at in chain:
            here = rows[at]
            block = self._block[here]
            edges = self._edges(block, here, here + 1)
            before = [here - 1] if here and self._block[here - 1] == block else []
            by_wait = [source for source in edges if self._rank[source] == self._rank[here]]
            for source in (*before, *edges):
                passes = source not in before and source not in by_wait
                (chain if passes else ended).append(len(rows))
                rows.append(source)
                after.append(at)
        return rows, after, ended

    def _edges(self, block: int, first: int, end: int) -> memoryview[int]:
        """The sources of the edges to the rows of a block from `first` up to `end`."""
        here = self._first[block], self._first[block + 1]
        low, high = bisect_left(self._rows, first, *here), bisect_left(self._rows, end, *here)
        return self._sources[low:high]

    def _search(
        self,
        first: int,
        rows: list[int],
        after: list[int],
        stack: list[int],
        *,
        within_rank: bool = False,
    ) -> list[int]:
        """A path as of `path`, searched backwards from hops, the numbers in `stack`.

        rows, after: of each hop its instruction, and the hop after it, NONE for the last; both
        grow. A row of a block implies all rows before it, so each row is searched only once; rows
        of the level of `first` or below can't come after `first`.
        """
        rank = self._rank[first]
        goal, floor = self._block[first], self._level[first]
        passed: dict[int, int] = {}
        while stack:
            at = stack.pop()
            row = rows[at]
            block = self._block[row]
            if block == goal and row >= first:
                found = []
                while at != NONE:
                    found.append(rows[at])
                    at = after[at]
                return found
            low = passed.get(block, NONE)
            if row <= low:
                continue
            passed[block] = row
            here = self._first[block], self._first[block + 1]
            start = max(
                bisect_right(self._rows, low, *here), bisect_right(self._levels, floor, *here)
            )
            for edge in range(start, bisect_right(self._rows, row, *here)):
                source = self._sources[edge]
                behind = self._level[source] > floor or source == first
                if not behind or (within_rank and self._rank[source] != rank):
                    continue
                hop = at
                if (to := self._rows[edge]) != row:  # in its block, it comes before this one
                    hop = len(rows)
                    rows.append(to)
                    after.append(at)
                stack.append(len(rows))
                rows.append(source)
                after.append(hop)
        return []

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
