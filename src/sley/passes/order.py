"""Order: one global order of instructions that can run to its end within the slots.

The paper sorts instructions by depth and reverse depth (MSCCLang 5.2). Alone that is not enough:
it puts all k sends before the first receive, and a connection may hold fewer than k messages. So
this is a list scheduling that runs the machine abstractly as it goes: a send is taken only while
its connection has a free slot, a receive only when its message is the oldest on its connection.
What comes out is a complete execution with that many slots, in whatever way the instructions are
then dealt to blocks; and because a network of FIFOs is determinate, no execution of the plan can
hang with so many slots or more.

Where a message of several chunks takes a slot for each of them (MSCCL's kernels, once a chunk fills
a tile), one that is wider than the slots never fits: it goes over an empty connection, with its
receive right after its send, so that both ends are at it together.

It never gets stuck for good. A transfer is sent only when everything its receive waits for is
done, so the oldest message of a connection can always be received, unless its receive is fused with
a send that finds no slot or whose own receiver is not ready. If nothing else can move, one such
instruction is taken apart into a receive and a send.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.graph import levels
from sley.ir.tables import NONE, Edges, IntArray


def order(dag: InstructionDag, slots: int, *, per_chunk: bool = False) -> Order:
    """The order for connections of `slots` slots, at least 1. n log n in the transfers.

    per_chunk: whether a message of several chunks takes a slot for each of them; then no transfer
    wider than the slots may be fused (`fuse`).
    """
    return _Run(dag, slots, per_chunk).result()


def _priorities(dag: InstructionDag, halves: Edges) -> IntArray:
    """int32 (2 * transfers,): each half's rank by depth, reverse depth, program order."""
    transfers = np.arange(len(dag.forward))
    remote = dag.remote
    fused = np.flatnonzero(dag.forward != NONE)
    graph = Edges.from_pairs(
        2 * len(transfers),
        np.concatenate([halves.source, 2 * transfers[remote], 2 * fused + 1]),
        np.concatenate(
            [halves.target, 2 * transfers[remote] + 1, 2 * dag.forward[fused].astype(np.int64)]
        ),
    )
    depth, reverse = levels(graph), levels(graph.reversed())
    rank = np.empty(2 * len(transfers), np.int32)
    rank[np.lexsort((-reverse, depth))] = np.arange(2 * len(transfers))
    return rank


class _Run:
    """One abstract run. Half 2t is transfer t at its source, 2t + 1 at its destination; a local
    transfer runs as its half 2t."""

    def __init__(self, dag: InstructionDag, slots: int, per_chunk: bool) -> None:
        t = dag.chunks.program.transfers
        halves = dag.chunks.halves()
        self.slots = slots
        self.width = t.count.tolist() if per_chunk else [1] * len(t)
        self.forward = dag.forward.tolist()
        self.remote = dag.remote.tolist()
        priorities = _priorities(dag, halves)
        self.priority, self.half_of = priorities.tolist(), np.argsort(priorities).tolist()
        self.offset, self.successor = halves.offset.tolist(), halves.target.tolist()
        self.waiting = np.bincount(halves.target, minlength=2 * len(t)).tolist()
        self.connection = dag.connection.tolist()
        connections = max(self.connection, default=NONE) + 1
        self.queue: list[deque[int]] = [deque() for _ in range(connections)]
        self.used = [0] * connections
        self.parked: list[list[int]] = [[] for _ in range(connections)]
        self.fused_with = [NONE] * len(t)
        for transfer, after in enumerate(self.forward):
            if after != NONE:
                self.fused_with[after] = transfer
        self.ready: list[int] = []
        self.heads: list[int] = []
        self.done = [False] * (2 * len(t))
        self.out: list[tuple[int, int]] = []

    def result(self) -> Order:
        for transfer in range(len(self.forward)):
            self._offer_send(transfer)
        while True:
            while self.ready:
                self._take(self.half_of[heappop(self.ready)])
            if not self._split():
                break
        if len(self.done) and not all(self.done):
            raise RuntimeError("list scheduling stopped before the end")
        rows = np.array(self.out, np.int32).reshape(-1, 2)
        return Order(rows[:, 0], rows[:, 1], np.full(len(rows), NONE))

    def _offer_send(self, transfer: int) -> None:
        """Makes a send (or local transfer) a candidate once source and destination are ready."""
        at_src, at_dst = self.waiting[2 * transfer], self.waiting[2 * transfer + 1]
        if at_src == 0 and at_dst == 0 and self.fused_with[transfer] == NONE:
            heappush(self.ready, self.priority[2 * transfer])

    def _offer_receive(self, transfer: int) -> None:
        """Makes the receive of the oldest message of a connection a candidate."""
        after = self.forward[transfer]
        if after == NONE:
            heappush(self.ready, self.priority[2 * transfer + 1])
            return
        heappush(self.heads, self.priority[2 * transfer + 1])
        if self.waiting[2 * after + 1] == 0:
            heappush(self.ready, self.priority[2 * transfer + 1])

    def _take(self, half: int) -> None:
        """Runs a candidate, or parks it until its send connection has a free slot."""
        transfer, at_dst = divmod(half, 2)
        if self.done[half]:
            return
        if not self.remote[transfer]:
            self._finish(transfer, NONE)
            return
        send = self.forward[transfer] if at_dst else transfer
        if send != NONE:
            connection, width = self.connection[send], self.width[send]
            # Wider than all slots together: over an empty connection.
            room = max(self.slots, width) - self.used[connection]
            if width > room:
                heappush(self.parked[connection], self.priority[half])
                return
        self._finish(transfer if at_dst else NONE, send)
        if send != NONE and width > self.slots:
            self._finish(send, NONE)

    def _unpark(self, connection: int) -> None:
        """One slot has become free: the first that waits for it is a candidate again."""
        parked = self.parked[connection]
        while parked:
            priority = heappop(parked)
            if not self.done[self.half_of[priority]]:
                heappush(self.ready, priority)
                return

    def _split(self) -> bool:
        """Takes one fused instruction apart, whose message is there; False if there is none."""
        while self.heads:
            half = self.half_of[heappop(self.heads)]
            if not self.done[half]:
                transfer = half // 2
                self.fused_with[self.forward[transfer]] = NONE
                self.forward[transfer] = NONE
                self._finish(transfer, NONE)
                return True
        return False

    def _finish(self, receive: int, send: int) -> None:
        """Runs one instruction: receive and send are transfers, or NONE; a local one receives."""
        self.out.append((receive, send))
        if receive != NONE and self.remote[receive]:
            self._complete(2 * receive + 1)
            connection = self.connection[receive]
            self.queue[connection].popleft()
            self.used[connection] -= self.width[receive]
            if self.queue[connection]:
                self._offer_receive(self.queue[connection][0])
            self._unpark(connection)
        elif receive != NONE:
            self._complete(2 * receive)
            self._complete(2 * receive + 1)
        if send != NONE:
            self._complete(2 * send)
            queue = self.queue[self.connection[send]]
            queue.append(send)
            self.used[self.connection[send]] += self.width[send]
            if len(queue) == 1:
                self._offer_receive(send)

    def _complete(self, half: int) -> None:
        """Tells what waited for this half; a transfer whose halves are ready becomes a
        candidate."""
        self.done[half] = True
        for later in self.successor[self.offset[half] : self.offset[half + 1]]:
            self.waiting[later] -= 1
            if self.waiting[later]:
                continue
            transfer = later // 2
            if self.fused_with[transfer] == NONE:
                if not self.done[2 * transfer]:
                    self._offer_send(transfer)
            elif later % 2:
                self._offer_fused(transfer)

    def _offer_fused(self, send: int) -> None:
        """Offers the fused instruction that sends `send`, if its message is the oldest."""
        receive = self.fused_with[send]
        queue = self.queue[self.connection[receive]]
        if queue and queue[0] == receive:
            heappush(self.ready, self.priority[2 * receive + 1])
