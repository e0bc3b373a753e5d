"""Every algorithm of the catalog on several sizes, in place and out of place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar

import sley
from sley.algorithms import CATALOG, build

T = TypeVar("T")

FLAT = (2, 3, 4, 5, 8)
GRIDS = ((1, 2), (2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (5, 2))
FIXED = {"sccl-allgather-dgx1": (8,)}
POWERS = {"recursive-doubling-allgather"}


def sizes(name: str) -> list[dict[str, int]]:
    """The sizes to test the algorithm on."""
    if "nodes" in CATALOG[name].parameters:
        return [{"nodes": nodes, "gpus": gpus} for nodes, gpus in GRIDS]
    ranks: tuple[int, ...] = FIXED.get(name, FLAT)
    if name in POWERS:
        ranks = tuple(r for r in ranks if r & (r - 1) == 0)
    return [{"ranks": r} for r in ranks]


def cases() -> list[tuple[str, dict[str, Any]]]:
    """(name, arguments of `build`) of every algorithm and size."""
    return [
        (name, {**size, "in_place": in_place})
        for name in CATALOG
        for size in sizes(name)
        for in_place in (False, True)
    ]


def cases_in_a_place() -> list[tuple[str, dict[str, Any]]]:
    """The cases of `cases` with every size once, alternating between in place and out of place."""
    found = []
    for number, name in enumerate(CATALOG):
        own = [case for case in cases() if case[0] == name]
        pairs = zip(own[::2], own[1::2], strict=True)
        found += [pair[(number + k) % 2] for k, pair in enumerate(pairs)]
    return found


def in_turn(
    options: Sequence[T], among: Sequence[tuple[str, dict[str, Any]]] | None = None
) -> list[tuple[str, dict[str, Any], T]]:
    """(name, arguments of `build`, one of `options`): every case of every algorithm, with the
    options in turn, so that every algorithm meets each option. The first option differs between
    algorithms, so that every size and placement meets each option too."""
    found = []
    for number, name in enumerate(CATALOG):
        own = [parameters for known, parameters in among or cases() if known == name]
        for k in range(max(len(own), len(options))):
            found.append((name, own[k % len(own)], options[(number + k) % len(options)]))
    return found


def one_of_each(options: Sequence[T]) -> list[tuple[str, dict[str, Any], T]]:
    """(name, arguments of `build`, one of `options`): one case of each algorithm, with the options
    in turn, and with each option several sizes, in place and out of place."""
    found = []
    for number, name in enumerate(CATALOG):
        own = [parameters for known, parameters in cases() if known == name]
        size = own[(3 * number + number // len(options)) % len(own)]
        found.append((name, size, options[number % len(options)]))
    return found


def label(case: object) -> str:
    """The part of a test's name that stands for a case or options."""
    if not isinstance(case, dict):
        return str(case)
    if "in_place" not in case:
        return ",".join(f"{option}={value}" for option, value in case.items()) or "plain"
    size = "x".join(str(v) for k, v in case.items() if k != "in_place")
    return size + ("-in-place" if case["in_place"] else "")


@cache
def _program(name: str, items: tuple[tuple[str, Any], ...]) -> sley.Program:
    return build(name, **dict(items))


def program(name: str, parameters: dict[str, Any]) -> sley.Program:
    """The program of a case; built once."""
    return _program(name, tuple(parameters.items()))
