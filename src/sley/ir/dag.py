"""DAG: the values between a program and a plan: chunk DAG, instruction DAG, order and blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sley.ir.plan import Estimate
from sley.ir.program import Program, Transfers
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    IntArray,
    LongArray,
    Table,
    Value,
    frozen_array,
    numbering,
)


@dataclass(frozen=True, eq=False, repr=False)
class Operands(Table):
    """One row a transfer: the first chunk of the operand at its destination's rank, with which a
    reduction combines the data that come. It is the destination, or where that was copied from.

    buffer: Buffer.
    index: the first chunk in the buffer.
    """

    buffer: ByteArray
    index: IntArray

    @classmethod
    def at_destinations(cls, program: Program) -> Operands:
        """Every transfer's destination."""
        return cls(program.transfers.dst_buffer, program.transfers.dst_index)

    def cells(self, program: Program) -> LongArray:
        """int64 (transfers,): the first cell of each operand."""
        cells: LongArray = program.layout.cell(program.transfers.dst, self.buffer, self.index)
        return cells


@dataclass(frozen=True, eq=False, repr=False)
class Forwarded(Value):
    """A program whose reads of copies are reads of the chunks that were copied.

    program: the program; the copies that this made needless are left out, others may be cut.
    operands: where its reductions read their operands.
    """

    program: Program
    operands: Operands


@dataclass(frozen=True, eq=False, repr=False)
class Dependencies(Table):
    """One row a dependency between two transfers that access the same memory (MSCCLang 4.1).

    before, after: the two transfers.
    before_at_dst, after_at_dst: 1 for an access at the transfer's destination (a write, or a read
        of its operand), 0 for one at its source (a read).
    true: 1 for a dependency by value (the later transfer reads what the earlier one wrote), 0 for
        one by reuse of the memory.
    """

    before: IntArray
    before_at_dst: ByteArray
    after: IntArray
    after_at_dst: ByteArray
    true: ByteArray


@dataclass(frozen=True, eq=False, repr=False)
class ChunkDag(Value):
    """A program with its dependencies on memory, and the properties of its values for fusion.

    program: the program.
    operands: where its reductions read their operands.
    dependencies: the order of accesses to memory. Accesses of a group at the end that its transfers
        share are those of its sender or receiver.
    origin: int32 (transfers,), the transfer that wrote exactly the range that this one reads, if
        nothing wrote to any part of it since; else NONE.
    version: int64 (transfers,), of what each transfer reads at its source: two that read the same
        range have the same number if nothing wrote to any part of it in between.
    readers: int32 (transfers,), how many accesses read any part of what this one wrote.
    kept: bool (transfers,), whether any part of what this one wrote remains at the end and is part
        of the result.
    """

    program: Program
    operands: Operands
    dependencies: Dependencies
    origin: IntArray
    version: LongArray
    readers: IntArray
    kept: BoolArray

    def half_pairs(self) -> tuple[IntArray, IntArray]:
        """(before, after), the halves of each dependency: 2t is transfer t at its source, 2t + 1 at
        its destination."""
        d = self.dependencies
        return 2 * d.before + d.before_at_dst, 2 * d.after + d.after_at_dst


@dataclass(frozen=True, eq=False, repr=False)
class InstructionDag(Value):
    """A lowered chunk DAG (MSCCLang 4.2, 4.3): which transfers share an instruction, and the
    channel of each.

    A local transfer is one instruction. A remote one is a send at its source and a receive at its
    destination; `forward` fuses receives with sends, `copied` copies within a rank. Transfers of a
    group are one instruction at the end that they share (`Transfers.sender`, `receiver`).

    chunks: the chunk DAG.
    forward: int32 (transfers,), the transfer whose send is one instruction with this one's receive,
        or NONE.
    channel: int32 (transfers,), the channel of each transfer; NONE for local transfers.
    copied: int32 (transfers,), the copy within a rank that is one instruction with this transfer's
        send, of the same chunks; or NONE.
    """

    chunks: ChunkDag
    forward: IntArray
    channel: IntArray
    copied: IntArray

    @property
    def remote(self) -> BoolArray:
        """bool (transfers,): whether source and destination are different ranks."""
        return self.chunks.program.transfers.remote

    @cached_property
    def sent(self) -> BoolArray:
        """bool (transfers,): whether it is a copy that is one instruction with a send."""
        sent = np.zeros(len(self.copied), bool)
        sent[self.copied[self.copied != NONE]] = True
        return frozen_array(sent, np.bool_)

    @property
    def dependencies(self) -> tuple[IntArray, IntArray]:
        """(before, after), the transfers of each dependency on memory; a copy that is one
        instruction with a send counts as that send."""
        stands_for = np.arange(len(self.copied), dtype=np.int32)
        sends = np.flatnonzero(self.copied != NONE)
        stands_for[self.copied[sends]] = sends
        d = self.chunks.dependencies
        return stands_for[d.before], stands_for[d.after]

    def as_ordered(self, order: Order) -> InstructionDag:
        """The same without those of `copied` that the order undid."""
        copied = np.full(len(self.copied), NONE, np.int32)
        rows = np.flatnonzero(order.fused & ~self.remote[order.receive])
        copied[order.send[rows]] = order.receive[rows]
        return replace(self, copied=copied)

    def receives(self, order: Order) -> LongArray:
        """The rows of an order that receive from another rank."""
        return np.flatnonzero((order.receive != NONE) & self.remote[order.receive])

    @cached_property
    def connection(self) -> IntArray:
        """int32 (transfers,): the number of each transfer's (src, dst, channel), ascending from 0;
        NONE for local transfers."""
        t, remote = self.chunks.program.transfers, self.remote
        ranks, channels = self.chunks.program.collective.ranks, int(self.channel.max(initial=0)) + 1
        pair = t.src[remote].astype(np.int64) * ranks + t.dst[remote]
        number = np.full(len(t), NONE, np.int32)
        limit = ranks * ranks * channels
        number[remote] = numbering(pair * channels + self.channel[remote], limit)[1]
        return frozen_array(number, np.int32)


@dataclass(frozen=True, eq=False, repr=False)
class Order(Table):
    """One row an instruction, in one global order in which the plan runs to its end within the
    slots of its connections.

    receive: the transfer that it receives or executes locally; NONE for a plain send.
    send: the transfer that it sends, or NONE.
    pipeline: the sub-pipeline (ResCCL 4.3); NONE in schedules without.
    """

    receive: IntArray
    send: IntArray
    pipeline: IntArray

    @property
    def whole(self) -> bool:
        """Whether it is an order of whole transfers, each receive right after its send."""
        return bool((self.pipeline != NONE).all())

    def pick(self, rows: LongArray) -> Order:
        """These rows."""
        return Order(self.receive[rows], self.send[rows], self.pipeline[rows])

    def row_of_half(self, t: Transfers) -> IntArray:
        """int32 (2 * transfers,): the row that executes transfer t at its source (2t) and at its
        destination (2t + 1), the same for a local one and for those of a group at the end that they
        share; NONE if no row does."""
        row = np.full(2 * len(t), NONE, np.int32)
        sends, receives = np.flatnonzero(self.send != NONE), np.flatnonzero(self.receive != NONE)
        row[2 * self.receive[receives]] = receives
        row[2 * self.receive[receives] + 1] = receives
        row[2 * self.send[sends]] = sends  # a remote one is sent by another row
        if (t.group != NONE).any():
            row[0::2], row[1::2] = row[2 * t.sender], row[2 * t.receiver + 1]
        return row

    @property
    def fused(self) -> BoolArray:
        """bool (rows,): whether an instruction both receives and sends."""
        return np.asarray((self.receive != NONE) & (self.send != NONE))


@dataclass(frozen=True, eq=False, repr=False)
class Blocks(Value):
    """The thread block of each row of an order.

    rank: int32 (blocks,), the rank of each block, ascending.
    instruction_block: int32 (rows,), the block of each row.
    """

    rank: IntArray
    instruction_block: IntArray


@dataclass(frozen=True)
class Links:
    """The links that transfers use (ResCCL 3, communication dependency).

    Inside a node, or where NVLink joins nodes, a transfer uses the connection between its ranks;
    else the network cards of both, one as sender and one as receiver. Parallel parts don't share
    links, because only several parts together fill one.

    first, second: int32 (transfers,), the links of each transfer, or NONE.
    number: the number of links.
    crosses: bool (transfers,), whether a transfer passes network cards.
    """

    first: IntArray
    second: IntArray
    number: int
    crosses: BoolArray


@dataclass(frozen=True)
class Allocated:
    """Thread blocks as allocated.

    order: how the blocks list their instructions.
    blocks: the blocks.
    estimate: of their times.
    """

    order: Order
    blocks: Blocks
    estimate: Estimate
