"""Every algorithm of the catalog on several sizes, in place and out of place; those of varying
counts only out of place."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import cache
from typing import Any, TypeVar

import sley
from sley.algorithms import CATALOG, build
from sley.ir import collectives
from support.generators.sampling import sampled

T = TypeVar("T")
Case = tuple[str, dict[str, Any]]
"""The name of an algorithm, and the arguments of `build`."""

GROUPED = tuple(name for name in CATALOG if name.startswith("nvls-"))
"""The algorithms in which switches reduce and multicast: not with all options, nor in files
for MSCCL."""

SYNTHESISED = tuple(name for name in CATALOG if CATALOG[name].is_synthesised)
"""The algorithms along given trees or routes, which are all pairs without: test_forests and
test_routes have others."""

PLAIN = tuple(name for name in CATALOG if name not in GROUPED + SYNTHESISED)
"""The other algorithms."""

SIZED = tuple(name for name in PLAIN if CATALOG[name].collective in collectives.SIZED)
"""The plain algorithms of equal counts. The others are written to no file, and run on no device."""

FLAT = (2, 3, 4, 5, 8)
GRIDS = ((1, 2), (2, 1), (2, 2), (2, 3), (2, 4), (3, 3), (5, 2))
FIXED = {"sccl-allgather-dgx1": (8,)}
POWERS = {"recursive-doubling-allgather"}
EVEN = {"swing-allgather", "swing-reducescatter"}


def sizes(name: str) -> list[dict[str, int]]:
    """The sizes to test the algorithm on."""
    if "nodes" in CATALOG[name].parameters:
        return [{"nodes": nodes, "gpus": gpus} for nodes, gpus in GRIDS]
    ranks: tuple[int, ...] = FIXED.get(name, FLAT)
    if name in POWERS:
        ranks = tuple(r for r in ranks if r & (r - 1) == 0)
    if name in EVEN:
        ranks = (2, 4, 6, 8)
    return [{"ranks": r} for r in ranks]


def places(name: str) -> tuple[bool, ...]:
    """Whether the algorithm runs in place: both, or only out of place."""
    return (False, True) if CATALOG[name].has_both_places else (False,)


def cases(names: Iterable[str] = PLAIN) -> list[Case]:
    """Every size of the algorithms, in every place."""
    return [
        (name, {**size, "in_place": in_place})
        for name in names
        for size in sizes(name)
        for in_place in places(name)
    ]


def cases_in_a_place(names: Iterable[str] = PLAIN) -> list[Case]:
    """The cases of `cases` with every size once, alternating between in place and out of place."""
    return [
        (name, {**size, "in_place": places(name)[(number + k) % len(places(name))]})
        for number, name in enumerate(names)
        for k, size in enumerate(sizes(name))
    ]


def in_turn(
    options: Sequence[T], among: Sequence[Case] | None = None
) -> list[tuple[str, dict[str, Any], T]]:
    """(name, arguments of `build`, one of `options`): every case of every algorithm, with the
    options in turn, so that every algorithm meets each option. The first option differs between
    algorithms, so that every size and placement meets each option too."""
    found, known = [], among or cases()
    for number, name in enumerate(dict.fromkeys(name for name, _ in known)):
        own = [parameters for other, parameters in known if other == name]
        for k in range(max(len(own), len(options))):
            found.append((name, own[k % len(own)], options[(number + k) % len(options)]))
    return found


def one_of_each(
    options: Sequence[T], names: Iterable[str] = PLAIN
) -> list[tuple[str, dict[str, Any], T]]:
    """(name, arguments of `build`, one of `options`): one case of each algorithm, with the options
    in turn, and with each option several sizes, in place and out of place."""
    found = []
    for number, name in enumerate(names):
        own = [parameters for _, parameters in cases([name])]
        size = own[(3 * number + number // len(options)) % len(own)]
        found.append((name, size, options[number % len(options)]))
    return found


def few(cases: Iterable[Sequence[Any]], *, in_pairs: bool = False) -> list[Any]:
    """The cases as parameters, slow but for every algorithm, size, place and option. Cases: (name,
    arguments of `build`), with an option or without. in_pairs: every algorithm in every place, and
    every option with every size."""

    def shows(name: str, arguments: dict[str, Any], option: object = None) -> Iterable[Hashable]:
        size = repr({key: value for key, value in arguments.items() if key != "in_place"})
        shown = (name, arguments.get("in_place")), (size, repr(option))
        return shown if in_pairs else [(k, one) for k, pair in enumerate(shown) for one in pair]

    return sampled(cases, shows)


def of_each_collective(cases: Iterable[tuple[str, dict[str, Any], T]]) -> list[Any]:
    """The cases (name, arguments of `build`, option) as parameters, slow but for every collective,
    and every option with a root and without: for writers, which see no algorithms."""

    def shows(name: str, _: dict[str, Any], option: object) -> Iterable[Hashable]:
        return CATALOG[name].collective, ("root" in CATALOG[name].parameters, repr(option))

    return sampled(cases, shows)


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
