"""Races: whether every two conflicting accesses to a chunk are ordered."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V204
from sley.ir.plan import Plan
from sley.ir.tables import NONE, spans
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Op
from sley.verify.structure import LIMIT


def check_races(plan: Plan, match: np.ndarray, level: np.ndarray) -> list[Diagnostic]:
    """V204 for conflicting instructions that the happens-before order leaves unordered.

    level: of an abstract run (`hangs`), a linear extension of that order. At every cell it is
    enough to look at neighbours in it: a read against the write before it, a write against the
    write before it and the reads since; the order of the others follows.
    """
    first, second, cell = _neighbours(plan, level)
    order = _HappensBefore(plan, match)
    unordered = ~order.direct(first, second)
    first, second, cell = first[unordered], second[unordered], cell[unordered]
    pairs, example = np.unique(first * len(plan.instructions) + second, return_index=True)
    layout, found = plan.layout, []
    for pair, k in zip(pairs.tolist(), example.tolist(), strict=True):
        a, b = divmod(pair, len(plan.instructions))
        if order.reaches(a, b):
            continue
        found.append(
            V204.diagnostic(
                at=[plan.place(b), plan.place(a)],
                expected=f"an order between two accesses to {layout.name(int(cell[k]))}",
                found="nothing orders them: no wait, no message, not the same block",
            )
        )
        if len(found) == LIMIT:
            break
    return found


def _neighbours(plan: Plan, level: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of conflicting instructions next to one another at a cell, and the cell."""
    t, layout = plan.instructions, plan.layout
    reads, writes = np.flatnonzero(READS_SOURCE[t.op]), np.flatnonzero(WRITES_DESTINATION[t.op])
    reduces = np.flatnonzero(t.op == Op.REDUCE)
    parts = []
    for rows, buffer, index, writes_it in (
        (reads, t.src_buffer, t.src_index, False),
        (writes, t.dst_buffer, t.dst_index, True),
        (reduces, t.dst_buffer, t.dst_index, True),
    ):
        owner, cells = spans(layout.cell(plan.rank[rows], buffer[rows], index[rows]), t.count[rows])
        parts.append((rows[owner], cells, np.full(len(cells), writes_it)))
    row, cell, write = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((write, row, level[row], cell))
    row, cell, write = row[order], cell[order], write[order]
    position = np.arange(len(row))
    start = np.searchsorted(cell, cell, side="left")
    end = np.searchsorted(cell, cell, side="right")
    before = np.full(len(row), NONE)
    before[1:] = np.maximum.accumulate(np.where(write, position, NONE))[:-1]
    after = np.full(len(row), len(row))
    after[:-1] = np.minimum.accumulate(np.where(write, position, len(row))[::-1])[::-1][1:]
    late, early = np.flatnonzero(before >= start), np.flatnonzero((after < end) & ~write)
    first = np.concatenate([row[before[late]], row[early]])
    second = np.concatenate([row[late], row[after[early]]])
    cells = np.concatenate([cell[late], cell[early]])
    different = first != second
    return first[different].astype(np.int64), second[different], cells[different]


@dataclass
class _HappensBefore:
    """The order of one tile: blocks, waits, and from each send to its receive.

    The order that full FIFOs impose is left out: more slots would take it away.
    """

    plan: Plan
    match: np.ndarray

    def __post_init__(self) -> None:
        plan = self.plan
        self._block, self._step = plan.block.tolist(), plan.step.tolist()
        # Filled by the first search: most plans need none.
        self._incoming: list[list[tuple[int, int]]] = []
        self._steps: list[list[int]] = []

    def direct(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Whether one block or one wait orders each pair; false decides nothing yet."""
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
        """Whether `first` happens before `second`, by a search backwards from `second`.

        Whoever reached a step of a block has passed all steps before it, so a block is searched
        only where it has not been yet.
        """
        if not self._incoming:
            self._index()
        goal, until = self._block[first], self._step[first]
        passed: dict[int, int] = {}
        stack = [(self._block[second], self._step[second])]
        while stack:
            block, step = stack.pop()
            if (
                block == goal
                and step >= until
                and (block, step)
                != (
                    self._block[second],
                    self._step[second],
                )
            ):
                return True
            low = passed.get(block, NONE)
            if step <= low:
                continue
            passed[block] = step
            steps = self._steps[block]
            for k in range(bisect_right(steps, low), bisect_right(steps, step)):
                stack.append(self._incoming[block][k])
        return False

    def _index(self) -> None:
        """The edges into each block, sorted by step: (source block, source step)."""
        plan = self.plan
        sends = plan.sends
        after = np.concatenate([plan.waits.source, self.match[sends]]).astype(np.int64)
        before = np.concatenate([plan.waits.target, sends])
        order = np.argsort(after, kind="stable")
        after, before = after[order], before[order]
        self._incoming = [[] for _ in plan.block_rank]
        self._steps = [[] for _ in plan.block_rank]
        for a, b in zip(after.tolist(), before.tolist(), strict=True):
            self._incoming[self._block[a]].append((self._block[b], self._step[b]))
            self._steps[self._block[a]].append(self._step[a])
