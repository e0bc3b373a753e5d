"""Times: when each transfer happens, and which messages must land in scratch first.

A message is sent and received; as a transfer it does both at once. So the two events are made one
node of a graph, whose edges are the order of accesses to memory. Where that graph has a cycle, a
message on it is received before something that it is sent after: it gets two nodes, one that lands
in scratch and one that takes it from there. With all messages taken apart nothing but the plan's
own order would be left, which has no cycle, so there is always one to take apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray
from sley.passes.lift.events import Events


@dataclass(frozen=True, eq=False)
class Times:
    """When messages happen.

    lands: bool (messages,), whether a message lands in scratch first.
    time: int32 (events,), the time of each event; both events of a message that doesn't land have
        one time. Transfers of one time don't depend on one another.
    """

    lands: BoolArray
    time: IntArray


def find_times(plan: Plan, events: Events) -> Times:
    """The times of the transfers, as early as the order of memory allows."""
    send, receive = 2 * events.send + 1, 2 * events.receive
    home = np.arange(len(events.position), dtype=np.int64)
    home[receive] = send
    lands = np.zeros(len(send), bool)
    time = levels(_contracted(events, home, send[lands], receive[lands]))[home]
    if (time == NONE).any():
        lands = np.isin(send, _Cycles(plan, events, time == NONE).landing())
        home[receive[lands]] = receive[lands]
        time = levels(_contracted(events, home, send[lands], receive[lands]))[home]
        if (time == NONE).any():
            raise RuntimeError("a cycle of transfers was left")
    return Times(lands, time)


def _contracted(events: Events, home: LongArray, before: LongArray, after: LongArray) -> Edges:
    """The order of memory on the nodes (`home` is that of each event), with the pairs
    (before, after)."""
    source = np.concatenate([home[events.order.source], before])
    target = np.concatenate([home[events.order.target], after])
    return Edges.from_pairs(len(home), source, target)


class _Cycles:
    """Takes messages apart until no cycle is left, among the `stuck` events alone.

    It does what can be done; when there is nothing, it walks backwards from something undone to
    what that waits for, until the walk closes, and takes apart one message on the cycle.
    """

    def __init__(self, plan: Plan, events: Events, stuck: BoolArray) -> None:
        order, send, receive = events.order, 2 * events.send + 1, 2 * events.receive
        backwards = order.reversed()
        self.offset, self.successor = order.offset.tolist(), order.target.tolist()
        self.predecessor = backwards.target.tolist()
        # The first predecessor of each event that may be undone.
        self.looked = backwards.offset.tolist()
        self.done = (~stuck).tolist()
        inside = stuck[order.source] & stuck[order.target]
        self.missing = np.bincount(order.target[inside], minlength=len(stuck)).tolist()
        # The other end of each message that is not taken apart.
        other = np.full(len(stuck), NONE)
        other[send], other[receive] = receive, send
        self.other = other.tolist()
        # Of the messages taken apart: send -> receive, and back.
        self.taken: dict[int, int] = {}
        self.landed: dict[int, int] = {}
        rows = np.flatnonzero(stuck)
        self.todo = rows[np.argsort(events.position[rows])].tolist()
        self.cost = np.repeat(plan.instructions.count, 2).tolist()
        self.position = events.position.tolist()

    def landing(self) -> list[int]:
        """The sends of the messages that must land first."""
        ready = [event for event in self.todo if self._ready(event)]
        at = 0
        while True:
            while ready:
                ready += self._finish(ready.pop())
            while at < len(self.todo) and self.done[self.todo[at]]:
                at += 1
            if at == len(self.todo):
                return list(self.taken)
            send = self._on_cycle(self.todo[at])
            receive = self.other[send]
            self.other[send] = self.other[receive] = NONE
            self.taken[send], self.landed[receive] = receive, send
            self.missing[receive] += 1
            if self._ready(send):
                ready.append(send)

    def _ready(self, event: int) -> bool:
        """Whether an event, with the other end of its message, waits for nothing."""
        other = self.other[event]
        return not (self.done[event] or self.missing[event]) and (
            other == NONE or not self.missing[other]
        )

    def _finish(self, event: int) -> list[int]:
        """Does an event, with the other end of its message; what is ready for that."""
        if self.done[event]:
            return []
        freed: list[int] = []
        for one in (event, self.other[event]):
            if one == NONE:
                continue
            self.done[one] = True
            after = self.successor[self.offset[one] : self.offset[one + 1]]
            for later in [*after, self.taken[one]] if one in self.taken else after:
                self.missing[later] -= 1
                if not self.missing[later]:
                    freed.append(later)
        return [later for later in freed if self._ready(later)]

    def _on_cycle(self, start: int) -> int:
        """The send of a message that is received after, and sent before, something on a cycle
        behind `start`; of those the one with the fewest chunks, then the one received last."""
        left_by = start
        seen: dict[int, int] = {}
        path: list[tuple[int, int]] = []  # (event that waits, event that it waits for)
        while True:
            other = self.other[left_by]
            node = left_by if other == NONE else min(left_by, other)
            if node in seen:
                break
            seen[node] = len(path)
            # Walking on from the send where that waits too, fewer land in the end.
            ends = sorted({left_by, left_by if other == NONE else other}, key=lambda e: -(e % 2))
            waits = next(end for end in ends if self.missing[end])
            left_by = self._undone_before(waits)
            path.append((waits, left_by))
        cycle = path[seen[node] :]
        sends = [
            left
            for (waits, _), (_, left) in zip(cycle, [cycle[-1], *cycle[:-1]], strict=True)
            if self.other[waits] == left and left % 2
        ]
        return min(sends, key=lambda send: (self.cost[send], -self.position[self.other[send]]))

    def _undone_before(self, event: int) -> int:
        """Something undone that an event waits for."""
        send = self.landed.get(event, NONE)
        if send != NONE and not self.done[send]:
            return send
        while self.done[self.predecessor[self.looked[event]]]:
            self.looked[event] += 1
        before: int = self.predecessor[self.looked[event]]
        return before
