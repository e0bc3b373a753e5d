"""Emission: the thread blocks of MSCCL++'s executor for a Plan, and their operations.

A block of the executor has few operations. So a long block of the plan is cut into several, which
follow one another at barriers. Waits between blocks are semaphores, one for each pair of blocks.

A message goes into scratch of the receiver that no other message of the call uses, by a put and a
signal, or as packets (LL). At the begin of a call each receiver signals its senders that it has
begun: the scratch of the call before is free. A switch reads what the ranks of its channel have put
into one place of theirs, and writes to one place of all. Nothing else is waited for, so blocks hang
only where the plan itself does. `placing` says where the data of each message are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sley.formats.mscclpp import words
from sley.formats.mscclpp.analysis import Analysis
from sley.formats.mscclpp.placing import Placing, Range, range_of
from sley.formats.mscclpp.raw import RawBlock, RawGroup, RawOperation, RawRange
from sley.formats.mscclpp.targets import PlanTarget
from sley.formats.mscclpp.words import MEMORY, PORT, Where
from sley.ir.collective import Layout
from sley.ir.happens_before import hazards
from sley.ir.plan import Plan
from sley.ir.tables import NONE, ByteArray, IntArray, by_key
from sley.ir.words import RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Buffer, Op, Protocol


@dataclass(frozen=True, order=True)
class Channel:
    """A channel between two blocks of different ranks, which signal each other on it.

    low, high: the ranks, the lower one first. number: the plan's channel. low_block, high_block:
    the blocks at its ends. kind: MEMORY or PORT. forth, back: whether messages go from low to high,
    and from high to low. begins: whether receivers signal on it that they have begun the call.
    """

    low: int
    high: int
    number: int
    low_block: int
    high_block: int
    kind: str
    forth: bool
    back: bool
    begins: bool

    def sends(self, rank: int) -> bool:
        """Whether this rank sends messages on it."""
        return self.forth if rank == self.low else self.back

    def receives(self, rank: int) -> bool:
        """Whether this rank receives messages on it."""
        return self.back if rank == self.low else self.forth

    def peer(self, rank: int) -> int:
        """The rank at the other end."""
        return self.high if rank == self.low else self.low


@dataclass
class ThreadBlock:
    """A block of the executor.

    rows: its instructions, in order. after, before: the barriers at which it follows another part
    of the same block of the plan, and another part follows it, or NONE. channels: by type, its
    channels, ascending, with their numbers among its own.
    """

    rank: int
    rows: Sequence[int]
    after: int = NONE
    before: int = NONE
    channels: dict[str, dict[Channel, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class ThreadBlocks:
    """The blocks of the executor, rank after rank, and what connects them.

    acquires: by instruction, the semaphores to acquire before it. releases: by instruction, the
    semaphores to release after it. semaphores, barriers: their numbers on each rank.
    numbers: by rank and type, its channels, ascending, with their numbers: so a channel has the
    same number at both ends among those between the two ranks, by which the executor connects them.
    channels_of: by (instruction, whether it sends), the channels of its messages; several if its
    peer is a group.
    """

    blocks: list[ThreadBlock]
    acquires: dict[int, list[int]]
    releases: dict[int, list[int]]
    semaphores: list[int]
    barriers: list[int]
    numbers: list[dict[str, dict[Channel, int]]]
    channels_of: dict[tuple[int, bool], list[Channel]]


def _needed_order(analysis: Analysis) -> list[tuple[int, int]]:
    """Pairs of instructions of a rank, in different blocks, the first of which must end before the
    second one begins.

    These are the plan's waits; with packets, which order nothing but their own data, also the
    conflicting accesses that messages order.
    """
    plan, order = analysis.plan, analysis.order
    waits = plan.waits
    pairs = set(zip(waits.target.tolist(), waits.source.tolist(), strict=True))
    if plan.protocol is Protocol.LL:
        unordered = hazards(plan, order.level, unordered=True)
        for before, after in zip(unordered.first.tolist(), unordered.second.tolist(), strict=True):
            if not order.reaches(before, after, within_rank=True):
                pairs.add((before, after))
    return sorted(pair for pair in pairs if plan.block[pair[0]] != plan.block[pair[1]])


def arrange(analysis: Analysis, cut: Iterable[Sequence[Sequence[int]]]) -> ThreadBlocks:
    """The blocks, and the semaphores, barriers and channels between them. cut: for each block of
    the plan, the instructions of its parts."""
    plan, blocks = analysis.plan, list[ThreadBlock]()
    block_of = np.full(len(plan.instructions), NONE, np.int64)
    position, whole = block_of.copy(), block_of.copy()
    barriers = [0] * plan.collective.ranks
    # The parts of a block follow one another, each behind the barrier that the part before it has.
    for number, parts in enumerate(cut):
        for part, rows in enumerate(parts):
            block_of[rows], position[rows] = len(blocks), np.arange(len(rows))
            whole[rows] = number
            block = ThreadBlock(int(plan.rank[rows[0]]), rows)
            if part:
                block.after = blocks[-1].before = barriers[block.rank]
                barriers[block.rank] += 1
            blocks.append(block)
    # Barriers order the parts of one block, so semaphores are for other blocks alone.
    pairs = [pair for pair in _needed_order(analysis) if whole[pair[0]] != whole[pair[1]]]
    acquires, releases, semaphores = _semaphores(plan, pairs, block_of, position)
    channels_of = _channels(analysis, block_of)
    channels: list[set[Channel]] = [set() for _ in blocks]
    of_ranks: list[set[Channel]] = [set() for _ in barriers]
    for (row, _), found in channels_of.items():
        channels[block_of[row]].update(found)
        of_ranks[plan.rank[row]].update(found)
    for block, own in zip(blocks, channels, strict=True):
        block.channels = _numbered(own)
    numbers = [_numbered(own) for own in of_ranks]
    return ThreadBlocks(blocks, acquires, releases, semaphores, barriers, numbers, channels_of)


def _numbered(channels: set[Channel]) -> dict[str, dict[Channel, int]]:
    """The channels of each type, ascending, with their numbers."""
    kinds: dict[str, dict[Channel, int]] = {MEMORY: {}, PORT: {}}
    for one in sorted(channels):
        kinds[one.kind][one] = len(kinds[one.kind])
    return kinds


def _semaphores(
    plan: Plan, pairs: Sequence[tuple[int, int]], block_of: np.ndarray, position: np.ndarray
) -> tuple[dict[int, list[int]], dict[int, list[int]], list[int]]:
    """The semaphores to acquire and to release by instruction, and their number by rank. Each pair
    of blocks has one. A wait is needed only if no earlier one of the pair is for as late an
    instruction."""
    of_blocks = by_key(((int(block_of[a]), int(block_of[b])), (a, b)) for a, b in pairs)
    acquires: dict[int, list[int]] = defaultdict(list)
    releases: dict[int, list[int]] = defaultdict(list)
    number = [0] * plan.collective.ranks
    for key in sorted(of_blocks):
        # By waiting instructions, and of one's waits the one for the latest first: what follows is
        # in vain if it is for no later instruction than a wait before it.
        latest = NONE
        rank = int(plan.rank[of_blocks[key][0][0]])
        ordered = sorted(of_blocks[key], key=lambda p: (position[p[1]], -position[p[0]]))
        for before, after in ordered:
            if position[before] > latest:
                latest = int(position[before])
                releases[before].append(number[rank])
                acquires[after].append(number[rank])
        number[rank] += 1
    return dict(acquires), dict(releases), number


def _channels(analysis: Analysis, block_of: np.ndarray) -> dict[tuple[int, bool], list[Channel]]:
    """The channels of messages, at both ends. The two directions between two blocks share one.

    With LL, a rank that hears of another one in each call needs no signal that it has begun: its
    packets of a call come from that call (and scratch has two copies). Nor do reductions in a
    switch: a rank signals that the switch may read its data, and only then the result is written.
    """
    plan, messages, switching = analysis.plan, analysis.messages, analysis.switching
    sends, receives = messages.send.tolist(), messages.receive.tolist()
    t, rank = plan.instructions, plan.rank
    heard = {(int(rank[s]), int(rank[r])) for s, r in zip(sends, receives, strict=True)}
    keys, begins = [], set()
    for s, r in zip(sends, receives, strict=True):
        low, high = (s, r) if rank[s] < rank[r] else (r, s)
        ends = (int(rank[low]), int(rank[high]))
        blocks = (int(block_of[low]), int(block_of[high]))
        key = (*ends, int(t.channel[s]), *blocks, PORT if analysis.ports[s] else MEMORY)
        keys.append((key, low == s))
        mutual = plan.protocol is Protocol.LL and {ends, ends[::-1]} <= heard
        if not mutual and s not in switching.sum_of and s not in switching.offers:
            begins.add(key)
    # Only all messages together tell which directions a channel has.
    used = set(keys)
    found: dict[tuple[int, bool], list[Channel]] = defaultdict(list)
    for (key, _), s, r in zip(keys, sends, receives, strict=True):
        channel = Channel(*key, (key, True) in used, (key, False) in used, key in begins)
        found[s, True].append(channel)
        found[r, False].append(channel)
    return dict(found)


_MERGED_PUTS = (words.PUT, words.PUT_PACKETS, words.PUT_SIGNAL)
_MERGED_SUMS = (words.REDUCE, words.REDUCE_PACKETS)
_OF_PORTS = {words.RELAXED_SIGNAL: words.SIGNAL, words.RELAXED_WAIT: words.WAIT}
"""Ports have no relaxed signals."""

_MEETING = 2
"""The blocks of a barrier."""


@dataclass(frozen=True)
class Emitted:
    """A block of a file. begin: the number of operations before its first instruction. ends: by its
    instructions, the number of operations up to each one's end."""

    block: RawBlock
    begin: int
    ends: list[int]


def emit(
    analysis: Analysis, placing: Placing, blocks: ThreadBlocks, target: PlanTarget
) -> Iterator[Emitted]:
    """Each thread block in turn, within the target's limits of an operation, but not of a block."""
    for block in blocks.blocks:
        yield _Emitter(analysis, placing, blocks, target, block).emitted()


class _Stream:
    """The operations of a block so far. It adds the nops at which all threads meet: before a move
    that needs what came before, and before a signal that publishes it.

    groups: the switch channels of the block.
    """

    def __init__(
        self, block: ThreadBlock, groups: Sequence[RawGroup], layout: Layout, target: PlanTarget
    ) -> None:
        self.operations: list[RawOperation] = []
        self._target, self._block = target, block
        self._groups, self._layout = groups, layout
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._unmet = False  # whether threads have moved data or waited since they met
        self._waited = False
        self._signals: list[Channel] = []
        # By channel or semaphore, and whether it is a wait: the thread that used it last.
        self._threads: dict[tuple[Hashable, bool], int] = {}

    def nop(self) -> None:
        """All threads meet, if there is anything that they don't know of one another."""
        if self._unmet:
            self._meet(RawOperation(words.NOP))
        self._read, self._written = set(), set()

    def _meet(self, operation: RawOperation) -> None:
        """An operation at which all threads meet."""
        self.operations.append(operation)
        self._read, self._written = set(), set()
        self._unmet = self._waited = False
        self._threads = {}

    def _take_threads(self, users: Sequence[Hashable], *, wait: bool, first: int = 0) -> None:
        """Gives each channel or semaphore its thread, from `first`. If another thread used one
        since all threads met, they meet before: nothing else orders the two."""
        taken = {(user, wait): first + k for k, user in enumerate(users)}
        if any(self._threads.get(user, thread) != thread for user, thread in taken.items()):
            self._meet(RawOperation(words.NOP))
            taken = {(user, wait): k for k, user in enumerate(users)}
        self._threads.update(taken)

    def move(self, operation: RawOperation) -> None:
        """An operation that all threads perform."""
        move = words.MOVES[operation.name]
        reads = self._cells(move.sources, operation.sources)
        writes = self._cells(move.destinations, operation.destinations)
        if self._waited or reads & self._written or writes & (self._read | self._written):
            self.nop()
        if not (self._unmet and self._merge(operation)):
            self.operations.append(operation)
        self._read |= reads
        self._written |= writes
        self._unmet = True

    def push(self, operation: RawOperation, channel: Channel) -> None:
        """A put with a signal by a port, which reads what all threads have written."""
        self.flush()
        self.nop()
        # Each put of an operation is pushed by the thread of its place in it.
        first = len(self.operations[-1].channel_ids) if self._merges(operation) else 0
        self._take_threads([channel], wait=False, first=first)
        if not self._merge(operation):
            self.operations.append(operation)

    def add_to_sum(self, operation: RawOperation) -> bool:
        """Adds the second source of a sum to the sum just before it into the same range, if that is
        the first source as well."""
        if not self.operations or self._waited:
            return False
        last, (local, added) = self.operations[-1], operation.sources
        reads = self._cells(words.MOVES[operation.name].sources, (local, added), first=1)
        if (
            last.name != operation.name
            or last.name not in _MERGED_SUMS
            or last.destinations != operation.destinations
            or operation.destinations != (local,)
            or len(last.sources) >= self._target.buffers_per_operation
            or reads & self._written
        ):
            return False
        self.operations[-1] = replace(last, sources=(*last.sources, added))
        self._read |= reads
        return True

    def move_and_signal(
        self, operation: RawOperation | None, channels: Sequence[Channel] = ()
    ) -> None:
        """A move, if any, and then the signals that publish it, which may be sent together with
        later ones."""
        if set(channels) & set(self._signals):
            self.flush()
        if operation is not None:
            self.move(operation)
        self._signals += channels

    def flush(self) -> None:
        """Sends the signals."""
        if self._signals:
            signals, self._signals = self._signals, []
            self.nop()
            self._add_by_channel(words.SIGNAL, signals)

    def wait(self, channels: Sequence[Channel]) -> None:
        """Waits for signals."""
        self.flush()
        self._add_by_channel(words.WAIT, channels)
        self._unmet = self._waited = True

    def _add_by_channel(self, name: str, channels: Sequence[Channel]) -> None:
        """Adds an operation in which each channel has a thread of its own; several if it has too
        many channels, or both types."""
        limit = self._target.channels_per_operation
        for kind, numbers in self._block.channels.items():
            of_kind = [channel for channel in channels if channel.kind == kind]
            word = _OF_PORTS.get(name, name) if kind == words.PORT else name
            for k in range(0, len(of_kind), limit):
                part = of_kind[k : k + limit]
                self._take_threads(part, wait=word in words.WAITS)
                ids = tuple(numbers[channel] for channel in part)
                self.operations.append(RawOperation(word, channel_type=kind, channel_ids=ids))

    def begin(self, signals: Sequence[Channel], waits: Sequence[Channel]) -> None:
        """Signals that this rank has begun the call, and waits for those of others."""
        self._add_by_channel(words.RELAXED_SIGNAL, signals)
        self._add_by_channel(words.RELAXED_WAIT, waits)
        self._unmet = self._waited = bool(waits)

    def end(self, signals: Sequence[Channel], waits: Sequence[Channel]) -> None:
        """Signals that this rank has received all messages of ports, and waits for those of
        others."""
        if signals:
            self.nop()
        self._add_by_channel(words.SIGNAL, signals)
        self._add_by_channel(words.WAIT, waits)

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Waits for other blocks of the rank."""
        self.flush()
        self._add_by_semaphore(words.ACQUIRE, semaphores)
        self._unmet = self._waited = True

    def barrier(self, number: int) -> None:
        """Meets another block of the rank, if there is a barrier."""
        self.flush()
        if number != NONE:
            self._meet(RawOperation(words.BARRIER, barrier=number, barrier_blocks=_MEETING))

    def release(self, semaphores: Sequence[int]) -> None:
        """Lets other blocks of the rank continue."""
        self.flush()
        self.nop()
        self._add_by_semaphore(words.RELEASE, semaphores)

    def _add_by_semaphore(self, name: str, semaphores: Sequence[int]) -> None:
        """Adds an operation in which each semaphore has a thread of its own, or several."""
        limit = self._target.semaphores_per_operation
        for k in range(0, len(semaphores), limit):
            part = tuple(semaphores[k : k + limit])
            self._take_threads(part, wait=name == words.ACQUIRE)
            self.operations.append(RawOperation(name, semaphores=part))

    def _cells(
        self, operands: words.Operands, ranges: Sequence[RawRange], first: int = 0
    ) -> set[int]:
        """The cells of this rank in ranges, from the first on. Of other ranks none: only this block
        uses them."""
        found = set[int]()
        for number, one in enumerate(ranges[first:], first):
            kind = operands.at(number)
            if kind is None or one.where is Where.REMOTE:
                continue
            buffer = one.number if one.where is Where.LOCAL else self._groups[one.number].buffer
            begin = int(self._layout.cell(self._block.rank, buffer, one.index))
            # Packets are never plain data as well.
            begin = -begin - 2 * self._layout.cells if kind.packet else begin
            found.update(range(begin, begin + one.size))
        return found

    def _merges(self, operation: RawOperation) -> bool:
        """Whether the executor can perform a put and the last one as one."""
        last = self.operations[-1] if self.operations else RawOperation("")
        return (
            operation.name in _MERGED_PUTS
            and last.name == operation.name
            and len(last.destinations) < self._target.channels_per_operation
            and last.sources[0].number == operation.sources[0].number
            and not set(last.channel_ids) & set(operation.channel_ids)
        )

    def _merge(self, operation: RawOperation) -> bool:
        """Makes one put of this one and the last one, if the executor can."""
        if not self._merges(operation):
            return False
        last = self.operations[-1]
        self.operations[-1] = replace(
            last,
            sources=last.sources + operation.sources,
            destinations=last.destinations + operation.destinations,
            channel_ids=last.channel_ids + operation.channel_ids,
        )
        return True


class _Emitter:
    """The operations of one block."""

    def __init__(
        self,
        analysis: Analysis,
        placing: Placing,
        blocks: ThreadBlocks,
        target: PlanTarget,
        block: ThreadBlock,
    ) -> None:
        self.plan, self.switching = analysis.plan, analysis.switching
        self.placing, self.blocks = placing, blocks
        self.target, self.block = target, block
        remote, groups = placing.remote[block.rank], placing.groups[block.rank]
        self._remote = {(one.rank, one.buffer): k for k, one in enumerate(remote)}
        # The block's lists of numbers of the GPU's remote buffers and switch channels. Operations
        # count remote buffers in the order of their first use, and switch channels ascending.
        self._buffers: dict[str, list[int]] = {words.MEMORY: [], words.PORT: [], words.SWITCH: []}
        ranges = [of.get(row) for row in block.rows for of in (placing.read, placing.range_of)]
        used = {item.group for item in ranges if item is not None and item.switch}
        self._groups = [group for group in groups if group in used]
        self._switches = tuple(k for k, group in enumerate(groups) if group in used)
        self.stream = _Stream(block, self._groups, self.plan.layout, target)
        self._waited: set[int] = set()

    def emitted(self) -> Emitted:
        """All operations, from the signals at the begin of a call to those at its end."""
        block, stream, rank = self.block, self.stream, self.block.rank
        channels = [channel for of_kind in block.channels.values() for channel in of_kind]
        begins = [channel for channel in channels if channel.begins]
        stream.begin([c for c in begins if c.receives(rank)], [c for c in begins if c.sends(rank)])
        stream.barrier(block.after)
        begin, ends = len(stream.operations), list[int]()
        for position, row in enumerate(block.rows):
            if needed := self.blocks.acquires.get(row):
                stream.acquire(needed)
            if Op(int(self.plan.instructions.op[row])) not in (Op.SEND, Op.COPY_SEND):
                stream.flush()
            self._emit(position)
            if given := self.blocks.releases.get(row):
                stream.release(given)
            ends.append(len(stream.operations))
        stream.barrier(block.before)
        ports = block.channels[words.PORT]
        stream.end([c for c in ports if c.receives(rank)], [c for c in ports if c.sends(rank)])
        numbers = self.blocks.numbers[rank]
        ids = {kind: tuple(numbers[kind][c] for c in own) for kind, own in block.channels.items()}
        buffers = {kind: tuple(own) for kind, own in self._buffers.items()}
        at, ids[words.SWITCH] = self.plan.place(block.rows[0]), self._switches
        raw = RawBlock(ids, buffers, tuple(stream.operations), at)
        return Emitted(raw, begin, ends)

    def _operation(
        self,
        name: str,
        sources: Sequence[Range],
        destinations: Sequence[Range],
        port: Channel | None = None,
    ) -> RawOperation:
        """A move; with a signal on a port, if any."""
        kind = words.PORT if port else words.MEMORY
        written = tuple(self._raw(item, kind) for item in destinations)
        wheres = {one.where for one in written}
        word = kind if Where.REMOTE in wheres else "none"
        return RawOperation(
            name,
            channel_type=words.SWITCH if Where.SWITCH in wheres else word,
            channel_ids=(self.block.channels[words.PORT][port],) if port else (),
            sources=tuple(self._raw(item, kind) for item in sources),
            destinations=written,
            reduce_op="sum" if name in words.REDUCTIONS else "",
        )

    def _raw(self, item: Range, kind: str) -> RawRange:
        """A range as an operand, by a type of channel if it is another rank's memory."""
        if item.switch:
            where, number = Where.SWITCH, self._groups.index(item.group)
        elif item.rank == self.block.rank:
            where, number = Where.LOCAL, int(item.buffer)
        else:
            where, remote = Where.REMOTE, self._remote[item.rank, item.buffer]
            if remote not in self._buffers[kind]:
                self._buffers[kind].append(remote)
            number = self._buffers[kind].index(remote)
        return RawRange(where, number, item.index, item.count)

    def _wait(self, position: int) -> None:
        """Waits for the message of a row, and at once for those of the following rows, while no
        other block or rank needs anything of this block before them."""
        t, found, row = self.plan.instructions, list[Channel](), self.block.rows[position]
        if not RECEIVES[t.op[row]] or row in self._waited:
            return
        # Each row is waited for once: those that are taken here are skipped at their own turn.
        for row in self.block.rows[position:]:
            if not RECEIVES[t.op[row]]:
                break
            channels = self.blocks.channels_of[row, False]
            if found and (
                set(channels) & set(found)
                or channels[0].kind != found[0].kind
                or row in self.blocks.acquires
                or len(found) + len(channels) > self.target.channels_per_operation
            ):
                break
            found += channels
            self._waited.add(row)
            # The next waits may depend on what others make of this row's result.
            if SENDS[t.op[row]] or row in self.blocks.releases:
                break
        self.stream.wait(found)

    def _row(self, row: int) -> tuple[Op, Range, Range, Range | None]:
        """The operation of a row, its source and its destination, and where its message arrives."""
        plan, t = self.plan, self.plan.instructions

        def operand(buffer: ByteArray, index: IntArray) -> Range:
            place = Buffer(max(int(buffer[row]), 0)), int(index[row]), int(t.count[row])
            return range_of(plan, self.block.rank, *place)

        operands = operand(t.src_buffer, t.src_index), operand(t.dst_buffer, t.dst_index)
        return Op(int(t.op[row])), *operands, self.placing.arrived.get(row)

    def _emit(self, position: int) -> None:
        """The operations of the row at a position."""
        row = self.block.rows[position]
        op, source, target, _ = self._row(row)
        if op is Op.COPY:
            self._move(words.COPY, source, target)
        elif op is Op.REDUCE:
            self._sum(self._operation(words.REDUCE, (target, source), (target,)))
        elif op is not Op.NOP and self.plan.protocol is Protocol.LL:
            self._emit_packets(row)
        elif row in self.switching.offers:
            self._offer(source, self.placing.read[row])
            self._wait(position)
            read, written = self.placing.read[row], self.placing.range_of[row]
            total = self._operation(words.GROUP_REDUCE_STORE, (read,), (written,))
            self._multicast(row, total, replace(written, switch=()))
        elif op is not Op.NOP:
            self._wait(position)
            self._emit_message(row)

    def _move(self, name: str, source: Range, target: Range) -> None:
        self.stream.move(self._operation(name, (source,), (target,)))

    def _emit_message(self, row: int) -> None:
        """A row that sends or receives with protocol Simple, whose message has arrived."""
        op, source, target, arrived = self._row(row)
        if op in (Op.SEND, Op.COPY_SEND):
            self._send(row, source)
        elif arrived is not None and op in (Op.RECV, Op.RECV_COPY_SEND):
            if not self._is_at(arrived, target) and not self._is_switched_to(row, target):
                self._move(words.COPY, arrived, target)
            if SENDS[op]:
                self._send(row, arrived)
        elif arrived is not None:
            self._reduce(row, (source, arrived), target)

    def _reduce(self, row: int, sources: tuple[Range, Range], target: Range) -> None:
        """A received message is added to the local operand, stored if the row stores it, and sent
        on if the row sends it."""
        op = Op(int(self.plan.instructions.op[row]))
        # A result that is only sent takes the place of the message.
        stored = target if WRITES_DESTINATION[op] else sources[1]
        if SENDS[op] and not self._is_sent_apart(row):
            written = (stored, self.placing.range_of[row])
            operation = self._operation(words.REDUCE_SEND, sources, written)
            self.stream.move_and_signal(operation, self.blocks.channels_of[row, True])
            return
        self._sum(self._operation(words.REDUCE, sources, (stored,)))
        if SENDS[op]:
            self._send(row, stored)

    def _sum(self, operation: RawOperation) -> None:
        if not self.stream.add_to_sum(operation):
            self.stream.move(operation)

    def _is_sent_apart(self, row: int) -> bool:
        """Whether the data of a row go by another operation than those of a put: by a port, or by a
        switch."""
        switched = row in self.switching.sum_of or row in self.switching.stores
        return switched or self.blocks.channels_of[row, True][0].kind == words.PORT

    def _send(self, row: int, source: Range) -> None:
        channels = self.blocks.channels_of[row, True]
        if (total := self.switching.sum_of.get(row, NONE)) != NONE:
            self._offer(source, self.placing.read[total], channels)
            return
        channel, target = channels[0], self.placing.range_of[row]
        if target.switch:
            self._multicast(row, self._operation(words.GROUP_STORE, (source,), (target,)), source)
        elif channel.kind == words.MEMORY:
            self.stream.move_and_signal(self._operation(words.PUT, (source,), (target,)), channels)
        else:
            if staged := self.placing.staged.get(row):
                self._move(words.COPY, source, staged)
                source = staged
            put = self._operation(words.PUT_SIGNAL, (source,), (target,), channel)
            self.stream.push(put, channel)

    def _is_at(self, one: Range, other: Range) -> bool:
        """Whether two ranges of a rank are the same memory."""
        cells = [int(self.plan.layout.cell(r.rank, r.buffer, r.index)) for r in (one, other)]
        return cells[0] == cells[1]

    def _offer(self, source: Range, read: Range, channels: Sequence[Channel] = ()) -> None:
        """Puts data of this rank where a switch reads them, and signals that they are there."""
        place = Range(source.rank, read.buffer, read.index, read.count)
        is_there = self._is_at(source, place)
        copy = None if is_there else self._operation(words.COPY, (source,), (place,))
        self.stream.move_and_signal(copy, channels)

    def _is_switched_to(self, row: int, target: Range) -> bool:
        """Whether the switch that sends the data of a row also stores them in `target`."""
        written = self.placing.range_of.get(row)
        return written is not None and bool(written.switch) and self._is_at(written, target)

    def _multicast(self, row: int, operation: RawOperation, source: Range) -> None:
        """An operation of a switch, which writes the result of a row to all ranks. The row's own
        copy of it, from `source`, is stored before the others hear of it, as in the plan."""
        self.stream.move(operation)
        op, _, target, _ = self._row(row)
        stores = op in (Op.COPY_SEND, Op.RECV_REDUCE_COPY_SEND)
        if stores and not self._is_switched_to(row, target) and not self._is_at(source, target):
            self._move(words.COPY, source, target)
        self.stream.move_and_signal(None, self.blocks.channels_of[row, True])

    def _emit_packets(self, row: int) -> None:
        """A row that sends or receives with protocol LL."""
        op, source, target, arrived = self._row(row)
        sent = (self.placing.range_of[row],) if SENDS[op] else ()
        if op is Op.SEND:
            self.stream.move(self._operation(words.PUT_PACKETS, (source,), sent))
        elif arrived is not None and REDUCES[op]:
            stored = target if WRITES_DESTINATION[op] else self.placing.spare[row]
            name = words.REDUCE_SEND_PACKETS if sent else words.REDUCE_PACKETS
            self._sum(self._operation(name, (source, arrived), (stored, *sent)))
        elif arrived is not None:
            if sent:
                self.stream.move(self._operation(words.SEND_PACKETS, (arrived,), sent))
            self._move(words.UNPACK, arrived, target)
