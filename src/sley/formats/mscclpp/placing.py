"""Placing: where the data of a plan's messages are: in the memory of their receivers, or in that of
all ranks of a switch channel."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.formats.mscclpp.analysis import Analysis
from sley.formats.mscclpp.direct import Direct, find_direct
from sley.formats.mscclpp.switching import Switching
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, LongArray
from sley.ir.words import WRITES_DESTINATION, Buffer, Op, Protocol

_HALVED = 8
"""A multiple of this number of packets, in two copies, has halves of a multiple of 16 bytes."""


@dataclass(frozen=True)
class Range:
    """Consecutive chunks of a rank's memory, or packets of its scratch. switch: the ranks whose
    memory it is, if a switch channel accesses that of several."""

    rank: int
    buffer: Buffer
    index: int
    count: int
    packet: bool = False
    switch: tuple[int, ...] = ()


def range_of(plan: Plan, rank: int, buffer: Buffer, index: int, count: int) -> Range:
    """The range of chunks of a rank's buffer. If in place a buffer begins elsewhere on each rank,
    as the input of an AllGather, it is named as a part of the other buffer: ports read at the start
    of an allocation, and ranks access others' memory at their own offset."""
    c = plan.collective
    base = {Buffer.INPUT: c.input_base, Buffer.OUTPUT: c.output_base}
    if buffer in base and base[buffer].any():
        other = Buffer.OUTPUT if buffer is Buffer.INPUT else Buffer.INPUT
        index += int(base[buffer][rank] - base[other][rank])
        buffer = other
    return Range(rank, buffer, index, count)


@dataclass(frozen=True)
class Placing:
    """Where data go.

    range_of: by send, the range of the receiver's memory into which it writes; of all ranks' if a
        switch writes it. None for the sends of `Switching.sum_of`.
    arrived: by receive from one rank, the range of own memory in which its data are then.
    read: by instruction that reduces in a switch, the range that the switch reads.
    staged: by send through a port, the range of own scratch into which its data are copied first.
    spare: by instruction, the range of own scratch for a result that no buffer takes.
    scratch: int64 (ranks,), chunks of scratch, as the plan declares them.
    """

    range_of: dict[int, Range]
    arrived: dict[int, Range]
    read: dict[int, Range]
    staged: dict[int, Range]
    spare: dict[int, Range]
    scratch: LongArray


def place(analysis: Analysis, *, zero_copy: bool) -> Placing:
    """Where the data of a plan's messages are.

    zero_copy: whether messages may go into the input and output of another rank where they are
    stored, as they always may into its scratch, and ports and switches may read input and output.
    """
    plan, messages, switching = analysis.plan, analysis.messages, analysis.switching
    scratch = plan.scratch_chunks.astype(np.int64)
    direct = find_direct(analysis, zero_copy=zero_copy)
    staged = _must_be_staged(analysis, direct, zero_copy=zero_copy)
    packets = plan.protocol is Protocol.LL
    t, rank = plan.instructions, plan.rank
    found = Placing({}, {}, {}, {}, _spares(plan, scratch) if packets else {}, scratch)
    for row in np.flatnonzero(staged).tolist():
        found.staged[row] = _take(scratch, int(rank[row]), int(t.count[row]))
    if packets:
        scratch[:] = -(-scratch // 2)  # a packet takes two chunks of plain scratch
    for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
        if send in switching.sum_of or send in switching.stores:
            continue
        to, count = int(rank[receive]), int(t.count[receive])
        if direct.writes[send]:
            buffer, index = Buffer(int(t.dst_buffer[receive])), int(t.dst_index[receive])
            place = range_of(plan, to, buffer, index, count)
        else:
            place = _take(scratch, to, count, packet=packets)
        found.range_of[send] = found.arrived[receive] = place
    _place_switched(plan, switching, direct, found)
    if packets:
        # The executor finds the second half of a remote scratch by the size of the own one, and
        # halves that size: all ranks have one size, and its halves begin at multiples of 16 bytes.
        scratch[:] = -(-int(scratch.max()) // _HALVED) * _HALVED
    return found


def _place_switched(plan: Plan, switching: Switching, direct: Direct, found: Placing) -> None:
    """Places what switches read and write: the same chunks of a buffer of all their ranks."""
    scratch = found.scratch
    for row, ranks in switching.ranks.items():
        rank, count = int(plan.rank[row]), int(plan.instructions.count[row])
        read, written = direct.reads.get(row), direct.stores.get(row)
        if written is None or (read is None and row in switching.offers):
            # What a switch reads and what it writes may be one place: each element is read first.
            first = int(scratch[list(ranks)].max())
            scratch[list(ranks)] = first + count
            read, written = read or (Buffer.SCRATCH, first), written or (Buffer.SCRATCH, first)
        if read is not None and row in switching.offers:
            found.read[row] = Range(rank, *read, count, switch=ranks)
        found.range_of[row] = Range(rank, *written, count, switch=ranks)
        for receive in switching.stores[row]:
            found.arrived[receive] = Range(int(plan.rank[receive]), *written, count)
    if any(
        place.switch and place.buffer == Buffer.SCRATCH
        for place in (*found.read.values(), *found.range_of.values())
    ):
        # The executor makes a switch channel of the size of the lowest rank's buffer.
        scratch[:] = scratch.max()


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


def _must_be_staged(analysis: Analysis, direct: Direct, *, zero_copy: bool) -> BoolArray:
    """bool (instructions,): the sends through ports whose data are copied into own scratch first.

    These are the ones whose source is overwritten later in the call, perhaps before the port has
    read it. Without zero-copy also those from input and output: the executor finds these at the
    right place only if they are at the start of their allocation.
    """
    t, messages, conflicts = analysis.plan.instructions, analysis.messages, analysis.conflicts
    # A recv_reduce_send sends scratch that nothing else uses. So does a recv_copy_send, unless its
    # message comes where it is stored.
    direct_receive = np.zeros(len(t), bool)
    direct_receive[messages.receive[direct.writes[messages.send]]] = True
    from_source = t.op == Op.SEND
    from_target = (t.op == Op.RECV_REDUCE_COPY_SEND) | (
        (t.op == Op.RECV_COPY_SEND) & direct_receive
    )
    from_buffer = analysis.ports & (from_source | from_target)
    staged = np.zeros(len(t), bool)
    if not zero_copy:
        buffer = np.where(from_source, t.src_buffer, t.dst_buffer)
        staged = from_buffer & (buffer != Buffer.SCRATCH)
    for first, second in zip(conflicts.first.tolist(), conflicts.second.tolist(), strict=True):
        if not from_buffer[first] or staged[first] or not WRITES_DESTINATION[t.op[second]]:
            continue
        sender = int(messages.send_of[second])
        writer = sender if sender >= 0 and direct.writes[sender] else second
        staged[first] = not conflicts.order.reaches(int(messages.receive_of[first]), writer)
    return staged
