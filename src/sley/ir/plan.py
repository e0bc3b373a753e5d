"""Plan: thread blocks and their instructions, to be verified, simulated, run or written."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, counted
from sley.errors.compiler import C307
from sley.ir.collective import Collective, Layout
from sley.ir.sources import Sources
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    Edges,
    FloatArray,
    IntArray,
    LongArray,
    Table,
    Value,
    frozen_array,
    spans,
)
from sley.ir.topology import Topology
from sley.ir.words import (
    RECEIVES,
    REDUCES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    LoopOrder,
    Op,
    Protocol,
)


@dataclass(frozen=True, eq=False, repr=False)
class Instructions(Table):
    """One row an instruction; a block's rows are consecutive and in the order of execution.

    The operands are `count` chunks at (src_buffer, src_index) and (dst_buffer, dst_index) of the
    block's own rank; for reducing receives the source is the local operand.

    op: Op.
    src_buffer, dst_buffer: Buffer.
    src_index, dst_index: the first chunk in the buffer.
    count: number of consecutive chunks.
    send_peer, recv_peer: the ranks at the other ends of its connections, or NONE. A number from the
        number of ranks on is a group of the plan: ranks + g is row g of its `groups`.
    channel: the channel of its connections; NONE for local operations.
    transfer: the program's transfer that this receives, sends or executes locally; NONE in imported
        plans.
    forward: the transfer that a fused instruction sends; NONE for others and in imported plans.
    pipeline: its sub-pipeline (ResCCL 4.3), from 0; NONE in plans without sub-pipelines.
    source: row of the plan's `sources`.
    """

    WORDS = MappingProxyType({"op": Op, "src_buffer": Buffer, "dst_buffer": Buffer})

    op: ByteArray
    src_buffer: ByteArray
    src_index: IntArray
    dst_buffer: ByteArray
    dst_index: IntArray
    count: IntArray
    send_peer: IntArray
    recv_peer: IntArray
    channel: IntArray
    transfer: IntArray
    forward: IntArray
    pipeline: IntArray
    source: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Estimate(Value):
    """The allocator's estimate of a plan's times.

    time_us: time from the start of the first transfer to the end of the last.
    unmerged_us: the same with a block for each connection.
    busy_us: float64 (blocks,), how long each block is active.
    tiles: the number of tiles of the estimate.
    """

    time_us: float
    unmerged_us: float
    busy_us: FloatArray
    tiles: int


class BlockPlan(Value):
    """What plans of all kinds share: rows of thread blocks, block after block, rank after rank.

    name, collective, block_rank, block_offset, sources: as in `Plan`.
    """

    name: str
    collective: Collective
    block_rank: IntArray
    block_offset: LongArray
    sources: Sources

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The cell of every chunk."""

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.collective.ranks

    @cached_property
    def rank_block(self) -> LongArray:
        """int64 (ranks + 1,): the first block of each rank."""
        return frozen_array(
            np.searchsorted(self.block_rank, np.arange(self.collective.ranks + 1)), np.int64
        )

    @cached_property
    def block_number(self) -> IntArray:
        """int32 (blocks,): each block's number within its rank."""
        return frozen_array(
            np.arange(len(self.block_rank)) - self.rank_block[self.block_rank], np.int32
        )

    @cached_property
    def block(self) -> IntArray:
        """int32 (rows,): the block of each row."""
        return frozen_array(
            np.repeat(np.arange(len(self.block_rank)), np.diff(self.block_offset)), np.int32
        )

    @cached_property
    def rank(self) -> IntArray:
        """int32 (rows,): the rank of each row."""
        return frozen_array(self.block_rank[self.block], np.int32)

    def within_output(self, rank: IntArray, first: LongArray, count: IntArray) -> BoolArray:
        """Whether ranges of `count` cells from `first` on are parts of their ranks' outputs."""
        output, size = self.layout.base[Buffer.OUTPUT, rank], self.collective.output_chunks[rank]
        return np.asarray((first >= output) & (first + count <= output + size))

    @abstractmethod
    def place(self, row: int) -> Place:
        """A row's source line, with its rank, block and operation."""

    def places(self, rows: Iterable[int]) -> list[Place]:
        """The places of rows; the place of the plan as a whole if there are none."""
        whole = self.sources.whole if self.sources.whole.file else Place(detail=self.name)
        return [self.place(row) for row in rows] or [whole]


@dataclass(frozen=True, eq=False, repr=False)
class Plan(BlockPlan):
    """An executable plan, whose meaning is defined in `docs/machine.md`.

    name: the plan's name.
    collective: the collective that the plan implements.
    protocol: how its connections carry messages.
    loop_order: whether tiles or instructions are the outer loop.
    slots: the least number of messages that a connection must hold, for which the plan was ordered.
    instructions: rows of all blocks, block after block, rank after rank.
    block_rank: int32 (blocks,), the rank of each block, ascending. A block's number within its
        rank, in messages and XML files, is `block_number`.
    block_offset: int64 (blocks + 1,), the first instruction of each block.
    waits: CSR, instruction -> instructions of the same rank that must have finished, for the same
        tile, before it starts.
    scratch_chunks: int32 (ranks,), chunks of scratch on each rank.
    sources: the source lines of the instructions.
    per_chunk: whether a message takes a slot for each of its chunks, as in MSCCL's kernels once a
        chunk fills a tile; otherwise it takes one slot.
    estimate: the allocator's estimate of its times, if there is one.
    topology: the cluster that it was compiled for; None for any.
    groups: CSR, group -> its ranks, ascending, at least one: those that an instruction receives
        from at once, while the switch combines their messages, or sends to at once, while the
        switch copies the message.
    """

    name: str
    collective: Collective
    protocol: Protocol
    loop_order: LoopOrder
    slots: int
    instructions: Instructions
    block_rank: IntArray
    block_offset: LongArray
    waits: Edges
    scratch_chunks: IntArray
    sources: Sources
    per_chunk: bool = False
    estimate: Estimate | None = None
    topology: Topology | None = None
    groups: Edges = field(default_factory=lambda: Edges.empty(0))

    def __repr__(self) -> str:
        return (
            f"Plan({self.name}: {self.collective}, {counted(len(self.block_rank), 'block')}, "
            f"{counted(len(self.instructions), 'instruction')}, "
            f"{counted(self.channels, 'channel')}, "
            f"{self.protocol.value}, {counted(self.slots, 'slot')})"
        )

    @cached_property
    def layout(self) -> Layout:
        """The cell of every chunk."""
        return self.collective.layout(self.scratch_chunks)

    def source_cells(self, rows: NDArray[Any]) -> LongArray:
        """int64 (rows,): the first cell of the source of each of the instructions `rows`."""
        t = self.instructions
        cells: LongArray = self.layout.cell(self.rank[rows], t.src_buffer[rows], t.src_index[rows])
        return cells

    def destination_cells(self, rows: NDArray[Any]) -> LongArray:
        """int64 (rows,): the first cell of the destination of each of the instructions `rows`."""
        t = self.instructions
        cells: LongArray = self.layout.cell(self.rank[rows], t.dst_buffer[rows], t.dst_index[rows])
        return cells

    @property
    def channels(self) -> int:
        """The highest channel plus 1; at least 1."""
        return max(int(self.instructions.channel.max(initial=0)) + 1, 1)

    @property
    def pipelines(self) -> int:
        """The number of sub-pipelines (ResCCL 4.3); 0 in plans without."""
        return int(self.instructions.pipeline.max(initial=NONE)) + 1

    @cached_property
    def reduces(self) -> bool:
        """Whether any instruction combines operands, or messages."""
        t = self.instructions
        combines = REDUCES[t.op] | (RECEIVES[t.op] & (t.recv_peer >= self.collective.ranks))
        return bool(combines.any())

    @cached_property
    def overwrites(self) -> BoolArray:
        """bool (instructions,): whether an instruction may change what its destination holds. A
        copy of chunks onto themselves doesn't, unless a call multiplies what it reduces there."""
        t = self.instructions
        found: BoolArray = WRITES_DESTINATION[t.op]
        if not self.reduces:
            rows = np.flatnonzero((t.op == Op.COPY) | (t.op == Op.COPY_SEND))
            found[rows] = self.source_cells(rows) != self.destination_cells(rows)
        return frozen_array(found, bool)

    @cached_property
    def input_writes(self) -> IntArray:
        """The rows of the instructions that write to the input of their rank, ascending; in place,
        only where it isn't also the output."""
        t = self.instructions
        rows = np.flatnonzero(WRITES_DESTINATION[t.op] & (t.dst_buffer != Buffer.SCRATCH))
        kept = self.within_output(self.rank[rows], self.destination_cells(rows), t.count[rows])
        return frozen_array(rows[~kept], np.int32)

    @cached_property
    def blocks_per_rank(self) -> int:
        """The number of blocks of the rank with the most."""
        return int(np.diff(self.rank_block).max(initial=0))

    @cached_property
    def step(self) -> IntArray:
        """int32 (instructions,): each instruction's position in its block."""
        return frozen_array(
            np.arange(len(self.instructions)) - self.block_offset[self.block], np.int32
        )

    @cached_property
    def sends(self) -> IntArray:
        """The rows of the instructions that send, ascending."""
        return frozen_array(np.flatnonzero(SENDS[self.instructions.op]), np.int32)

    @cached_property
    def receives(self) -> IntArray:
        """The rows of the instructions that receive, ascending."""
        return frozen_array(np.flatnonzero(RECEIVES[self.instructions.op]), np.int32)

    def peers(self, number: int) -> list[int]:
        """The ranks of a peer: that of a rank, those of a group, none for NONE."""
        ranks = self.collective.ranks
        if number >= ranks:
            return [int(rank) for rank in self.groups[number - ranks]]
        return [] if number == NONE else [number]

    def ends(self, rows: NDArray[Any], peer: IntArray) -> tuple[LongArray, IntArray]:
        """(row, rank) for every rank at the other end of each of the instructions `rows`.

        peer: int32 (instructions,), `send_peer` or `recv_peer`.
        """
        ranks, peers = self.collective.ranks, peer[rows]
        group = np.flatnonzero(peers >= ranks)
        if not len(group):
            return np.asarray(rows, np.int64), peers
        start = self.groups.offset[peers[group] - ranks]
        size = np.ones(len(rows), np.int64)
        size[group] = self.groups.offset[peers[group] - ranks + 1] - start
        first = np.zeros(len(rows), np.int64)
        first[group] = start
        owner, at = spans(first, size)
        rank = peers[owner]
        grouped = rank >= ranks
        rank[grouped] = self.groups.target[at[grouped]]
        return np.asarray(rows, np.int64)[owner], rank

    @property
    def grouped(self) -> LongArray:
        """The rows of the instructions that receive from a group or send to one, ascending."""
        t, ranks = self.instructions, self.collective.ranks
        receives = RECEIVES[t.op] & (t.recv_peer >= ranks)
        return np.flatnonzero(receives | (SENDS[t.op] & (t.send_peer >= ranks)))

    def label(self, instruction: int) -> str:
        """An instruction's name for messages: "rank 0 block 1 step 2 (send, ring.py:7)"."""
        place = self.sources.place(int(self.instructions.source[instruction]))
        words = ", ".join(filter(None, (self._operation(instruction), place.short)))
        return f"{self._position(instruction, ' ')} ({words})"

    def _position(self, instruction: int, between: str) -> str:
        block = self.block_number[self.block[instruction]]
        numbers = (self.rank[instruction], block, self.step[instruction])
        words = zip(("rank", "block", "step"), numbers, strict=True)
        return between.join(f"{word} {number}" for word, number in words)

    def _operation(self, instruction: int) -> str:
        number = int(self.instructions.op[instruction])
        return Op(number).name.lower() if 0 <= number < len(Op) else f"operation {number}"

    def place(self, instruction: int) -> Place:
        """An instruction's source line, with its rank, block, step and operation."""
        detail = f"{self._position(instruction, ', ')} ({self._operation(instruction)})"
        return self.sources.place(int(self.instructions.source[instruction]), detail)


def check_kind(plan: object) -> None:
    """Refuses values that are not a Plan, such as a one-sided one. Errors: C307."""
    if not isinstance(plan, Plan):
        one_sided = "A one-sided plan is only verified." if isinstance(plan, BlockPlan) else ""
        raise C307.error(expected="a Plan", found=type(plan).__name__, remedy=one_sided)
