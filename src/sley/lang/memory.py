"""Memory: the write that each cell holds while a program is traced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from sley.ir.collective import Collective
from sley.ir.tables import LongArray
from sley.ir.words import Buffer

UNWRITTEN = -2
"""Version of a cell that was never written."""

INITIAL = -1
"""Version of a cell that still holds the collective's input."""

MAX_SCRATCH_CELLS = 2**28
"""Bound on the scratch chunks of all ranks together: a larger index is a mistake."""

Cells: TypeAlias = slice | LongArray
"""Cells of a reference: a slice for one range, an array (elements, count) for several ranges."""


@dataclass
class Memory:
    """The version of each cell: the last transfer that wrote to it, INITIAL or UNWRITTEN.

    Input and output share one array, so that aliases in place are one cell; scratch has its own,
    with `scratch_capacity` cells for each rank, and grows on use.
    """

    collective: Collective
    data: LongArray
    scratch: LongArray
    scratch_capacity: int
    scratch_used: LongArray

    @classmethod
    def start(cls, collective: Collective) -> Memory:
        """The memory before the first transfer."""
        layout = collective.layout(np.zeros(collective.ranks, np.int32))
        data = np.full(layout.cells, UNWRITTEN, np.int64)
        data[collective.input_cells(layout)[collective.initial]] = INITIAL
        memory = cls(
            collective,
            data,
            np.full(collective.ranks, UNWRITTEN, np.int64),
            1,
            np.zeros(collective.ranks, np.int64),
        )
        memory._base = layout.base
        return memory

    def __post_init__(self) -> None:
        self._base: LongArray = np.zeros((3, 0), np.int64)

    def versions(self, buffer: Buffer) -> LongArray:
        """The array of versions that `cells` of this buffer index."""
        return self.scratch if buffer is Buffer.SCRATCH else self.data

    def cells(self, rank: Any, buffer: Buffer, index: Any, count: int) -> Cells:
        """The cells of `count` chunks at (rank, buffer, index); grows scratch as needed."""
        if buffer is Buffer.SCRATCH:
            self._reserve(rank, index, count)
            start = rank * self.scratch_capacity + index
        else:
            start = self._base[buffer, rank] + index
        if isinstance(start, np.ndarray):
            return start[:, None] + np.arange(count)
        return slice(int(start), int(start) + count)

    def _reserve(self, rank: Any, index: Any, count: int) -> None:
        needed = int(index if isinstance(index, int) else index.max(initial=0)) + count
        if needed > self.scratch_capacity:
            capacity = max(needed, 2 * self.scratch_capacity)
            grown = np.full((self.collective.ranks, capacity), UNWRITTEN, np.int64)
            grown[:, : self.scratch_capacity] = self.scratch.reshape(self.collective.ranks, -1)
            self.scratch, self.scratch_capacity = grown.ravel(), capacity
        np.maximum.at(self.scratch_used, rank, np.asarray(index) + count)
