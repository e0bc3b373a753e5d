"""Cuts: the narrowest cuts around groups of GPUs, and the chunks that must cross them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sley.ir.tables import BoolArray, FloatArray, LongArray, distinct
from sley.ir.topology import Topology
from sley.model.bounds.groups import Level, describe_gpus, levels_of, representatives
from sley.model.bounds.network import CapacityGraph

WORK = 2**25
"""The largest product of links and maximum flows to compute, about a minute; beyond it, a bound is
the tightest of the simple cuts."""


@dataclass(frozen=True)
class RateLimit:
    """A limit on the rate: chunks that must cross a capacity.

    chunks: number of chunks that must cross.
    GBps: the capacity.
    where: the cut, in words ("into GPU 0").
    exact: whether the limit can be reached with chunks of any size.
    """

    chunks: float
    GBps: float
    where: str
    exact: bool = False

    @property
    def ratio(self) -> float:
        """Chunks for each GB/s; multiplied by the bytes of a chunk, a time."""
        return self.chunks / self.GBps


NOTHING = RateLimit(0, 1.0, "nothing has to move", exact=True)


class Cuts:
    """Cuts of a topology.

    ranks: number of the collective's ranks, on the first GPUs; the other GPUs may forward.
    nominal: whether links have their nominal rates.
    """

    def __init__(self, topology: Topology, ranks: int, *, nominal: bool) -> None:
        links = topology.links
        self.GBps: FloatArray = links.nominal_GBps if nominal else links.GBps
        self.topology = replace(topology, links=replace(links, GBps=self.GBps))
        self.ranks = ranks
        self.nominal = nominal
        self.network = CapacityGraph(len(topology.vertices), links.src, links.dst, self.GBps)
        self.backwards = self.network.reversed()
        self._leaving: dict[tuple[bool, bool, bytes], float] = {}

    @cached_property
    def levels(self) -> list[Level]:
        """The natural partitions of the topology's GPUs."""
        return levels_of(self.topology)

    @cached_property
    def representative(self) -> LongArray:
        """int64 (ranks of the topology,): the GPU that represents each GPU's class of symmetry."""
        has_rank = np.arange(self.topology.ranks) < self.ranks
        return representatives(self.topology, self.GBps, has_rank.astype(np.int64))

    @cached_property
    def nearest_rank(self) -> LongArray:
        """int64 (ranks of the topology,): each GPU's rank, or the first rank of its node, or
        rank 0."""
        first: dict[int, int] = {}
        for rank, node in enumerate(self.topology.node[: self.ranks].tolist()):
            first.setdefault(node, rank)
        others = self.topology.node[self.ranks :].tolist()
        return np.array([*range(self.ranks), *(first.get(node, 0) for node in others)], np.int64)

    @property
    def affordable(self) -> int:
        """How many maximum flows are computed at most."""
        return WORK // max(len(self.network.src), 1)

    def leaving_GBps(  # noqa: N802 - a unit
        self, gpus: BoolArray, *, into: bool = False, apart: bool = False
    ) -> float:
        """The smallest capacity of a cut between some GPUs and the other ranks' GPUs; once more
        flows would take too long, that of all links.

        gpus: bool (ranks of the topology,), some of the ranks but not all.
        into: whether the cut leads into these GPUs, not out of them.
        apart: whether GPUs without a rank stay on the side where `gpus` has them, not on the one
            where the cut is narrowest.
        """
        apart = apart and self.ranks < self.topology.ranks
        inside = gpus[: self.topology.ranks if apart else self.ranks]
        # Out of a group is into the rest, so the smaller side identifies the cut.
        few = 2 * np.count_nonzero(inside) <= len(inside)
        small, inward = np.flatnonzero(inside if few else ~inside), into == few
        node = self.topology.node[small]
        alike = not apart and (node == node[0]).all()
        name = (apart, inward, (self.representative[small] if alike else small).tobytes())
        if name not in self._leaving:
            if len(self._leaving) >= self.affordable:
                return float(self.GBps.sum())
            network = self.backwards if into else self.network
            side = network.min_cut(np.flatnonzero(inside), np.flatnonzero(~inside))
            self._leaving[name] = network.leaving_GBps(side)
        return self._leaving[name]

    def tightest(self, crossings: Iterable[tuple[float, BoolArray, bool]]) -> RateLimit:
        """The limit with the longest time; of equals, the first.

        crossings: (chunks, gpus, into), chunks that must leave some GPUs, or with `into`, enter
            them.
        """

        def ratio(crossing: tuple[float, BoolArray, bool]) -> float:
            chunks, gpus, into = crossing
            return chunks / self.leaving_GBps(gpus, into=into)

        # Thousands of groups are tried, and the words for one take longer than its cut, which
        # mostly is an equal one's: only the chosen group is described.
        chosen = max(crossings, key=ratio, default=None)
        if chosen is None:
            return NOTHING
        chunks, gpus, into = chosen
        where = self.describe(gpus, outward=not into)
        return RateLimit(chunks, self.leaving_GBps(gpus, into=into), where)

    def describe(self, inside: BoolArray, *, outward: bool = True) -> str:
        """The direction in which chunks cross a cut, with the name of its smaller side."""
        ranks = inside[: self.ranks]
        inner, outer = np.flatnonzero(ranks), np.flatnonzero(~ranks)
        if len(outer) <= len(inner):
            return f"{'into' if outward else 'out of'} {describe_gpus(outer, self.topology)}"
        return f"{'out of' if outward else 'into'} {describe_gpus(inner, self.topology)}"


def tightest(limits: Iterable[RateLimit]) -> RateLimit:
    """The limit with the longest time; of equals, the first."""
    return max(limits, key=lambda limit: limit.ratio, default=NOTHING)


def sides(level: Level, ranks: int) -> Iterator[BoolArray]:
    """bool (ranks of the topology,): each part of a partition that has some but not all of the
    first `ranks` GPUs."""
    for number in distinct(level.group[:ranks]).tolist():
        gpus = level.group == number
        if not gpus[:ranks].all():
            yield gpus
