"""Memory: addresses of tensors' elements for the engine, and copies if it needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sley.communicator.heap import empty as empty_array
from sley.torch.arguments import unfit


@dataclass(slots=True)
class Memory:
    """`size_bytes` at `address`: the elements of tensors, one after another.

    owner: keeps the memory alive. unpack: copies received data to the tensors; None if this is
    their own memory.
    """

    address: int
    size_bytes: int
    owner: object
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


NOWHERE = Memory(0, 0, None)
"""No memory, for a rank without input or output."""


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
    _check_apart(tensors)
    row = tensors[0].new_empty(sum(tensor.numel() for tensor in tensors))
    return Memory(row.data_ptr(), row.nbytes, row, _Unpack(row, tensors))


def to_update(tensor: Tensor) -> Memory:
    """The elements of `tensor`, to be read and then written."""
    if _is_plain(tensor):
        return Memory(tensor.data_ptr(), tensor.nbytes, tensor)
    _check_apart([tensor])
    memory = copy_of([tensor])
    memory.unpack = _Unpack(memory.owner, [tensor])
    return memory


def _check_apart(tensors: Sequence[Tensor]) -> None:
    """Refuses results whose elements share memory, such as expanded tensors (B902)."""
    for tensor in tensors:
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            if size > 1 and stride == 0:
                shape, strides = tuple(tensor.shape), tuple(tensor.stride())
                found = f"strides {strides} for shape {shape}"
                raise unfit("a result", "elements with memory of their own", found)


def copy_of(tensors: Sequence[Tensor]) -> Memory:
    """A copy of the elements of `tensors`."""
    row = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    return Memory(row.data_ptr(), row.nbytes, row)


def span(memories: Sequence[Memory]) -> Memory:
    """The memory from the start of the first of `memories` to the end of the last."""
    start = min(memory.address for memory in memories)
    end = max(memory.address + memory.size_bytes for memory in memories)
    return Memory(start, end - start, memories)


def _is_plain(tensor: Tensor) -> bool:
    """Whether the memory of `tensor` contains its elements in order and unchanged. Views may be
    marked as conjugated or negated."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


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
class _Unpack:
    """Copies the elements of `row` to `tensors`."""

    row: Tensor
    tensors: Sequence[Tensor]

    def __call__(self) -> None:
        start = 0
        for tensor in self.tensors:
            part = self.row[start : start + tensor.numel()]
            tensor.detach().copy_(part.view(tensor.shape))
            start += tensor.numel()


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
