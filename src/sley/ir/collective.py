"""Collective: the data of every rank before a call, and the promised data after it.

A collective is a value: sizes of the buffers in chunks, the input chunks with data at the start,
and for each output chunk the input chunks whose reduction it must hold at the end (MSCCLang 3.2).
`ir.collectives` builds the standard ones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import counted
from sley.ir.tables import (
    NONE,
    BoolArray,
    Edges,
    IntArray,
    LongArray,
    Value,
    frozen_array,
    offsets_of,
    spans,
)
from sley.ir.words import Buffer


@dataclass(frozen=True, eq=False, repr=False)
class Collective(Value):
    """Precondition and postcondition of a collective.

    name: its usual name, in lower case (``allreduce``).
    ranks: number of ranks.
    chunks: number of chunks of a block; a call's element count is that of one block, so a chunk has
        count / chunks elements.
    in_place: whether input and output are the same memory.
    root: the root of a rooted collective; NONE for others.
    input_chunks, output_chunks: int32 (ranks,), sizes of the buffers in chunks.
    input_base, output_base: int32 (ranks,), in place, the chunk of the rank's data at which each
        begins; 0 out of place.
    initial: bool (input chunks of all ranks,), whether an input chunk holds data at the start; rows
        in the order rank, index. The row is the input chunk's id.
    expected: int32 (output chunks of all ranks,), the row of `values` that each output chunk must
        hold at the end; NONE for any.
    values: CSR, value -> ids of the input chunks that it is the reduction of; one id is a copy.
    max_count: the most elements of an input block if the counts *vary*: then each input block has
        its own count, from 0 to `max_count`, and an output block has the count of the input block
        that it receives. NONE if every block of a call has the call's count.
    """

    name: str
    ranks: int
    chunks: int
    in_place: bool
    root: int
    input_chunks: IntArray
    output_chunks: IntArray
    input_base: IntArray
    output_base: IntArray
    initial: BoolArray
    expected: IntArray
    values: Edges
    max_count: int = NONE

    def __repr__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        root = f", root {self.root}" if self.root != NONE else ""
        size = f"{counted(self.ranks, 'rank')}, {counted(self.chunks, 'chunk')}"
        varying = ", varying counts" if self.varies else ""
        return f"{self.name}({size}{root}{varying}, {place})"

    @property
    def varies(self) -> bool:
        """Whether each input block has its own count, which comes with the call."""
        return self.max_count != NONE

    @cached_property
    def input_offset(self) -> LongArray:
        """int64 (ranks + 1,): the id of each rank's first input chunk."""
        return offsets_of(self.input_chunks)

    @cached_property
    def output_offset(self) -> LongArray:
        """int64 (ranks + 1,): the row of each rank's first output chunk in `expected`."""
        return offsets_of(self.output_chunks)

    @cached_property
    def divisors(self) -> IntArray:
        """int32 (output chunks of all ranks,): the inputs that each must be the reduction of, by
        which AVG divides; 1 for a chunk that may hold anything."""
        inputs = np.append(np.diff(self.values.offset), 1)  # the last one stands for NONE
        return frozen_array(np.maximum(inputs[self.expected], 1), np.int32)

    @cached_property
    def data_chunks(self) -> IntArray:
        """int32 (ranks,): chunks of input and output together; aliased ones count once."""
        if not self.in_place:
            return frozen_array(self.input_chunks + self.output_chunks, np.int32)
        ends = (self.input_base + self.input_chunks, self.output_base + self.output_chunks)
        return frozen_array(np.maximum(*ends), np.int32)

    @property
    def blocks(self) -> int:
        """Number of blocks of the largest buffer of any rank, at least 1: the size of a call is the
        size of these blocks."""
        most = max(int(self.input_chunks.max()), int(self.output_chunks.max()))
        return max(1, -(-most // self.chunks))

    def layout(self, scratch_chunks: NDArray[Any]) -> Layout:
        """The cell of every chunk, with `scratch_chunks` (ranks,) chunks of scratch."""
        start = offsets_of(self.data_chunks.astype(np.int64) + scratch_chunks)
        base = np.empty((3, self.ranks), np.int64)
        base[Buffer.INPUT] = start[:-1] + (self.input_base if self.in_place else 0)
        base[Buffer.OUTPUT] = start[:-1] + (
            self.output_base if self.in_place else self.input_chunks
        )
        base[Buffer.SCRATCH] = start[:-1] + self.data_chunks
        size = np.stack([self.input_chunks, self.output_chunks, scratch_chunks])
        return Layout(base, size, int(start[-1]))

    def input_cells(self, layout: Layout) -> LongArray:
        """int64 (input chunks of all ranks,): the cell of each input chunk."""
        return _cells(layout, Buffer.INPUT, self.input_offset)

    def output_cells(self, layout: Layout) -> LongArray:
        """int64 (output chunks of all ranks,): the cell of each output chunk."""
        return _cells(layout, Buffer.OUTPUT, self.output_offset)

    def promised_cells(self, layout: Layout) -> BoolArray:
        """bool (cells,): whether the collective promises the data of a cell of `layout`."""
        promised = np.zeros(layout.cells, bool)
        promised[self.output_cells(layout)] = self.expected != NONE
        return promised

    def refine(self, factor: int) -> Collective:
        """The same collective with every chunk cut into `factor` chunks."""
        part = np.arange(factor, dtype=np.int64)
        ids = (self.values.target.astype(np.int64)[:, None] * factor + part).T
        sizes = np.diff(self.values.offset)
        # Value v becomes values v * factor + part, each over the parts of the same inputs.
        owner = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        key = (owner[None, :] * factor + part[:, None]).ravel()
        order = np.argsort(key, kind="stable")
        expected = np.where(
            self.expected[:, None] == NONE,
            NONE,
            self.expected[:, None].astype(np.int64) * factor + part,
        )
        return replace(
            self,
            chunks=self.chunks * factor,
            input_chunks=self.input_chunks * factor,
            output_chunks=self.output_chunks * factor,
            input_base=self.input_base * factor,
            output_base=self.output_base * factor,
            initial=np.repeat(self.initial, factor),
            expected=expected.ravel(),
            values=Edges(offsets_of(np.repeat(sizes, factor)), ids.ravel()[order]),
        )


def _cells(layout: Layout, buffer: Buffer, offset: LongArray) -> LongArray:
    """The cells of a buffer's chunks, rank after rank. offset: (ranks + 1,), as `input_offset`."""
    rank, index = spans(np.zeros(len(offset) - 1, np.int64), np.diff(offset))
    return np.asarray(layout.cell(rank, buffer, index), np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class Layout(Value):
    """The cell of every chunk: one number for each chunk of memory, shared by aliases.

    base: int64 (3, ranks), the cell of chunk 0 of (buffer, rank).
    size: int32 (3, ranks), chunks of (buffer, rank).
    cells: number of cells on all ranks.
    """

    base: LongArray
    size: IntArray
    cells: int

    def cell(self, rank: Any, buffer: Any, index: Any) -> Any:
        """The cell of (rank, buffer, index); scalars or arrays."""
        return self.base[buffer, rank] + index

    def rank(self, cell: int) -> int:
        """The rank of a cell."""
        return int(np.searchsorted(self.base.min(axis=0), cell, side="right")) - 1

    def name(self, cell: int) -> str:
        """A cell's name for messages: "rank 1 out[3]"."""
        rank = self.rank(cell)
        for buffer in (Buffer.SCRATCH, Buffer.OUTPUT, Buffer.INPUT):
            index = cell - int(self.base[buffer, rank])
            if 0 <= index < self.size[buffer, rank]:
                return f"rank {rank} {buffer.chunks(index, 1)}"
        return f"rank {rank} cell {cell}"
