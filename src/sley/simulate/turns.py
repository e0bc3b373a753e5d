"""Turns: when the tasks of a plan start and end if links and blocks serve one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from sley.errors import Place, SleyError
from sley.errors.simulation import S703
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import diagnostics
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, FloatArray, IntArray, LongArray


@dataclass(frozen=True)
class Turns:
    """The instructions of a plan with what each must wait for.

    before, later: CSR, instruction -> instructions whose data it needs (waits, and the send of
        what it receives), and the other way round.
    follows: bool (instructions,), whether it has one before it in its block.
    links: int32 (instructions, 2), the links that it takes, NONE without.
    """

    plan: Plan
    before: Edges
    later: Edges
    follows: BoolArray
    links: IntArray

    @classmethod
    def of(cls, plan: Plan, links: IntArray) -> Turns:
        """Errors: S703."""
        messages = Messages.of(plan)
        found = connection_faults(plan, messages)
        if found:
            raise SleyError(diagnostics(S703, plan, found))
        source = np.concatenate([plan.waits.source, messages.receive])
        target = np.concatenate([plan.waits.target, messages.send])
        number = len(plan.instructions)
        before = Edges.from_pairs(number, source, target)
        return cls(plan, before, Edges.from_pairs(number, target, source), plan.step > 0, links)

    def one_tile(self, task_us: FloatArray, mine: BoolArray) -> tuple[LongArray, FloatArray]:
        """The order in which instructions start for one tile, and when each ends.

        task_us: float64 (instructions, 2), how long each takes each of its links; it lasts as long
        as it takes the one that it takes longer. mine: the instructions that count; others have
        ended from the beginning. Links serve first who can start first. Errors: S703.
        """
        number = len(task_us)
        follows, taken = self.follows.tolist(), mine.tolist()
        held, lasts, links = task_us.tolist(), task_us.max(axis=1).tolist(), self.links.tolist()
        waiting = (np.diff(self.before.offset) + self.follows).tolist()
        offset, target = self.later.offset.tolist(), self.later.target.tolist()
        free = [0.0] * (int(self.links.max(initial=NONE)) + 2)  # the last one is that of NONE
        ready, end = [0.0] * number, [0.0] * number
        queue = [(0.0, row) for row in range(number) if not waiting[row]]
        heapify(queue)
        order: list[int] = []
        while queue:
            start, row = heappop(queue)
            if taken[row] and lasts[row]:
                a, b = links[row]
                later = max(start, free[a], free[b])
                if later > start:
                    heappush(queue, (later, row))
                    continue
                for link, us in zip((a, b), held[row], strict=True):
                    if link != NONE:
                        free[link] = start + us
            end[row] = start + lasts[row] if taken[row] else 0.0
            order.append(row)
            after = target[offset[row] : offset[row + 1]]
            if row + 1 < number and follows[row + 1]:
                after.append(row + 1)
            for other in after:
                ready[other] = max(ready[other], end[row])
                waiting[other] -= 1
                if not waiting[other]:
                    heappush(queue, (ready[other], other))
        if len(order) < number:
            raise S703.error(
                at=Place(detail=self.plan.name),
                expected="instructions that do not wait for one another in a cycle",
                found="some that wait for ever",
            )
        return np.array(order, np.int64), np.array(end)

    def all_tiles(self, order: LongArray, task_us: FloatArray, tiles: int) -> FloatArray:
        """When each instruction ends if it runs all tiles before its block and links go on. It
        starts with the first tile of what it needs, and ends a tile after the last of that."""
        return self._replayed(order, task_us, tiles, first=1.0)

    def each_further_tile(self, order: LongArray, task_us: FloatArray) -> FloatArray:
        """By how much each instruction ends later for every further tile, when there are many."""
        return self._replayed(order, task_us, 1, first=0.0)

    def _replayed(
        self, order: LongArray, task_us: FloatArray, tiles: int, first: float
    ) -> FloatArray:
        """first: which part of a tile is to count as it fills the pipeline."""
        held, lasts, links = task_us.tolist(), task_us.max(axis=1).tolist(), self.links.tolist()
        follows = self.follows.tolist()
        offset, target = self.before.offset.tolist(), self.before.target.tolist()
        free = [0.0] * (int(self.links.max(initial=NONE)) + 2)
        start, end = [0.0] * len(lasts), [0.0] * len(lasts)
        for row in order.tolist():
            a, b = links[row]
            begin = max(free[a], free[b], end[row - 1] if follows[row] else 0.0)
            last = 0.0
            for other in target[offset[row] : offset[row + 1]]:
                begin = max(begin, start[other] + first * lasts[other])
                last = max(last, end[other])
            start[row] = begin
            end[row] = max(begin + tiles * lasts[row], last + first * lasts[row])
            for link, us in zip((a, b), held[row], strict=True):
                if link != NONE:
                    free[link] = max(begin + tiles * us, last + first * us)
        return np.array(end)
