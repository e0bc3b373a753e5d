"""Every algorithm of the catalog on several sizes, in place and out of place."""

from __future__ import annotations

from functools import cache
from typing import Any

import sley
from sley.algorithms import CATALOG, build

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
    """(name, what to build it with)."""
    return [
        (name, {**size, "in_place": in_place})
        for name in CATALOG
        for size in sizes(name)
        for in_place in (False, True)
    ]


def label(case: object) -> str:
    """A case's part of a test's name."""
    if not isinstance(case, dict):
        return str(case)
    size = "x".join(str(v) for k, v in case.items() if k != "in_place")
    return size + ("-in-place" if case["in_place"] else "")


@cache
def _program(name: str, items: tuple[tuple[str, Any], ...]) -> sley.Program:
    return build(name, **dict(items))


def program(name: str, parameters: dict[str, Any]) -> sley.Program:
    """The program of a case; built once."""
    return _program(name, tuple(parameters.items()))
