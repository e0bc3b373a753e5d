"""Algorithm: an entry of the catalog; each file lists its own as `ALGORITHMS`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

from sley.ir.collectives import STANDARD
from sley.ir.program import Program

MPICH = "Thakur, Rabenseifner, Gropp 2005"
"""Where MPICH's algorithms are described."""


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

    @classmethod
    def of(cls, function: Callable[..., Program], collective: str, source: str) -> Algorithm:
        """An algorithm whose name, summary and parameters are those of the function."""
        summary = (inspect.getdoc(function) or "").split("\n\n")[0]
        parameters = [
            p for p in inspect.signature(function).parameters.values() if p.name != "in_place"
        ]
        return cls(
            name=function.__name__.replace("_", "-"),
            function=function,
            summary=" ".join(summary.split()),
            collective=collective,
            source=source,
            parameters=tuple(p.name for p in parameters),
            required=tuple(p.name for p in parameters if p.default is inspect.Parameter.empty),
        )
