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

Messages that a switch combines are put on their connections at once, each by its own instruction:
so the oldest message that none has taken yet is the oldest on its connection, and those combined
with it are on theirs.

The scheduling always finishes. A transfer is sent only when everything that its receive waits for
is done, so the oldest message of a connection can always be received, unless its receive is fused
with a send that has no free slot or whose own receiver is not ready. If nothing else can run, one
such instruction is split into a receive and a send, and with it all of the same depth: which ranks'
instructions stay fused must not depend on the ranks' numbers. A copy that is fused with a send
waits for it until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.graph import levels
from sley.ir.tables import NONE, Edges, IntArray, inverse
from sley.ir.words import TransferKind


def order(dag: InstructionDag, slots: int, *, per_chunk: bool = False) -> Order:
    """The order for connections of `slots` slots, at least 1. n log n in the transfers.

    per_chunk: whether a message takes a slot for each of its chunks; then no transfer of more
    chunks than slots may be fused (`fuse`).
    """
    return _Run(dag, slots, per_chunk).result()


def _priorities(dag: InstructionDag, halves: Edges) -> tuple[IntArray, IntArray]:
    """int32 (2 * transfers,) each: each half's priority by depth, reverse depth, program order; and
    for each priority, the first one with the same depth and reverse depth."""
    t, remote = dag.chunks.program.transfers, dag.remote
    sends, receives = 2 * t.sender[remote], 2 * t.receiver[remote] + 1
    fused = np.flatnonzero(dag.forward != NONE)
    graph = Edges.from_pairs(
        2 * len(t),
        np.concatenate([halves.source, sends, 2 * fused + 1]),
        np.concatenate([halves.target, receives, 2 * dag.forward[fused].astype(np.int64)]),
    )
    depth, reverse = levels(graph), levels(graph.reversed())
    ordered = np.lexsort((-reverse, depth))
    keys = np.stack([depth, reverse])[:, ordered]
    starts = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(ordered)]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ordered)), 0))
    return inverse(ordered).astype(np.int32), first.astype(np.int32)


class _Run:
    """One abstract execution. Half 2t is transfer t at its source, 2t + 1 at its destination; a
    local transfer is its half 2t. The shared halves of a group are that of its leader.

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
        priorities, first = _priorities(dag, halves)
        self.priority, self.half_of = priorities.tolist(), np.argsort(priorities).tolist()
        self.first_alike = first.tolist()
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
        self.rows, self.leader = t.group_rows(), t.leader.tolist()
        self.sender, self.receiver = t.sender.tolist(), t.receiver.tolist()
        self.reduces = {row for row in self.rows if t.kind[row] == TransferKind.REDUCE}
        self.done = [False] * (2 * len(t))
        for transfer in np.flatnonzero(t.group != NONE).tolist():
            self.done[2 * transfer] = self.sender[transfer] != transfer
            self.done[2 * transfer + 1] = self.receiver[transfer] != transfer
        self.out: list[tuple[int, int]] = []

    def result(self) -> Order:
        for transfer in range(len(self.forward)):
            if self.leader[transfer] == transfer:
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

    def _rows(self, transfer: int) -> Sequence[int]:
        """The transfers of the group that a transfer leads, otherwise the transfer alone."""
        return self.rows.get(transfer) or (transfer,)

    def _is_free(self, transfer: int) -> bool:
        """Whether everything that a transfer, or its group, waits for is done, at both ends."""
        return self._has_room(transfer) and not any(
            self.waiting[2 * self.sender[row]] for row in self._rows(transfer)
        )

    def _has_room(self, transfer: int) -> bool:
        """Whether everything that a transfer, or its group, waits for is done where it arrives."""
        return not any(self.waiting[2 * self.receiver[row] + 1] for row in self._rows(transfer))

    def _takes(self, receive: int) -> Sequence[int]:
        """The transfers whose messages one receive takes."""
        return self._rows(receive) if receive in self.reduces else (receive,)

    def _arrived(self, receive: int) -> bool:
        """Whether all messages of a receive are the oldest on their connections."""
        heads = ((row, self.queue[self.connection[row]]) for row in self._takes(receive))
        return all(queue and queue[0] == row for row, queue in heads)

    def _offer_receive(self, oldest: int) -> None:
        """Makes the receive of the oldest message of a connection a candidate, if it takes no other
        message or all others are the oldest too."""
        transfer = self.receiver[oldest]
        if transfer in self.reduces and not self._arrived(transfer):
            return
        after = self.forward[transfer]
        if after == NONE:
            heappush(self.ready, self.priority[2 * transfer + 1])
            return
        heappush(self.heads, self.priority[2 * transfer + 1])
        if self._has_room(after):
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
        if send != NONE and not self._find_slots(send, half):
            return
        if not at_dst and transfer in self.reduces:
            for row in self._rows(transfer):
                self._finish(self._copy_of(row), row)
            return
        self._finish(transfer if at_dst else self._copy_of(transfer), send)
        if send != NONE and self.width[send] > self.slots:
            self._finish(send, NONE)

    def _find_slots(self, send: int, half: int) -> bool:
        """Whether all connections on which a candidate sends have a free slot; else parks it at the
        first one without, and offers the slots of the others to those parked there."""
        connections = [self.connection[row] for row in self._rows(send)]
        width = self.width[send]
        # A message wider than all slots needs an empty connection.
        least = max(self.slots, width) - width
        full = next((c for c in connections if self.used[c] > least), NONE)
        if full == NONE:
            return True
        heappush(self.parked[full], self.priority[half])
        for connection in connections:
            if self.used[connection] <= least:
                self._unpark(connection)
        return False

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
        """Splits the fused instructions of one depth whose copies may run, or whose messages have
        arrived; False if there are none."""
        if kept_back := self._take_alike(self.kept_back):
            for half in kept_back:
                self.sent_with[half // 2] = NONE
                self._offer_send(half // 2)
            return True
        heads = self._take_alike(self.heads)
        for half in heads:
            self.fused_with[self.forward[half // 2]] = NONE
            self._finish(half // 2, NONE)
        return bool(heads)

    def _take_alike(self, candidates: list[int]) -> list[int]:
        """Takes the first candidate that is not done, and all with its depth and reverse depth: if
        the program is the same for all ranks, so is the plan."""
        found: list[int] = []
        first = NONE
        while candidates and (not found or self.first_alike[candidates[0]] == first):
            priority = heappop(candidates)
            half = self.half_of[priority]
            # A group's receive is a candidate once for each of its messages.
            if not self.done[half] and half not in found[-1:]:
                first = self.first_alike[priority]
                found.append(half)
        return found

    def _finish(self, receive: int, send: int) -> None:
        """Executes one instruction. receive, send: transfers or NONE; a local one is received."""
        self.out.append((receive, send))
        if receive != NONE and self.remote[receive]:
            self._complete(2 * receive + 1)
            taken = [self.connection[row] for row in self._takes(receive)]
            for connection in taken:
                self.queue[connection].popleft()
                self.used[connection] -= self.width[receive]
            for connection in taken:
                if self.queue[connection]:
                    self._offer_receive(self.queue[connection][0])
                self._unpark(connection)
        elif receive != NONE:
            self._complete(2 * receive)
            self._complete(2 * receive + 1)
        if send != NONE:
            self._complete(2 * send)
            for row in self._puts(send):
                queue = self.queue[self.connection[row]]
                queue.append(row)
                self.used[self.connection[row]] += self.width[row]
                if len(queue) == 1:
                    self._offer_receive(row)

    def _puts(self, send: int) -> Sequence[int]:
        """The transfers whose messages one send makes."""
        return (send,) if self.leader[send] in self.reduces else self._rows(send)

    def _complete(self, half: int) -> None:
        """Marks a half as done; a transfer that waited for nothing else becomes a candidate."""
        self.done[half] = True
        for later in self.successor[self.offset[half] : self.offset[half + 1]]:
            self.waiting[later] -= 1
            if self.waiting[later]:
                continue
            transfer = self.leader[later // 2]
            if self.fused_with[transfer] == NONE:
                self._offer_send(transfer)
            elif later % 2:
                self._offer_fused(transfer)

    def _offer_fused(self, send: int) -> None:
        """Makes the fused instruction that sends `send` a candidate if its message is the
        oldest."""
        receive = self.fused_with[send]
        if self._has_room(send) and self._arrived(receive):
            heappush(self.ready, self.priority[2 * receive + 1])
