"""Arguments of a call: the caller's arrays, checked against the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sley.devices.device import BITS, Device, View
from sley.engine.limits import whole
from sley.engine.program import BufferSizes, buffer_sizes
from sley.engine.types import DATA_TYPES, DataType
from sley.errors import Place
from sley.errors.devices import K505, K512
from sley.errors.runtime import R503, R504
from sley.ir.plan import Plan

Arrays = Sequence[Any] | Mapping[int, Any]
"""Arrays of the ranks of this process: in the order of the ranks, or by rank."""


@dataclass(frozen=True)
class Arguments:
    """The arrays of a call, known to fit the plan.

    count: elements of a block of the collective. views: for each rank of this process its input and
    its output; in place its data, and None.
    """

    count: int
    dtype: DataType
    views: Mapping[int, tuple[View | None, View | None]]


def check_arguments(
    plan: Plan,
    devices: Mapping[int, Device],
    inputs: Arrays,
    outputs: Arrays | None,
    count: int | None,
    dtype: str | None,
) -> Arguments:
    """The arguments of a call. R503 where they don't fit the plan, or one is written that shares
    memory with another; K504, K505 and R504 for arrays that no kernel takes, K512 for an output
    that can't be written, R514 for a bad count."""
    in_place = plan.collective.in_place
    if in_place and outputs is not None:
        raise R503.error(expected="no outputs: the plan runs in place", found="inputs and outputs")
    if not in_place and outputs is None:
        raise R503.error(expected="outputs: the plan runs out of place", found="inputs alone")
    first = _views(devices, inputs, "data" if in_place else "input", dtype)
    second = (
        _views(devices, outputs, "output", dtype) if outputs is not None else dict.fromkeys(devices)
    )
    views = {rank: (first[rank], second[rank]) for rank in devices}
    kind = _dtype_of(views)
    count = _count_of(plan, views) if count is None else whole(count, "count", 0)
    for rank, pair in views.items():
        _check_rank(plan, rank, pair, buffer_sizes(plan, rank, count), count)
    _check_apart(views, in_place, kind)
    return Arguments(count, kind, views)


def _views(
    devices: Mapping[int, Device], arrays: Arrays, word: str, dtype: str | None
) -> dict[int, View | None]:
    try:
        number = len(arrays)
        given = arrays if isinstance(arrays, Mapping) else dict(zip(devices, arrays, strict=False))
    except TypeError:
        raise R503.error(
            expected=f"{len(devices)} {word} arrays, in a list or by rank",
            found=f"{type(arrays).__name__}",
        ) from None
    if set(given) != set(devices) or len(given) != number:
        raise R503.error(
            expected=f"{len(devices)} {word} arrays, for ranks {sorted(devices)}",
            found=f"{number}, for ranks {list(given)}",
        )
    return {
        rank: None
        if given[rank] is None
        else _view(device, given[rank], f"{word} of rank {rank}", dtype)
        for rank, device in devices.items()
    }


def _view(device: Device, array: Any, what: str, dtype: str | None) -> View:
    view = device.view(array, what=what)
    if view.dtype == BITS and dtype == "bfloat16":
        view = replace(view, dtype="bfloat16")
    if view.dtype != (dtype or view.dtype) or view.dtype == BITS:
        raise R504.error(
            at=Place(detail=what),
            expected=f"elements of type {dtype}" if dtype else "elements of a type that is reduced",
            found=view.dtype,
            remedy='Say dtype="bfloat16" if they are its bits.' if view.dtype == BITS else "",
        )
    size = DATA_TYPES[view.dtype].size_bytes
    if view.elements and view.address % size:
        raise K505.error(
            at=Place(detail=what),
            expected=f"an address that is a multiple of {size}, the size of a {view.dtype}",
            found=f"{view.address:#x}",
            remedy="Give an array that its library made, or a view of one that begins with an "
            "element.",
        )
    return view


def _dtype_of(views: Mapping[int, tuple[View | None, View | None]]) -> DataType:
    given = [(rank, v) for rank, pair in views.items() for v in pair if v is not None]
    filled = [(rank, v) for rank, v in given if v.elements] or given[:1]
    names = {view.dtype: rank for rank, view in filled}
    if len(names) != 1:
        expected = "arrays of one type" if names else "an array on some rank"
        found = ", ".join(f"{name} on rank {rank}" for name, rank in names.items())
        raise R503.error(expected=expected, found=found or "none on any rank")
    return DATA_TYPES[next(iter(names))]


def _count_of(plan: Plan, views: Mapping[int, tuple[View | None, View | None]]) -> int:
    """The call's count, from the first rank with an array that must have elements."""
    for rank, (first, second) in views.items():
        one = buffer_sizes(plan, rank, 1)
        pairs = [(first, one.data)] if plan.collective.in_place else []
        pairs = pairs or [(first, one.input), (second, one.output)]
        for view, blocks in pairs:
            if view is None or not blocks:
                continue
            if view.elements % blocks:
                raise R503.error(
                    at=Place(detail=f"rank {rank}"),
                    expected=f"whole blocks: a multiple of {blocks} elements",
                    found=f"{view.elements} elements",
                )
            return view.elements // blocks
    raise R503.error(expected="count, since no array tells it", found="none")


def _check_rank(
    plan: Plan,
    rank: int,
    views: tuple[View | None, View | None],
    sizes: BufferSizes,
    count: int,
) -> None:
    in_place = plan.collective.in_place
    words = ("data", "output") if in_place else ("input", "output")
    expected = (sizes.data, 0) if in_place else (sizes.input, sizes.output)
    for view, elements, word in zip(views, expected, words, strict=True):
        at = Place(detail=f"{word} of rank {rank}")
        found = 0 if view is None else view.elements
        if found != elements:
            raise R503.error(
                at=at,
                expected=f"{elements} elements for count={count}",
                found=f"{found} elements",
            )
        is_written = in_place or word == "output"
        if view is not None and elements and is_written and not view.writable:
            raise K512.error(
                at=at, expected="an array that may be written", found="a read-only one"
            )


def _check_apart(
    views: Mapping[int, tuple[View | None, View | None]], in_place: bool, dtype: DataType
) -> None:
    """R503 where an array that is written shares memory with any other; those that are only read
    may be the same ones."""
    words = ("data", "output") if in_place else ("input", "output")
    rows = sorted(
        (view.address, view.address + view.elements * dtype.size_bytes, rank, word)
        for rank, pair in views.items()
        for view, word in zip(pair, words, strict=True)
        if view is not None and view.elements
    )
    furthest = written = (0, 0, 0, "")
    for before, row in pairwise([furthest, *rows]):
        furthest = max(furthest, before, key=lambda one: one[1])
        if before[3] != "input":
            written = max(written, before, key=lambda one: one[1])
        other = written if row[3] == "input" else furthest
        if row[0] < other[1]:
            raise R503.error(
                at=Place(detail=f"{row[3]} of rank {row[2]}"),
                expected="arrays apart from those that the call writes",
                found=f"memory that it shares with the {other[3]} of rank {other[2]}",
            )
