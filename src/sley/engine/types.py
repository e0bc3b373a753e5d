"""Element types: their names, sizes and NumPy types; bfloat16 is passed as uint16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import did_you_mean
from sley.errors.runtime import R504
from sley.ir.words import ReduceOp

Array = NDArray[Any]


@dataclass(frozen=True)
class DataType:
    """An element type: `name`, `number` (in the engine), `array` (NumPy's type for its bits)."""

    name: str
    number: int
    array: np.dtype[Any]

    @property
    def size_bytes(self) -> int:
        return self.array.itemsize

    @property
    def is_bfloat16(self) -> bool:
        return self.name == "bfloat16"


def _types(*names: str) -> dict[str, DataType]:
    return {
        name: DataType(name, number, np.dtype("uint16" if name == "bfloat16" else name))
        for number, name in enumerate(names)
    }


DATA_TYPES = _types(
    "float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"
)
"""The types that the engine supports, by name, in the order of its numbers."""


BITS = "uint16"
"""The type of arrays that hold the bits of bfloat16, which NumPy lacks."""


@lru_cache  # NumPy builds a name at each access, a tenth of the time of a call on devices
def name_of(dtype: np.dtype[Any]) -> str:
    """The name of NumPy's type in messages, and in DATA_TYPES if the engine supports it."""
    return dtype.name if dtype.isnative else f"{dtype.name} with its bytes swapped"


def data_type(name: str) -> DataType:
    """The type named `name`; R504 if the engine has none."""
    if name not in DATA_TYPES:
        raise R504.error(
            expected=f"one of {', '.join(DATA_TYPES)}",
            found=f"dtype {name!r}",
            remedy=did_you_mean(str(name), DATA_TYPES),
        )
    return DATA_TYPES[name]


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
        remedy=did_you_mean(str(op), names),
    )


def bfloat16_bits(values: Array) -> Array:
    """float32 values as bfloat16 bits (uint16), rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    return np.where(nan, (bits >> 16) | 0x40, rounded).astype(np.uint16)
