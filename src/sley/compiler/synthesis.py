"""Synthesis: programs along trees that are made for a topology."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sley.algorithms import CATALOG, for_collective
from sley.compiler.choices import Choice
from sley.compiler.search import choose
from sley.errors import did_you_mean, without_inner_frames
from sley.errors.topology import T612
from sley.ir.program import Program
from sley.ir.tables import FloatArray, LongArray, Value
from sley.ir.topology import Topology
from sley.topologies import Forest, pack_forest, topology_of
from sley.topologies.forests import WITHIN, forest_on
from sley.topologies.rates import RankPairs, tree_rates

_DIRECTIONS = {"allgather": (False,), "reducescatter": (True,), "allreduce": (True, False)}
"""Whether data comes up trees, not down, for each forest of a collective."""

COMPARED: Mapping[str, Any] = {
    "schedule": ["msccl", "hpds"],
    "allocate": "connection",
    "channels": 1,
    "protocol": "Simple",
    "instances": [1, 2, 4],
}
"""The options with which plans along trees are compared; those that `choose` tries take minutes."""

_FEW_CHUNKS = (1, 2, 4)
"""Chunks of each rank's data whose trees are compared with those closest to the bound."""

_SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The average chunks of a root that are tried where roots have different shares."""


@dataclass(frozen=True, eq=False, repr=False)
class Synthesis(Value):
    """Trees for a collective.

    collective: allgather, reducescatter or allreduce. forests: those that its data takes, one after
    the other, with as many chunks; up and down for an AllReduce.
    """

    collective: str
    forests: tuple[Forest, ...]

    @classmethod
    def of(
        cls,
        collective: str,
        topology: Topology,
        *,
        chunks: int | None = None,
        within: float = WITHIN,
    ) -> Synthesis:
        """The trees for a topology. Errors: T612."""
        known = [one for one in for_collective(collective) if "trees" in one.parameters]
        if not known:
            raise T612.error(
                expected=f"one of {', '.join(_DIRECTIONS)}, which trees serve",
                found=repr(collective),
                remedy=did_you_mean(str(collective), _DIRECTIONS),
            )
        collective = known[0].collective
        forests = list[Forest]()
        for up in _DIRECTIONS[collective]:
            if forests and _is_symmetric(topology):
                forests.append(replace(forests[0], up=up))
            else:
                number = forests[0].chunks // topology.ranks if forests else chunks
                forests.append(pack_forest(topology, up=up, chunks=number, within=within))
        made = cls(collective, tuple(forests))
        if collective == "allreduce" and chunks is None:
            others = _by_shares(topology, made.algbw_GBps, within)
            made = max([made, *others], key=lambda one: one.algbw_GBps)
        return made

    @property
    def loads(self) -> LongArray:
        """int64 (links,): the chunks that each link of the topology carries."""
        loads: LongArray = np.stack([forest.loads for forest in self.forests]).sum(axis=0)
        return loads

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The size of a call over the time of the busiest link; infinite for one rank."""
        of = self.forests[0]
        busiest = float((self.loads / of.topology.links.GBps).max(initial=0))
        return of.chunks / busiest if busiest else float("inf")

    @property
    def arguments(self) -> dict[str, list[list[int]]]:
        """The arguments of the algorithm "forest-" and the collective: trees, and up_trees if an
        AllReduce has others for its sums."""
        down = self.forests[-1].trees.tolist()
        up = self.forests[0].trees.tolist()
        return {"trees": down} | ({} if up == down else {"up_trees": up})

    def program(self, *, in_place: bool = False) -> Program:
        """The program for all ranks."""
        ranks = self.forests[0].topology.ranks
        name, arguments = f"forest-{self.collective}", {"ranks": ranks, **self.arguments}
        return CATALOG[name].function(**arguments, in_place=in_place)


@without_inner_frames
def synthesize(
    collective: str,
    topology: Topology | str,
    *,
    chunks: int | None = None,
    within: float = WITHIN,
    in_place: bool = False,
) -> Program:
    """A program for all ranks of a topology, along trees whose link loads come close to the
    bandwidth bound (ForestColl, arXiv 2402.06787).

    collective: allgather, reducescatter or allreduce. topology: a topology, or its name. chunks,
    within: as for `sley.topologies.pack_forest`. Errors: T604, T612.
    """
    made = Synthesis.of(collective, topology_of(topology), chunks=chunks, within=within)
    return made.program(in_place=in_place)


def fastest(
    collective: str,
    topology: Topology,
    size: int,
    *,
    chunks: int | None = None,
    within: float = WITHIN,
    in_place: bool,
) -> tuple[Synthesis, Choice]:
    """The trees, and their plan, that are simulated as the fastest for a size: those of `chunks`,
    by default of the number by `within` and of smaller ones, with `COMPARED`. Errors: T612."""
    numbers = (None, *_FEW_CHUNKS) if chunks is None else (chunks,)
    made = [Synthesis.of(collective, topology, chunks=n, within=within) for n in numbers]
    programs = [one.program(in_place=in_place) for one in made]
    choice = choose(programs, size, topology, **COMPARED).at(size)
    return next(m for m, p in zip(made, programs, strict=True) if p is choice.program), choice


def _by_shares(topology: Topology, equal_GBps: float, within: float) -> list[Synthesis]:  # noqa: N803 - a unit
    """AllReduces whose roots have other shares of the data than equal ones, if these may be faster
    by more than `within`, up to the first that comes as close to the best shares: a rank that few
    links join had better be no root, since it would receive its share twice.
    """
    pairs, ups = RankPairs.of(topology), _DIRECTIONS["allreduce"]
    best, made = tree_rates(pairs, ups, None), list[Synthesis]()
    for number in _SHARES:
        fastest_GBps = max([equal_GBps, *(one.algbw_GBps for one in made)])  # noqa: N806 - a unit
        if best.algbw_GBps * (1 - within) <= fastest_GBps:
            break
        chunks = _apportioned(best.root, number * topology.ranks)
        rates = tree_rates(pairs, ups, chunks)
        forests = [forest_on(rates, chunks, direction) for direction in range(len(ups))]
        found = tuple(one for one in forests if one is not None)
        made += [Synthesis("allreduce", found)] if len(found) == len(ups) else []
    return made


def _apportioned(shares: FloatArray, number: int) -> LongArray:
    """int64: so many in proportion to shares, by the largest remainders."""
    exact = shares / shares.sum() * number
    whole: LongArray = np.floor(exact).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: number - int(whole.sum())]] += 1
    return whole


def _is_symmetric(topology: Topology) -> bool:
    """Whether every link has one of the same rate in the opposite direction."""
    t = topology.links
    rows = [np.column_stack((a, b, t.GBps)) for a, b in ((t.src, t.dst), (t.dst, t.src))]
    forth, back = (one[np.lexsort(one.T)] for one in rows)
    return bool((forth == back).all())
