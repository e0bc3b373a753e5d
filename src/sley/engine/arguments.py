"""The arrays of a call: checked, laid out in one piece of memory, and taken out of it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sley.engine.limits import whole
from sley.engine.program import BufferSizes, buffer_sizes
from sley.engine.types import Array, DataType, data_type, reduction
from sley.errors import Place
from sley.errors.runtime import R503
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp

_ALIGNMENT = 64

Span = tuple[int, int]
"""(first byte, end) within the memory of a call."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call, one array a rank, known to fit the plan.

    count: elements of one block of the collective. sizes: of each rank's buffers.
    """

    arrays: tuple[Array, ...]
    in_place: bool
    count: int
    dtype: DataType
    reduce_op: ReduceOp
    sizes: tuple[BufferSizes, ...]

    def spans(self) -> tuple[list[tuple[Span, Span]], int]:
        """For each rank the spans of input (in place: data) and output (in place: empty), and the
        bytes of all."""
        item, end = self.dtype.size_bytes, 0
        spans: list[tuple[Span, Span]] = []
        for s in self.sizes:
            pair = []
            for elements in (s.data, 0) if self.in_place else (s.input, s.output):
                pair.append((end, end + elements * item))
                end += -(-elements * item // _ALIGNMENT) * _ALIGNMENT
            spans.append((pair[0], pair[1]))
        return spans, end

    def store(self, memory: Array) -> None:
        """Copy the inputs into `memory` (uint8)."""
        for array, ((start, end), _) in zip(self.arrays, self.spans()[0], strict=True):
            memory[start:end].view(self.dtype.array)[:] = array

    def outputs(self, memory: Array) -> list[Array]:
        """Copies of the outputs in `memory`."""
        result = []
        for s, (first, second) in zip(self.sizes, self.spans()[0], strict=True):
            start, end = first if self.in_place else second
            array = memory[start:end].view(self.dtype.array)
            result.append(array[s.output_start : s.output_start + s.output].copy())
        return result


def check_inputs(
    plan: Plan,
    inputs: Sequence[Array],
    dtype: str | None,
    count: int | None,
    reduce_op: ReduceOp,
) -> Inputs:
    """The inputs of a call on `plan`; R503 where they don't fit it, R504 for an unknown type, R514
    for a count that is none."""
    collective = plan.collective
    if len(inputs) != collective.ranks:
        raise R503.error(
            expected=f"{collective.ranks} arrays, one a rank", found=f"{len(inputs)} arrays"
        )
    arrays = tuple(np.asarray(array) for array in inputs)
    kind = _type_of(arrays, dtype)
    count = _count_of(plan, arrays) if count is None else whole(count, "count", 0)
    sizes = tuple(buffer_sizes(plan, rank, count) for rank in range(collective.ranks))
    for rank, array in enumerate(arrays):
        elements = sizes[rank].data if collective.in_place else sizes[rank].input
        fits = array.shape == (elements,) and (array.dtype == kind.array or not elements)
        if not fits:
            raise R503.error(
                at=Place(detail=f"rank {rank}"),
                expected=f"a 1-D array of {elements} elements of {kind.array} for count={count}",
                found=f"shape {array.shape}, {array.dtype}",
            )
    return Inputs(arrays, collective.in_place, count, kind, reduction(reduce_op), sizes)


def _type_of(arrays: Sequence[Array], name: str | None) -> DataType:
    if name is not None:
        return data_type(name)
    for array in arrays:
        if array.size:
            return data_type(array.dtype.name)
    return data_type(arrays[0].dtype.name)


def _count_of(plan: Plan, arrays: Sequence[Array]) -> int:
    """The call's count, from the first rank that has memory of its own to tell it."""
    for rank, array in enumerate(arrays):
        one = buffer_sizes(plan, rank, 1)
        blocks = one.data if plan.collective.in_place else one.input
        if blocks:
            if array.size % blocks:
                raise R503.error(
                    at=Place(detail=f"rank {rank}"),
                    expected=f"whole blocks: a multiple of {blocks} elements",
                    found=f"{array.size} elements",
                )
            return int(array.size // blocks)
    raise R503.error(expected="count, since no rank has an input", found="none")
