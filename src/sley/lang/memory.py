"""Memory: the write that each cell holds while a program is traced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from sley.ir.collective import Collective
from sley.ir.tables import LongArray
from sley.ir.words import Buffer

UNWRITTEN = -2
"""Version of a cell that was never written."""

INITIAL = -1
"""Version of a cell that still holds the collective's input."""

MAX_SCRATCH_CELLS = 2**26
"""Bound on the chunks of all scratch buffers of all ranks together, where each rank counts as the
one with the largest buffer: more are a mistake, and would take more than a GB while tracing."""

Cells: TypeAlias = slice | LongArray
"""Cells of a reference: a slice for one range, an array (elements, count) for several ranges."""


@dataclass
class ScratchCells:
    """A scratch buffer of all ranks: `capacity` cells for each, which grow on use.

    versions: int64 (ranks * capacity,), the version of each cell. used: int64 (ranks,), the chunks
    that are in use. length: the largest number of these.
    """

    versions: LongArray
    capacity: int
    used: LongArray
    length: int = 0

    @classmethod
    def start(cls, ranks: int) -> ScratchCells:
        """A buffer in which nothing is used."""
        return cls(np.full(ranks, UNWRITTEN, np.int64), 1, np.zeros(ranks, np.int64))

    def reserve(self, rank: Any, index: Any, count: int) -> None:
        """Makes room for `count` chunks at (rank, index ...)."""
        needed = int(index if isinstance(index, int) else index.max(initial=0)) + count
        if needed > self.capacity:
            ranks, capacity = len(self.used), max(needed, 2 * self.capacity)
            grown = np.full((ranks, capacity), UNWRITTEN, np.int64)
            grown[:, : self.capacity] = self.versions.reshape(ranks, -1)
            self.versions, self.capacity = grown.ravel(), capacity
        np.maximum.at(self.used, rank, np.asarray(index) + count)
        self.length = max(self.length, needed)


@dataclass
class CellVersions:
    """The version of each cell: the last transfer that wrote to it, INITIAL or UNWRITTEN.

    Input and output share one array, so that aliases in place are one cell. Every other number of a
    buffer, from `Buffer.SCRATCH`, is a scratch buffer of its own.

    base: int64 (3, ranks), the cell of chunk 0 of (buffer, rank), see `Layout`. scratch_length: the
    lengths of all scratch buffers together.
    """

    ranks: int
    base: LongArray
    data: LongArray
    scratch: dict[int, ScratchCells] = field(default_factory=dict)
    scratch_length: int = 0

    @classmethod
    def start(cls, collective: Collective) -> CellVersions:
        """The memory before the first transfer."""
        layout = collective.layout(np.zeros(collective.ranks, np.int32))
        data = np.full(layout.cells, UNWRITTEN, np.int64)
        data[collective.input_cells(layout)[collective.initial]] = INITIAL
        return cls(collective.ranks, layout.base, data)

    def versions(self, buffer: int) -> LongArray:
        """The array of versions that `cells` of this buffer index."""
        return self.data if buffer < Buffer.SCRATCH else self._scratch(buffer).versions

    def cells(self, rank: Any, buffer: int, index: Any, count: int) -> Cells:
        """The cells of `count` chunks at (rank, buffer, index); grows scratch as needed."""
        if buffer < Buffer.SCRATCH:
            start = self.base[buffer, rank] + index
        else:
            scratch = self._scratch(buffer)
            before = scratch.length
            scratch.reserve(rank, index, count)
            self.scratch_length += scratch.length - before
            start = rank * scratch.capacity + index
        if isinstance(start, np.ndarray):
            return start[:, None] + np.arange(count)
        return slice(int(start), int(start) + count)

    def room(self, buffer: int) -> int:
        """The most chunks that a scratch buffer may have on a rank beside the others."""
        others = self.scratch_length - self._scratch(buffer).length
        return MAX_SCRATCH_CELLS // self.ranks - others

    def _scratch(self, buffer: int) -> ScratchCells:
        if buffer not in self.scratch:
            self.scratch[buffer] = ScratchCells.start(self.ranks)
        return self.scratch[buffer]

    def scratch_starts(self) -> LongArray:
        """int64 (buffers + 1, ranks): where each scratch buffer begins in a rank's scratch, one
        after another in the order of their numbers; at last the chunks of all together. 0 for input
        and output."""
        starts = np.zeros((max(self.scratch, default=Buffer.OUTPUT) + 2, self.ranks), np.int64)
        for buffer, scratch in self.scratch.items():
            starts[buffer + 1] = scratch.used
        return np.cumsum(starts, axis=0)
