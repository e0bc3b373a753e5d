"""Checking a run: buffers between guard zones, and what must be in them at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.engine.pattern import Pattern, clear, differing
from sley.engine.program import BufferSizes, promised
from sley.engine.types import Array, DataType
from sley.ir.plan import Plan

GUARD_BYTES = 512
"""Bytes of the guard zone on either side of a buffer."""

GUARD_BYTE = 0x5C
"""What each of them holds."""


@dataclass(frozen=True)
class Promise:
    """What a rank needs to fill its input and to check its output.

    chunks: chunks a block has. initial: bool (input chunks,) of the rank. offset, rank, index: CSR,
    output chunk -> the input chunks (rank, index) whose reduction it must hold, none where
    anything will do. width: the most operands that any chunk of the collective has.
    """

    chunks: int
    initial: NDArray[np.bool_]
    offset: NDArray[np.int64]
    rank: NDArray[np.int64]
    index: NDArray[np.int64]
    width: int

    @classmethod
    def of(cls, plan: Plan, rank: int) -> Promise:
        """The promise of the plan's collective to `rank`."""
        c = plan.collective
        offset, ids = promised(plan, rank)
        owner = np.searchsorted(c.input_offset, ids, side="right") - 1
        return cls(
            chunks=c.chunks,
            initial=c.initial[c.input_offset[rank] : c.input_offset[rank + 1]],
            offset=offset,
            rank=owner,
            index=ids - c.input_offset[owner],
            width=int(np.diff(c.values.offset).max(initial=1)),
        )


class GuardedBuffer:
    """Memory of `elements` elements with a guard zone on either side."""

    def __init__(self, elements: int, dtype: DataType) -> None:
        size = elements * dtype.size_bytes
        self._memory = np.empty(size + 2 * GUARD_BYTES, np.uint8)
        self._memory[:GUARD_BYTES] = self._memory[GUARD_BYTES + size :] = GUARD_BYTE
        self.array: Array = self._memory[GUARD_BYTES : GUARD_BYTES + size].view(dtype.array)
        clear(self.array)

    def overwritten(self) -> int:
        """Bytes of the guard zones that somebody changed."""
        end = GUARD_BYTES + self.array.nbytes
        zones = np.concatenate([self._memory[:GUARD_BYTES], self._memory[end:]])
        return int(np.count_nonzero(zones != GUARD_BYTE))


class CheckedBuffers:
    """A rank's buffers for one size, and the check of what a call leaves in them.

    memory: input and output, in place the data and nothing. output: the part that is checked.
    """

    def __init__(
        self,
        rank: int,
        promise: Promise,
        sizes: BufferSizes,
        count: int,
        pattern: Pattern,
        in_place: bool,
    ) -> None:
        self._rank, self._promise, self._count, self._pattern = rank, promise, count, pattern
        dtype = pattern.dtype
        if in_place:
            data, nothing = GuardedBuffer(sizes.data, dtype), GuardedBuffer(0, dtype)
            self.memory = (data, nothing)
            self._input = data.array[sizes.input_start : sizes.input_start + sizes.input]
            self.output = data.array[sizes.output_start : sizes.output_start + sizes.output]
        else:
            self.memory = (GuardedBuffer(sizes.input, dtype), GuardedBuffer(sizes.output, dtype))
            self._input, self.output = (buffer.array for buffer in self.memory)

    def fill(self) -> None:
        """Put the pattern into the input; everything else holds no data."""
        for buffer in self.memory:
            clear(buffer.array)
        self._pattern.fill(self._rank, self._input)
        for chunk in np.flatnonzero(~self._promise.initial):
            clear(self._input[self._start(int(chunk)) : self._end(int(chunk))])

    def wrong(self) -> int:
        """Wrong elements of the output, and elements written outside the buffers."""
        p, wrong = self._promise, 0
        for chunk in range(len(p.offset) - 1):
            operands = slice(int(p.offset[chunk]), int(p.offset[chunk + 1]))
            if operands.start == operands.stop:
                continue
            output = self.output[self._start(chunk) : self._end(chunk)]
            positions = self._start(p.index[operands])
            expected = self._pattern.combined(p.rank[operands], positions, len(output))
            wrong += differing(output, expected)
        item = self._pattern.dtype.size_bytes
        return wrong + sum(-(-buffer.overwritten() // item) for buffer in self.memory)

    def _start(self, chunk: Any) -> Any:
        """The first element of a chunk of a buffer, or of several (machine.md, "Memory")."""
        chunks = self._promise.chunks
        block, within = np.divmod(chunk, chunks)
        size, left_over = divmod(self._count, chunks)
        return block * self._count + within * size + within * left_over // chunks

    def _end(self, chunk: int) -> int:
        return int(self._start(chunk + 1))
