"""Times: when each transfer happens, and which messages must land in scratch first.

A transfer sends and receives a message at one time. So these two events are one node of a graph,
whose edges are the order of accesses to memory. If this graph has a cycle, a message on it is sent
before, and received after, other events of the cycle: it is split into two nodes, its landing in
scratch and the local transfer from there. With all messages split only the plan's own order is
left, which has no cycle, so splitting always ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.compiler.passes.lift.events import PlanEvents
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, IntArray


@dataclass(frozen=True, eq=False)
class Times:
    """When messages happen.

    lands: bool (messages,), whether a message lands in scratch first.
    time: int32 (events,), the time of each event, the same for both events of a message that
        doesn't land. Transfers of the same time don't depend on one another.
    """

    lands: BoolArray
    time: IntArray


def find_times(plan: Plan, events: PlanEvents) -> Times:
    """The times of the transfers, as early as the order of accesses allows."""
    lands = np.zeros(len(events.send), bool)
    time = _times(events, lands)
    if (time == NONE).any():
        lands = np.isin(2 * events.send + 1, _Cycles(plan, events, time == NONE).break_all())
        time = _times(events, lands)
        if (time == NONE).any():
            raise RuntimeError("a cycle of transfers was left")
    return Times(lands, time)


def _times(events: PlanEvents, lands: BoolArray) -> IntArray:
    """int32 (events,): see `Times.time`; NONE for an event on a cycle or behind one."""
    send, receive = 2 * events.send + 1, 2 * events.receive
    node = np.arange(len(events.position), dtype=np.int64)
    node[receive[~lands]] = send[~lands]
    source = np.concatenate([node[events.order.source], send[lands]])
    target = np.concatenate([node[events.order.target], receive[lands]])
    return levels(len(node), source, target)[node]


class _Cycles:
    """Splits messages until no cycle is left, among the `stuck` events alone.

    It executes all ready events; when none is ready, it walks backwards from an event to one that
    it waits for, until the walk closes, and splits one message on this cycle.
    """

    def __init__(self, plan: Plan, events: PlanEvents, stuck: BoolArray) -> None:
        order, send, receive = events.order, 2 * events.send + 1, 2 * events.receive
        backwards = order.reversed()
        self.offset, self.successor = order.offset.tolist(), order.target.tolist()
        self.predecessor = backwards.target.tolist()
        # The first predecessor of each event that may not be done.
        self.looked = backwards.offset.tolist()
        self.done = (~stuck).tolist()
        inside = stuck[order.source] & stuck[order.target]
        self.missing = np.bincount(order.target[inside], minlength=len(stuck)).tolist()
        # The other event of each message that is not split.
        other = np.full(len(stuck), NONE)
        other[send], other[receive] = receive, send
        self.other = other.tolist()
        # Split messages: send -> receive, and receive -> send.
        self.receive_of: dict[int, int] = {}
        self.send_of: dict[int, int] = {}
        rows = np.flatnonzero(stuck)
        self.todo = rows[np.argsort(events.position[rows])].tolist()
        self.cost = np.repeat(plan.instructions.count, 2).tolist()
        self.position = events.position.tolist()

    def break_all(self) -> list[int]:
        """Breaks all cycles; the sends of the messages that were split."""
        ready = [event for event in self.todo if self._ready(event)]
        at = 0
        # Ends: each round without a ready event splits a message, none twice, and with all split
        # nothing waits in a cycle.
        while True:
            while ready:
                ready += self._finish(ready.pop())
            # Done events stay done, so over the whole loop each is passed once.
            while at < len(self.todo) and self.done[self.todo[at]]:
                at += 1
            if at == len(self.todo):
                return list(self.receive_of)
            send = self._find_on_cycle(self.todo[at])
            receive = self.other[send]
            self.other[send] = self.other[receive] = NONE
            self.receive_of[send], self.send_of[receive] = receive, send
            self.missing[receive] += 1
            if self._ready(send):
                ready.append(send)

    def _ready(self, event: int) -> bool:
        """Whether an event, with the other event of its message, waits for nothing."""
        other = self.other[event]
        return not (self.done[event] or self.missing[event]) and (
            other == NONE or not self.missing[other]
        )

    def _finish(self, event: int) -> list[int]:
        """Executes an event, with the other event of its message; the events that this makes
        ready."""
        if self.done[event]:
            return []
        freed: list[int] = []
        for one in (event, self.other[event]):
            if one == NONE:
                continue
            self.done[one] = True
            after = self.successor[self.offset[one] : self.offset[one + 1]]
            for later in [*after, self.receive_of[one]] if one in self.receive_of else after:
                self.missing[later] -= 1
                if not self.missing[later]:
                    freed.append(later)
        return [later for later in freed if self._ready(later)]

    def _find_on_cycle(self, start: int) -> int:
        """The send of a message that is sent before, and received after, other events of a cycle
        that `start` waits for; of several the one with the fewest chunks, then the one received
        last."""
        left_by = start
        seen: dict[int, int] = {}
        path: list[tuple[int, int]] = []  # (event that waits, event that it waits for)
        # Ends: what an event waits for isn't done, so it waits too, and events are finite.
        while True:
            other = self.other[left_by]
            node = left_by if other == NONE else min(left_by, other)
            if node in seen:
                break
            seen[node] = len(path)
            # Fewer messages land if the walk goes on from the send where both events wait.
            ends = sorted({left_by, left_by if other == NONE else other}, key=lambda e: -(e % 2))
            waits = next(end for end in ends if self.missing[end])
            left_by = self._find_before(waits)
            path.append((waits, left_by))
        cycle = path[seen[node] :]
        sends = [
            left
            for (waits, _), (_, left) in zip(cycle, [cycle[-1], *cycle[:-1]], strict=True)
            if self.other[waits] == left and left % 2
        ]
        return min(sends, key=lambda send: (self.cost[send], -self.position[self.other[send]]))

    def _find_before(self, event: int) -> int:
        """An event that is not done and that `event` waits for."""
        send = self.send_of.get(event, NONE)
        if send != NONE and not self.done[send]:
            return send
        # The place is kept: what is done stays done, so each predecessor is passed once. Ends: the
        # event misses one that isn't done.
        while self.done[self.predecessor[self.looked[event]]]:
            self.looked[event] += 1
        before: int = self.predecessor[self.looked[event]]
        return before
