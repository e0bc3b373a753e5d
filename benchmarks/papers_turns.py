"""Turns: when the tasks of a plan start and end if links and blocks run one after another."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from sley.errors import Place, SleyError
from sley.errors.verifier import V202, V203
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import diagnostics
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, FloatArray, IntArray, LongArray


@dataclass(frozen=True)
class Turns:
    """The instructions of a plan with their predecessors.

    before, later: CSR, instruction -> instructions that it depends on (waits, and the send of its
        message), and the opposite.
    follows: bool (instructions,), whether it has a predecessor in its block.
    links: int32 (instructions, 2), its links, or NONE.
    """

    plan: Plan
    before: Edges
    later: Edges
    follows: BoolArray
    links: IntArray

    @classmethod
    def of(cls, plan: Plan, links: IntArray) -> Turns:
        """Errors: V202."""
        messages = Messages.of(plan)
        found = connection_faults(plan, messages)
        if found:
            raise SleyError(diagnostics(V202, plan, found))
        source = np.concatenate([plan.waits.source, messages.receive])
        target = np.concatenate([plan.waits.target, messages.send])
        number = len(plan.instructions)
        before = Edges.from_pairs(number, source, target)
        return cls(plan, before, Edges.from_pairs(number, target, source), plan.step > 0, links)

    def one_tile(self, task_us: FloatArray, mine: BoolArray) -> tuple[LongArray, FloatArray]:
        """The order in which instructions start for one tile, and when each ends. A link takes the
        instruction that can start first.

        task_us: float64 (instructions, 2), how long each occupies each of its links; it lasts as
        long as the longer of both. mine: the instructions that count; others take no time. Errors:
        V203.
        """
        number = len(task_us)
        follows, counts = self.follows.tolist(), mine.tolist()
        occupied, lasts = task_us.tolist(), task_us.max(axis=1).tolist()
        links = self.links.tolist()
        waiting = (np.diff(self.before.offset) + self.follows).tolist()
        offset, target = self.later.offset.tolist(), self.later.target.tolist()
        free = [0.0] * (int(self.links.max(initial=NONE)) + 2)  # the last one is that of NONE
        ready, end = [0.0] * number, [0.0] * number
        queue = [(0.0, row) for row in range(number) if not waiting[row]]
        heapify(queue)
        order: list[int] = []
        while queue:
            start, row = heappop(queue)
            if counts[row] and lasts[row]:
                a, b = links[row]
                later = max(start, free[a], free[b])
                if later > start:
                    heappush(queue, (later, row))
                    continue
                for link, us in zip((a, b), occupied[row], strict=True):
                    if link != NONE:
                        free[link] = start + us
            end[row] = start + lasts[row] if counts[row] else 0.0
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
            raise V203.error(
                at=Place(detail=self.plan.name),
                expected="instructions without a cycle of waits",
                found=f"{number - len(order)} instructions that wait forever",
                remedy="Verify the plan first: sley.verify(plan) shows where it hangs.",
            )
        return np.array(order, np.int64), np.array(end)

    def all_tiles(
        self, order: LongArray, task_us: FloatArray, tiles: int, *, first: float = 1.0
    ) -> FloatArray:
        """When each instruction ends if its block and links continue only after all its tiles. It
        starts after the first tile of its predecessors, and ends a tile after their last one.

        first: the share of this tile that counts. With 0 and one tile, the result is the time that
        each further of many tiles adds.
        """
        occupied, lasts = task_us.tolist(), task_us.max(axis=1).tolist()
        follows, links = self.follows.tolist(), self.links.tolist()
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
            for link, us in zip((a, b), occupied[row], strict=True):
                if link != NONE:
                    free[link] = max(begin + tiles * us, last + first * us)
        return np.array(end)
