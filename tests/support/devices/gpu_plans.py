"""The plans of the tests on devices: the whole library, and plans that hang."""

from __future__ import annotations

from functools import cache
from typing import Any

import sley
from sley.algorithms import CATALOG, build
from support.inputs.algorithm_cases import FIXED, SIZED, label, program
from support.mutants.plan_edits import swapped

RANKS = (2, 4, 8)
GRIDS = ((1, 2), (2, 2), (2, 4))


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Every algorithm of the library with 2, 4 and 8 ranks, in place and out of place."""
    found = []
    for name in SIZED:
        if "nodes" in CATALOG[name].parameters:
            sizes = [{"nodes": nodes, "gpus": gpus} for nodes, gpus in GRIDS]
        else:
            sizes = [{"ranks": ranks} for ranks in FIXED.get(name, RANKS)]
        found += [(name, {**s, "in_place": place}) for s in sizes for place in (False, True)]
    return found


def named(case: tuple[str, dict[str, Any]]) -> str:
    """The part of a test's name that stands for a case."""
    return f"{case[0]}-{label(case[1])}"


def compiled(case: tuple[str, dict[str, Any]], protocol: sley.Protocol) -> sley.Plan:
    """The plan of a case."""
    return sley.compile(program(*case), protocol=protocol)


def counts(plan: sley.Plan) -> list[int]:
    """Counts of elements: several tiles and a remainder, fewer elements than chunks, many."""
    chunks = plan.collective.chunks
    return [150 * chunks + min(3, chunks - 1), 1, 20011]


@cache
def ring(
    ranks: int, protocol: sley.Protocol = sley.Protocol.SIMPLE, instances: int = 1
) -> sley.Plan:
    """An AllReduce in place."""
    made = build("ring-allreduce", ranks=ranks, in_place=True)
    return sley.compile(made, protocol=protocol, instances=instances)


def hanging() -> sley.Plan:
    """A ring of three ranks that all receive before they send, which the verifier refuses."""
    plan = ring(3)
    for first in plan.block_offset[:-1]:
        plan = swapped(plan, int(first), int(first) + 1)
    return plan
