"""Placing: where the data of a plan's messages are: in the memory of their receivers, or in that of
all ranks of a switch channel."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from sley.formats.mscclpp.switching import Switching
from sley.ir import happens_before
from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Buffer, Op, Protocol

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
    plan: Plan,
    messages: Messages,
    conflicts: Conflicts,
    switching: Switching,
    ports: BoolArray,
    *,
    zero_copy: bool,
) -> Placing:
    """Where the data of a plan's messages are.

    ports: bool (instructions,), the sends through ports. zero_copy: whether messages may go into
    the input and output of another rank where they are stored, as they always may into its scratch,
    and ports and switches may read input and output.
    """
    scratch = plan.scratch_chunks.astype(np.int64)
    direct = _Direct(plan, messages, conflicts, switching, ports, zero_copy=zero_copy).all()
    staged = _must_be_staged(plan, messages, conflicts, ports, direct, zero_copy=zero_copy)
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
            place = Range(to, buffer, index, count)
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


Place = tuple[Buffer, int]
"""A buffer and its first chunk, the same on several ranks."""


@dataclass(frozen=True)
class Direct:
    """What goes without scratch.

    writes: bool (instructions,), the sends whose data go where the receiver stores them.
    reads: by instruction that reduces in a switch, what the switch reads, if that is where all its
        ranks have the operands.
    stores: by instruction with a switch, what the switch writes, if that is where all its ranks
        store the result.
    """

    writes: BoolArray
    reads: dict[int, Place] = field(default_factory=dict)
    stores: dict[int, Place] = field(default_factory=dict)


class _Direct:
    """Finds what goes without scratch."""

    def __init__(
        self,
        plan: Plan,
        messages: Messages,
        conflicts: Conflicts,
        switching: Switching,
        ports: BoolArray,
        *,
        zero_copy: bool,
    ) -> None:
        self.plan, self.messages, self.switching = plan, messages, switching
        self.ports, self.zero_copy = ports, zero_copy
        self.reaches = conflicts.order.reaches
        self.earlier: dict[int, list[int]] = defaultdict(list)
        self.later: dict[int, list[int]] = defaultdict(list)
        for first, second in zip(conflicts.first.tolist(), conflicts.second.tolist(), strict=True):
            self.earlier[second].append(first)
            self.later[first].append(second)
        self.found = Direct(np.zeros(len(plan.instructions), bool))

    def all(self) -> Direct:
        """What goes without scratch. With packets nothing does."""
        if self.plan.protocol is Protocol.LL:
            return self.found
        for row in self.switching.offers:
            if (place := self._read(row)) is not None:
                self.found.reads[row] = place
        for row in self.switching.stores:
            if (place := self._stored(row)) is not None:
                self.found.stores[row] = place
                self.found.writes[row] = True
        t, found = self.plan.instructions, self.found
        stores = np.isin(t.op, [Op.RECV, Op.RECV_COPY_SEND])
        stores &= self.zero_copy | (t.dst_buffer == Buffer.SCRATCH)
        messages = self.messages
        for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
            if stores[receive] and send not in self.switching.stores:
                found.writes[send] = self._is_free(receive, send)
        return found

    def _is_free(self, receive: int, send: int) -> bool:
        """Whether all earlier accesses to what a receive stores have ended when its sender
        sends."""
        return all(self.reaches(self._end(row), send) for row in self.earlier[receive])

    def _end(self, row: int) -> int:
        """The instruction after which no data of an instruction are read any more."""
        if self.ports[row]:
            return int(self.messages.receive_of[row])
        total = self.switching.sum_of.get(row, NONE)
        return total if total in self.found.reads else row

    def _place(self, row: int, *, source: bool) -> Place:
        """The place of an operand; in place that in the output, if it is there."""
        t, c, rank = self.plan.instructions, self.plan.collective, int(self.plan.rank[row])
        buffer = Buffer(int((t.src_buffer if source else t.dst_buffer)[row]))
        index = int((t.src_index if source else t.dst_index)[row])
        if buffer is Buffer.INPUT and c.in_place:
            of_output = index + int(c.input_base[rank] - c.output_base[rank])
            if 0 <= of_output <= int(c.output_chunks[rank]) - int(t.count[row]):
                return Buffer.OUTPUT, of_output
        return buffer, index

    def _is_common(self, row: int, place: Place) -> bool:
        """Whether a place may be accessed by a switch, and is one memory on all its ranks."""
        c, ranks = self.plan.collective, list(self.switching.ranks[row])
        if place[0] is Buffer.SCRATCH:
            last = place[1] + int(self.plan.instructions.count[row])
            return bool((self.plan.scratch_chunks[ranks] >= last).all())
        base = c.input_base if place[0] is Buffer.INPUT else c.output_base
        return self.zero_copy and (not c.in_place or len(set(base[ranks].tolist())) == 1)

    def _read(self, row: int) -> Place | None:
        """What the switch reads for a reduction, if every rank sends its data from there, and keeps
        them until they are read."""
        t, place = self.plan.instructions, self._place(row, source=True)
        sends = self.switching.offers[row]
        stored = self._place(row, source=False) if WRITES_DESTINATION[t.op[row]] else None
        if not self._is_common(row, place) or any(
            t.op[send] != Op.SEND or self._place(send, source=True) != place for send in sends
        ):
            return None
        for later in (later for send in sends for later in self.later[send]):
            sender = int(self.messages.send_of[later])
            writer = later if later in self.switching.offers or sender == NONE else sender
            # An element is read before it is written by the same operation.
            if not self.reaches(row, writer) or (writer == row and stored != place):
                return None
        return place

    def _stored(self, row: int) -> Place | None:
        """What the switch writes of a result, if every rank stores it there, and all earlier
        accesses have ended then."""
        t, op, receives = self.plan.instructions, self.plan.instructions.op, self.switching.stores
        if not WRITES_DESTINATION[op[row]] and (op[row] != Op.SEND or self._is_shared(row)):
            return None
        place = self._place(row, source=op[row] == Op.SEND)
        read = self.found.reads.get(row)
        if not self._is_common(row, place) or any(
            op[receive] not in (Op.RECV, Op.RECV_COPY_SEND)
            or self._place(receive, source=False) != place
            for receive in receives[row]
        ):
            return None
        own = read if row in self.switching.offers else self._own_source(row)
        if own is not None and own[0] is place[0] and 0 < abs(own[1] - place[1]) < t.count[row]:
            return None
        for first in (first for one in (row, *receives[row]) for first in self.earlier[one]):
            end = self._end(first)
            if not self.reaches(end, row) or (end == row and read != place):
                return None
        return place

    def _own_source(self, row: int) -> Place | None:
        reads = self.plan.instructions.op[row] in (Op.SEND, Op.COPY_SEND)
        return self._place(row, source=True) if reads else None

    def _is_shared(self, row: int) -> bool:
        """Whether other instructions access what an instruction reads: a switch that stores it
        there again would disturb them."""
        t, plan = self.plan.instructions, self.plan
        first, count = int(plan.source_cells(np.array([row]))[0]), int(t.count[row])
        others = np.flatnonzero(plan.rank == plan.rank[row])
        others = others[others != row]
        for accesses, cells in (
            (READS_SOURCE, plan.source_cells(others)),
            (WRITES_DESTINATION, plan.destination_cells(others)),
        ):
            near = (cells < first + count) & (cells + t.count[others] > first)
            if (accesses[t.op[others]] & near).any():
                return True
        return False


def _must_be_staged(
    plan: Plan,
    messages: Messages,
    conflicts: Conflicts,
    ports: BoolArray,
    direct: Direct,
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
        writer = sender if sender >= 0 and direct.writes[sender] else second
        staged[first] = not conflicts.order.reaches(int(messages.receive_of[first]), writer)
    return staged
