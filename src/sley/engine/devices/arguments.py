"""Arguments of a call: the caller's arrays, validated against the plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sley.engine.arguments import Part, count_of, parts_of, type_of
from sley.engine.devices.device import Device, View
from sley.engine.types import DataType
from sley.errors import Place
from sley.errors.devices import K519
from sley.errors.runtime import R503, R514
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp

Arrays = Sequence[Any] | Mapping[int, Any]
"""Arrays of the ranks of this process: in the order of the ranks, or by rank."""

Views = Mapping[int, tuple[View | None, View | None]]
"""The input and the output of a call for each rank of this process; in place: the data and None."""


@dataclass(frozen=True)
class Arguments:
    """The arrays of a call, validated. count: elements of a block of the collective."""

    count: int
    dtype: DataType
    views: Views


class _Given(NamedTuple):
    """An array of a call. what: its name in messages."""

    what: str
    view: View
    is_written: bool


def check_arguments(
    plan: Plan,
    devices: Mapping[int, Device],
    inputs: Arrays,
    outputs: Arrays | None,
    count: int | None,
    dtype: str | None,
) -> Arguments:
    """The arguments of a call. R503 if they don't fit the plan, or if an array that the call writes
    shares memory with another; K504, K519 and R504 for arrays that kernels can't use, K519 for a
    read-only output, R514 for an invalid count."""
    in_place = plan.collective.in_place
    if in_place and outputs is not None:
        raise R503.error(expected="no outputs: the plan runs in place", found="inputs and outputs")
    if not in_place and outputs is None:
        raise R503.error(expected="outputs: the plan runs out of place", found="inputs alone")
    first = _views(devices, inputs, "data" if in_place else "input")
    second = _views(devices, outputs, "output") if outputs is not None else dict.fromkeys(devices)
    parts, given = list[Part](), list[_Given]()
    for rank in devices:
        own = (first[rank],) if in_place else (first[rank], second[rank])
        named = parts_of(plan, rank, [None if view is None else view.elements for view in own])
        for part, view in zip(named, own, strict=True):
            parts.append(part)
            if view is not None:
                given.append(_Given(part.what, view, view is own[-1]))
    filled = [one for one in given if one.view.elements]
    typed = filled if filled or dtype is not None else given[:1]
    kind = type_of({one.what: one.view.dtype for one in typed}, dtype, R503)
    count = count_of(parts, count, R503)
    for one in filled:
        _check_view(one, kind)
    _check_apart(filled, kind)
    return Arguments(count, kind, {rank: (first[rank], second[rank]) for rank in devices})


def check_factor(
    plan: Plan, devices: Mapping[int, Device], factor: Any, kind: DataType, op: ReduceOp
) -> dict[str, int]:
    """The fields of a call that multiplies inputs by a factor, a number or an array of one element.
    R503 and R514 for one that won't do."""
    if op is not ReduceOp.SUM or not plan.reduces:
        found = f"factor, with {op.name} of {plan.collective}"
        raise R503.error(expected="a sum, for a factor", found=found)
    if not isinstance(factor, int | float):
        places = set(devices.values())
        if len(places) > 1:
            expected = "ranks on one device, for a factor in memory"
            raise R503.error(expected=expected, found=f"ranks on {len(places)} devices")
        view = places.pop().view(factor, what="factor")
        type_of({"factor": view.dtype}, kind.name, R503)
        if view.elements != 1:
            raise R503.error(expected="one element as factor", found=f"{view.elements} elements")
        return {"factor_at": view.address}
    if kind.array.kind in "iu" and not kind.is_bits and factor != int(factor):
        raise R514.error(expected=f"a whole factor of {kind.name}", found=f"factor={factor!r}")
    value = np.array([factor]).astype(np.float32 if kind.is_bits else kind.array)
    return {"factor": int.from_bytes(kind.bits(value).tobytes(), "little")}


def _views(devices: Mapping[int, Device], arrays: Arrays, word: str) -> dict[int, View | None]:
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
    views = dict[int, View | None]()
    for rank, device in devices.items():
        array = given[rank]
        views[rank] = None if array is None else device.view(array, what=f"{word} of rank {rank}")
    return views


def _check_view(array: _Given, kind: DataType) -> None:
    """K519 for a misaligned array, and for a read-only array that the call writes."""
    at = Place(detail=array.what)
    if array.view.address % kind.size_bytes:
        raise K519.error(
            at=at,
            expected=f"an address that is a multiple of {kind.size_bytes}, the size of a "
            f"{kind.name}",
            found=f"{array.view.address:#x}",
            remedy="Pass an array as its library allocated it, or a view that begins at an element "
            "of it.",
        )
    if array.is_written and not array.view.writable:
        raise K519.error(
            at=at,
            expected="an array that may be written",
            found="a read-only one",
            remedy="Pass a writable output, or a copy of the array.",
        )


def _check_apart(arrays: Sequence[_Given], kind: DataType) -> None:
    """R503 if an array that the call writes shares memory with another; arrays that it only reads
    may overlap."""
    rows = sorted(
        (a.view.address, a.view.address + a.view.elements * kind.size_bytes, a.is_written, a.what)
        for a in arrays
    )
    furthest = written = (0, 0, False, "")
    for before, row in pairwise([furthest, *rows]):
        furthest = max(furthest, before, key=lambda one: one[1])
        if before[2]:
            written = max(written, before, key=lambda one: one[1])
        other = furthest if row[2] else written
        if row[0] < other[1]:
            raise R503.error(
                at=Place(detail=row[3]),
                expected="arrays apart from those that the call writes",
                found=f"memory that it shares with the {other[3]}",
            )
