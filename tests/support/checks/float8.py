"""The 8-bit floating-point types by their definition: the table of all results of a reduction."""

from __future__ import annotations

from typing import Any

import numpy as np

import sley

TYPES = ("float8_e4m3fn", "float8_e5m2")
_FIELDS = {"float8_e4m3fn": (7, 3), "float8_e5m2": (15, 2)}
"""The bias of the exponent, and the bits of the fraction."""


def number(name: str, bits: int) -> float:
    """What the bits mean (OCP 8-bit Floating Point Specification, 1.0, table 1)."""
    bias, width = _FIELDS[name]
    exponent, fraction = (bits & 0x7F) >> width, bits % (1 << width)
    sign = -1.0 if bits & 0x80 else 1.0
    if name == "float8_e4m3fn" and bits & 0x7F == 0x7F:
        return float("nan")
    if name == "float8_e5m2" and exponent == 31:
        return sign * (float("nan") if fraction else float("inf"))
    if exponent == 0:
        return sign * fraction * 2.0 ** (1 - bias - width)
    return sign * (1 + fraction / (1 << width)) * 2.0 ** (exponent - bias)


def nearest(name: str, values: Any) -> Any:
    """The bits of the nearest numbers, of two those that are even. The largest finite number stands
    for all that is larger, 0x7F for NaN."""
    values = np.asarray(values, np.float64)
    numbers = np.array([number(name, bits) for bits in range(128)])
    finite = numbers[np.isfinite(numbers)]
    # Even ones first, of which `argmin` takes the first.
    order = np.argsort(np.arange(len(finite)) % 2, kind="stable")
    least = np.minimum(np.abs(values), finite[-1])
    bits = order[np.abs(least[..., None] - finite[order]).argmin(-1)] | np.signbit(values) << 7
    return np.where(np.isnan(values), 0x7F, bits).astype(np.uint8)


def operands() -> tuple[Any, Any]:
    """All pairs of bits."""
    every = np.arange(256, dtype=np.uint8)
    return np.repeat(every, 256), np.tile(every, 256)


def results(name: str, op: sley.ReduceOp) -> Any:
    """The bits of `operands`, reduced."""
    x, y = operands()
    numbers = np.array([number(name, bits) for bits in range(256)], np.float32)
    a, b = numbers[x], numbers[y]
    both_zero = (a == 0) & (b == 0)
    with np.errstate(invalid="ignore"):
        match op:
            case sley.ReduceOp.SUM:
                return nearest(name, a + b)
            case sley.ReduceOp.AVG:
                return nearest(name, numbers[nearest(name, a + b)] / np.float32(2))
            case sley.ReduceOp.PRODUCT:
                return nearest(name, a * b)
            case sley.ReduceOp.MIN:
                return np.where(both_zero, x | y, nearest(name, np.minimum(a, b)))
            case sley.ReduceOp.MAX:
                return np.where(both_zero, x & y, nearest(name, np.maximum(a, b)))
    bitwise = {"BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor}
    return bitwise[op.name](x, y)
