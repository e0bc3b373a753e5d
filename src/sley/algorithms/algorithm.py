"""Algorithm: an entry of the catalog, the decorator that makes one, and checks of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from math import prod
from typing import Any, ParamSpec

import numpy as np

from sley.errors import Place
from sley.errors.language import L101, L102, L112, L121
from sley.ir.collectives import STANDARD
from sley.ir.orders import BALANCED
from sley.ir.program import Program
from sley.ir.words import is_integer


def check_sizes(algorithm: str, **sizes: int) -> None:
    """Refuses sizes that are not positive integers, or whose product is less than two ranks.

    sizes: the parameters whose product is the number of ranks. Errors: L102, L121.
    """
    found = ", ".join(f"{word}={value!r}" for word, value in sizes.items())
    if not all(is_positive(value) for value in sizes.values()):
        raise L102.error(
            at=Place(detail=algorithm), expected="positive integers for sizes", found=found
        )
    if np.prod(list(sizes.values())) < 2:
        raise L121.error(at=Place(detail=algorithm), expected="2 ranks or more", found=found)


def check_power_of_two(algorithm: str, ranks: int) -> None:
    """Refuses a number of ranks that is not a power of two. Errors: L121."""
    if ranks & (ranks - 1):
        lower = 1 << (ranks.bit_length() - 1)
        raise L121.error(
            at=Place(detail=algorithm),
            expected=f"a power of two, such as {lower} or {2 * lower}",
            found=f"ranks={ranks}",
        )


def check_even(algorithm: str, ranks: int) -> None:
    """Refuses an odd number of ranks. Errors: L121."""
    if ranks % 2:
        at, found = Place(detail=algorithm), f"ranks={ranks}"
        raise L121.error(at=at, expected="an even number of ranks", found=found)


def check_root(algorithm: str, root: int, ranks: int) -> None:
    """Refuses a root that is not a rank. Errors: L101."""
    if not is_integer(root) or not 0 <= root < ranks:
        raise L101.error(
            at=Place(detail=algorithm),
            expected=f"a rank from 0 to {ranks - 1}",
            found=f"root={root!r}",
            remedy="Give one of these ranks as root.",
        )


def check_same_bits(algorithm: str, same_bits: object) -> None:
    """Refuses what isn't `SameBits`. Errors: L112."""
    if not isinstance(same_bits, bool) and same_bits != BALANCED:
        raise L112.error(
            at=Place(detail=algorithm),
            expected=f"same_bits as True, False or {BALANCED!r}",
            found=f"same_bits={same_bits!r}",
        )


def channel_numbers(algorithm: str, channels: int | None) -> tuple[int | None, ...]:
    """The channels for the chunks: 0 to channels - 1, or for None the compiler's choice.

    Errors: L102.
    """
    if channels is None:
        return (None,)
    if not is_positive(channels):
        raise L102.error(
            at=Place(detail=algorithm),
            expected="a positive number of channels, or None",
            found=f"channels={channels!r}",
        )
    return tuple(range(channels))


def stage_numbers(
    algorithm: str, channels: Sequence[int] | None, stages: int
) -> Sequence[int | None]:
    """A channel for each stage, or for None the compiler's choice. Errors: L102."""
    if channels is None:
        return (None,) * stages
    has_all = isinstance(channels, (Sequence, np.ndarray)) and len(channels) == stages
    if not has_all or not all(is_integer(c) and c >= 0 for c in channels):
        raise L102.error(
            at=Place(detail=algorithm),
            expected=f"stage_channels with {stages} channels, each at least 0",
            found=repr(channels),
        )
    return channels


def is_positive(value: int) -> bool:
    """Whether `value` is a positive integer."""
    return is_integer(value) and value > 0


MPICH = "Thakur, Rabenseifner, Gropp 2005"
"""Where MPICH's algorithms are described."""

SIZES = ("ranks", "nodes", "gpus")
"""Parameters that say how many ranks there are."""

LISTED: list[Algorithm] = []
"""The algorithms of the files that are imported, in the order of each file."""

P = ParamSpec("P")


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the library.

    name: its name on the command line.
    function: builds the program; takes `parameters` and `in_place` by keyword.
    summary: one sentence.
    collective: the name of its collective.
    source: paper and section.
    parameters: the parameters that it takes, of ranks, nodes, gpus, nics, rings, orders, root,
        channels, stage_channels, node_instances, trees, routes, same_bits and sides.
    required: the parameters without a default.
    """

    name: str
    function: Callable[..., Program]
    summary: str
    collective: str
    source: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]

    @property
    def is_synthesised(self) -> bool:
        """Whether a topology gives it trees or routes, without which all pairs exchange data."""
        return not {"trees", "routes"}.isdisjoint(self.parameters)

    @property
    def has_both_places(self) -> bool:
        """Whether it runs in place too; with varying counts nothing does."""
        return not STANDARD[self.collective].varies


def algorithm(
    collective: str, source: str
) -> Callable[[Callable[P, Program]], Callable[P, Program]]:
    """Decorator that lists a function in the catalog. The function's name, parameters and first
    paragraph are the algorithm's, and its programs get this name. Required sizes, and a root, are
    checked before it runs. Errors: L101, L102, L121, the function's own."""

    def listed(function: Callable[P, Program]) -> Callable[P, Program]:
        name = function.__name__.replace("_", "-")
        parameters = dict(inspect.signature(function).parameters)
        del parameters["in_place"]
        required = tuple(w for w, p in parameters.items() if p.default is inspect.Parameter.empty)

        @wraps(function)
        def build(*args: P.args, **words: P.kwargs) -> Program:
            given: dict[str, Any] = {**dict(zip(parameters, args, strict=False)), **words}
            sizes = {word: given[word] for word in required if word in given and word in SIZES}
            if "same_bits" in parameters:
                check_same_bits(name, given.get("same_bits", False))
            # Without all of its sizes the function itself is called wrongly, as Python says.
            if sizes and len(sizes) == len(required):
                check_sizes(name, **sizes)
                if "root" in parameters:
                    check_root(name, given.get("root", 0), prod(sizes.values()))
            return replace(function(*args, **words), name=name)

        summary = (inspect.getdoc(function) or "").split("\n\n")[0]
        LISTED.append(
            Algorithm(
                name=name,
                function=build,
                summary=" ".join(summary.split()),
                collective=collective,
                source=source,
                parameters=tuple(parameters),
                required=required,
            )
        )
        return build

    return listed
