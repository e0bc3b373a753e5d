"""Rates of pairs: how much each rank sends to each other one, so that trees from all ranks carry
the most on a topology.

By a linear program. Its limits are the links on the paths of transfers (`Topology.paths`), and the
cuts that trees have to cross: trees of rate r(v) from each rank v exist if into every set of ranks
flows at least the rate of the roots outside it (Edmonds 1973). Maximum flows find cuts that a
solution violates, which are added until there is none. Equal pairs have one rate, which costs
nothing, since the mean of solutions is a solution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.errors.topology import T612
from sley.ir.graph import maximum_flow
from sley.ir.linear import LinearProgram
from sley.ir.tables import BoolArray, FloatArray, LongArray, frozen_array
from sley.ir.topology import Topology

_ROUNDS = 200
"""The most rounds of added cuts. Rates that still violate one are too high, trees then slower."""

_WHOLE = 1 << 40
"""The integer that stands for the rate of all roots in flows."""

_CLOSE = 1e-7
"""The share of all rates that a flow may lack by rounding."""

_LONG = 1e-6
"""What the use of a link costs in the objective."""


@dataclass(frozen=True, eq=False)
class TreeRates:
    """Rates of trees, in GB/s.

    pairs: of the topology. ups: for each direction, whether data comes up the trees. GBps: of each
    direction, float64 (pairs,), the rate at which each pair passes data. root: float64 (ranks,),
    the rate of the trees of each root.
    """

    pairs: RankPairs
    ups: tuple[bool, ...]
    GBps: tuple[FloatArray, ...]
    root: FloatArray

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The rate of all trees."""
        return float(self.root.sum())

    @cached_property
    def links_GBps(self) -> tuple[FloatArray, ...]:  # noqa: N802 - a unit
        """Of each direction, float64 (links,), the part of the links' rates that is for it: what
        its pairs use, and an equal part of what none uses."""
        used = [self.pairs.loads(rates) for rates in self.GBps]
        spare = np.maximum(self.pairs.topology.links.GBps - np.sum(used, axis=0), 0) / len(used)
        return tuple(one + spare for one in used)


def tree_rates(pairs: RankPairs, ups: tuple[bool, ...], shares: LongArray | None) -> TreeRates:
    """The rates with the most data of all trees.

    ups: for each direction, whether data comes up the trees to their roots. All directions use the
    links at the same time, and have trees with the same roots.
    shares: int64 (ranks,), to which the rates of the roots are proportional; by default they are
    the best ones. Errors: T612.
    """
    program = _Program(pairs, ups, shares)
    found = program.solve()
    for _ in range(_ROUNDS):
        if not program.add_cuts(found):
            break
        found = program.solve()
    return found


class _Program:
    """The linear program. Its variables: for each direction the rates of the classes of pairs, then
    those of the classes of roots, or if their shares are given the one of all."""

    def __init__(self, pairs: RankPairs, ups: tuple[bool, ...], shares: LongArray | None) -> None:
        ranks, rates = pairs.topology.ranks, pairs.topology.links.GBps
        self._pairs, self._ups = pairs, ups
        found = pairs.classes(np.ones(ranks, np.int64) if shares is None else shares)
        self._class, of_rank, of_link = found
        self._classes = int(self._class.max()) + 1
        # Cuts around a rank of each class, and limits of a link: the others have equal ones.
        self._ranks = np.unique(of_rank, return_index=True)[1]
        # The rate of each rank's trees is a share of a variable.
        self._root, self._share = of_rank, np.ones(ranks)
        if shares is not None:
            self._root, self._share = np.zeros(ranks, np.int64), shares / shares.sum()
        self._scale = float(rates[pairs.link].max())
        # Of equal solutions, the one with the shortest paths, and few pairs between nodes.
        price = (1.0 + pairs.crosses)[pairs.pair] * (_LONG / ranks)
        self._price = np.bincount(self._class[pairs.pair], price, self._classes)
        cost = [*[self._price] * len(ups), -np.bincount(self._root, self._share)]
        self._program = LinearProgram(np.concatenate(cost))
        # How many pairs of each class use each link, by class.
        key, self._times = np.unique(
            self._class[pairs.pair] * len(rates) + pairs.link, return_counts=True
        )
        self._of_class, self._used = np.divmod(key, len(rates))
        self._begin = np.searchsorted(self._of_class, np.arange(self._classes + 1))
        first = np.unique(of_link[self._used], return_index=True)[1]
        links = self._used[first]
        own = np.isin(self._used, links)
        row = np.searchsorted(np.sort(links), self._used[own])
        uses = [
            (
                row,
                self._of_class[own] + direction * self._classes,
                self._times[own].astype(np.float64),
            )
            for direction in range(len(ups))
        ]
        self._program.limit(uses, rates[np.sort(links)] / self._scale)
        for direction in range(len(ups)):
            for rank in self._ranks.tolist():
                alone, node = np.arange(ranks) == rank, pairs.topology.node
                for inside in (alone, node == node[rank]):
                    for cut in (inside, ~inside):
                        if 0 < cut.sum() < ranks:
                            self._add(cut, direction)

    def _add(self, inside: BoolArray, direction: int) -> None:
        """Adds a cut: what leaves a set of ranks is at least the rate of the roots in it."""
        src, dst = self._pairs.ends(self._ups[direction])
        leaving = np.bincount(self._class[inside[src] & ~inside[dst]], minlength=self._classes)
        roots = np.bincount(self._root[inside], self._share[inside])
        first = np.array([direction, len(self._ups)]) * self._classes
        terms = [
            (np.zeros(len(np.flatnonzero(one)), np.int64), at + np.flatnonzero(one), one[one != 0])
            for at, one in zip(first, (-1.0 * leaving, roots), strict=True)
        ]
        self._program.limit(terms, np.zeros(1))

    def solve(self) -> TreeRates:
        """The solution within the cuts that were added. Errors: T612."""
        solved = self._program.solve()
        if solved is None or solved.value >= 0:
            raise T612.error(
                expected="links from which trees from every rank to all others can be made",
                found=self._pairs.topology.name,
            )
        rates = np.maximum(solved.variables, 0) * self._scale
        *passed, roots = np.split(rates, np.arange(1, 1 + len(self._ups)) * self._classes)
        root = roots[self._root] * self._share
        self._fill(passed)
        return TreeRates(self._pairs, self._ups, tuple(one[self._class] for one in passed), root)

    def _fill(self, passed: list[FloatArray]) -> None:
        """Raises the rates of classes as far as links have room, the cheap ones first: each cut
        that this satisfies needs no row."""
        left = self._pairs.topology.links.GBps.astype(np.float64)
        for rates in passed:
            left -= np.bincount(self._used, self._times * rates[self._of_class], len(left))
        left = np.maximum(left, 0) / len(passed)
        for rates in passed:
            room = left.copy()
            for number in np.argsort(self._price, kind="stable").tolist():
                column = slice(self._begin[number], self._begin[number + 1])
                used, times = self._used[column], self._times[column]
                more = float((room[used] / times).min())
                rates[number] += more
                room[used] -= more * times

    def add_cuts(self, rates: TreeRates) -> bool:
        """Adds the cuts that rates violate most, towards a rank of each class; whether any do."""
        ranks, unit = len(rates.root), _WHOLE / rates.algbw_GBps
        supply = np.floor(rates.root * unit).astype(np.int64)
        violated = False
        for direction, passed in enumerate(rates.GBps):
            used = np.floor(passed * unit).astype(np.int64)
            src, dst = self._pairs.ends(self._ups[direction])
            src = np.concatenate([src[used > 0], np.full(ranks, ranks)])
            dst = np.concatenate([dst[used > 0], np.arange(ranks)])
            room = np.concatenate([used[used > 0], supply])
            for rank in self._ranks.tolist():
                value, reached = maximum_flow(ranks + 1, src, dst, room, (ranks, rank))
                if value < supply.sum() - _CLOSE * _WHOLE:
                    self._add(reached[:ranks], direction)
                    violated = True
        return violated


@dataclass(frozen=True, eq=False)
class RankPairs:
    """The pairs of ranks that a topology links, with the links on their paths.

    src, dst: int64 (pairs,). pair, link: int64, for each link on a path, the pair and the link.
    """

    topology: Topology
    src: LongArray
    dst: LongArray
    pair: LongArray
    link: LongArray

    @classmethod
    def of(cls, topology: Topology) -> RankPairs:
        """The pairs of a topology."""
        src, dst = np.indices((topology.ranks, topology.ranks), np.int32).reshape(2, -1)
        linked = (src != dst) & topology.are_linked(src, dst)
        src, dst = src[linked], dst[linked]
        paths = topology.paths(src, dst)
        pair = np.repeat(np.arange(len(src)), np.diff(paths.offset))
        columns = (frozen_array(one, np.int64) for one in (src, dst, pair, paths.target))
        return cls(topology, *columns)

    def loads(self, carried: FloatArray | LongArray) -> FloatArray:
        """float64 (links,): the sum over the pairs that use each link. carried: (pairs,)."""
        found = np.bincount(self.link, carried[self.pair], len(self.topology.links))
        return found.astype(np.float64)

    @cached_property
    def offset(self) -> LongArray:
        """int64 (pairs + 1,): where the links of each pair's path begin and end."""
        found: LongArray = np.searchsorted(self.pair, np.arange(len(self.src) + 1))
        return found

    def ends(self, up: bool) -> tuple[LongArray, LongArray]:
        """The sources and destinations of the pairs as trees go down, if data goes up or down."""
        return (self.dst, self.src) if up else (self.src, self.dst)

    @cached_property
    def _shifts(self) -> tuple[LongArray, LongArray]:
        """int64 (pairs,): by how many nodes, and places in them, the destination follows."""
        node = self.topology.node.astype(np.int64)
        order = np.argsort(node, kind="stable")
        place = np.empty_like(node)
        place[order] = np.arange(len(node)) - np.searchsorted(node[order], node[order])
        nodes, places = (of[self.dst] - of[self.src] for of in (node, place))
        return nodes % self.topology.nodes, places % self.topology.ranks

    @property
    def crosses(self) -> BoolArray:
        """bool (pairs,): whether a pair joins different places of two nodes."""
        nodes, places = self._shifts
        found: BoolArray = (nodes != 0) & (places != 0)
        return found

    @property
    def preferred(self) -> LongArray:
        """int64 (pairs,): the pairs, the preferred first of equal ones: to other nodes, in the same
        place there, then to the next place."""
        nodes, places = self._shifts
        return np.lexsort((places, nodes, places != 0, nodes == 0))

    def classes(self, shares: LongArray) -> tuple[LongArray, LongArray, LongArray]:
        """int64 (pairs,), (ranks,) and (links,): numbers from 0, which differ where pairs, ranks or
        links do, by the links of a path, their other pairs, and so on (the two-dimensional
        algorithm of Weisfeiler and Leman). shares: int64 (ranks,), a property of each rank."""
        ranks, links = self.topology.ranks, self.topology.links
        chance = np.random.default_rng(
            0
        )  # hashes: equal sums of them are equal sets, almost surely
        one = np.arange(ranks)
        color = np.zeros((ranks, ranks), np.int64)
        color[self.src, self.dst] = 1 + self.crosses
        color[one, one] = 3 + _numbers(shares)
        color, of_link = _numbers(color).reshape(ranks, ranks), _numbers(links.GBps, links.kind)
        before = 0
        while (number := int(color.max() + of_link.max())) > before:
            before = number
            hashes = chance.integers(1 << 62, size=(3, number + 1), dtype=np.int64)
            along = np.zeros((ranks, ranks), np.int64)
            np.add.at(
                along, (self.src[self.pair], self.dst[self.pair]), hashes[0][of_link[self.link]]
            )
            around = hashes[1][color] @ hashes[2][color]
            color = _numbers(color, color.T, along, around).reshape(ranks, ranks)
            hashes = chance.integers(1 << 62, size=int(color.max()) + 1, dtype=np.int64)
            through = np.zeros(len(links), np.int64)
            np.add.at(through, self.link, hashes[color[self.src, self.dst]][self.pair])
            of_link = _numbers(of_link, through)
        return _numbers(color[self.src, self.dst]), _numbers(color[one, one]), of_link


def _numbers(*columns: np.ndarray) -> LongArray:
    """int64: numbers from 0, equal where all columns are, flat."""
    rows = np.stack([column.ravel() for column in columns])
    found: LongArray = np.unique(rows, axis=1, return_inverse=True)[1].ravel()
    return found
