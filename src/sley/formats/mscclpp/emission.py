"""Emission: the operations of MSCCL++'s executor for a Plan.

A message goes into scratch of the receiver that no other message of the call uses, by a put and a
signal, or as packets (LL). At the begin of a call each receiver signals its senders that it has
begun: the scratch of the call before is free. A switch reads what the ranks of its channel have put
into one place of theirs, and writes to one place of all. Nothing else is waited for, so blocks hang
only where the plan itself does. `placing` says where the data of each message are, `threadblocks`
which block of the executor performs which instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from sley.formats.mscclpp.placing import Placing, Range, range_of
from sley.formats.mscclpp.switching import Switching
from sley.formats.mscclpp.targets import PlanTarget
from sley.formats.mscclpp.threadblocks import Channel, ThreadBlocks
from sley.formats.mscclpp.words import (
    ACQUIRE,
    BARRIER,
    COPY,
    GROUP_REDUCE_STORE,
    GROUP_STORE,
    NOP,
    PUT,
    PUT_PACKETS,
    PUT_SIGNAL,
    REDUCE,
    REDUCE_PACKETS,
    REDUCE_SEND,
    REDUCE_SEND_PACKETS,
    RELAXED_SIGNAL,
    RELAXED_WAIT,
    RELEASE,
    SEND_PACKETS,
    SIGNAL,
    UNPACK,
    WAIT,
)
from sley.ir.collective import Layout
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Buffer, Op, Protocol

_MERGED_PUTS = (PUT, PUT_PACKETS, PUT_SIGNAL)
_WAITS = (WAIT, RELAXED_WAIT)
_MERGED_SUMS = (REDUCE, REDUCE_PACKETS)
_OF_PORTS = {RELAXED_SIGNAL: SIGNAL, RELAXED_WAIT: WAIT}
"""Ports have no relaxed signals."""


@dataclass(frozen=True)
class Step:
    """An operation of a block. sources, destinations: its ranges, those of other ranks remote.
    channels, semaphores: what it signals or waits for. barrier: the barrier at which two blocks
    meet, or NONE."""

    name: str
    sources: tuple[Range, ...] = ()
    destinations: tuple[Range, ...] = ()
    channels: tuple[Channel, ...] = ()
    semaphores: tuple[int, ...] = ()
    barrier: int = NONE


@dataclass(frozen=True)
class Steps:
    """The steps of a block. begin: the number of steps before its first instruction. ends: by its
    instructions, the number of steps up to each one's end."""

    steps: list[Step]
    begin: int
    ends: list[int]


def emit(
    plan: Plan,
    switching: Switching,
    placing: Placing,
    blocks: ThreadBlocks,
    target: PlanTarget,
) -> Iterator[Steps]:
    """The steps of each thread block in turn, within the target's limits of an operation, but not
    of a block."""
    for block in range(len(blocks.rank)):
        yield _Emitter(plan, switching, placing, blocks, target, block).steps()


class _Stream:
    """The steps of a block so far. It adds the nops at which all threads meet: before a move that
    needs what came before, and before a signal that publishes it."""

    def __init__(self, rank: int, layout: Layout, target: PlanTarget) -> None:
        self.steps: list[Step] = []
        self._target = target
        self._rank, self._layout = rank, layout
        self._read: set[int] = set()
        self._written: set[int] = set()
        self._unmet = False  # whether threads have moved data or waited since they met
        self._waited = False
        self._signals: list[Channel] = []
        # By channel or semaphore, and whether it is a wait: the thread that used it last.
        self._threads: dict[tuple[Channel | int, bool], int] = {}

    def nop(self) -> None:
        """All threads meet, if there is anything that they don't know of one another."""
        if self._unmet:
            self._meet(Step(NOP))
        self._read, self._written = set(), set()

    def _meet(self, step: Step) -> None:
        """A step at which all threads meet."""
        self.steps.append(step)
        self._read, self._written = set(), set()
        self._unmet = self._waited = False
        self._threads = {}

    def _take_threads(self, users: Sequence[Channel | int], *, wait: bool, first: int = 0) -> None:
        """Gives each channel or semaphore its thread, from `first`. If another thread used one
        since all threads met, they meet before: nothing else orders the two."""
        taken = {(user, wait): first + k for k, user in enumerate(users)}
        if any(self._threads.get(user, thread) != thread for user, thread in taken.items()):
            self._meet(Step(NOP))
            taken = {(user, wait): k for k, user in enumerate(users)}
        self._threads.update(taken)

    def move(self, step: Step) -> None:
        """A step that all threads perform."""
        reads = {cell for item in step.sources for cell in self._cells(item)}
        writes = {cell for item in step.destinations for cell in self._cells(item)}
        if self._waited or reads & self._written or writes & (self._read | self._written):
            self.nop()
        if not (self._unmet and self._merge(step)):
            self.steps.append(step)
        self._read |= reads
        self._written |= writes
        self._unmet = True

    def push(self, step: Step) -> None:
        """A put with a signal by a port, which reads what all threads have written."""
        self.flush()
        self.nop()
        first = len(self.steps[-1].channels) if self._merges(step) else 0
        self._take_threads(step.channels, wait=False, first=first)
        if not self._merge(step):
            self.steps.append(step)

    def add_to_sum(self, step: Step) -> bool:
        """Adds the second source of a sum to the sum just before it into the same range, if that is
        the step's first source as well."""
        if not self.steps or self._waited:
            return False
        last, local = self.steps[-1], step.sources[0]
        if (
            last.name != step.name
            or last.name not in _MERGED_SUMS
            or last.destinations != step.destinations
            or step.destinations != (local,)
            or len(last.sources) >= self._target.buffers_per_operation
            or any(cell in self._written for cell in self._cells(step.sources[1]))
        ):
            return False
        self.steps[-1] = replace(last, sources=(*last.sources, step.sources[1]))
        self._read.update(self._cells(step.sources[1]))
        return True

    def signal(self, channel: Channel) -> None:
        """A signal after all moves so far; it may be sent together with the following ones."""
        self._signals.append(channel)

    def move_and_signal(self, step: Step | None, channels: Sequence[Channel]) -> None:
        """A move, if any, and later the signals that publish it."""
        if set(channels) & set(self._signals):
            self.flush()
        if step is not None:
            self.move(step)
        for channel in channels:
            self.signal(channel)

    def flush(self) -> None:
        """Sends the signals."""
        if self._signals:
            signals, self._signals = self._signals, []
            self.nop()
            self._add_by_channel(SIGNAL, signals)

    def wait(self, channels: Sequence[Channel]) -> None:
        """Waits for signals."""
        self.flush()
        self._add_by_channel(WAIT, channels)
        self._unmet = self._waited = True

    def _add_by_channel(self, name: str, channels: Sequence[Channel]) -> None:
        """Adds an operation in which each channel has a thread of its own; several if it has too
        many channels, or both types."""
        limit = self._target.channels_per_operation
        for port in (False, True):
            of_type = [channel for channel in channels if channel.port is port]
            word = _OF_PORTS.get(name, name) if port else name
            for k in range(0, len(of_type), limit):
                self._take_threads(of_type[k : k + limit], wait=word in _WAITS)
                self.steps.append(Step(word, channels=tuple(of_type[k : k + limit])))

    def begin(self, signals: Sequence[Channel], waits: Sequence[Channel]) -> None:
        """Signals that this rank has begun the call, and waits for those of others."""
        self._add_by_channel(RELAXED_SIGNAL, signals)
        self._add_by_channel(RELAXED_WAIT, waits)
        self._unmet = self._waited = bool(waits)

    def end(self, signals: Sequence[Channel], waits: Sequence[Channel]) -> None:
        """Signals that this rank has received all messages of ports, and waits for those of
        others."""
        if signals:
            self.nop()
        self._add_by_channel(SIGNAL, signals)
        self._add_by_channel(WAIT, waits)

    def acquire(self, semaphores: Sequence[int]) -> None:
        """Waits for other blocks of the rank."""
        self.flush()
        self._add_by_semaphore(ACQUIRE, semaphores)
        self._unmet = self._waited = True

    def barrier(self, number: int) -> None:
        """Meets another block of the rank."""
        self.flush()
        self._meet(Step(BARRIER, barrier=number))

    def release(self, semaphores: Sequence[int]) -> None:
        """Lets other blocks of the rank continue."""
        self.flush()
        self.nop()
        self._add_by_semaphore(RELEASE, semaphores)

    def _add_by_semaphore(self, name: str, semaphores: Sequence[int]) -> None:
        """Adds an operation in which each semaphore has a thread of its own, or several."""
        limit = self._target.semaphores_per_operation
        for k in range(0, len(semaphores), limit):
            part = tuple(semaphores[k : k + limit])
            self._take_threads(part, wait=name == ACQUIRE)
            self.steps.append(Step(name, semaphores=part))

    def _cells(self, item: Range) -> Iterator[int]:
        """The cells of a range of this rank; of others none, since only this block uses them."""
        if item.rank == self._rank:
            first = int(self._layout.cell(item.rank, item.buffer, item.index))
            # Packets are never plain data as well.
            first = first if not item.packet else -first - 2 * self._layout.cells
            yield from range(first, first + item.count)

    def _merges(self, step: Step) -> bool:
        """Whether the executor can perform a put and the last one as one."""
        last = self.steps[-1] if self.steps else Step("")
        return (
            step.name in _MERGED_PUTS
            and last.name == step.name
            and len(last.destinations) < self._target.channels_per_operation
            and last.sources[0].buffer == step.sources[0].buffer
            and not set(last.channels) & set(step.channels)
            and (not last.channels or last.channels[0].port == step.channels[0].port)
        )

    def _merge(self, step: Step) -> bool:
        """Makes one put of this one and the last one, if the executor can."""
        if not self._merges(step):
            return False
        last = self.steps[-1]
        self.steps[-1] = Step(
            last.name,
            (*last.sources, *step.sources),
            (*last.destinations, *step.destinations),
            (*last.channels, *step.channels),
        )
        return True


@dataclass
class _Emitter:
    """The steps of one block."""

    plan: Plan
    switching: Switching
    placing: Placing
    blocks: ThreadBlocks
    target: PlanTarget
    block: int
    _waited: set[int] = field(default_factory=set)

    def steps(self) -> Steps:
        """All steps, from the signals at the begin of a call to those at its end."""
        plan, block = self.plan, self.block
        rank = int(self.blocks.rank[block])
        stream = _Stream(rank, plan.layout, self.target)
        channels = self.blocks.channels[block]
        begins = [channel for channel in channels if channel.begins]
        receives = [c for c in begins if c.receives(rank)]
        stream.begin(receives, [c for c in begins if c.sends(rank)])
        if block in self.blocks.after:
            stream.barrier(self.blocks.after[block])
        begin, rows, ends = len(stream.steps), self.blocks.rows[block], list[int]()
        for position, row in enumerate(rows):
            if needed := self.blocks.acquires.get(row):
                stream.acquire(needed)
            if Op(int(plan.instructions.op[row])) not in (Op.SEND, Op.COPY_SEND):
                stream.flush()
            self._emit(stream, rows, position)
            if given := self.blocks.releases.get(row):
                stream.release(given)
            ends.append(len(stream.steps))
        stream.flush()
        if block in self.blocks.before:
            stream.barrier(self.blocks.before[block])
        ports = [channel for channel in channels if channel.port]
        received = [channel for channel in ports if channel.receives(rank)]
        stream.end(received, [channel for channel in ports if channel.sends(rank)])
        return Steps(stream.steps, begin, ends)

    def _wait(self, stream: _Stream, rows: Sequence[int], position: int) -> None:
        """Waits for the message of a row, and at once for those of the following rows, while no
        other block or rank needs anything of this block before them."""
        t, found, row = self.plan.instructions, list[Channel](), rows[position]
        if not RECEIVES[t.op[row]] or row in self._waited:
            return
        for row in rows[position:]:
            if not RECEIVES[t.op[row]]:
                break
            channels = self.blocks.channels_of[row, False]
            later = bool(found)
            if later and (
                set(channels) & set(found)
                or channels[0].port != found[0].port
                or row in self.blocks.acquires
                or len(found) + len(channels) > self.target.channels_per_operation
            ):
                break
            found += channels
            self._waited.add(row)
            if SENDS[t.op[row]] or row in self.blocks.releases:
                break
        stream.wait(found)

    def _operands(self, row: int) -> tuple[Range, Range]:
        """The source and the destination of a row."""
        plan, rank = self.plan, int(self.plan.rank[row])
        t, count = plan.instructions, int(plan.instructions.count[row])
        return (
            range_of(
                plan, rank, Buffer(max(int(t.src_buffer[row]), 0)), int(t.src_index[row]), count
            ),
            range_of(
                plan, rank, Buffer(max(int(t.dst_buffer[row]), 0)), int(t.dst_index[row]), count
            ),
        )

    def _emit(self, stream: _Stream, rows: Sequence[int], position: int) -> None:
        """The steps of the row at a position."""
        row = rows[position]
        op = Op(int(self.plan.instructions.op[row]))
        source, target = self._operands(row)
        if op is Op.COPY:
            stream.move(Step(COPY, (source,), (target,)))
        elif op is Op.REDUCE:
            self._sum(stream, Step(REDUCE, (target, source), (target,)))
        elif op is not Op.NOP and self.plan.protocol is Protocol.LL:
            self._emit_packets(stream, row)
        elif row in self.switching.offers:
            self._offer(stream, source, self.placing.read[row])
            self._wait(stream, rows, position)
            self._reduce_in_switch(stream, row)
        elif op is not Op.NOP:
            self._wait(stream, rows, position)
            self._emit_message(stream, row)

    def _emit_message(self, stream: _Stream, row: int) -> None:
        """A row that sends or receives with protocol Simple, whose message has arrived."""
        op = Op(int(self.plan.instructions.op[row]))
        source, target = self._operands(row)
        arrived = self.placing.arrived.get(row)
        if op in (Op.SEND, Op.COPY_SEND):
            self._send(stream, row, source)
        elif arrived is not None and op in (Op.RECV, Op.RECV_COPY_SEND):
            if not self._is_at(arrived, target) and not self._is_switched_to(row, target):
                stream.move(Step(COPY, (arrived,), (target,)))
            if SENDS[op]:
                self._send(stream, row, arrived)
        elif arrived is not None:
            self._reduce(stream, row, (source, arrived), target)

    def _reduce(
        self, stream: _Stream, row: int, sources: tuple[Range, Range], target: Range
    ) -> None:
        """A received message is added to the local operand, stored if the row stores it, and sent
        on if the row sends it."""
        op = Op(int(self.plan.instructions.op[row]))
        # A result that is only sent takes the place of the message.
        stored = target if WRITES_DESTINATION[op] else sources[1]
        if not SENDS[op]:
            self._sum(stream, Step(REDUCE, sources, (stored,)))
        elif self._is_sent_apart(row):
            self._sum(stream, Step(REDUCE, sources, (stored,)))
            self._send(stream, row, stored)
        else:
            stream.move(Step(REDUCE_SEND, sources, (stored, self.placing.range_of[row])))
            stream.signal(self.blocks.channels_of[row, True][0])

    @staticmethod
    def _sum(stream: _Stream, step: Step) -> None:
        if not stream.add_to_sum(step):
            stream.move(step)

    def _is_sent_apart(self, row: int) -> bool:
        """Whether the data of a row go by another operation than those of a put: by a port, or by a
        switch."""
        switched = row in self.switching.sum_of or row in self.switching.stores
        return switched or self.blocks.channels_of[row, True][0].port

    def _send(self, stream: _Stream, row: int, source: Range) -> None:
        channels = self.blocks.channels_of[row, True]
        if (total := self.switching.sum_of.get(row, NONE)) != NONE:
            self._offer(stream, source, self.placing.read[total], channels)
            return
        channel, target = channels[0], self.placing.range_of[row]
        if target.switch:
            self._multicast(stream, row, Step(GROUP_STORE, (source,), (target,)), source)
            return
        if not channel.port:
            stream.move_and_signal(Step(PUT, (source,), (target,)), channels)
            return
        if staged := self.placing.staged.get(row):
            stream.move(Step(COPY, (source,), (staged,)))
            source = staged
        stream.push(Step(PUT_SIGNAL, (source,), (target,), (channel,)))

    def _is_at(self, one: Range, other: Range) -> bool:
        """Whether two ranges of a rank are the same memory."""
        cells = [int(self.plan.layout.cell(r.rank, r.buffer, r.index)) for r in (one, other)]
        return cells[0] == cells[1]

    def _offer(
        self, stream: _Stream, source: Range, read: Range, channels: Sequence[Channel] = ()
    ) -> None:
        """Puts data of this rank where a switch reads them, and signals that they are there."""
        place = Range(source.rank, read.buffer, read.index, read.count)
        is_there = self._is_at(source, place)
        step = None if is_there else Step(COPY, (source,), (place,))
        stream.move_and_signal(step, channels)

    def _is_switched_to(self, row: int, target: Range) -> bool:
        """Whether the switch that sends the data of a row also stores them in `target`."""
        written = self.placing.range_of.get(row)
        return written is not None and bool(written.switch) and self._is_at(written, target)

    def _multicast(self, stream: _Stream, row: int, step: Step, source: Range) -> None:
        """A step of a switch, which writes the result of a row to all ranks. The row's own copy of
        it, from `source`, is stored before the others hear of it, as in the plan."""
        stream.move(step)
        _, target = self._operands(row)
        stores = self.plan.instructions.op[row] in (Op.COPY_SEND, Op.RECV_REDUCE_COPY_SEND)
        if stores and not self._is_switched_to(row, target) and not self._is_at(source, target):
            stream.move(Step(COPY, (source,), (target,)))
        stream.move_and_signal(None, self.blocks.channels_of[row, True])

    def _reduce_in_switch(self, stream: _Stream, row: int) -> None:
        """A row whose messages a switch adds up, and whose result it writes."""
        read, written = self.placing.read[row], self.placing.range_of[row]
        step = Step(GROUP_REDUCE_STORE, (read,), (written,))
        self._multicast(stream, row, step, replace(written, switch=()))

    def _emit_packets(self, stream: _Stream, row: int) -> None:
        """A row that sends or receives with protocol LL."""
        op = Op(int(self.plan.instructions.op[row]))
        source, target = self._operands(row)
        arrived = self.placing.arrived.get(row)
        sent = (self.placing.range_of[row],) if SENDS[op] else ()
        if op is Op.SEND:
            stream.move(Step(PUT_PACKETS, (source,), sent))
        elif arrived is not None and REDUCES[op]:
            stored = target if WRITES_DESTINATION[op] else self.placing.spare[row]
            name = REDUCE_SEND_PACKETS if sent else REDUCE_PACKETS
            step = Step(name, (source, arrived), (stored, *sent))
            self._sum(stream, step)
        elif arrived is not None:
            if sent:
                stream.move(Step(SEND_PACKETS, (arrived,), sent))
            stream.move(Step(UNPACK, (arrived,), (target,)))
