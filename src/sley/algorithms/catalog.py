"""Catalog: the algorithms by name, and `build`, which the command line calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sley.algorithms.allgather import (
    all_pairs_allgather,
    recursive_doubling_allgather,
    ring_allgather,
    sccl_allgather_dgx1,
)
from sley.algorithms.allreduce import (
    all_pairs_allreduce,
    double_binary_tree_allreduce,
    hierarchical_allreduce,
    one_step_allreduce,
    recursive_halving_doubling_allreduce,
    ring_allreduce,
)
from sley.algorithms.alltoall import all_pairs_alltoall, three_step_alltoall, two_step_alltoall
from sley.algorithms.alltonext import alltonext, direct_alltonext
from sley.algorithms.flat import (
    all_pairs_broadcast,
    all_pairs_reduce,
    flat_broadcast,
    flat_gather,
    flat_reduce,
    flat_scatter,
)
from sley.algorithms.hierarchical_mesh import hm_allgather, hm_allreduce, hm_reducescatter
from sley.algorithms.multi_ring import (
    multi_ring_allgather,
    multi_ring_allreduce,
    multi_ring_reducescatter,
)
from sley.algorithms.reducescatter import all_pairs_reducescatter, ring_reducescatter
from sley.algorithms.rooted import binomial_broadcast, binomial_reduce
from sley.algorithms.sizes import check_sizes
from sley.algorithms.two_level import (
    two_level_allgather,
    two_level_allreduce,
    two_level_broadcast,
    two_level_one_step_allreduce,
    two_level_reduce,
    two_level_reducescatter,
)
from sley.errors import Place, did_you_mean
from sley.errors.language import L112, L120
from sley.ir.program import Program

_SIZES = ("ranks", "nodes", "gpus")


@dataclass(frozen=True)
class Algorithm:
    """An algorithm of the library.

    name: its name on the command line.
    function: builds the program; takes `parameters` and `in_place` by keyword.
    summary: one sentence.
    collective: the name of its collective.
    source: paper and section.
    parameters: the parameters that it takes, of ranks, nodes, gpus, nics, rings, root, channels,
        stage_channels and node_instances.
    required: the parameters without a default.
    """

    name: str
    function: Callable[..., Program]
    summary: str
    collective: str
    source: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]

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


_MPICH = "Thakur, Rabenseifner, Gropp 2005"

CATALOG: Mapping[str, Algorithm] = MappingProxyType(
    {
        algorithm.name: algorithm
        for algorithm in (
            Algorithm.of(ring_allreduce, "allreduce", "MSCCLang 7.1.1"),
            Algorithm.of(multi_ring_allreduce, "allreduce", "NCCL"),
            Algorithm.of(one_step_allreduce, "allreduce", "MSCCLang 7.1.2"),
            Algorithm.of(all_pairs_allreduce, "allreduce", "MSCCLang 7.1.2"),
            Algorithm.of(hierarchical_allreduce, "allreduce", "MSCCLang 2, 5.1, 7.2"),
            Algorithm.of(recursive_halving_doubling_allreduce, "allreduce", f"{_MPICH}, 4.5"),
            Algorithm.of(
                double_binary_tree_allreduce, "allreduce", "Sanders et al. 2009; NCCL 2.4"
            ),
            Algorithm.of(hm_allreduce, "allreduce", "ResCCL, appendix A, figure 16"),
            Algorithm.of(two_level_allreduce, "allreduce", "MSCCLang, figure 1, and 7.1.2"),
            Algorithm.of(two_level_one_step_allreduce, "allreduce", "MSCCLang, figure 1"),
            Algorithm.of(ring_allgather, "allgather", "MSCCLang, figure 3b"),
            Algorithm.of(multi_ring_allgather, "allgather", "NCCL"),
            Algorithm.of(all_pairs_allgather, "allgather", "MSCCLang 7.1.2"),
            Algorithm.of(recursive_doubling_allgather, "allgather", f"{_MPICH}, 4.1"),
            Algorithm.of(sccl_allgather_dgx1, "allgather", "SCCL, table 4; MSCCLang 7.5"),
            Algorithm.of(hm_allgather, "allgather", "ResCCL, appendix A, figure 15(a)"),
            Algorithm.of(two_level_allgather, "allgather", "ResCCL, appendix A"),
            Algorithm.of(hm_reducescatter, "reducescatter", "ResCCL, appendix A"),
            Algorithm.of(ring_reducescatter, "reducescatter", "MSCCLang, figure 3b"),
            Algorithm.of(multi_ring_reducescatter, "reducescatter", "NCCL"),
            Algorithm.of(all_pairs_reducescatter, "reducescatter", "MSCCLang 7.1.2"),
            Algorithm.of(two_level_reducescatter, "reducescatter", "ResCCL, appendix A"),
            Algorithm.of(all_pairs_alltoall, "alltoall", "MSCCLang 7.3"),
            Algorithm.of(two_step_alltoall, "alltoall", "MSCCLang 7.3, figure 9"),
            Algorithm.of(three_step_alltoall, "alltoall", "msccl-tools, alltoall_a100_three_step"),
            Algorithm.of(alltonext, "alltonext", "MSCCLang 7.4"),
            Algorithm.of(direct_alltonext, "alltonext", "MSCCLang 7.4"),
            Algorithm.of(binomial_broadcast, "broadcast", f"{_MPICH}, 4.3"),
            Algorithm.of(flat_broadcast, "broadcast", f"{_MPICH}, 4.3"),
            Algorithm.of(all_pairs_broadcast, "broadcast", f"{_MPICH}, 4.3"),
            Algorithm.of(two_level_broadcast, "broadcast", f"{_MPICH}, 4.3"),
            Algorithm.of(binomial_reduce, "reduce", f"{_MPICH}, 4.4"),
            Algorithm.of(flat_reduce, "reduce", f"{_MPICH}, 4.4"),
            Algorithm.of(all_pairs_reduce, "reduce", f"{_MPICH}, 4.4"),
            Algorithm.of(two_level_reduce, "reduce", f"{_MPICH}, 4.4"),
            Algorithm.of(flat_gather, "gather", "MPI"),
            Algorithm.of(flat_scatter, "scatter", "MPI"),
        )
    }
)
"""Every algorithm, by name."""


def build(
    name: str,
    ranks: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    *,
    in_place: bool = False,
    channels: int | None = None,
    root: int | None = None,
    node_instances: int | None = None,
    nics: int | None = None,
    rings: int | None = None,
    stage_channels: Sequence[int] | None = None,
) -> Program:
    """The program of the algorithm `name`. A parameter that is None gets the algorithm's default.

    An algorithm with the parameter ranks also accepts nodes and gpus, and then runs on nodes * gpus
    ranks. Errors: L120 for an unknown name, L112 for a parameter that the algorithm does not take
    or a missing one, and the algorithm's own.
    """
    algorithm = find(name)
    given: dict[str, Any] = {
        word: value
        for word, value in (
            ("ranks", ranks),
            ("nodes", nodes),
            ("gpus", gpus),
            ("channels", channels),
            ("root", root),
            ("node_instances", node_instances),
            ("nics", nics),
            ("rings", rings),
            ("stage_channels", stage_channels),
        )
        if value is not None
    }
    if "ranks" in algorithm.parameters and given.keys() & set(_SIZES) == {"nodes", "gpus"}:
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
    return algorithm.function(**given, in_place=in_place)


def find(name: str) -> Algorithm:
    """The algorithm `name`. Errors: L120, which suggests similar names."""
    if name in CATALOG:
        return CATALOG[name]
    raise L120.error(
        expected="one of " + ", ".join(CATALOG),
        found=repr(name),
        remedy=did_you_mean(str(name), CATALOG),
    )


def _expected(algorithm: Algorithm) -> str:
    """The parameters that an algorithm takes, in words."""
    sizes = " and ".join(word for word in algorithm.parameters if word in _SIZES)
    others = [f"optionally {word}" for word in algorithm.parameters if word not in _SIZES]
    return ", ".join([sizes, *others])
