"""The happens-before order of a plan's instructions, and the pairs of conflicting accesses."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from sley.ir.connections import Messages
from sley.ir.faults import own_operands
from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray, LongArray, neighbouring_writes, ordered_by, spans
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Op


def conflicts(plan: Plan, level: IntArray) -> tuple[LongArray, LongArray, LongArray]:
    """Pairs of adjacent conflicting instructions at a cell: the first, the second, and the cell; a
    pair appears once for each cell.

    level: int32 (instructions,), of an abstract run. A read is adjacent to the write before it; a
    write is adjacent to the write before it and to the reads since. If all these pairs are ordered,
    so are all other conflicts. A copy of chunks onto themselves doesn't change them and counts as a
    read.
    """
    t = plan.instructions
    changes = WRITES_DESTINATION[t.op]
    changes[own_operands(plan, Op.COPY)] = False
    reads, writes = np.flatnonzero(READS_SOURCE[t.op]), np.flatnonzero(changes)
    parts = []
    for rows, start, writes_it in (
        (reads, plan.source_cells(reads), False),
        (writes, plan.destination_cells(writes), True),
    ):
        owner, cells = spans(start, t.count[rows])
        parts.append((rows[owner], cells, np.full(len(cells), writes_it)))
    row, cell, write = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = ordered_by(cell, level[row], row, write)
    row, cell, write = row[order], cell[order], write[order]
    before, after = neighbouring_writes(cell, write)
    late, early = np.flatnonzero(before != NONE), np.flatnonzero((after != NONE) & ~write)
    first = np.concatenate([row[before[late]], row[early]])
    second = np.concatenate([row[late], row[after[early]]])
    cells = np.concatenate([cell[late], cell[early]])
    different = first != second
    return first[different].astype(np.int64), second[different], cells[different]


@dataclass
class HappensBefore:
    """The order of one tile: blocks, waits, and from each send to its receive.

    It excludes the order that full FIFOs impose, which more slots would remove.
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

    def direct(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether one block or one wait orders each pair; if False, `reaches` decides."""
        block, plan = self.plan.block.astype(np.int64), self.plan
        same = (block[first] == block[second]) & (first < second)
        # The latest wait of block Y on block X at or before an instruction of Y.
        wait_at, wait_for = plan.waits.source.astype(np.int64), plan.waits.target.astype(np.int64)
        blocks, rows = len(plan.block_rank), len(plan.instructions)
        key = (block[wait_at] * blocks + block[wait_for]) * rows + wait_at
        order = np.argsort(key, kind="stable")
        key, target = key[order], wait_for[order]
        pair = key // rows if rows else key
        # Running maximum of the instruction waited for, within (Y, X).
        reach = np.maximum.accumulate(pair * rows + target) % rows if len(key) else target
        wanted = block[second] * blocks + block[first]
        at = np.searchsorted(key, wanted * rows + second, side="right") - 1
        hit = at >= 0
        hit[hit] = pair[at[hit]] == wanted[hit]
        waited = np.zeros(len(first), bool)
        waited[hit] = reach[at[hit]] >= first[hit]
        return np.asarray(same | waited)

    def reaches(self, first: int, second: int) -> bool:
        """Whether `first` happens before `second`. Searches the blocks and waits of their rank
        first, which order most pairs, and only then messages over other ranks."""
        return self.reaches_within_rank(first, second) or self._search(first, second, False)

    def reaches_within_rank(self, first: int, second: int) -> bool:
        """Whether blocks and waits of their rank alone order `first` before `second`."""
        if not self._first:
            self._index()
        return self._search(first, second, True)

    def _search(self, first: int, second: int, within_rank: bool) -> bool:
        """A search backwards from `second`.

        A row of a block implies all rows before it, so each row is searched only once; rows of the
        level of `first` or below can't come after `first`.
        """
        rank = self._rank[first]
        goal, floor = self._block[first], self._level[first]
        passed: dict[int, int] = {}
        stack = [second]
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
