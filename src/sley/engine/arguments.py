"""Arguments: the type and count of a call's arrays, and host arrays laid out in one memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sley.engine.limits import whole
from sley.engine.program import BufferSizes, buffer_sizes
from sley.engine.types import DATA_TYPES, Array, DataType, data_type, name_of, reduction
from sley.engine.varying import Counts, check_count
from sley.errors import Place, Rule
from sley.errors.runtime import R503, R504
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp

_ALIGNMENT = 64


class Part(NamedTuple):
    """An array of a call and the blocks of the collective in it.

    what: its name in messages, "input of rank 3". elements: their number, None without an array.
    blocks: the number of the collective's blocks that the plan keeps in it.
    """

    what: str
    elements: int | None
    blocks: int


def parts_of(plan: Plan, rank: int, elements: Sequence[int | None] = (None, None)) -> list[Part]:
    """The parts for a rank's arrays: its input and output, or its input alone; in place: its data.
    elements: the number of elements of each array, None for a missing one."""
    one = buffer_sizes(plan, rank, 1)
    in_place = plan.collective.in_place
    buffers = [("data", one.data)] if in_place else [("input", one.input), ("output", one.output)]
    return [
        Part(f"{word} of rank {rank}", have, blocks)
        for have, (word, blocks) in zip(elements, buffers, strict=False)
    ]


def count_of(parts: Sequence[Part], count: int | None, rule: Rule, remedy: str = "") -> int:
    """Elements of a block in a call on `parts`: `count`, by default derived from the first array
    that holds blocks. `rule` for a part of another size, with this remedy or its own; R514 for an
    invalid count."""
    if count is None:
        first = next((part for part in parts if part.blocks and part.elements is not None), None)
        if first is None or first.elements is None:
            raise rule.error(expected="count, since no array defines it", found="none")
        if first.elements % first.blocks:
            raise rule.error(
                at=Place(detail=first.what),
                expected=f"whole blocks: a multiple of {first.blocks} elements",
                found=f"{first.elements} elements",
                remedy=remedy,
            )
        count = first.elements // first.blocks
    count = whole(count, "count", 0)
    for part in parts:
        if (part.elements or 0) != part.blocks * count:
            raise rule.error(
                at=Place(detail=part.what),
                expected=f"{part.blocks * count} elements for count={count}",
                found=f"{part.elements or 0} elements",
                remedy=remedy,
            )
    return count


def type_of(types: Mapping[str, str], name: str | None, rule: Rule) -> DataType:
    """The type of a call's elements.

    types: the arrays' types, as `name_of` names them, by the arrays' names in messages. name: the
    type that the caller requests; one that NumPy lacks takes arrays of its bits. `rule` for arrays
    of several types or of another type than requested; R504 for a type that engines don't support.
    """
    requested = None if name is None else data_type(name)
    bits = requested and name_of(requested.array)
    kinds: dict[str, str] = {}  # the first array of each type
    for what, kind in types.items():
        kinds.setdefault(requested.name if requested and kind == bits else kind, what)
    if len(kinds) > 1:
        found = ", ".join(f"{kind} in the {what}" for kind, what in kinds.items())
        raise rule.error(expected="arrays of one type", found=found)
    if requested is not None and kinds.keys() <= {requested.name}:
        return requested
    if not kinds:
        raise rule.error(expected="an array on some rank, or dtype", found="neither")
    ((kind, what),) = kinds.items()
    at = Place(detail=what)
    if requested is not None:
        raise rule.error(at=at, expected=f"elements of type {requested.name}", found=kind)
    if kind not in DATA_TYPES:
        remedy = 'Say dtype="bfloat16" if they are its bits.' if kind == "uint16" else ""
        expected = f"one of {', '.join(DATA_TYPES)}"
        raise R504.error(at=at, expected=expected, found=kind, remedy=remedy)
    return DATA_TYPES[kind]


Span = tuple[int, int]
"""First byte and end, within the memory of a call."""


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call, one array a rank, validated against the plan.

    count: elements of one block of the collective, the most of any where `counts` vary. sizes:
    those of each rank's buffers. counts: None if they are all `count`.
    """

    arrays: tuple[Array, ...]
    in_place: bool
    count: int
    dtype: DataType
    reduce_op: ReduceOp
    sizes: tuple[BufferSizes, ...]
    counts: Counts | None = None

    @property
    def array(self) -> np.dtype[Any]:
        """The arrays' type, which is not `dtype.array` if a package adds NumPy the type."""
        return next((array.dtype for array in self.arrays if array.size), self.dtype.array)

    def counts_of(self, rank: int) -> tuple[list[int], list[int]] | None:
        """The counts of a rank's input and output blocks, if they vary."""
        if self.counts is None:
            return None
        return self.counts.input[rank].tolist(), self.counts.output[rank].tolist()

    def spans(self) -> tuple[list[tuple[Span, Span]], int]:
        """For each rank the spans of its input (in place: data) and output (in place: empty); and
        the bytes of all spans together."""
        item, end = self.dtype.size_bytes, 0
        spans: list[tuple[Span, Span]] = []
        for s in self.sizes:
            pair = []
            for elements in s.lengths(self.in_place):
                pair.append((end, end + elements * item))
                end += -(-elements * item // _ALIGNMENT) * _ALIGNMENT
            spans.append((pair[0], pair[1]))
        return spans, end

    def store(self, memory: Array) -> None:
        """Copy the inputs into `memory` (uint8)."""
        for array, ((start, end), _) in zip(self.arrays, self.spans()[0], strict=True):
            memory[start:end].view(array.dtype)[:] = array

    def outputs(self, memory: Array) -> list[Array]:
        """Copies of the outputs in `memory`."""
        result = []
        for s, (first, second) in zip(self.sizes, self.spans()[0], strict=True):
            start, end = first if self.in_place else second
            array = memory[start:end].view(self.array)
            result.append(array[s.output_start : s.output_start + s.output].copy())
        return result


def check_inputs(
    plan: Plan,
    inputs: Sequence[Array],
    dtype: str | None,
    count: int | None,
    reduce_op: ReduceOp,
    counts: ArrayLike | None = None,
) -> Inputs:
    """The inputs of a call on `plan`; R503 if they don't fit it, R504 for an unknown type, R514
    for an invalid count.

    counts: of the inputs' blocks, if they vary (`Counts.of`)."""
    collective = plan.collective
    if len(inputs) != collective.ranks:
        raise R503.error(
            expected=f"{collective.ranks} arrays, one a rank", found=f"{len(inputs)} arrays"
        )
    arrays = tuple(np.asarray(array) for array in inputs)
    for rank, array in enumerate(arrays):
        if array.ndim != 1:
            raise R503.error(
                at=Place(detail=f"rank {rank}"),
                expected="a 1-D array",
                found=f"one of shape {array.shape}",
            )
    parts = [parts_of(plan, rank, [array.size])[0] for rank, array in enumerate(arrays)]
    types = {part.what: name_of(a.dtype) for part, a in zip(parts, arrays, strict=True) if a.size}
    if not types and dtype is None:
        types = {parts[0].what: name_of(arrays[0].dtype)}
    kind = type_of(types, dtype, R503)
    op = reduction(reduce_op)
    if counts is not None:
        if count is not None:
            raise R503.error(
                expected="count or counts",
                found=f"both, and count={count!r}",
                remedy="Leave count out: counts has the elements of all parts.",
            )
        return _varying_inputs(arrays, parts, kind, op, Counts.of(collective, counts))
    missing = "Give counts, unless those of all parts are equal." if collective.varies else ""
    count = count_of(parts, count, R503, missing)
    check_count(collective, count, plan.name, R503)
    sizes = tuple(buffer_sizes(plan, rank, count) for rank in range(collective.ranks))
    return Inputs(arrays, collective.in_place, count, kind, op, sizes)


def _varying_inputs(
    arrays: tuple[Array, ...], parts: Sequence[Part], kind: DataType, op: ReduceOp, counts: Counts
) -> Inputs:
    """The inputs of a call whose parts have the given counts. Errors: R503."""
    # Python's integers: int64 would overflow.
    sizes = [(sum(own.tolist()), sum(out.tolist())) for own, out in zip(*counts, strict=True)]
    for part, (elements, _) in zip(parts, sizes, strict=True):
        if part.elements != elements:
            raise R503.error(
                at=Place(detail=part.what),
                expected=f"{elements} elements, the sum of its counts",
                found=f"{part.elements} elements",
                remedy="Give each rank's parts one after another, as one array.",
            )
    most = int(counts.input.max(initial=0))
    buffers = tuple(BufferSizes(own, out, 0, 0, 0) for own, out in sizes)
    return Inputs(arrays, False, most, kind, op, buffers, counts)
