"""Elements: PyTorch's element types and reductions as the engine's.

The engine reduces the types of `DATA_TYPES`. Elements that are only moved have any type of the
same size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sley.engine.types import DATA_TYPES, DataType
from sley.ir.words import ReduceOp


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tensor, as the engine sees it: `parts` elements of `dtype`."""

    dtype: DataType
    parts: int = 1


_SAME: dict[torch.dtype, Element] = {
    getattr(torch, name): Element(dtype) for name, dtype in DATA_TYPES.items()
}
_PAIRS: dict[torch.dtype, Element] = {
    torch.complex32: Element(DATA_TYPES["float16"], 2),
    torch.complex64: Element(DATA_TYPES["float32"], 2),
    torch.complex128: Element(DATA_TYPES["float64"], 2),
}
_BY_SIZE = {
    1: Element(DATA_TYPES["uint8"]),
    2: Element(DATA_TYPES["int16"]),
    4: Element(DATA_TYPES["int32"]),
    8: Element(DATA_TYPES["int64"]),
    16: Element(DATA_TYPES["int64"], 2),
}
_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}


def _every_type() -> set[torch.dtype]:
    return {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


_MOVED: dict[torch.dtype, Element] = {
    dtype: _SAME.get(dtype, _BY_SIZE[dtype.itemsize])
    for dtype in _every_type() - _QUANTIZED
    if dtype.itemsize in _BY_SIZE
}
"""Quantized types are missing: their tensors also contain scales."""

REDUCTIONS = {
    dist.ReduceOp(dist.ReduceOp.SUM): ReduceOp.SUM,
    dist.ReduceOp(dist.ReduceOp.PRODUCT): ReduceOp.PRODUCT,
    dist.ReduceOp(dist.ReduceOp.MIN): ReduceOp.MIN,
    dist.ReduceOp(dist.ReduceOp.MAX): ReduceOp.MAX,
    dist.ReduceOp(dist.ReduceOp.AVG): ReduceOp.AVG,
    dist.ReduceOp(dist.ReduceOp.BAND): ReduceOp.BAND,
    dist.ReduceOp(dist.ReduceOp.BOR): ReduceOp.BOR,
    dist.ReduceOp(dist.ReduceOp.BXOR): ReduceOp.BXOR,
}
_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_OF_PAIRS = (ReduceOp.SUM, ReduceOp.AVG)
_OF_BOOLS = {
    ReduceOp.SUM: ReduceOp.MAX,
    ReduceOp.PRODUCT: ReduceOp.MIN,
    ReduceOp.MIN: ReduceOp.MIN,
    ReduceOp.MAX: ReduceOp.MAX,
    ReduceOp.BAND: ReduceOp.MIN,
    ReduceOp.BOR: ReduceOp.MAX,
    ReduceOp.BXOR: ReduceOp.BXOR,
}
"""The reductions of bools, on their bytes, so that the result is 0 or 1: a sum is "or", a product
"and"."""


def has_memory(tensor: Tensor) -> bool:
    """Whether `tensor` has memory of its own. Tensors that wrap others have none, such as the
    result of a functional collective that nobody has waited for, nor have freed ones."""
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False


def element_of(tensor: Tensor) -> Element | None:
    """How the elements of `tensor` are moved; None for other devices, layouts, quantized types, and
    tensors without memory."""
    if not tensor.is_cpu or tensor.layout is not torch.strided or not has_memory(tensor):
        return None
    return _MOVED.get(tensor.dtype)


def reduction_of(tensor: Tensor, op: Any) -> tuple[Element, ReduceOp] | None:
    """How the elements of `tensor` are reduced with torch.distributed's `op`; None if the engine
    can't reduce them.

    A complex number is reduced as two real ones, which is right for sums and averages only. The
    bitwise reductions are for integers and bools, as everywhere in PyTorch.
    """
    if not tensor.is_cpu or tensor.layout is not torch.strided or not has_memory(tensor):
        return None
    reduction, dtype = REDUCTIONS.get(op), tensor.dtype
    if dtype is torch.bool and reduction in _OF_BOOLS:
        return _BY_SIZE[1], _OF_BOOLS[reduction]
    if reduction is None or (reduction in _BITWISE and dtype.is_floating_point):
        return None
    element = _SAME.get(dtype)
    if element is None and reduction in _OF_PAIRS:
        element = _PAIRS.get(dtype)
    return None if element is None else (element, reduction)
