"""Cuts: the narrowest cuts around groups of GPUs of a topology, and what must cross them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.bounds.groups import Level, alike, levels_of, named
from sley.bounds.network import Network
from sley.ir.tables import BoolArray, FloatArray, LongArray, distinct
from sley.ir.topology import Topology

WORK = 2**25
"""Links times maximum flows: beyond, a bound is the best of the simple cuts. About a minute."""


@dataclass(frozen=True)
class Limit:
    """A rate that nothing exceeds.

    chunks, GBps: so many chunks must cross so much capacity.
    where: the cut, in words ("into GPU 0").
    exact: whether some way of moving the data reaches it, with chunks cut as finely as needed.
    """

    chunks: float
    GBps: float
    where: str
    exact: bool = False

    @property
    def ratio(self) -> float:
        """Chunks for each GB/s; times the bytes of a chunk it is a time."""
        return self.chunks / self.GBps


NOTHING = Limit(0, 1.0, "nothing has to move", exact=True)


class Cuts:
    """Cuts of a topology.

    ranks: how many of its GPUs take part; all carry.
    nominal: whether links have their nominal rates.
    """

    def __init__(self, topology: Topology, ranks: int, *, nominal: bool) -> None:
        links = topology.links
        self.topology = topology
        self.ranks = ranks
        self.GBps: FloatArray = links.nominal_GBps if nominal else links.GBps
        self.network = Network(len(topology.vertices), links.src, links.dst, self.GBps)
        self.backwards = self.network.reversed()
        self._leaving: dict[tuple[bool, bool, bytes], float] = {}

    @cached_property
    def levels(self) -> list[Level]:
        """The natural partitions of the topology's GPUs."""
        return levels_of(self.topology)

    @cached_property
    def standing(self) -> LongArray:
        """int64 (ranks of the topology,): the GPU that stands for each."""
        taking_part = np.arange(self.topology.ranks) < self.ranks
        return alike(self.topology, self.GBps, taking_part.astype(np.int64))

    @cached_property
    def wards(self) -> LongArray:
        """int64 (ranks of the topology,): the rank taking part that each GPU is counted with:
        itself, or the first of its node, or rank 0."""
        first: dict[int, int] = {}
        for rank, node in enumerate(self.topology.node[: self.ranks].tolist()):
            first.setdefault(node, rank)
        others = self.topology.node[self.ranks :].tolist()
        return np.array([*range(self.ranks), *(first.get(node, 0) for node in others)], np.int64)

    @property
    def affordable(self) -> int:
        """How many maximum flows are worth their time."""
        return WORK // max(len(self.network.src), 1)

    def leaving_GBps(  # noqa: N802 - a unit
        self, gpus: BoolArray, *, into: bool = False, apart: bool = False
    ) -> float:
        """The least capacity of a cut between some GPUs and the others that take part, out of
        them or into them; that of all links once more flows would take too long.

        gpus: bool (ranks of the topology,), neither none nor all of those that take part.
        apart: whether GPUs that don't take part are on the side where `gpus` has them, rather
            than where the cut is narrowest.
        """
        apart = apart and self.ranks < self.topology.ranks
        last = self.topology.ranks if apart else self.ranks
        members, rest = np.flatnonzero(gpus[:last]), np.flatnonzero(~gpus[:last])
        # Out of a group is into the rest; what stands for the smaller side stands for the cut.
        small, inward = (members, into) if len(members) <= len(rest) else (rest, not into)
        node = self.topology.node[small]
        alike = not apart and (node == node[0]).all()
        name = (apart, inward, (self.standing[small] if alike else small).tobytes())
        if name not in self._leaving:
            if len(self._leaving) >= self.affordable:
                return float(self.GBps.sum())
            network = self.backwards if into else self.network
            self._leaving[name] = network.leaving_GBps(network.min_cut(members, rest))
        return self._leaving[name]

    def limit(self, chunks: float, gpus: BoolArray, *, into: bool) -> Limit:
        """The limit that some GPUs send chunks to the others, or need them."""
        where = self.words(gpus, outward=not into)
        return Limit(chunks, self.leaving_GBps(gpus, into=into), where)

    def words(self, inside: BoolArray, *, outward: bool = True) -> str:
        """Which way a cut is crossed: the smaller side of the GPUs that take part is named."""
        taking_part = inside[: self.ranks]
        inner, outer = np.flatnonzero(taking_part), np.flatnonzero(~taking_part)
        if len(outer) <= len(inner):
            return f"{'into' if outward else 'out of'} {named(outer, self.topology)}"
        return f"{'out of' if outward else 'into'} {named(inner, self.topology)}"


def best(limits: Iterable[Limit]) -> Limit:
    """The limit that takes the longest, the first one of equals."""
    return max(limits, key=lambda limit: limit.ratio, default=NOTHING)


def sides(level: Level, ranks: int) -> Iterator[BoolArray]:
    """bool (ranks of the topology,) for each part of a partition that holds some but not all of
    the first `ranks` GPUs."""
    for number in distinct(level.group[:ranks]).tolist():
        gpus = level.group == number
        if not gpus[:ranks].all():
            yield gpus
