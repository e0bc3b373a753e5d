"""OneSidedPlan: blocks that read and write the memory of other ranks, as MSCCL++ runs them.

docs/machine.md, "The one-sided machine", defines its meaning. `formats` reads such plans from files
and makes them of a `Plan`; `verify` proves both kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sley.errors import Place, counted
from sley.ir.collective import Collective, Layout
from sley.ir.plan import BlockPlan
from sley.ir.sources import Sources
from sley.ir.tables import BoolArray, ByteArray, IntArray, LongArray, Table, frozen_array
from sley.ir.words import Buffer, Protocol


class Action(IntEnum):
    """The action of an operation (docs/machine.md, "The one-sided machine").

    JOIN: all threads of the block meet.
    MOVE: all threads of the block perform the operation's moves, each thread a part.
    POST: one thread adds 1 to a counter.
    WAIT: one thread waits until a counter has what it needs, and takes 1 from it.
    BARRIER: the blocks of a barrier meet, with all their threads.
    PUSH: one thread hands the operation's moves to a port, which performs them later.
    PUSH_POST: one thread hands a POST to a port.
    FLUSH: one thread waits until a port has performed all that it was given.
    """

    JOIN = 0
    MOVE = 1
    POST = 2
    WAIT = 3
    BARRIER = 4
    PUSH = 5
    PUSH_POST = 6
    FLUSH = 7


MEETINGS = (Action.JOIN, Action.BARRIER)
"""The actions at which all threads of a block meet."""

THREAD_ACTIONS = frozenset({Action.POST, Action.WAIT, Action.PUSH, Action.PUSH_POST, Action.FLUSH})
"""The actions of a single thread of a block."""


@dataclass(frozen=True, eq=False, repr=False)
class Operations(Table):
    """One row an operation; a block's rows are consecutive and in the order of execution.

    action: Action.
    thread: the thread that acts, for the actions of one thread; NONE for those of all threads.
    target: the row of `counters` of a POST, WAIT or PUSH_POST, the barrier of a BARRIER; else NONE.
    port: the port of a PUSH, PUSH_POST or FLUSH, else NONE.
    relaxed: whether a POST or WAIT orders execution alone, not memory.
    step: the number of the file's operation in its block, of which this is a part.
    word: row of the plan's `words`, the name of the file's operation.
    source: row of the plan's `sources`.
    """

    WORDS = MappingProxyType({"action": Action})

    action: ByteArray
    thread: IntArray
    target: IntArray
    port: IntArray
    relaxed: BoolArray
    step: IntArray
    word: ByteArray
    source: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Ranges(Table):
    """One row a range of chunks that a move reads or writes. A move reads all its sources, adds
    them up chunk by chunk, and writes the sum to all its destinations.

    operation: the row of the operation, ascending.
    move: the number of the move, ascending; its ranges are consecutive and of one length.
    writes: whether the range is a destination.
    rank, buffer, index: the rank whose memory it is, the Buffer and the first chunk.
    count: the number of chunks.
    packet: whether the range holds packets: data with flags, twice as long. Packet `index` of the
        scratch takes its chunks 2 * index and 2 * index + 1.
    switched: whether a switch reads or writes it, with the other ranges of the move on that side.
    """

    WORDS = MappingProxyType({"buffer": Buffer})

    operation: IntArray
    move: IntArray
    writes: BoolArray
    rank: IntArray
    buffer: ByteArray
    index: IntArray
    count: IntArray
    packet: BoolArray
    switched: BoolArray


@dataclass(frozen=True, eq=False, repr=False)
class Counters(Table):
    """One row a counter: an end of a channel, or a semaphore of a rank.

    rank: the rank whose blocks wait for it.
    peer: the rank whose blocks or ports post to it; the same for a semaphore.
    initial: its value before the first call.
    """

    rank: IntArray
    peer: IntArray
    initial: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class OneSidedPlan(BlockPlan):
    """An executable plan of the one-sided machine (docs/machine.md).

    name: the plan's name.
    collective: the collective that it implements, cut into the plan's chunks.
    protocol: Simple, or LL for plans with packets.
    parts: chunks of the plan for a chunk of the file; more than 1 if blocks share an operation, or
        for the iterations of a pipeline.
    operations: rows of all blocks, block after block, rank after rank.
    ranges: what the operations read and write.
    counters: what blocks wait for.
    block_rank: int32 (blocks,), the rank of each block, ascending.
    block_offset: int64 (blocks + 1,), the first operation of each block.
    ports: int32 (ports,), the rank of each port.
    scratch_chunks: int32 (ranks,), chunks of a copy of the scratch on each rank.
    scratch_copies: the number of copies of the scratch, which consecutive calls use in turn.
    words: the names of operations in the file.
    sources: the source lines of the operations.
    """

    name: str
    collective: Collective
    protocol: Protocol
    parts: int
    operations: Operations
    ranges: Ranges
    counters: Counters
    block_rank: IntArray
    block_offset: LongArray
    ports: IntArray
    scratch_chunks: IntArray
    scratch_copies: int
    words: tuple[str, ...]
    sources: Sources

    def __repr__(self) -> str:
        return (
            f"OneSidedPlan({self.name}: {self.collective}, "
            f"{counted(len(self.block_rank), 'block')}, "
            f"{counted(len(self.operations), 'operation')}, {self.protocol.value})"
        )

    @cached_property
    def layout(self) -> Layout:
        """The cell of every chunk, with all copies of the scratch."""
        return self.collective.layout(self.scratch_chunks * self.scratch_copies)

    @cached_property
    def first_cells(self) -> LongArray:
        """int64 (ranges,): the first cell of each range, in the first copy of the scratch."""
        r = self.ranges
        index = r.index * (1 + r.packet.astype(np.int64))
        return frozen_array(self.layout.cell(r.rank, r.buffer, index), np.int64)

    @cached_property
    def segment(self) -> LongArray:
        """int64 (operations,): how many joins and barriers come before each operation in its
        block."""
        meets = np.isin(self.operations.action, MEETINGS)
        before: LongArray = np.cumsum(meets) - meets
        return frozen_array(before - before[self.block_offset[self.block]], np.int64)

    @cached_property
    def posts(self) -> dict[int, LongArray]:
        """The operations that post to each counter."""
        return self.users((Action.POST, Action.PUSH_POST), self.operations.target)

    @cached_property
    def waits(self) -> dict[int, LongArray]:
        """The operations that wait for each counter."""
        return self.users((Action.WAIT,), self.operations.target)

    def users(self, actions: Sequence[Action], column: IntArray) -> dict[int, LongArray]:
        """The operations with these actions, by their value in a column."""
        rows = np.flatnonzero(np.isin(self.operations.action, actions))
        order = rows[np.argsort(column[rows], kind="stable")]
        values, first = np.unique(column[order], return_index=True)
        groups = np.split(order, first[1:]) if len(order) else []
        return dict(zip(values.tolist(), groups, strict=True))

    def is_sequence(self, rows: LongArray) -> bool:
        """Whether operations of single threads are ordered: of one block, and neighbours of one
        thread or with a join in between."""
        if len(rows) < 2:
            return True
        thread = self.operations.thread[rows]
        ordered = (np.diff(self.segment[rows]) > 0) | (np.diff(thread) == 0)
        return bool((self.block[rows] == self.block[rows[0]]).all() and ordered.all())

    @cached_property
    def neighbours(self) -> IntArray:
        """int32 (pairs, 2): the ranks, the lower one first, between which blocks access memory or
        post by themselves and not through ports: they share a host."""
        t, r = self.operations, self.ranges
        moves = t.action[r.operation] == Action.MOVE
        posts = np.flatnonzero(t.action == Action.POST)
        counters = t.target[posts]
        one = np.append(self.rank[r.operation[moves]], self.counters.rank[counters])
        other = np.append(r.rank[moves], self.counters.peer[counters])
        pairs = np.sort(np.stack([one, other], axis=1)[one != other], axis=1)
        return frozen_array(np.unique(pairs, axis=0), np.int32)

    @cached_property
    def writes_input(self) -> bool:
        """Whether any operation writes to the input of a rank; in place, only where it isn't also
        the output."""
        r = self.ranges
        rows = np.flatnonzero(r.writes & (r.buffer != Buffer.SCRATCH))
        first = self.layout.cell(r.rank[rows], r.buffer[rows], r.index[rows])
        return not bool(self.within_output(r.rank[rows], first, r.count[rows]).all())

    def label(self, operation: int) -> str:
        """An operation's name for messages: "rank 0 block 1 operation 2 (put)"."""
        block, t = int(self.block[operation]), self.operations
        return (
            f"rank {self.block_rank[block]} block {self.block_number[block]} "
            f"operation {t.step[operation]} ({self.words[t.word[operation]]})"
        )

    def place(self, operation: int) -> Place:
        """An operation's source line, with its rank, block and number."""
        source = int(self.operations.source[operation])
        return self.sources.place(source, self.label(operation))
