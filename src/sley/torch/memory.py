"""Memory: addresses of tensors' elements for the engine, and copies if it needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch._utils import _unflatten_dense_tensors

from sley.communicator.heap import empty as empty_array
from sley.errors.calls import N633
from sley.torch.arguments import unfit
from sley.torch.work import CollectiveError


@dataclass(slots=True)
class Memory:
    """`size_bytes` at `address`: the elements of tensors, one after another.

    owners: the tensors with the memory. unpack: copies received data to the tensors; None if this
    is their own memory.
    """

    address: int
    size_bytes: int
    owners: Sequence[Tensor]
    unpack: Callable[[], None] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Address and bytes, as the endpoint's calls take them."""
        return self.address, self.size_bytes

    def overlaps(self, other: Memory) -> bool:
        """Whether the two overlap."""
        return (
            self.address < other.address + other.size_bytes
            and other.address < self.address + self.size_bytes
        )


NOWHERE = Memory(0, 0, ())
"""No memory, for a rank without input or output."""


_HELD: dict[int, list[torch.UntypedStorage]] = {}
"""The storages that calls use, by the ids of their `Held`."""


class Held:
    """Keeps the memory of tensors as long as it lives, which is until a call has ended. A tensor
    alone would not: `tensor.data = other` gives it other memory. Nor would a storage, which
    PyTorch can be told to resize: that raises N633 meanwhile."""

    __slots__ = ()

    def __init__(self, storages: list[torch.UntypedStorage]) -> None:
        _HELD[id(self)] = storages

    def __del__(self, forget: Callable[..., Any] = _HELD.pop) -> None:  # a name may be gone at exit
        forget(id(self), None)


def hold(memories: Sequence[Memory]) -> Held:
    """Keeps the memory of the tensors of `memories`."""
    return Held([tensor.untyped_storage() for one in memories for tensor in one.owners])


def is_held(storage: torch.UntypedStorage) -> bool:
    """Whether a call uses the storage."""
    own = storage._cdata
    return any(own == one._cdata for held in list(_HELD.values()) for one in held)


def _refusing(resize: Callable[..., Any]) -> Callable[..., Any]:
    """PyTorch's method `resize` of a storage, which refuses those that calls use."""

    @wraps(resize)
    def resize_(storage: torch.UntypedStorage, *args: Any, **kwargs: Any) -> Any:
        if is_held(storage):
            found = N633.diagnostic(
                expected="a storage that no call uses",
                found=f"resize_ of a storage of {storage.nbytes()} bytes, in a call that hasn't "
                "ended",
                remedy="Resize it after `work.wait()`.",
            )
            raise CollectiveError([found])
        return resize(storage, *args, **kwargs)

    return resize_


torch.UntypedStorage.resize_ = _refusing(torch.UntypedStorage.resize_)


def to_read(tensors: Sequence[Tensor]) -> Memory:
    """The elements of `tensors`, to be read: their own memory, or a copy."""
    size_bytes = _in_a_row(tensors)
    if size_bytes is not None:
        return Memory(tensors[0].data_ptr(), size_bytes, tensors)
    return copy_of(tensors)


def to_write(tensors: Sequence[Tensor]) -> Memory:
    """Memory for the elements of `tensors`, to be written."""
    size_bytes = _in_a_row(tensors)
    if size_bytes is not None:
        return Memory(tensors[0].data_ptr(), size_bytes, tensors)
    check_apart(tensors)
    row = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
    return row_of(row, Unpack(row, tensors))


def to_update(tensor: Tensor) -> Memory:
    """The elements of `tensor`, to be read and then written."""
    if _is_plain(tensor):
        return Memory(tensor.data_ptr(), tensor.nbytes, (tensor,))
    check_apart([tensor])
    memory = copy_of([tensor])
    memory.unpack = Unpack(memory.owners[0], [tensor])
    return memory


def check_apart(tensors: Sequence[Tensor]) -> None:
    """Refuses results whose elements share memory, such as expanded tensors (B902)."""
    for tensor in tensors:
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if size > 1 and stride == 0:
                shape, strides = tuple(tensor.shape), tuple(tensor.stride())
                found = f"strides {strides} for shape {shape}"
                remedy = "Pass tensor.contiguous(), or a tensor that isn't expanded."
                raise unfit("a result", "elements with memory of their own", found, remedy)


def copy_of(tensors: Sequence[Tensor]) -> Memory:
    """A copy of the elements of `tensors`."""
    return row_of(flat(tensors))


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """The elements of `tensors`, one after another, as a copy."""
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def row_of(row: Tensor, unpack: Callable[[], None] | None = None) -> Memory:
    """The memory of `row`, which is contiguous. unpack: called when data has been received."""
    return Memory(row.data_ptr(), row.nbytes, (row,), unpack)


def apart_from(output: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """`inputs`, with copies of those that may share memory with `output`."""
    storage = output.untyped_storage().data_ptr()
    return [
        tensor.clone() if tensor.untyped_storage().data_ptr() == storage else tensor
        for tensor in inputs
    ]


def _is_plain(tensor: Tensor) -> bool:
    """Whether the memory of `tensor` contains its elements in order, unchanged and aligned. Views
    may be marked as conjugated or negated; what `torch.frombuffer` makes may begin anywhere."""
    is_aligned = tensor.data_ptr() % min(tensor.element_size(), 8) == 0
    return is_aligned and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def is_in_a_row(tensors: Sequence[Tensor]) -> bool:
    """Whether each of `tensors` comes after the one before in memory; also of one or none."""
    return len(tensors) < 2 or _in_a_row(tensors) is not None


def _in_a_row(tensors: Sequence[Tensor]) -> int | None:
    """The bytes of `tensors` if they are plain and adjacent in memory; else None."""
    if len(tensors) == 1:
        return tensors[0].nbytes if _is_plain(tensors[0]) else None
    start = after = tensors[0].data_ptr()
    for tensor in tensors:
        if not _is_plain(tensor) or tensor.data_ptr() != after:
            return None
        after += tensor.nbytes
    return after - start


@dataclass(frozen=True, slots=True)
class Unpack:
    """Copies the elements of `row` to `tensors`."""

    row: Tensor
    tensors: Sequence[Tensor]

    def __call__(self) -> None:
        _copy(self.tensors, _unflatten_dense_tensors(self.row, self.tensors))


@dataclass(frozen=True, slots=True)
class UnpackColumns:
    """Cuts each line of `lines`, and copies the i-th parts of all to the i-th of `tensors`."""

    lines: Tensor
    tensors: Sequence[Tensor]

    def __call__(self) -> None:
        number = len(self.lines)
        columns = self.lines.split([tensor.numel() // number for tensor in self.tensors], 1)
        tensors = [
            tensor.detach().view(part.shape) if tensor.is_contiguous() else tensor
            for tensor, part in zip(self.tensors, columns, strict=True)
        ]
        pairs = zip(tensors, columns, strict=True)
        _copy(tensors, [part.reshape(tensor.shape) for tensor, part in pairs])


def _copy(tensors: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(tensors, values, strict=True):
            tensor.copy_(value)


def empty(*size: int | Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """A CPU tensor of zeros that the other ranks of this host can read in place, so collectives
    needn't copy it for them first.

    size, dtype: as for `torch.empty`. The memory is freed with the last tensor that views it.
    Errors: R507, R514.
    """
    shape = torch.Size(size[0] if len(size) == 1 and isinstance(size[0], Sequence) else size)
    kind = dtype or torch.get_default_dtype()
    bits = empty_array(shape.numel() * kind.itemsize, "uint8")
    return torch.from_numpy(bits).view(kind).view(shape)
