"""Arguments: validates the tensors of a call of a process group (B902)."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sley.errors.torch import B902
from sley.torch.elements import factor_of, reduced_types
from sley.torch.work import CollectiveError


def as_list(tensors: Tensor | Sequence[Any]) -> Sequence[Any]:
    """`tensors` as a list; one tensor becomes a list of one."""
    return [tensors] if isinstance(tensors, Tensor) else tensors


def single(name: str, tensors: Sequence[Any]) -> Any:
    """The only one of `tensors`: PyTorch's lists are from times of several GPUs per process."""
    if len(tensors) != 1:
        raise unfit(name, "one tensor a rank", f"a list of {len(tensors)}")
    return tensors[0]


def check_parts(name: str, whole: Tensor, numel: int, other: Tensor, ranks: int) -> None:
    """Refuses a `whole` that isn't `ranks` parts of `numel` elements of the kind of `other`."""
    if whole.numel() != ranks * numel or not _same_kind(whole, other):
        raise unfit(
            name,
            f"{ranks} x {numel} elements of {_kind(other)}, for {ranks} ranks",
            f"{whole.numel()} elements of {_kind(whole)}",
        )


def check_lists(name: str, tensors: Sequence[Tensor], part: Tensor, ranks: int) -> None:
    """Refuses a list that doesn't have a tensor like `part` for every rank."""
    check_length(name, tensors, ranks)
    numel = part.numel()
    for index, tensor in enumerate(tensors):
        if tensor.numel() != numel or not _same_kind(tensor, part):
            raise unfit(
                name,
                f"tensors of {numel} elements of {_kind(part)} in the list",
                f"{tensor.numel()} elements of {_kind(tensor)} at index {index}",
            )


def check_length(name: str, tensors: Sequence[Tensor], ranks: int) -> None:
    """Refuses a list without exactly one tensor for every rank."""
    if len(tensors) != ranks:
        raise unfit(name, f"a list of {ranks} tensors, one for each rank", f"one of {len(tensors)}")


def check_kinds(name: str, tensors: Sequence[Tensor], part: Tensor) -> None:
    """Refuses tensors of other types or places than `part`."""
    for index, tensor in enumerate(tensors):
        if not _same_kind(tensor, part):
            found = f"one of {_kind(tensor)} at index {index}"
            raise unfit(name, f"tensors of {_kind(part)}", found)


def check_own(name: str, rank: int, given: Tensor, taken: Tensor) -> None:
    """Refuses a rank's output for itself of another size than its input for itself."""
    if given.numel() != taken.numel():
        expected = f"{given.numel()} elements in rank {rank}'s output for itself, as in its input"
        raise unfit(name, expected, f"{taken.numel()}")


def split_rows(name: str, tensor: Tensor, sizes: Sequence[int], ranks: int) -> list[Tensor]:
    """The parts of `tensor`, with `sizes` rows each; equal parts if `sizes` is empty."""
    rows = len(tensor) if tensor.dim() else 1
    expected = f"{ranks} split sizes from 0 on, with the sum {rows}, the rows of the tensor"
    try:
        whole = [operator.index(size) for size in sizes] or [rows // ranks] * ranks
    except TypeError:
        raise unfit(name, expected, f"{sizes}") from None
    if len(whole) != ranks or sum(whole) != rows or min(whole) < 0:
        raise unfit(name, expected, f"{whole}")
    return list(tensor.split(whole))


def premultiplied(name: str, tensors: Sequence[Tensor], opts: Any) -> list[Tensor] | None:
    """Copies of `tensors`, multiplied by the factor of a PREMUL_SUM, in their own type as NCCL
    does; None for another reduction or none, and on other devices."""
    op = getattr(opts, "reduceOp", None)
    factor = factor_of(op)
    if factor is None or not all(tensor.is_cpu for tensor in tensors):
        return None
    for tensor in tensors:
        if tensor.layout is not torch.strided or str(tensor.dtype) not in reduced_types(op):
            raise unreducible(name, tensor, op)
    number = factor.item() if isinstance(factor, Tensor) else factor
    return [tensor.detach() * torch.tensor(number, dtype=tensor.dtype) for tensor in tensors]


def unreducible(name: str, tensor: Tensor, op: Any) -> CollectiveError:
    """B902 for a tensor on the CPU whose elements nothing moves or, with `op`, reduces."""
    if op is None:
        expected, remedy = "a dense tensor that isn't quantized", "Pass tensor.dequantize()."
        if tensor.layout is not torch.strided:
            remedy = "Pass tensor.to_dense()."
        return unfit(name, expected, _kind(tensor), remedy)
    word = str(getattr(op, "op", op)).rpartition(".")[2]
    remedy = "Convert the tensor. Calls that only move elements take any type."
    return unfit(
        name, f"a tensor of {', '.join(reduced_types(op))} for {word}", _kind(tensor), remedy
    )


def unfit(name: str, expected: str, found: str, remedy: str = "") -> CollectiveError:
    """B902 for the tensors of the collective `name`; `remedy` is by default the rule's own."""
    expected = f"{name}: {expected}"
    return CollectiveError([B902.diagnostic(expected=expected, found=found, remedy=remedy)])


def _same_kind(tensor: Tensor, other: Tensor) -> bool:
    return (
        tensor.dtype == other.dtype
        and tensor.is_cpu == other.is_cpu
        and tensor.layout == other.layout
    )


def _kind(tensor: Tensor) -> str:
    dense = "" if tensor.layout == torch.strided else f", {tensor.layout}"
    return f"{tensor.dtype} on {tensor.device}{dense}"
