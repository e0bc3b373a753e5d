"""Placing: where the data of a plan's messages go in the memory of their receivers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir import happens_before
from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, Edges, IntArray, LongArray
from sley.ir.words import WRITES_DESTINATION, Buffer, Op, Protocol

_HALVED = 8
"""A multiple of this number of packets, in two copies, has halves of a multiple of 16 bytes."""


@dataclass(frozen=True)
class Range:
    """Consecutive chunks of a rank's memory, or packets of its scratch."""

    rank: int
    buffer: Buffer
    index: int
    count: int
    packet: bool = False


@dataclass(frozen=True)
class Placing:
    """Where data go.

    range_of: by send, the range of the receiver's memory into which it writes.
    staged: by send through a port, the range of own scratch into which its data are copied first.
    spare: by instruction, the range of own scratch for a result that no buffer takes.
    scratch: int64 (ranks,), chunks of scratch, as the plan declares them.
    """

    range_of: dict[int, Range]
    staged: dict[int, Range]
    spare: dict[int, Range]
    scratch: LongArray


@dataclass(frozen=True)
class Conflicts:
    """The conflicting accesses of a plan, and the order of its instructions.

    level: int32 (instructions,), a linear extension of the order.
    first, second: pairs of instructions with conflicting, adjacent accesses.
    order: which instruction happens before which.
    """

    level: IntArray
    first: LongArray
    second: LongArray
    order: happens_before.HappensBefore

    @classmethod
    def of(cls, plan: Plan, messages: Messages) -> Conflicts:
        before, after = messages.happens_before(plan)
        level = levels(Edges.from_pairs(len(plan.instructions), before, after))
        first, second, _ = happens_before.conflicts(plan, level)
        pairs = np.unique(np.stack([first, second], axis=1), axis=0)
        order = happens_before.HappensBefore(plan, messages, level)
        return cls(level, pairs[:, 0], pairs[:, 1], order)


def place(
    plan: Plan, messages: Messages, conflicts: Conflicts, ports: BoolArray, *, zero_copy: bool
) -> Placing:
    """Where the data of a plan's messages go.

    ports: bool (instructions,), the sends through ports. zero_copy: whether messages may go into
    the input and output of another rank where they are stored, as they always may into its scratch,
    and ports may read input and output.
    """
    scratch = plan.scratch_chunks.astype(np.int64)
    direct = _direct(plan, messages, conflicts, ports, zero_copy=zero_copy)
    staged = _must_be_staged(plan, messages, conflicts, ports, direct, zero_copy=zero_copy)
    packets = plan.protocol is Protocol.LL
    t, rank = plan.instructions, plan.rank
    stages: dict[int, Range] = {}
    spare: dict[int, Range] = {}
    if packets:
        spare = _spares(plan, scratch)
    for row in np.flatnonzero(staged).tolist():
        stages[row] = _take(scratch, int(rank[row]), int(t.count[row]))
    if packets:
        scratch = -(-scratch // 2)  # a packet takes two chunks of plain scratch
    range_of: dict[int, Range] = {}
    for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
        to, count = int(rank[receive]), int(t.count[receive])
        if direct[send]:
            buffer, index = Buffer(int(t.dst_buffer[receive])), int(t.dst_index[receive])
            range_of[send] = Range(to, buffer, index, count)
        else:
            range_of[send] = _take(scratch, to, count, packet=packets)
    if packets:
        # The executor finds the second half of a remote scratch by the size of the own one, and
        # halves that size: all ranks have one size, and its halves begin at multiples of 16 bytes.
        scratch[:] = -(-int(scratch.max()) // _HALVED) * _HALVED
    return Placing(range_of, stages, spare, scratch)


def _take(scratch: LongArray, rank: int, count: int, *, packet: bool = False) -> Range:
    """Further scratch of a rank."""
    scratch[rank] += count
    return Range(rank, Buffer.SCRATCH, int(scratch[rank]) - count, count, packet)


def _spares(plan: Plan, scratch: LongArray) -> dict[int, Range]:
    """Scratch for the results that are only sent: each block has one range for all of them."""
    t, found = plan.instructions, dict[int, Range]()
    rows = np.flatnonzero(t.op == Op.RECV_REDUCE_SEND)
    for block in np.unique(plan.block[rows]).tolist():
        own = rows[plan.block[rows] == block]
        widest = _take(scratch, int(plan.block_rank[block]), int(t.count[own].max()))
        for row in own.tolist():
            found[row] = Range(widest.rank, widest.buffer, widest.index, int(t.count[row]))
    return found


def _direct(
    plan: Plan, messages: Messages, conflicts: Conflicts, ports: BoolArray, *, zero_copy: bool
) -> BoolArray:
    """bool (instructions,): the sends whose data go where the receiver stores them. All earlier
    accesses to these chunks must have ended when the sender sends."""
    t = plan.instructions
    stores = np.isin(t.op, [Op.RECV, Op.RECV_COPY_SEND])
    stores &= zero_copy | (t.dst_buffer == Buffer.SCRATCH)
    direct = np.zeros(len(t), bool)
    if plan.protocol is Protocol.LL:
        return direct
    earlier: dict[int, list[int]] = {}
    for first, second in zip(conflicts.first.tolist(), conflicts.second.tolist(), strict=True):
        earlier.setdefault(second, []).append(first)
    for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
        if stores[receive]:
            ends = [
                int(messages.receive_of[row]) if ports[row] else row
                for row in earlier.get(receive, [])
            ]
            direct[send] = all(conflicts.order.reaches(end, send) for end in ends)
    return direct


def _must_be_staged(
    plan: Plan,
    messages: Messages,
    conflicts: Conflicts,
    ports: BoolArray,
    direct: BoolArray,
    *,
    zero_copy: bool,
) -> BoolArray:
    """bool (instructions,): the sends through ports whose data are copied into own scratch first.

    These are the ones whose source is overwritten later in the call, perhaps before the port has
    read it. Without zero-copy also those from input and output: the executor finds these at the
    right place only if they are at the start of their allocation.
    """
    t = plan.instructions
    # A recv_copy_send and a recv_reduce_send send scratch.
    from_source, from_target = t.op == Op.SEND, t.op == Op.RECV_REDUCE_COPY_SEND
    from_buffer = ports & (from_source | from_target)
    staged = np.zeros(len(t), bool)
    if not zero_copy:
        buffer = np.where(from_source, t.src_buffer, t.dst_buffer)
        staged = from_buffer & (buffer != Buffer.SCRATCH)
    for first, second in zip(conflicts.first.tolist(), conflicts.second.tolist(), strict=True):
        if not from_buffer[first] or staged[first] or not WRITES_DESTINATION[t.op[second]]:
            continue
        sender = int(messages.send_of[second])
        writer = sender if sender >= 0 and direct[sender] else second
        staged[first] = not conflicts.order.reaches(int(messages.receive_of[first]), writer)
    return staged
