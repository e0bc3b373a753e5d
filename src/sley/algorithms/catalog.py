"""Catalog: the algorithms by name, and `build`, which the command line calls."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import numpy as np

from sley.algorithms.algorithm import LISTED, SIZES, Algorithm, check_sizes
from sley.errors import Place, did_you_mean
from sley.errors.language import L112, L120
from sley.ir.collectives import STANDARD, plain_name
from sley.ir.program import Program
from sley.ir.topology import MAX_RANKS

_FILES = (
    *("allreduce", "multi_ring", "nvls", "allgather", "hierarchical_mesh"),
    *("two_level", "reducescatter", "alltoall", "rooted", "forests", "routes"),
)
"""The files of algorithms, in the order of the catalog."""

for _file in _FILES:  # each lists its algorithms
    import_module(f"sley.algorithms.{_file}")

CATALOG: Mapping[str, Algorithm] = MappingProxyType(
    {
        algorithm.name: algorithm
        for collective in STANDARD
        for file in _FILES
        for algorithm in LISTED
        if algorithm.collective == collective
        and algorithm.function.__module__ == f"sley.algorithms.{file}"
    }
)
"""Every algorithm, by name."""

_ROWS = ("sides", "orders", "trees", "up_trees", "routes", "switches", "stage_channels")
"""Parameters with several numbers."""


def build(
    name: str,
    /,
    ranks: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    *,
    in_place: bool = False,
    **parameters: Any,
) -> Program:
    """The program of the algorithm `name`. A parameter that is None gets the algorithm's default.

    parameters: channels, root, node_instances, nics, rings, orders, trees, up_trees, routes,
        heads, stage_channels, same_bits, sides.

    An algorithm with the parameter ranks also accepts nodes and gpus, and then runs on nodes * gpus
    ranks. Errors: L120 for an unknown name, L112 for a parameter that the algorithm does not take
    or a missing one, and the algorithm's own.
    """
    algorithm = find(name)
    parameters = {"ranks": ranks, "nodes": nodes, "gpus": gpus, **parameters}
    given = {word: value for word, value in parameters.items() if value is not None}
    if "ranks" in algorithm.parameters and given.keys() & set(SIZES) == {"nodes", "gpus"}:
        grid = {word: given.pop(word) for word in ("nodes", "gpus")}
        check_sizes(algorithm.name, **grid)
        given["ranks"] = grid["nodes"] * grid["gpus"]
    unknown = [word for word in given if word not in algorithm.parameters]
    missing = [word for word in algorithm.required if word not in given]
    if unknown or missing:
        raise L112.error(
            at=Place(detail=algorithm.name),
            expected=_expected(algorithm),
            found=", ".join(f"{word}={value}" for word, value in given.items()) or "none",
            remedy=" and ".join(
                [f"Leave out {', '.join(unknown)}"] * bool(unknown)
                + [f"give {', '.join(missing)}"] * bool(missing)
            ).capitalize()
            + ".",
        )
    try:
        return algorithm.function(**given, in_place=in_place)
    except (TypeError, ValueError, OverflowError) as error:
        if all(_is_usual(word, value) for word, value in given.items()):
            raise  # a mistake of the algorithm's own
        found = ", ".join(f"{word}={value!r:.40}" for word, value in given.items())
        at, expected = Place(detail=algorithm.name), "values that the algorithm can have"
        raise L112.error(at=at, expected=expected, found=found) from error


def for_collective(name: str) -> list[Algorithm]:
    """The algorithms for a collective, by its name as NCCL, MPI or PyTorch spell it; none for a
    name that is no collective's."""
    plain = plain_name(str(name))
    return [algorithm for algorithm in CATALOG.values() if algorithm.collective == plain]


def find(name: str) -> Algorithm:
    """The algorithm `name`. Errors: L120, which suggests similar names, collectives too."""
    if name in CATALOG:
        return CATALOG[name]
    known = {algorithm.collective for algorithm in CATALOG.values()} | CATALOG.keys()
    own = ", ".join(algorithm.name for algorithm in for_collective(name))
    raise L120.error(
        expected="an algorithm that `sley list` prints",
        found=f"{name!r}, a collective" if own else repr(name),
        remedy=f"Name algorithms for it: {own}." if own else did_you_mean(str(name), known),
    )


def _is_usual(word: str, value: Any) -> bool:
    """Whether a parameter's value is a number, or rows of numbers, of which memory has room."""
    if word in ("same_bits", "leaves_last"):  # which each algorithm checks
        return True
    try:
        numbers = np.asarray(value)
    except ValueError:  # rows of different lengths
        return False
    is_kind = numbers.dtype.kind in "iu" and (numbers.ndim > 0) == (word in _ROWS)
    return bool(is_kind and (np.abs(numbers) <= MAX_RANKS).all())


def _expected(algorithm: Algorithm) -> str:
    """The parameters that an algorithm takes, in words."""
    sizes = " and ".join(word for word in algorithm.parameters if word in SIZES)
    others = [f"optionally {word}" for word in algorithm.parameters if word not in SIZES]
    return ", ".join([sizes, *others])
