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

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.loops import Arcs, Loop
from sley.ir.dag import InstructionDag, Order
from sley.ir.extension import load
from sley.ir.graph import levels
from sley.ir.program import Transfers
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, inverse, ordered_by
from sley.ir.words import TransferKind


def order(dag: InstructionDag, slots: int, *, per_chunk: bool = False) -> Order:
    """The order for connections of `slots` slots, at least 1. n log n in the transfers.

    per_chunk: whether a message takes a slot for each of its chunks; then no transfer of more
    chunks than slots may be fused (`fuse`). Errors: R512.
    """
    t = dag.chunks.program.transfers
    before, after = dag.chunks.half_pairs()
    halves = Edges.from_pairs(2 * len(t), before, after)
    priority, first_alike = _priorities(dag, before, after)
    members = _members(t)
    # The loop takes candidates from queues one by one, so it is native: in Python most of the time
    # of a large compilation was spent in it.
    receive, send = load("sley.ir._graphs").order_instructions(
        int(slots),
        width=t.count if per_chunk else np.ones(len(t), np.int32),
        forward=dag.forward,
        copied=dag.copied,
        connection=dag.connection,
        leader=t.leader,
        sender=t.sender,
        receiver=t.receiver,
        row_offset=members.offset,
        row=members.target,
        reduces=_combined(t),
        priority=priority,
        first_alike=first_alike,
        offset=halves.offset,
        successor=halves.target,
    )
    return Order(receive, send, np.full(len(receive), NONE))


def eager(dag: InstructionDag, order: Order, slots: int) -> LongArray:
    """int64 (rows,): the rows of an order by depth, with all instructions that wait for no message
    as early as they can be: right after the last one that they depend on, or that frees the slot of
    a send. A block for several peers then sends to all of them before it waits for one.

    A step up past an instruction that it doesn't depend on leaves an order that runs to its end
    within the slots. Messages keep their order on each connection, and so do all receives. n log n.

    slots: as for `order`, of messages that take one each.
    """
    at = order.row_of_half(dag.chunks.program.transfers)
    before, after = (at[halves] for halves in dag.chunks.half_pairs())
    sends = np.flatnonzero(order.send != NONE)
    connection = dag.connection[order.send[sends]]
    sends = sends[np.argsort(connection, kind="stable")]
    message, connection = order.send[sends], np.sort(connection)
    follows = np.flatnonzero(connection[1:] == connection[:-1])
    waits = np.flatnonzero(connection[slots:] == connection[:-slots])
    before = np.concatenate([before, sends[follows], at[2 * message[waits] + 1]])
    after = np.concatenate([after, sends[follows + 1], sends[waits + slots]])
    fixed = np.zeros(len(order), bool)
    fixed[dag.receives(order)] = True
    later = before != after
    earlier = Edges.from_pairs(len(order), after[later], before[later])
    # The row that each one comes after, itself for one that stays.
    place = np.where(fixed, np.arange(len(order)), NONE)
    _hoist(len(earlier.target), Arcs.of(earlier), fixed, place)
    return np.argsort(place, kind="stable")


@Loop
def _hoist(earlier: Arcs, fixed: BoolArray, place: LongArray) -> None:
    """Fills `place` where it isn't `fixed`: the latest place of the rows that each one follows."""
    offset, target = earlier
    for row in range(len(place)):
        if not fixed[row]:
            for edge in range(offset[row], offset[row + 1]):
                place[row] = max(place[row], place[target[edge]])


def _priorities(
    dag: InstructionDag, before: IntArray, after: IntArray
) -> tuple[IntArray, IntArray]:
    """int32 (2 * transfers,) each: each half's priority by depth, reverse depth, program order; and
    for each priority, the first one with the same depth and reverse depth.

    before, after: `ChunkDag.half_pairs`.
    """
    t, remote = dag.chunks.program.transfers, dag.remote
    fused = np.flatnonzero(dag.forward != NONE)
    before = np.concatenate([before, 2 * t.sender[remote], 2 * fused + 1])
    after = np.concatenate([after, 2 * t.receiver[remote] + 1, 2 * dag.forward[fused]])
    depth, reverse = levels(2 * len(t), before, after), levels(2 * len(t), after, before)
    ordered = ordered_by(depth, int(reverse.max(initial=0)) - reverse)
    keys = np.stack([depth, reverse])[:, ordered]
    starts = np.append(True, (keys[:, 1:] != keys[:, :-1]).any(axis=0))[: len(ordered)]
    first = np.maximum.accumulate(np.where(starts, np.arange(len(ordered)), 0))
    return inverse(ordered).astype(np.int32), first.astype(np.int32)


def _members(t: Transfers) -> Edges:
    """The transfers of each group by its leader, and each other transfer by itself."""
    rows = np.arange(len(t), dtype=np.int32)
    grouped = t.group != NONE
    followers = rows[grouped & (t.leader != rows)]
    return Edges.from_pairs(len(t), np.append(t.leader, followers), np.append(rows, followers))


def _combined(t: Transfers) -> NDArray[np.uint8]:
    """uint8 (transfers,): whether each leads a group whose messages a switch combines."""
    leads = (t.group != NONE) & (t.leader == np.arange(len(t)))
    return np.asarray(leads & (t.kind == TransferKind.REDUCE), np.uint8)
