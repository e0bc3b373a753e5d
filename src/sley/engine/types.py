"""Element types: their names, sizes and NumPy types; types that NumPy lacks are passed as bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import did_you_mean
from sley.errors.runtime import R504
from sley.ir.words import ReduceOp

Array = NDArray[Any]


@dataclass(frozen=True)
class DataType:
    """An element type: `name`, `number` (in the engine), `array` (NumPy's type, or its type for the
    bits of one that it lacks)."""

    name: str
    number: int
    array: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return self.array.itemsize

    @property
    def is_bits(self) -> bool:
        """Whether NumPy lacks the type."""
        return self.name in _BITS

    @property
    def is_float(self) -> bool:
        return self.is_bits or self.array.kind == "f"

    @property
    def moved(self) -> DataType:
        """As which elements are moved where nothing is reduced: their bytes are all that counts."""
        return DATA_TYPES[f"int{8 * self.size_bytes}"]

    def bits(self, values: Array) -> Array:
        """float32 values as this type's bits, rounded to nearest even; values of a type that NumPy
        has are returned as they are."""
        if self.name in _FLOAT8:
            return _float8_bits(self.name, values)
        return _bfloat16_bits(values) if self.is_bits else values

    def values(self, bits: Array) -> Array:
        """This type's bits as float32 values; the reverse of `bits`."""
        if self.name in _FLOAT8:
            numbers = _float8_numbers(self.name)
            return np.asarray(np.where(bits & 0x80, -1, 1) * numbers[bits & 0x7F], np.float32)
        return (bits.astype(np.uint32) << 16).view(np.float32) if self.is_bits else bits


_FLOAT8 = {"float8_e4m3fn": (3, [np.nan]), "float8_e5m2": (2, [np.inf, np.nan, np.nan, np.nan])}
"""The 8-bit floating-point types (OCP 8-bit Floating Point Specification, 1.0), with the bits of
their fractions, and their last positive numbers."""

_BITS = {"bfloat16": "uint16", **dict.fromkeys(_FLOAT8, "uint8")}
"""The types that NumPy lacks, with the type of arrays of their bits."""


def _types(*names: str) -> dict[str, DataType]:
    return {
        name: DataType(name, number, np.dtype(_BITS.get(name, name)))
        for number, name in enumerate(names)
    }


DATA_TYPES = _types(
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint32", "uint64", *_FLOAT8),
)
"""The types that the engine supports, by name, in the order of its numbers."""


@lru_cache  # NumPy builds a name at each access, a tenth of the time of a call on devices
def name_of(dtype: np.dtype[Any]) -> str:
    """The name of NumPy's type in messages, and in DATA_TYPES if the engine supports it."""
    return dtype.name if dtype.isnative else f"{dtype.name} with its bytes swapped"


def data_type(name: str) -> DataType:
    """The type named `name`; R504 if the engine has none."""
    if not isinstance(name, str) or name not in DATA_TYPES:
        raise R504.error(
            expected=f"one of {', '.join(DATA_TYPES)}",
            found=f"dtype {name!r}",
            remedy=did_you_mean(str(name), DATA_TYPES),
        )
    return DATA_TYPES[name]


USUAL_TYPES = ("float32", "float16", "bfloat16")
"""The types for which kernels are made ready, unless the user names others."""


_OF_OTHERS = {"mean": "avg", "average": "avg", "add": "sum", "mul": "product"}
"""Reductions under the names of other libraries."""


def reduction(op: ReduceOp | str | int) -> ReduceOp:
    """The ReduceOp that `op` is, or names in upper or lower case; R504 if there is none."""
    if isinstance(op, ReduceOp):
        return op
    try:
        return ReduceOp[op.upper()] if isinstance(op, str) else ReduceOp(op)
    except (KeyError, ValueError):
        names = [o.name.lower() for o in ReduceOp]
    raise R504.error(
        expected=f"one of {', '.join(names)}, or a member of sley.ReduceOp",
        found=repr(op),
        remedy=did_you_mean(_OF_OTHERS.get(str(op).lower(), str(op)), names),
    )


def _bfloat16_bits(values: Array) -> Array:
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)


@cache
def _float8_numbers(name: str) -> Array:
    """The 128 numbers of an 8-bit type without a sign, by their bits."""
    fraction, last = _FLOAT8[name]
    exponent, digits = np.divmod(np.arange(128), 1 << fraction)
    bias = (1 << (6 - fraction)) - 1
    digits += np.where(exponent > 0, 1 << fraction, 0)
    numbers: Array = np.ldexp(digits.astype(np.float32), np.maximum(exponent, 1) - bias - fraction)
    numbers[-len(last) :] = last
    return numbers


def _float8_bits(name: str, values: Array) -> Array:
    """As `primitives/float8.hpp` converts: what is too large becomes the largest finite number, NaN
    0x7F."""
    values = np.asarray(values, np.float32)
    finite = _float8_numbers(name)[: -len(_FLOAT8[name][1])]
    middle = (finite[1:] + finite[:-1]) / 2
    below, above = (np.searchsorted(middle, np.abs(values), side) for side in ("left", "right"))
    nearest = np.where(below % 2, above, below)  # they differ in the middle of two
    bits = np.where(np.signbit(values), nearest | 0x80, nearest)
    return np.where(np.isnan(values), 0x7F, bits).astype(np.uint8)
