"""Staging: the direct messages that must be sent through a slot, because their holds would make
the plan hang."""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np

from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, LongArray
from sley.verification.hangs import Events, hold_pairs, run_abstractly, wait_pairs


def staged_messages(plan: Plan, messages: Messages, holds: Edges) -> BoolArray:
    """bool (instructions,): the sends to stage, so that the plan doesn't hang with the holds of the
    others. The plan must not hang without holds.

    holds: CSR, instruction -> sends whose messages must have been read before it starts.

    One tile decides, in either loop order (`verify.hangs`). Whenever its run is stuck, every cycle
    of waiting contains a hold; the message of one of these is staged, and the run continues.
    """
    staged = np.zeros(len(plan.instructions), bool)
    run = run_abstractly(plan, messages, plan.slots, per_chunk=plan.per_chunk, holds=holds)
    if not run.diagnostics:
        return staged
    events = Events.of(plan, plan.per_chunk)
    hard = Edges.from_pairs(events.total, *wait_pairs(plan, messages, plan.slots, events))
    soft = Edges.from_pairs(events.total, *hold_pairs(messages, holds, events))
    cost = np.zeros(events.total, np.int64)
    cost[events.offset[1:] - 1] = plan.instructions.count
    for event in _Tile(hard, soft, cost).run():
        staged[messages.send_of[events.instruction(event)]] = True
    return staged


def without_staged(holds: Edges, staged: BoolArray) -> Edges:
    """The holds for messages that are not staged."""
    kept = ~staged[holds.target]
    return Edges.from_pairs(len(staged), holds.source[kept], holds.target[kept])


class _Tile:
    """The run of one tile, event by event, restricted to events that `levels` finds on cycles or
    after them. An event runs once all its predecessors have run. Edges from some predecessors are
    *soft*: they can be removed, all soft edges of one predecessor at a time."""

    def __init__(self, hard: Edges, soft: Edges, cost: LongArray) -> None:
        """hard, soft: CSR, event -> its successors; the hard edges have no cycle. cost: int64
        (events,), the cost of removing an event's soft edges."""
        nodes = len(hard.offset) - 1
        before = np.concatenate([hard.source, soft.source])
        after = np.concatenate([hard.target, soft.target])
        stuck = levels(nodes, before, after) == NONE
        number = np.cumsum(stuck) - 1
        self._event = np.flatnonzero(stuck)
        self._cost = cost[stuck].tolist()

        def restrict(edges: Edges) -> tuple[list[list[int]], list[list[int]]]:
            kept = stuck[edges.source] & stuck[edges.target]
            source, target = number[edges.source[kept]], number[edges.target[kept]]
            ahead = Edges.from_pairs(len(self._event), source, target)
            return _lists(ahead), _lists(ahead.reversed())

        self._hard, self._hard_before = restrict(hard)
        self._soft, self._soft_before = restrict(soft)
        self._left = [
            len(a) + len(b) for a, b in zip(self._hard_before, self._soft_before, strict=True)
        ]
        self._done = [False] * len(self._event)
        self._free = [False] * len(self._event)
        # For each event one that it waits for over hard edges, or itself if none is known.
        self._ahead = list(range(len(self._event)))

    def run(self) -> list[int]:
        """Runs to the end; returns the events whose soft edges had to be removed."""
        found: list[int] = []
        for row in range(len(self._event)):
            # Ends: each round frees one event more, and hard edges alone have no cycle.
            while not self._done[row]:
                choice = self._cheapest(self._cycle(row))
                found.append(int(self._event[choice]))
                self._free[choice] = True
                self._release(self._soft[choice])
        return found

    def _release(self, rows: list[int]) -> None:
        """Removes one predecessor of each of `rows`, and runs the events that then can run."""
        # Ends: an event comes into the queue when its last predecessor goes, so once.
        queue: deque[int] = deque()
        while True:
            for row in rows:
                self._left[row] -= 1
                if not self._left[row]:
                    queue.append(row)
            if not queue:
                return
            ready = queue.popleft()
            self._done[ready] = True
            rows = self._hard[ready] + ([] if self._free[ready] else self._soft[ready])

    def _soft_left(self, row: int) -> list[int]:
        """The events that an event waits for over soft edges alone."""
        return [b for b in self._soft_before[row] if not (self._done[b] or self._free[b])]

    def _cycle(self, row: int) -> list[tuple[int, int]]:
        """The soft edges of a cycle of waiting, found backwards from an event that can't run,
        preferring hard edges."""
        after = self._first_stuck(row)
        seen: dict[int, int] = {}
        edges: list[tuple[int, int]] = []
        # `after` waits, and not over hard edges, so a soft one is left; events are finite, so it
        # closes.
        while after not in seen:
            seen[after] = len(edges)
            before = self._soft_left(after)[0]
            edges.append((before, after))
            after = self._first_stuck(before)
        return edges[seen[after] :]

    def _first_stuck(self, row: int) -> int:
        """An event that waits over soft edges alone: the start of a chain of hard edges to an event
        that can't run, or that event itself. Path compression shortens long chains."""
        path = []
        # Ends: hard edges have no cycle.
        while True:
            ahead = self._ahead[row]
            if self._done[ahead] or ahead == row:
                ahead = next((b for b in self._hard_before[row] if not self._done[b]), NONE)
            if ahead == NONE:
                break
            path.append(row)
            row = ahead
        for passed in path:
            self._ahead[passed] = row
        return row

    def _cheapest(self, cycle: list[tuple[int, int]]) -> int:
        """The source of the soft edge to remove: one whose target waits for few others, so that
        the removal helps, and whose cost is low."""
        edge = min(cycle, key=lambda edge: (len(self._soft_left(edge[1])), self._cost[edge[0]]))
        return edge[0]


def _lists(edges: Edges) -> list[list[int]]:
    target, offset = edges.target.tolist(), edges.offset.tolist()
    return [target[a:b] for a, b in pairwise(offset)]
