"""Algorithm: an entry of the catalog, and the decorator that makes one of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from math import prod
from typing import Any, ParamSpec

from sley.algorithms.sizes import check_root, check_sizes
from sley.ir.collectives import STANDARD
from sley.ir.program import Program

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
        channels, stage_channels and node_instances.
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
