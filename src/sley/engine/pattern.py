"""Test data: inputs that every rank can compute for all ranks, and what a collective makes of them.

An element's value follows from its rank and its position in the rank's input, with a prime period:
so neither filling nor checking costs more than reading the memory. Values are small integers for
which every type and reduction is exact (a float16 or bfloat16 counts to 256 without rounding).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.engine.types import Array, DataType, bfloat16_bits
from sley.ir.words import ReduceOp

PERIOD = 4093  # prime, so that no tile is a multiple of it
_RANK_SHIFT = 1009
_NO_DATA_BYTE = 0xA5
"""What memory without data holds: in no type a value that the check expects."""

_EXACT = {"int8": 127, "uint8": 255}
_EXACT_DEFAULT = 256


def _splitmix(n: int) -> NDArray[np.uint64]:
    """`n` well mixed numbers (Steele et al., splitmix64), the same on every machine."""
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
        if op in (ReduceOp.SUM, ReduceOp.AVERAGE):
            many = (noise % width < exact // 2).astype(np.int64)  # half of what is exact, expected
            values = noise % (exact // width + 1) if width <= exact else many
        elif op is ReduceOp.PRODUCT:
            # Signs and about two factors of 2: powers of two are exact until they overflow, and
            # no order of the operands overflows earlier than another.
            values = np.where(noise % 2, 1, -1) * np.where(noise // 2 % width < 2, 2, 1)
        else:
            values = noise % 101 - (0 if dtype.name == "uint8" else 50)
        array = np.float32 if dtype.is_bfloat16 else dtype.array
        return cls(dtype, op, width, values.astype(array))

    def bits(self, values: Array) -> Array:
        """Values of `table`'s type as the type's bits."""
        return bfloat16_bits(values) if self.dtype.is_bfloat16 else values

    def values(self, rank: Any, position: Any) -> Array:
        """Elements at `position` of the inputs of `rank`; scalars or arrays."""
        index = (np.asarray(position) + np.asarray(rank) * _RANK_SHIFT) % PERIOD
        return np.asarray(self.table[index])

    def fill(self, rank: int, target: Array) -> None:
        """Write rank `rank`'s input into `target`."""
        period = self.bits(self.values(rank, np.arange(PERIOD)))
        whole = len(target) // PERIOD * PERIOD
        target[:whole].reshape(-1, PERIOD)[:] = period
        target[whole:] = period[: len(target) - whole]

    def combined(self, ranks: Array, positions: Array, length: int) -> Array:
        """The reduction of the inputs of `ranks` from `positions` on, as bits: min(length, PERIOD)
        elements, after which it repeats itself."""
        span = np.arange(min(length, PERIOD))
        operands = self.values(ranks[:, None], positions[:, None] + span)
        if self.op is ReduceOp.PRODUCT:
            result = np.multiply.reduce(operands, axis=0, dtype=operands.dtype)
        elif self.op is ReduceOp.MIN:
            result = np.minimum.reduce(operands, axis=0)
        elif self.op is ReduceOp.MAX:
            result = np.maximum.reduce(operands, axis=0)
        else:
            result = np.add.reduce(operands, axis=0, dtype=operands.dtype)
        if self.op is ReduceOp.AVERAGE and len(ranks) > 1:
            result = _quotient(result, len(ranks))
        return self.bits(result)


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
    """Fill `memory` with what no collective makes."""
    memory.view(np.uint8)[:] = _NO_DATA_BYTE


def differing(actual: Array, period: Array) -> int:
    """How many elements of `actual` differ from `period` repeated."""
    if not len(actual):
        return 0
    whole = len(actual) // len(period) * len(period)
    wrong = np.count_nonzero(actual[:whole].reshape(-1, len(period)) != period)
    rest = actual[whole:]
    return int(wrong + np.count_nonzero(rest != period[: len(rest)]))
