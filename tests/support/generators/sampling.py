"""Samples of large sets of cases: `make test` runs a few that show every value, `make slow` all."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from itertools import product
from random import Random
from typing import Any

import pytest

_SLOW = pytest.mark.slow


def each_value(*axes: Iterable[Any]) -> list[Any]:
    """All combinations of the axes' values as parameters; slow but for those that take the values
    of every axis in turn, as many as the longest axis has."""
    values = [list(axis) for axis in axes]
    turns = range(max(map(len, values)))
    kept = {tuple(k % len(axis) for axis in values) for k in turns}
    return [
        pytest.param(
            *(axis[k] for axis, k in zip(values, at, strict=True)),
            id="-".join(_word(axis[k], k) for axis, k in zip(values, at, strict=True)),
            marks=() if at in kept else _SLOW,
        )
        for at in product(*(range(len(axis)) for axis in values))
    ]


def sampled(
    cases: Iterable[Any], shows: Callable[..., Iterable[Hashable]] | None = None
) -> list[Any]:
    """The cases, slow but for some that together show everything that all of them show.

    cases: tuples, or parameters of pytest; a slow one stays slow.
    shows: what a case's values show; otherwise each value in its place.
    """
    known = [_parameter(case) for case in cases]
    order = list(range(len(known)))
    Random(len(known)).shuffle(order)  # the first cases in order differ too little
    seen: set[Hashable] = set()
    kept = set()
    for k in order:
        if any(mark.name == "slow" for mark in known[k].marks):
            continue
        shown = set(shows(*known[k].values) if shows else _values(known[k].values))
        if not shown <= seen:
            kept.add(k)
            seen |= shown
    return [
        case if k in kept else pytest.param(*case.values, id=case.id, marks=[*case.marks, _SLOW])
        for k, case in enumerate(known)
    ]


def _parameter(case: Any) -> Any:
    if hasattr(case, "marks"):
        return case
    return pytest.param(*(case if isinstance(case, tuple) else (case,)))


def _values(values: Sequence[Any]) -> Iterable[Hashable]:
    """Each value with its place; the entries of a dictionary each."""
    for place, value in enumerate(values):
        for part in value.items() if isinstance(value, dict) else (value,):
            yield place, repr(part)


def _word(value: Any, place: int) -> str:
    if isinstance(value, Enum):
        return value.name.lower()
    # Functions in a tuple have another text in each process, of which tests need one name.
    parts = value if isinstance(value, tuple) else (value,)
    is_plain = all(isinstance(part, str | int | float | tuple) for part in parts)
    return str(value) if is_plain else str(place)
