"""Program: a collective and the transfers that implement it, in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.ir.collective import Collective, Layout
from sley.ir.sources import Sources
from sley.ir.tables import NONE, BoolArray, ByteArray, IntArray, LongArray, Table, Value
from sley.ir.topology import Topology
from sley.ir.words import Protocol


@dataclass(frozen=True, eq=False, repr=False)
class Transfers(Table):
    """One row a transfer: `count` chunks of (src, src_buffer, src_index ...) are copied to, or
    reduced into, (dst, dst_buffer, dst_index ...). It is a local operation if src and dst are
    equal.

    kind: TransferKind.
    src, dst: the source rank and the destination rank.
    src_buffer, dst_buffer: Buffer.
    src_index, dst_index: the first chunk in the buffer.
    count: number of consecutive chunks.
    channel: the requested channel; NONE leaves it to the compiler.
    instances: number of parallel parts into which the compiler cuts it.
    lane: the number of the parallel part that it is in; the compiler numbers its own parts in it.
    send_block, recv_block: the requested thread block at src and at dst; NONE leaves it to the
        compiler (a local operation uses send_block).
    step: ResCCL's logical step; NONE in a chunk program.
    source: row of the program's `sources`.
    """

    kind: ByteArray
    src: IntArray
    src_buffer: ByteArray
    src_index: IntArray
    dst: IntArray
    dst_buffer: ByteArray
    dst_index: IntArray
    count: IntArray
    channel: IntArray
    instances: IntArray
    lane: IntArray
    send_block: IntArray
    recv_block: IntArray
    step: IntArray
    source: IntArray

    @property
    def remote(self) -> BoolArray:
        """bool (transfers,): whether source and destination are different ranks."""
        return np.asarray(self.src != self.dst)

    @property
    def lanes(self) -> int:
        """The most parallel parts of a transfer."""
        return int(self.lane.max(initial=0)) + 1

    @property
    def by_hand(self) -> BoolArray:
        """bool (transfers,): whether the program requests a thread block for it."""
        return np.asarray((self.send_block != NONE) | (self.recv_block != NONE))


@dataclass(frozen=True, eq=False, repr=False)
class Program(Value):
    """An algorithm: its meaning is the execution of its transfers one after another.

    name: the algorithm's name.
    collective: the collective that it must implement.
    transfers: its transfers, in order.
    scratch_chunks: int32 (ranks,), chunks of scratch on each rank.
    protocol: the requested protocol; None leaves it to the compiler.
    topology: the cluster that it is written for; None for any.
    sources: the source lines of the transfers.
    """

    name: str
    collective: Collective
    transfers: Transfers
    scratch_chunks: IntArray
    protocol: Protocol | None
    sources: Sources
    topology: Topology | None = None

    @cached_property
    def layout(self) -> Layout:
        """The cell of every chunk."""
        return self.collective.layout(self.scratch_chunks)

    @property
    def source_cells(self) -> LongArray:
        """int64 (transfers,): the first cell that each transfer reads."""
        t = self.transfers
        cells: LongArray = self.layout.cell(t.src, t.src_buffer, t.src_index)
        return cells

    @property
    def destination_cells(self) -> LongArray:
        """int64 (transfers,): the first cell that each transfer writes."""
        t = self.transfers
        cells: LongArray = self.layout.cell(t.dst, t.dst_buffer, t.dst_index)
        return cells

    def __repr__(self) -> str:
        return f"Program({self.name}: {self.collective}, {len(self.transfers)} transfers)"
