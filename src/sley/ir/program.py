"""Program: a collective and the transfers that implement it, in order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from sley.ir.collective import Collective, Layout
from sley.ir.sources import Sources
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    IntArray,
    LongArray,
    Table,
    Value,
    by_key,
    frozen_array,
)
from sley.ir.topology import Topology
from sley.ir.words import Buffer, Protocol, TransferKind


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
    group: the number of the statement, whose transfers a switch makes together: they copy one range
        to several ranks, or reduce ranges of several ranks into one. NONE for others.
    source: row of the program's `sources`.
    """

    WORDS = MappingProxyType({"kind": TransferKind, "src_buffer": Buffer, "dst_buffer": Buffer})

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
    group: IntArray
    source: IntArray

    @property
    def remote(self) -> BoolArray:
        """bool (transfers,): whether source and destination are different ranks."""
        return np.asarray(self.src != self.dst)

    @property
    def lanes(self) -> int:
        """The most parallel parts of a transfer."""
        return int(self.lane.max(initial=0)) + 1

    @cached_property
    def sender(self) -> IntArray:
        """int32 (transfers,): the transfer whose instruction sends each one: the first of a group
        that copies, otherwise itself."""
        rows, group = self._of_groups(TransferKind.COPY)
        first = np.full(int(self.group.max(initial=NONE)) + 1, len(self))
        np.minimum.at(first, group, rows)
        return self._with_leaders(rows, first[group])

    @cached_property
    def receiver(self) -> IntArray:
        """int32 (transfers,): the transfer whose instruction receives each one: the last of a group
        that reduces, whose result is that of all of them; otherwise itself."""
        rows, group = self._of_groups(TransferKind.REDUCE)
        last = np.full(int(self.group.max(initial=NONE)) + 1, NONE)
        np.maximum.at(last, group, rows)
        return self._with_leaders(rows, last[group])

    @cached_property
    def leader(self) -> IntArray:
        """int32 (transfers,): the transfer that stands for the group of each one: its sender or its
        receiver; otherwise itself."""
        own = self.sender == np.arange(len(self))
        return frozen_array(np.where(own, self.receiver, self.sender), np.int32)

    def group_rows(self) -> dict[int, list[int]]:
        """The transfers of each group, ascending, by their leader."""
        rows = np.flatnonzero(self.group != NONE)
        return by_key(zip(self.leader[rows].tolist(), rows.tolist(), strict=True))

    def _of_groups(self, kind: TransferKind) -> tuple[LongArray, IntArray]:
        rows = np.flatnonzero((self.group != NONE) & (self.kind == kind))
        return rows, self.group[rows]

    def _with_leaders(self, rows: LongArray, leaders: LongArray) -> IntArray:
        found = np.arange(len(self), dtype=np.int32)
        found[rows] = leaders
        return frozen_array(found, np.int32)

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

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.collective.ranks

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
