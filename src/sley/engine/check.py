"""Checks of a run: test data, buffers between guard zones, and their expected contents at the end.

An element's value depends on its rank and its position in the rank's input, with a prime period:
every rank can compute the inputs of all, and filling and checking cost no more than reading the
memory. Values are small integers for which every type and reduction is exact (float16 and bfloat16
represent integers up to 256 without rounding, float8_e4m3fn up to 16, float8_e5m2 up to 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.engine.program import BufferSizes
from sley.engine.types import Array, DataType
from sley.ir.cut import border
from sley.ir.plan import Plan
from sley.ir.tables import NONE, offsets_of, spans
from sley.ir.words import ReduceOp

PERIOD = 4093  # prime, so that no tile is a multiple of it
_RANK_SHIFT = 1009
_NO_DATA_BYTE = 0xA5
"""The byte in memory without data: the check expects its value in no type."""

_EXACT = {"int8": 127, "uint8": 255, "float8_e4m3fn": 16, "float8_e5m2": 8}
_EXACT_DEFAULT = 256


_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_COMBINE: Mapping[ReduceOp, np.ufunc] = {
    ReduceOp.SUM: np.add,
    ReduceOp.PRODUCT: np.multiply,
    ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum,
    ReduceOp.AVG: np.add,
    ReduceOp.BAND: np.bitwise_and,
    ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}


def _splitmix(n: int) -> NDArray[np.uint64]:
    """`n` pseudo-random numbers (Steele et al., splitmix64), the same on every machine."""
    z = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) >> np.uint64(16)


@dataclass(frozen=True)
class Pattern:
    """Values for a type and a reduction of at most `width` operands."""

    dtype: DataType
    op: ReduceOp
    width: int
    table: Array

    @classmethod
    def make(cls, dtype: DataType, op: ReduceOp, width: int) -> Pattern:
        noise = _splitmix(PERIOD).astype(np.int64)
        exact = _EXACT.get(dtype.name, _EXACT_DEFAULT)
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            # A sum of many is far from `exact`, which it may not exceed: it's Poisson distributed.
            many = (noise % (16 * width) < exact).astype(np.int64)
            values = noise % (exact // width + 1) if width <= exact else many
        elif op is ReduceOp.PRODUCT:
            # Signs and about two factors of 2: powers of two are exact until they overflow, and
            # every order of the operands overflows at the same point.
            values = np.where(noise % 2, 1, -1) * np.where(noise // 2 % width < 2, 2, 1)
        elif op in _BITWISE:
            # One sign and exponent: the bits of such floats never combine to a NaN, which would
            # not even equal itself.
            values = noise % 64 + 64
        else:
            values = noise % 101 - (0 if dtype.array.kind == "u" and not dtype.is_bits else 50)
        array = np.float32 if dtype.is_bits else dtype.array
        return cls(dtype, op, width, dtype.values(dtype.bits(values.astype(array))))

    def values(self, rank: Any, position: Any) -> Array:
        """Elements at `position` of the inputs of `rank`; scalars or arrays."""
        index = (np.asarray(position) + np.asarray(rank) * _RANK_SHIFT) % PERIOD
        return np.asarray(self.table[index])

    def fill(self, rank: int, target: Array) -> None:
        """Write rank `rank`'s input into `target`."""
        period = self.dtype.bits(self.values(rank, np.arange(PERIOD)))
        whole = len(target) // PERIOD * PERIOD
        target[:whole].reshape(-1, PERIOD)[:] = period
        target[whole:] = period[: len(target) - whole]

    def combine(self, ranks: Array, positions: Array, length: int) -> Array:
        """The reduction of the inputs of `ranks` from `positions` on, as bits: min(length, PERIOD)
        elements, after which it repeats itself."""
        span = np.arange(min(length, PERIOD))
        operands = self.values(ranks[:, None], positions[:, None] + span)
        combine = _COMBINE[self.op].reduce
        if self.op in _BITWISE:
            bits = self.dtype.bits(operands)
            return np.asarray(combine(bits.view(f"u{bits.itemsize}"), axis=0).view(bits.dtype))
        result = combine(operands, axis=0, dtype=operands.dtype)
        if self.op is ReduceOp.AVG and len(ranks) > 1:
            result = _quotient(result, len(ranks))
        return self.dtype.bits(result)


def _quotient(values: Array, divisor: int) -> Array:
    """values / divisor as the engine divides: integers towards zero, half types as float32."""
    if values.dtype.kind in "iu":
        wide = values.astype(np.int64)
        quotient = np.sign(wide) * (np.abs(wide) // divisor)
    else:
        float_type = np.promote_types(values.dtype, np.float32)
        quotient = np.divide(values, divisor, dtype=float_type)
    return np.asarray(quotient.astype(values.dtype))


def clear(memory: Array) -> None:
    """Fill `memory` with bytes that no collective produces."""
    memory.view(np.uint8)[:] = _NO_DATA_BYTE


def count_different(actual: Array, period: Array) -> int:
    """The number of elements of `actual` that differ from `period` repeated."""
    if not len(actual):
        return 0
    whole = len(actual) // len(period) * len(period)
    wrong = np.count_nonzero(actual[:whole].reshape(-1, len(period)) != period)
    rest = actual[whole:]
    return int(wrong + np.count_nonzero(rest != period[: len(rest)]))


GUARD_BYTES = 512
"""Bytes of the guard zone on either side of a buffer."""

_GUARD_BYTE = 0x5C
"""The value of each of these bytes."""


@dataclass(frozen=True)
class Promise:
    """The data of a collective that a rank needs to fill its input and to check its output.

    chunks: chunks of a block. initial: bool (input chunks,) of the rank. offset, rank, index: CSR,
    output chunk -> the input chunks (rank, index) whose reduction it must hold, none for a chunk
    that may hold anything. width: the most operands of any chunk of the collective.
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
        expected = c.expected[c.output_offset[rank] : c.output_offset[rank + 1]].astype(np.int64)
        known = expected != NONE
        start, width = np.zeros((2, len(expected)), np.int64)
        start[known] = c.values.offset[expected[known]]
        width[known] = np.diff(c.values.offset)[expected[known]]
        ids = c.values.target[spans(start, width)[1]]
        owner = np.searchsorted(c.input_offset, ids, side="right") - 1
        return cls(
            chunks=c.chunks,
            initial=c.initial[c.input_offset[rank] : c.input_offset[rank + 1]],
            offset=offsets_of(width),
            rank=owner,
            index=ids - c.input_offset[owner],
            width=int(np.diff(c.values.offset).max(initial=1)),
        )


class GuardedBuffer:
    """An array of `elements` elements, not initialized, with a guard zone on either side; memory:
    the bytes of all three."""

    def __init__(self, elements: int, dtype: DataType) -> None:
        size = elements * dtype.size_bytes
        self.memory = np.empty(size + 2 * GUARD_BYTES, np.uint8)
        self.memory[:GUARD_BYTES] = self.memory[GUARD_BYTES + size :] = _GUARD_BYTE
        self.array: Array = self.memory[GUARD_BYTES : GUARD_BYTES + size].view(dtype.array)

    def count_overwritten(self) -> int:
        """The number of bytes of the guard zones that changed."""
        end = GUARD_BYTES + self.array.nbytes
        zones = np.concatenate([self.memory[:GUARD_BYTES], self.memory[end:]])
        return int(np.count_nonzero(zones != _GUARD_BYTE))


class CheckedBuffers:
    """A rank's buffers for one size, and the check of their contents after a call.

    memory: input and output; in place: the data and an empty array. output: the checked part.
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
        self.memory = tuple(GuardedBuffer(length, dtype) for length in sizes.lengths(in_place))
        source, target = self.memory[0].array, self.memory[0 if in_place else 1].array
        self._input = source[sizes.input_start : sizes.input_start + sizes.input]
        self.output = target[sizes.output_start : sizes.output_start + sizes.output]

    def fill(self) -> None:
        """Write the pattern into the input; clear everything else."""
        for buffer in self.memory:
            clear(buffer.array)
        self._pattern.fill(self._rank, self._input)
        for chunk in np.flatnonzero(~self._promise.initial):
            clear(self._input[self._start(int(chunk)) : self._end(int(chunk))])

    def count_wrong(self) -> int:
        """The number of wrong elements of the output and of those written outside the buffers."""
        p, wrong = self._promise, 0
        for chunk in range(len(p.offset) - 1):
            operands = slice(int(p.offset[chunk]), int(p.offset[chunk + 1]))
            if operands.start == operands.stop:
                continue
            output = self.output[self._start(chunk) : self._end(chunk)]
            positions = self._start(p.index[operands])
            expected = self._pattern.combine(p.rank[operands], positions, len(output))
            wrong += count_different(output, expected)
        item = self._pattern.dtype.size_bytes
        return wrong + sum(-(-buffer.count_overwritten() // item) for buffer in self.memory)

    def _start(self, chunk: Any) -> Any:
        """The first element of a chunk of a buffer, or of several (machine.md, "Memory")."""
        chunks, item = self._promise.chunks, self._pattern.dtype.size_bytes
        block, within = np.divmod(chunk, chunks)
        return block * self._count + border(within, chunks, self._count, item)

    def _end(self, chunk: int) -> int:
        return int(self._start(chunk + 1))
