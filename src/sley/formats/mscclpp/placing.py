"""Placing: where the data of a plan's messages are: in the memory of their receivers, or in that of
all ranks of a switch channel.

A send may write to where the receiver stores its data, and a switch may read and write the buffers
of its ranks, if all earlier accesses to the same chunks have ended. All others go through scratch.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy as np

from sley.formats.mscclpp.analysis import Analysis, Switching
from sley.formats.mscclpp.raw import RawGroup, RawRemote
from sley.formats.mscclpp.words import MEMORY, PORT
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, LongArray
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Buffer, Op, Protocol

_HALVED = 8
"""A multiple of this number of packets, in two copies, has halves of a multiple of 16 bytes."""


@dataclass(frozen=True)
class Range:
    """Consecutive chunks of a rank's memory, or with LL packets of its scratch. switch: the ranks
    whose memory it is, if a switch channel accesses that of several."""

    rank: int
    buffer: Buffer
    index: int
    count: int
    switch: tuple[int, ...] = ()

    @property
    def group(self) -> RawGroup:
        """The switch channel that accesses it."""
        return RawGroup(self.buffer, self.switch)


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
    scratch: int64 (ranks,), chunks of scratch, as the file declares them.
    remote, groups: by rank, its remote buffers and its switch channels.
    """

    range_of: dict[int, Range]
    arrived: dict[int, Range]
    read: dict[int, Range]
    staged: dict[int, Range]
    spare: dict[int, Range]
    scratch: LongArray
    remote: list[list[RawRemote]] = field(default_factory=list)
    groups: list[list[RawGroup]] = field(default_factory=list)


def place(analysis: Analysis, *, zero_copy: bool) -> Placing:
    """Where the data of a plan's messages are.

    zero_copy: whether messages may go into the input and output of another rank where they are
    stored, as they always may into its scratch, and ports and switches may read input and output.
    """
    plan, messages, switching = analysis.plan, analysis.messages, analysis.switching
    scratch = plan.scratch_chunks.astype(np.int64)
    direct = _Direct(analysis, zero_copy=zero_copy)
    staged = _must_be_staged(analysis, direct, zero_copy=zero_copy)
    packets = plan.protocol is Protocol.LL
    t, rank = plan.instructions, plan.rank
    found = Placing({}, {}, {}, {}, _spares(plan, scratch) if packets else {}, scratch)
    for row in np.flatnonzero(staged).tolist():
        found.staged[row] = _take(scratch, int(rank[row]), int(t.count[row]))
    if packets:
        scratch[:] = -(-scratch // 2)  # a packet takes two chunks of plain scratch
    # In the order of the messages, so that the same plan always has the same places.
    for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
        if send in switching.sum_of or send in switching.stores:
            continue
        to, count = int(rank[receive]), int(t.count[receive])
        if direct.writes[send]:
            buffer, index = Buffer(int(t.dst_buffer[receive])), int(t.dst_index[receive])
            place = range_of(plan, to, buffer, index, count)
        else:
            place = _take(scratch, to, count)
        found.range_of[send] = found.arrived[receive] = place
    _place_switched(plan, switching, direct, found)
    if packets:
        # The executor finds the second half of a remote scratch by the size of the own one, and
        # halves that size: all ranks have one size, and its halves begin at multiples of 16 bytes.
        scratch[:] = -(-int(scratch.max()) // _HALVED) * _HALVED
    return replace(found, remote=_remote(analysis, found), groups=_groups(plan, found))


def _remote(analysis: Analysis, found: Placing) -> list[list[RawRemote]]:
    """The remote buffers of each rank, ascending."""
    rank, types = analysis.plan.rank, defaultdict[tuple[int, int, Buffer], set[str]](set)
    for row, item in found.range_of.items():
        if not item.switch:
            kind = PORT if analysis.ports[row] else MEMORY
            types[int(rank[row]), item.rank, item.buffer].add(kind)
    remote: list[list[RawRemote]] = [[] for _ in range(analysis.plan.collective.ranks)]
    for (own, peer, buffer), kinds in sorted(types.items()):
        remote[own].append(RawRemote(peer, buffer, tuple(sorted(kinds))))
    return remote


def _groups(plan: Plan, found: Placing) -> list[list[RawGroup]]:
    """The switch channels of each rank, ascending: so any two ranks have those that they share in
    one order, in which the executor connects them. All ranks of a channel make it together, with
    those that only have its memory."""
    ranges = (*found.read.values(), *found.range_of.values())
    groups = {item.group for item in ranges if item.switch}
    ordered = sorted(groups, key=lambda group: (group.ranks, group.buffer))
    return [[one for one in ordered if rank in one.ranks] for rank in range(plan.collective.ranks)]


def _place_switched(plan: Plan, switching: Switching, direct: _Direct, found: Placing) -> None:
    """Places what switches read and write: the same chunks of a buffer of all their ranks."""
    scratch = found.scratch
    for row, ranks in switching.ranks.items():
        rank, count = int(plan.rank[row]), int(plan.instructions.count[row])
        read, written = direct.reads.get(row), direct.stores.get(row)
        if written is None or (read is None and row in switching.offers):
            # What a switch reads and what it writes may be one place: each element is read first.
            # A switch names one index for all its ranks: that of the rank with the most scratch.
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


def _take(scratch: LongArray, rank: int, count: int) -> Range:
    """Further scratch of a rank."""
    scratch[rank] += count
    return Range(rank, Buffer.SCRATCH, int(scratch[rank]) - count, count)


def _spares(plan: Plan, scratch: LongArray) -> dict[int, Range]:
    """Scratch for the results that are only sent: each block has one range for all of them."""
    t, found = plan.instructions, dict[int, Range]()
    rows = np.flatnonzero(t.op == Op.RECV_REDUCE_SEND)
    for block in np.unique(plan.block[rows]).tolist():
        own = rows[plan.block[rows] == block]
        # A block runs one instruction after another, so its longest result needs the most room.
        widest = _take(scratch, int(plan.block_rank[block]), int(t.count[own].max()))
        for row in own.tolist():
            found[row] = Range(widest.rank, widest.buffer, widest.index, int(t.count[row]))
    return found


def _must_be_staged(analysis: Analysis, direct: _Direct, *, zero_copy: bool) -> BoolArray:
    """bool (instructions,): the sends through ports whose data are copied into own scratch first.

    These are the ones whose source is overwritten later in the call, perhaps before the port has
    read it. Without zero-copy also those from input and output: the executor finds these at the
    right place only if they are at the start of their allocation.
    """
    t, messages = analysis.plan.instructions, analysis.messages
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
    # Conflicts are of adjacent accesses: the next write decides, as all later ones come after it.
    for first, second in analysis.conflicts.tolist():
        if not from_buffer[first] or staged[first] or not WRITES_DESTINATION[t.op[second]]:
            continue
        sender = int(messages.send_of[second])
        writer = sender if sender >= 0 and direct.writes[sender] else second
        staged[first] = not analysis.order.reaches(int(messages.receive_of[first]), writer)
    return staged


Start = tuple[Buffer, int]
"""A buffer, and the chunk in it at which a range begins, the same on several ranks."""


class _Direct:
    """The sends and switches that use no scratch; none with packets. zero_copy: as in `place`.

    writes: bool (instructions,), the sends whose data go where the receiver stores them.
    reads: by instruction that reduces in a switch, where on all its ranks the switch reads their
        operands, if these are at one place.
    stores: by instruction with a switch, where on all its ranks the switch writes the result, if
        they store it at one place.
    """

    def __init__(self, analysis: Analysis, *, zero_copy: bool) -> None:
        self.plan, self.messages = plan, messages = analysis.plan, analysis.messages
        self.switching = switching = analysis.switching
        self.ports = analysis.ports
        self.zero_copy, self.reaches = zero_copy, analysis.order.reaches
        self.earlier: dict[int, list[int]] = defaultdict(list)
        self.later: dict[int, list[int]] = defaultdict(list)
        for first, second in analysis.conflicts.tolist():
            self.earlier[second].append(first)
            self.later[first].append(second)
        t, self.writes = plan.instructions, np.zeros(len(plan.instructions), bool)
        self.reads, self.stores = dict[int, Start](), dict[int, Start]()
        if plan.protocol is Protocol.LL:
            return
        # Whether a result may be written depends on what switches still read, so these come first.
        for row in switching.offers:
            if (at := self._read(row)) is not None:
                self.reads[row] = at
        for row in switching.stores:
            if (at := self._stored(row)) is not None:
                self.stores[row] = at
        self.writes[list(self.stores)] = True
        stored = np.isin(t.op, [Op.RECV, Op.RECV_COPY_SEND])
        stored &= zero_copy | (t.dst_buffer == Buffer.SCRATCH)
        for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
            if stored[receive] and send not in switching.stores:
                # All earlier accesses to what it stores have ended when its sender sends.
                ends = map(self._end, self.earlier[receive])
                self.writes[send] = all(self.reaches(end, send) for end in ends)

    def _end(self, row: int) -> int:
        """The instruction after which no data of an instruction are read any more."""
        if self.ports[row]:
            return int(self.messages.receive_of[row])
        total = self.switching.sum_of.get(row, NONE)
        return total if total in self.reads else row

    def _start(self, row: int, *, source: bool) -> Start:
        """Where an operand begins; in place its chunk of the output, if it is there."""
        t, c, rank = self.plan.instructions, self.plan.collective, int(self.plan.rank[row])
        buffer = Buffer(int((t.src_buffer if source else t.dst_buffer)[row]))
        index = int((t.src_index if source else t.dst_index)[row])
        if buffer is Buffer.INPUT and c.in_place:
            of_output = index + int(c.input_base[rank] - c.output_base[rank])
            if 0 <= of_output <= int(c.output_chunks[rank]) - int(t.count[row]):
                return Buffer.OUTPUT, of_output
        return buffer, index

    def _is_common(self, row: int, start: Start) -> bool:
        """Whether a switch may access what begins there, and whether it is one memory on all its
        ranks."""
        c, ranks = self.plan.collective, list(self.switching.ranks[row])
        if start[0] is Buffer.SCRATCH:
            last = start[1] + int(self.plan.instructions.count[row])
            return bool((self.plan.scratch_chunks[ranks] >= last).all())
        base = c.input_base if start[0] is Buffer.INPUT else c.output_base
        return self.zero_copy and (not c.in_place or len(set(base[ranks].tolist())) == 1)

    def _read(self, row: int) -> Start | None:
        """Where a switch reads the operands of a reduction, if every rank sends its data from there
        and does not overwrite them before they are read."""
        t, start = self.plan.instructions, self._start(row, source=True)
        sends = self.switching.offers[row]
        stored = self._start(row, source=False) if WRITES_DESTINATION[t.op[row]] else None
        if not self._is_common(row, start) or any(
            t.op[send] != Op.SEND or self._start(send, source=True) != start for send in sends
        ):
            return None
        # What a send offers is read by the switch, which is after the send itself.
        for later in (later for send in sends for later in self.later[send]):
            sender = int(self.messages.send_of[later])
            writer = later if later in self.switching.offers or sender == NONE else sender
            # An element is read before it is written by the same operation.
            if not self.reaches(row, writer) or (writer == row and stored != start):
                return None
        return start

    def _stored(self, row: int) -> Start | None:
        """Where a switch writes a result, if every rank stores it there and all earlier accesses
        have ended before."""
        t, op, receives = self.plan.instructions, self.plan.instructions.op, self.switching.stores
        if not WRITES_DESTINATION[op[row]] and (op[row] != Op.SEND or self._is_shared(row)):
            return None
        start = self._start(row, source=op[row] == Op.SEND)
        read = self.reads.get(row)
        if not self._is_common(row, start) or any(
            op[receive] not in (Op.RECV, Op.RECV_COPY_SEND)
            or self._start(receive, source=False) != start
            for receive in receives[row]
        ):
            return None
        own = read
        if row not in self.switching.offers and op[row] in (Op.SEND, Op.COPY_SEND):
            own = self._start(row, source=True)
        if own is not None and own[0] is start[0] and 0 < abs(own[1] - start[1]) < t.count[row]:
            return None
        # A store by a switch takes place when it is sent, which is before each receive of it.
        for first in (first for one in (row, *receives[row]) for first in self.earlier[one]):
            end = self._end(first)
            if not self.reaches(end, row) or (end == row and read != start):
                return None
        return start

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
