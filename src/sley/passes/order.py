"""Order: one global order of instructions that runs to its end within the slots.

The paper sorts instructions by depth and reverse depth (MSCCLang 5.2). That alone is not enough:
it puts all k sends before the first receive, and a connection may hold fewer than k messages. So
this is a list scheduling that executes the abstract machine: it takes a send only while its
connection has a free slot, and a receive only when its message is the oldest on its connection.
The result is a complete execution with this number of slots, for any allocation of the instructions
to blocks; and because a network of FIFOs is determinate, no execution of the plan with this number
of slots or more can hang.

If a message takes a slot for each of its chunks (MSCCL's kernels, once a chunk fills a tile), one
with more chunks than slots never fits: it is sent over an empty connection, with its receive right
after its send, so that both ends execute it together.

The scheduling always finishes. A transfer is sent only when everything that its receive waits for
is done, so the oldest message of a connection can always be received, unless its receive is fused
with a send that has no free slot or whose own receiver is not ready. If nothing else can run, one
such instruction is split into a receive and a send. A copy that is fused with a send waits for it
until then.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.graph import levels
from sley.ir.tables import NONE, Edges, IntArray, inverse


def order(dag: InstructionDag, slots: int, *, per_chunk: bool = False) -> Order:
    """The order for connections of `slots` slots, at least 1. n log n in the transfers.

    per_chunk: whether a message takes a slot for each of its chunks; then no transfer of more
    chunks than slots may be fused (`fuse`).
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
    return inverse(np.lexsort((-reverse, depth))).astype(np.int32)


class _Run:
    """One abstract execution. Half 2t is transfer t at its source, 2t + 1 at its destination; a
    local transfer is its half 2t.

    Candidates are queued by priority. ready: those that may run. parked: by connection, those that
    found no free slot. heads: receives of oldest messages that are fused with a send. kept_back:
    copies that may run, but are to be one instruction with a send.
    """

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
        self.copied = dag.copied.tolist()
        self.sent_with = [NONE] * len(t)
        for transfer, copy in enumerate(self.copied):
            if copy != NONE:
                self.sent_with[copy] = transfer
        self.kept_back: list[int] = []
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
        if not all(self.done):
            raise RuntimeError("list scheduling stopped before the end")
        rows = np.array(self.out, np.int32).reshape(-1, 2)
        return Order(rows[:, 0], rows[:, 1], np.full(len(rows), NONE))

    def _offer_send(self, transfer: int) -> None:
        """Makes a send (or local transfer) a candidate once source and destination are ready."""
        if self._is_free(transfer):
            kept_back = self.sent_with[transfer] != NONE
            heappush(self.kept_back if kept_back else self.ready, self.priority[2 * transfer])

    def _is_free(self, transfer: int) -> bool:
        """Whether everything that a transfer waits for is done, at both ends."""
        return not (self.waiting[2 * transfer] or self.waiting[2 * transfer + 1])

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
            # A message wider than all slots needs an empty connection.
            room = max(self.slots, width) - self.used[connection]
            if width > room:
                heappush(self.parked[connection], self.priority[half])
                return
        self._finish(transfer if at_dst else self._copy_of(transfer), send)
        if send != NONE and width > self.slots:
            self._finish(send, NONE)

    def _copy_of(self, send: int) -> int:
        """The copy that runs with a send: the one that is to, if it may run by now; else NONE, and
        it will run by itself."""
        copy = self.copied[send]
        if copy == NONE or self.sent_with[copy] == NONE:
            return NONE
        self.sent_with[copy] = NONE
        return copy if self._is_free(copy) else NONE

    def _unpark(self, connection: int) -> None:
        """Makes the first instruction that is parked at a connection a candidate again.

        One is enough, however many slots are free: then the connection holds its message, or one
        that leaves it no room, and the receive of that message unparks the next.
        """
        parked = self.parked[connection]
        while parked:
            priority = heappop(parked)
            if not self.done[self.half_of[priority]]:
                heappush(self.ready, priority)
                return

    def _split(self) -> bool:
        """Splits one fused instruction whose copy may run, or whose message has arrived; False if
        there is none."""
        while self.kept_back:
            half = self.half_of[heappop(self.kept_back)]
            if not self.done[half]:
                self.sent_with[half // 2] = NONE
                self._offer_send(half // 2)
                return True
        while self.heads:
            half = self.half_of[heappop(self.heads)]
            if not self.done[half]:
                transfer = half // 2
                self.fused_with[self.forward[transfer]] = NONE
                self._finish(transfer, NONE)
                return True
        return False

    def _finish(self, receive: int, send: int) -> None:
        """Executes one instruction. receive, send: transfers or NONE; a local one is received."""
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
        """Marks a half as done; a transfer that waited for nothing else becomes a candidate."""
        self.done[half] = True
        for later in self.successor[self.offset[half] : self.offset[half + 1]]:
            self.waiting[later] -= 1
            if self.waiting[later]:
                continue
            transfer = later // 2
            if self.fused_with[transfer] == NONE:
                self._offer_send(transfer)
            elif later % 2:
                self._offer_fused(transfer)

    def _offer_fused(self, send: int) -> None:
        """Makes the fused instruction that sends `send` a candidate if its message is the
        oldest."""
        receive = self.fused_with[send]
        queue = self.queue[self.connection[receive]]
        if queue and queue[0] == receive:
            heappush(self.ready, self.priority[2 * receive + 1])
