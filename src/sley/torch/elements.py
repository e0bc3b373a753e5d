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

from sley.communicator.calls import element_number
from sley.engine.types import DATA_TYPES, DataType
from sley.ir.words import ReduceOp


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a tensor, as the engine sees it: `parts` elements of `dtype`.

    number: of the tensor's own type, by `element_number`.
    """

    dtype: DataType
    number: int
    parts: int = 1


def _as(dtype: torch.dtype, engine: str, parts: int = 1) -> Element:
    """PyTorch's type as `parts` elements of one of the engine's."""
    return Element(DATA_TYPES[engine], element_number(str(dtype).removeprefix("torch.")), parts)


_SAME = {getattr(torch, name): _as(getattr(torch, name), name) for name in DATA_TYPES}
_PAIRS = {
    torch.complex32: _as(torch.complex32, "float16", 2),
    torch.complex64: _as(torch.complex64, "float32", 2),
    torch.complex128: _as(torch.complex128, "float64", 2),
}
_UNSIGNED = {torch.uint16: _as(torch.uint16, "int16")}
_BY_SIZE = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
_BOOL = _as(torch.bool, "uint8")
_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}


def every_type() -> set[torch.dtype]:
    """All of PyTorch's element types."""
    return {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


_MOVED: dict[torch.dtype, Element] = {
    dtype: _as(dtype, _BY_SIZE[dtype.itemsize])
    for dtype in every_type() - _QUANTIZED
    if dtype.itemsize in _BY_SIZE
} | {**_SAME, **_PAIRS}
"""Quantized types are missing: their tensors also contain scales."""

REDUCTIONS = {dist.ReduceOp(getattr(dist.ReduceOp, op.name)): op for op in ReduceOp}
"""The engine's reductions by PyTorch's, which have the same names."""

_BITWISE = (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR)
_OF_PAIRS = (ReduceOp.SUM, ReduceOp.AVG)
_OF_UNSIGNED = (ReduceOp.SUM, ReduceOp.PRODUCT, *_BITWISE)
"""The same bits come out as of signed integers."""
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


_FACTORS = torch.float16, torch.bfloat16, torch.float32, torch.float64
"""The types of PREMUL_SUM, as in PyTorch's NCCL group."""


def factor_of(op: Any) -> Any:
    """The factor of a PREMUL_SUM, a number or a tensor of one; None for other reductions."""
    return op.__getstate__()[1] if op == dist.ReduceOp.PREMUL_SUM else None


def reduced_types(op: Any) -> list[str]:
    """The names of PyTorch's types whose elements `op` reduces."""
    if factor_of(op) is not None:
        return [str(dtype) for dtype in _FACTORS]
    types = (*_SAME, torch.bool, *_UNSIGNED, *_PAIRS)
    return [str(t) for t in types if reduction_of(torch.empty(0, dtype=t), op) is not None]


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
        return _BOOL, _OF_BOOLS[reduction]
    if reduction is None or (reduction in _BITWISE and dtype.is_floating_point):
        return None
    element = _SAME.get(dtype)
    if element is None and reduction in _OF_PAIRS:
        element = _PAIRS.get(dtype)
    if element is None and reduction in _OF_UNSIGNED:
        element = _UNSIGNED.get(dtype)
    return None if element is None else (element, reduction)
