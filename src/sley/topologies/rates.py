"""Rates of pairs: how much each rank sends to each other one, so that trees from all ranks carry
the most on a topology.

A linear program finds them. Its limits are the links on the paths of transfers (`Topology.paths`),
and the cuts that trees have to cross: trees of rate r(v) from each rank v exist if into every set
of ranks flows at least the rate of the roots outside it (Edmonds 1973). Maximum flows find cuts
that a solution violates; they are added until there is none. Equal pairs have one rate, which costs
nothing, since the mean of solutions is a solution. Several groups of ranks may have trees of their
own, which share the links. Where switches reduce and multicast within nodes, trees join nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from sley.errors.topology import T612
from sley.ir.graph import maximum_flow
from sley.ir.linear import LinearProgram
from sley.ir.tables import NONE, BoolArray, FloatArray, LongArray, frozen_array, spans
from sley.ir.topology import Topology
from sley.topologies.groups import Group

_ROUNDS = 200
"""The most rounds of added cuts. Rates that still violate one are too high, trees then slower."""

_WHOLE = 1 << 40
"""The integer that stands for the rate of all roots in flows."""

_AMPLE = 1e6
"""A rate that is as good as any higher one, as a multiple of the narrowest rank's."""

_LEAST_SIZE = 1e-5
"""The least size of a group's data as a share of the largest: the solver's tolerance is 1e-7."""

_CLOSE = 1e-7
"""The share of all rates that a flow may lack by rounding."""

_LONG = 1e-6
"""What the use of a link costs in the objective."""


MOST_STEPS = 1 << 18
"""Bound on the steps that a program for flows regards: it takes half a minute then."""


@dataclass(frozen=True, eq=False)
class TreeRates:
    """Rates of trees, and of AllToAlls, in GB/s.

    pairs: of the topology. ups: for each direction, whether data comes up the trees. GBps: of each
    direction, and of AllToAlls, float64 (pairs,), the rate at which each pair passes data. root:
    float64 (members,), the rate of the trees of each root, or of a rank's data for each.
    limiting: bool (links,), the links on which the rate of all trees depends. reached: whether
    there are trees of these rates.
    """

    pairs: RankPairs
    ups: tuple[bool, ...]
    GBps: tuple[FloatArray, ...]
    root: FloatArray
    limiting: BoolArray
    reached: bool = True

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

    @cached_property
    def group_GBps(self) -> FloatArray:  # noqa: N802 - a unit
        """float64 (groups, links): the part of the links' rates that is for each group: what its
        pairs use, and of what none uses an equal part for each group with a path there."""
        pairs, total = self.pairs, np.sum(self.GBps, axis=0)
        own = pairs.group[pairs.src] == np.arange(pairs.groups)[:, None]
        used = np.stack([pairs.loads(total * one) for one in own])
        passes = np.stack([pairs.loads(one.astype(np.float64)) > 0 for one in own])
        spare = np.maximum(pairs.topology.links.GBps - used.sum(axis=0), 0)
        found: FloatArray = used + passes * (spare / np.maximum(passes.sum(axis=0), 1))
        return found


def tree_rates(
    pairs: RankPairs, ups: tuple[bool, ...], shares: LongArray | None, rounds: int = _ROUNDS
) -> TreeRates:
    """The rates with the most data of all trees.

    ups: for each direction, whether data comes up the trees to their roots. All directions use the
    links at the same time, and have trees with the same roots.
    shares: int64 (ranks,), to which the rates of the roots are proportional; by default they are
    the best ones. rounds: the most of added cuts. Errors: T612.
    """
    shared = np.zeros(len(pairs.group)) if shares is None else shares / shares.sum()
    return _Program(pairs, ups, shared, np.ones(1), np.ones((len(ups), 1), bool)).best(rounds)


def group_rates(
    topology: Topology, groups: Sequence[Group], ups: Sequence[tuple[bool, ...]], sizes: FloatArray
) -> TreeRates:
    """The rates at which the data of all groups takes the least common time, while they use the
    links of a topology at the same time.

    ups: of each group, the directions as for `tree_rates`, none for an AllToAll; the roots of a
    group with two have the best shares, other ranks equal ones. sizes: float64 (groups,), of the
    data of all roots, or of each rank's for all. Errors: T612.
    """
    pairs = RankPairs.of_groups(topology, groups)
    every = tuple(sorted({up for of in ups for up in of}))
    takes = np.array([*([up in of for of in ups] for up in every), [not of for of in ups]])
    takes = takes[takes.any(axis=1)]
    counts = np.bincount(pairs.group)
    weight = np.maximum(sizes / sizes.max(), _LEAST_SIZE)
    shares = np.where([len(of) < 2 for of in ups], weight / counts, 0.0)[pairs.group]
    return _Program(pairs, every, shares, weight, takes).best()


class _Program:
    """The linear program. Its variables: for each direction the rates of the classes of pairs, then
    those of the classes of roots, the rate of all, and those of the steps of AllToAlls.

    shares: float64 (members,), the rate of each root as a share of the rate of all; 0 in all of a
    group for the best ones, else for ranks that are no roots. weight: float64 (groups,), the sum of
    a group. takes: bool (directions, groups), whether a group's data goes in a direction; with one
    more for AllToAlls.
    """

    def __init__(
        self,
        pairs: RankPairs,
        ups: tuple[bool, ...],
        shares: FloatArray,
        weight: FloatArray,
        takes: BoolArray,
    ) -> None:
        ranks = len(pairs.group)
        self._pairs, self._ups, self._takes = pairs, ups, takes
        color, of_link = pairs.colors(shares, weight[pairs.group], *takes[:, pairs.group])
        self._class, of_rank = _numbers(color[pairs.src, pairs.dst]), _numbers(np.diag(color))
        self._classes = int(self._class.max()) + 1
        self._taken = np.zeros((len(takes), self._classes), bool)
        self._taken[:, self._class] = takes[:, pairs.group[pairs.src]] & (pairs.src != pairs.dst)
        # Cuts around a rank of each class, and limits of a link: the others have equal ones.
        self._ranks = np.unique(of_rank, return_index=True)[1]
        # The rate of each rank's trees is a share of a variable.
        roots = int(of_rank.max()) + 1
        self._root = np.where(shares > 0, roots, of_rank)
        self._share = np.where(shares > 0, shares, 1.0)
        self._is_root = (shares > 0) | (np.bincount(pairs.group, shares) == 0)[pairs.group]
        self._scale = self._narrowest_GBps()
        # Of equal solutions, the one with the shortest paths, and few pairs between nodes.
        price = (1.0 + pairs.crosses)[pairs.pair] * (_LONG / ranks)
        self._price = np.bincount(self._class[pairs.pair], price, self._classes)
        steps = Steps(pairs, color, takes[-1][pairs.group]) if len(takes) > len(ups) else None
        cost = [np.tile(self._price, len(takes)), np.zeros(roots), -np.ones(1)]
        cost += [] if steps is None else [np.zeros(len(steps.keys))]
        self._program = LinearProgram(np.concatenate(cost))
        # The best shares are at least those of the group.
        for group in np.unique(pairs.group[self._ranks[self._root[self._ranks] < roots]]).tolist():
            variable, times = np.unique(of_rank[pairs.group == group], return_counts=True)
            at, row = len(takes) * self._classes, np.zeros(len(variable) + 1, np.int64)
            terms = np.append(at + variable, at + roots), np.append(-1.0 * times, weight[group])
            self._program.limit([(row, *terms)], np.zeros(1))
        self._limit_links(of_link)
        self._limit_roots()
        self._add_first_cuts()
        if steps is not None:
            self._limit_steps(steps, len(takes) * self._classes + roots)

    def _narrowest_GBps(self) -> float:  # noqa: N802 - a unit
        """The most that the narrowest rank sends or receives, of those that have to: with such a
        unit the solver's tolerance is small."""
        pairs, rates = self._pairs, self._pairs.topology.links.GBps
        only = np.flatnonzero(self._is_root) if len(self._ups) == 1 else np.zeros(0, np.int64)
        sums = list[FloatArray]()
        for at, of in (pairs.offset[:-1], pairs.src), (pairs.offset[1:] - 1, pairs.dst):
            of, link = np.unique(np.stack([of, pairs.link[at]]), axis=1)
            sums.append(np.bincount(of, rates[link], len(pairs.group)).astype(np.float64))
        if len(only) == 1:  # what the only root has goes to all others, or comes from them
            come, go = sums if self._ups[0] else sums[::-1]
            come[only], go[np.arange(len(go)) != only] = 0, 0
        return float(min(one[one > 0].min() for one in sums if one.any()))

    def _limit_links(self, of_link: LongArray) -> None:
        """Limits the rates of pairs by a link of each class. of_link: int64 (links,)."""
        pairs, rates = self._pairs, self._pairs.topology.links.GBps
        # How often pairs of each class use each link, by class.
        key, place = np.unique(
            self._class[pairs.pair] * len(rates) + pairs.link, return_inverse=True
        )
        self._times: FloatArray = np.bincount(place.ravel(), pairs.times).astype(np.float64)
        self._of_class, self._used = np.divmod(key, len(rates))
        self._begin = np.searchsorted(self._of_class, np.arange(self._classes + 1))
        links = np.sort(self._used[np.unique(of_link[self._used], return_index=True)[1]])
        own = np.isin(self._used, links)
        row, times = np.searchsorted(links, self._used[own]), self._times[own]
        uses = [
            (row, self._of_class[own] + direction * self._classes, times)
            for direction in range(len(self._takes))
        ]
        most = np.minimum(rates[links] / self._scale, _AMPLE)
        first = self._program.limit(uses, most)
        self._priced = of_link, links, first + np.arange(len(links)), most

    def _limit_roots(self) -> None:
        """Makes the rate of what a root passes as a pair of its own at least that of its trees; a
        root without such a pair has none, if others have one."""
        pairs, at = self._pairs, len(self._takes) * self._classes
        own = np.flatnonzero(pairs.src == pairs.dst)
        without = np.unique(self._root[np.setdiff1d(np.arange(len(pairs.group)), pairs.src[own])])
        if len(own) and len(without):
            only = np.arange(len(without)), at + without, np.ones(len(without))
            self._program.limit([only], np.zeros(len(without)))
        own = own[np.unique(self._class[own], return_index=True)[1]]
        row, root = np.arange(len(own)), pairs.src[own]
        if len(own):
            passed = row, self._class[own], np.full(len(own), -1.0)
            terms = [(row, at + self._root[root], self._share[root]), passed]
            self._program.limit(terms, np.zeros(len(own)))

    def _add_first_cuts(self) -> None:
        """Adds the cuts around a rank of each class, and around its node."""
        pairs = self._pairs
        for direction, takes in enumerate(self._takes[: len(self._ups)]):
            for rank in self._ranks[takes[pairs.group[self._ranks]]].tolist():
                own = pairs.group == pairs.group[rank]
                ends, node = pairs.vertex == pairs.vertex[rank], pairs.node == pairs.node[rank]
                for inside in (ends, own & node):
                    for cut in (inside, own & ~inside):
                        if 0 < cut.sum() < own.sum():
                            self._add(cut, direction)

    def _limit_steps(self, steps: Steps, rate: int) -> None:
        """Makes what comes to a rank of an AllToAll what it keeps and passes on, and the rate of a
        pair at least that of the steps along it. rate: the variable of the rate of all."""
        first = rate + 1
        moved = [(row, first + step, times) for row, step, times in (steps.comes, steps.goes)]
        rows = np.arange(len(steps.origin))
        kept = rows, np.full(len(rows), rate), -self._share[steps.origin]
        self._program.limit([*moved, kept], np.zeros(len(rows)), equal=True)
        along, last = self._class[steps.send], (len(self._takes) - 1) * self._classes
        count = np.bincount(self._class, minlength=self._classes)[along]
        passed = along, first + np.arange(len(along)), steps.count / count
        every = np.arange(self._classes)
        most = every, last + every, np.full(len(every), -1.0)
        self._program.limit([passed, most], np.zeros(len(every)))

    def best(self, rounds: int = _ROUNDS) -> TreeRates:
        """The solution within all cuts. rounds: the most of added cuts. Errors: T612."""
        found = self.solve()
        for _ in range(rounds):
            if not self.add_cuts(found):
                return found
            found = self.solve()
        return replace(found, reached=False)

    def _add(self, inside: BoolArray, direction: int) -> None:
        """Adds a cut: what leaves a set of ranks is at least the rate of the roots in it."""
        src, dst = self._pairs.ends(self._ups[direction])
        leaving = np.bincount(self._class[inside[src] & ~inside[dst]], minlength=self._classes)
        roots = np.bincount(self._root[inside], self._share[inside])
        first = np.array([direction, len(self._takes)]) * self._classes
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
        *passed, roots = np.split(rates, np.arange(1, 1 + len(self._takes)) * self._classes)
        root = roots[self._root] * self._share * self._is_root
        self._fill(passed)
        # What the limits of links cost, in all the value (strong duality).
        of_link, links, row, most = self._priced
        costs = -solved.dual[row] * most > _LONG * -solved.value
        limiting = np.isin(of_link, of_link[links[costs]])
        every = tuple(one[self._class] for one in passed)
        return TreeRates(self._pairs, self._ups, every, root, limiting)

    def _fill(self, passed: list[FloatArray]) -> None:
        """Raises the rates of classes as far as links have room, the cheap ones first: each cut
        that this satisfies needs no row."""
        left = self._pairs.topology.links.GBps.astype(np.float64)
        for rates in passed:
            left -= np.bincount(self._used, self._times * rates[self._of_class], len(left))
        left = np.maximum(left, 0) / len(passed)
        order = np.argsort(self._price, kind="stable")
        for rates, taken in zip(passed, self._taken, strict=True):
            room = left.copy()
            for number in order[taken[order]].tolist():
                column = slice(self._begin[number], self._begin[number + 1])
                used, times = self._used[column], self._times[column]
                more = float((room[used] / times).min())
                rates[number] += more
                room[used] -= more * times

    def add_cuts(self, rates: TreeRates) -> bool:
        """Adds the cuts that rates violate most, towards a rank of each class; whether any do."""
        violated, pairs, ranks = False, self._pairs, len(rates.root)
        of = pairs.group[self._ranks]
        trees = self._takes[: len(self._ups), : of.max() + 1]
        for direction, group in np.argwhere(trees).tolist():
            members = np.flatnonzero(pairs.group == group)
            unit = _WHOLE / rates.root[members].sum()
            supply = np.floor(rates.root[members] * unit).astype(np.int64)
            used = np.floor(np.minimum(rates.GBps[direction] * unit, _WHOLE)).astype(np.int64)
            used[(pairs.group[pairs.src] != group) | (pairs.src == pairs.dst)] = 0
            src, dst = (pairs.vertex[of] for of in pairs.ends(self._ups[direction]))
            src = np.concatenate([src[used > 0], np.full(len(members), ranks)])
            dst = np.concatenate([dst[used > 0], pairs.vertex[members]])
            room = np.concatenate([used[used > 0], supply])
            for sink in np.unique(pairs.vertex[self._ranks[of == group]]).tolist():
                value, reached = maximum_flow(ranks + 1, src, dst, room, (ranks, sink))
                if value < supply.sum() - _CLOSE * _WHOLE:
                    self._add(reached[pairs.vertex], direction)
                    violated = True
        return violated


@dataclass(frozen=True, eq=False)
class RankPairs:
    """The pairs of ranks of a group that a topology links, with the links on their paths.

    group, node: int64 (members,), of each rank of each group; by default all ranks are one group.
    src, dst: int64 (pairs,), members. pair, link: int64, for each link on a path, the pair and the
    link. times: float64, how often the pair's data uses it, in units of its rate.
    vertex: int64 (members,), what trees join: numbers of members, or of nodes with switches.
    """

    topology: Topology
    group: LongArray
    node: LongArray
    src: LongArray
    dst: LongArray
    pair: LongArray
    link: LongArray
    times: FloatArray
    vertex: LongArray

    @classmethod
    def of(cls, topology: Topology) -> RankPairs:
        """The pairs of a topology."""
        src, dst = np.indices((topology.ranks, topology.ranks), np.int32).reshape(2, -1)
        paths = topology.paths(src, dst)
        links = np.diff(paths.offset)
        src, dst, links = src[links > 0], dst[links > 0], links[links > 0]
        pair = np.repeat(np.arange(len(src)), links)
        members = np.zeros(topology.ranks), topology.node
        columns = (*members, src, dst, pair, paths.target, 1 + 0 * pair, np.arange(topology.ranks))
        return cls._of(topology, columns)

    @classmethod
    def _of(cls, topology: Topology, columns: Sequence[np.ndarray]) -> RankPairs:
        kinds = [np.float64 if f.name == "times" else np.int64 for f in fields(cls)[1:]]
        return cls(topology, *map(frozen_array, columns, kinds))

    @classmethod
    def with_chains(cls, topology: Topology, ranks: LongArray) -> RankPairs:
        """The pairs of a node, where trees are chains over all nodes, from which a tree goes in
        each: data from and to other nodes passes a root as a pair of its own. ranks: of the node.
        """
        group, nodes = Group.of(topology, ranks.tolist()), topology.nodes
        own = cls.of(group.topology)
        places = np.argsort(topology.node, kind="stable").reshape(nodes, -1)
        node, number = int(topology.node[ranks[0]]), np.full(len(topology.links), NONE)
        number[group.links] = np.arange(len(group.links))
        after, before = places[(node + 1) % nodes], places[node - 1]
        ways = [topology.paths(*ends) for ends in ((ranks, after), (before, ranks))]
        root, link = (np.concatenate([getattr(w, k) for w in ways]) for k in ("source", "target"))
        inside = number[link] != NONE
        root, link = np.unique(np.stack([root, number[link]])[:, inside], axis=1)
        # Without places that have no way to other nodes.
        passing, pair = np.unique(root, return_inverse=True)
        times = np.full(len(root), 1 - 1 / nodes)
        columns = (
            *(own.group, own.node),
            *(np.append(of, passing) for of in (own.src, own.dst)),
            np.append(own.pair, len(own.src) + pair),
            np.append(own.link, link),
            np.append(own.times, times),
            own.vertex,
        )
        return cls._of(group.topology, columns)

    @classmethod
    def through_switches(cls, topology: Topology) -> RankPairs:
        """The pairs of an AllReduce in which trees join nodes. Data goes down from a rank to a head
        in another node, which multicasts it by its switch; the sum that the head reads there goes
        up the same way. A root is a head, as a pair of its own."""
        ranks = np.arange(topology.ranks)
        src, dst = np.indices((topology.ranks, topology.ranks), np.int32).reshape(2, -1)
        apart = topology.node[src] != topology.node[dst]
        apart &= topology.are_linked(src, dst) & topology.are_linked(dst, src)
        src, dst = (np.concatenate([of[apart], ranks]) for of in (src, dst))
        far = src != dst
        ways = [topology.paths(*ends) for ends in ((src[far], dst[far]), (dst[far], src[far]))]
        rows = [np.concatenate([way.source for way in ways])]
        links = [np.concatenate([way.target for way in ways])]
        for head in ranks.tolist():
            passed = [*topology.switch_links(head, up=False), *topology.switch_links(head, up=True)]
            into = np.flatnonzero(dst == head)
            rows.append(np.repeat(into, len(passed)))
            links.append(np.tile(passed, len(into)))
        times = np.full(sum(map(len, rows)), 1 / topology.model.switch_efficiency)
        times[: len(rows[0])] = 1.0
        every = len(topology.links)
        key, place = np.unique(
            np.concatenate(rows) * every + np.concatenate(links), return_inverse=True
        )
        pair, link = np.divmod(key, every)
        times = np.bincount(place.ravel(), times)
        node = topology.node
        return cls._of(topology, (0 * ranks, node, src, dst, pair, link, times, node))

    @classmethod
    def of_groups(cls, topology: Topology, groups: Sequence[Group]) -> RankPairs:
        """The pairs of groups of its ranks."""
        parts = [cls.of(group.topology) for group in groups]
        members = np.cumsum([0, *(group.topology.ranks for group in groups)])
        pairs = np.cumsum([0, *(len(part.src) for part in parts)])
        rows = zip(parts, groups, members.tolist(), pairs.tolist(), strict=False)
        columns = [
            (
                np.full(len(group.ranks), number),
                topology.node[group.ranks],
                part.src + member,
                part.dst + member,
                part.pair + pair,
                group.links[part.link],
                part.times,
                part.vertex + member,
            )
            for number, (part, group, member, pair) in enumerate(rows)
        ]
        return cls._of(topology, [np.concatenate(of) for of in zip(*columns, strict=True)])

    @property
    def are_switched(self) -> bool:
        """Whether trees join nodes."""
        return len(np.unique(self.vertex)) < len(self.vertex)

    @property
    def are_symmetric(self) -> bool:
        """Whether each pair has one in the opposite direction, over links of the same rates between
        the same vertices, of which paths use one in each direction."""
        t, n = self.topology.links, len(self.topology.vertices)
        used = np.unique(self.link)
        if len(np.unique(t.src[used].astype(np.int64) * n + t.dst[used])) < len(used):
            return False
        rows = []
        for ends, (a, b) in (((0, 1), (t.src, t.dst)), ((1, 0), (t.dst, t.src))):
            src, dst = ((self.src, self.dst)[end][self.pair] for end in ends)
            along = a[self.link].astype(np.int64) * n + b[self.link]
            row = np.stack([src, dst, along, t.GBps[self.link], self.times])
            rows.append(row[:, np.lexsort(row)])
        forth, back = rows
        return bool(np.array_equal(forth, back))

    @property
    def groups(self) -> int:
        """The number of groups."""
        return int(self.group.max()) + 1

    def loads(self, carried: FloatArray | LongArray) -> FloatArray:
        """float64 (links,): the sum over the pairs that use each link. carried: (pairs,)."""
        carried = carried[self.pair] * self.times
        return np.bincount(self.link, carried, len(self.topology.links)).astype(np.float64)

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
        node = self.group * self.topology.nodes + self.node
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

    @cached_property
    def preferred(self) -> LongArray:
        """int64 (pairs,): the pairs, the preferred first of equal ones: to other nodes, in the same
        place there, then to the next place."""
        nodes, places = self._shifts
        return np.lexsort((places, nodes, places != 0, nodes == 0))

    def classes(self, *marks: np.ndarray) -> tuple[LongArray, LongArray, LongArray]:
        """int64 (pairs,), (members,) and (links,): the `colors` of pairs, ranks and links, numbered
        from 0. marks: (members,), properties of each rank."""
        color, of_link = self.colors(*marks)
        return _numbers(color[self.src, self.dst]), _numbers(np.diag(color)), of_link

    def colors(self, *marks: np.ndarray) -> tuple[LongArray, LongArray]:
        """int64 (members, members), of each two ranks, linked or not, and int64 (links,): numbers
        from 0, which differ where pairs, ranks or links do, by the links of a path, their other
        pairs, and so on (the two-dimensional algorithm of Weisfeiler and Leman). marks: (members,),
        properties of each rank."""
        ranks, links = len(self.group), self.topology.links
        # Hashes: equal sums of them are equal sets, almost surely.
        chance = np.random.default_rng(0)
        one = np.arange(ranks)
        color = np.zeros((ranks, ranks), np.int64)
        color[self.src, self.dst] = 1 + self.crosses
        color[one, one] = 3 + _numbers(np.zeros(ranks), *marks)
        color, of_link = _numbers(color).reshape(ranks, ranks), _numbers(links.GBps, links.kind)
        before, often = 0, 1 + _numbers(self.times)
        while (number := int(color.max() + of_link.max())) > before:
            before = number
            hashes = chance.integers(1 << 62, size=(3, number + 1), dtype=np.int64)
            along = np.zeros((ranks, ranks), np.int64)
            ends, used = (self.src[self.pair], self.dst[self.pair]), hashes[0][of_link[self.link]]
            np.add.at(along, ends, used * often)
            around = hashes[1][color] @ hashes[2][color]
            color = _numbers(color, color.T, along, around).reshape(ranks, ranks)
            hashes = chance.integers(1 << 62, size=int(color.max()) + 1, dtype=np.int64)
            through = np.zeros(len(links), np.int64)
            np.add.at(through, self.link, hashes[color[self.src, self.dst]][self.pair] * often)
            of_link = _numbers(of_link, through)
        return color, of_link


class Steps:
    """Steps of data of AllToAlls: from an origin, at a rank that passes it on to the next. Steps
    are of a class if their three pairs of ranks are.

    of_send: int64 (pairs,), the class of each pair of ranks.
    keys: int64 (classes,), ascending, as `key` finds them. send, count: int64 (classes,), the pair
    of a rank and the next of one step, and the number of steps. origin, rank: int64 (rows,), a pair
    of each class to which data goes. comes, goes: (row, class, factor), the steps that end and
    begin at the row's rank, the factors of the latter below 0. Errors: T612.
    """

    def __init__(self, pairs: RankPairs, color: LongArray, exchange: BoolArray) -> None:
        """color: of `RankPairs.colors`. exchange: bool (members,), of those with an AllToAll."""
        self._pairs, self._color, self._colors = pairs, color, int(color.max()) + 1
        self.of_send = color[pairs.src, pairs.dst]
        first, size = np.unique(color, return_index=True, return_counts=True)[1:]
        origin, rank = np.divmod(first, len(color))
        needed = (origin != rank) & (pairs.group[origin] == pairs.group[rank]) & exchange[origin]
        self.origin, self.rank, size = origin[needed], rank[needed], size[needed]
        (come, into), (go, out) = (self._of_rows(end) for end in (pairs.dst, pairs.src))
        self.keys, into_at, into_count = np.unique(into, return_index=True, return_counts=True)
        left, out_at, out_count = np.unique(out, return_index=True, return_counts=True)
        self.comes = come[into_at], np.arange(len(self.keys)), into_count.astype(np.float64)
        self.goes = go[out_at], np.searchsorted(self.keys, left), -out_count.astype(np.float64)
        self.count = size[come[into_at]] * into_count
        color, one = np.unique(self.of_send, return_index=True)
        self.send = one[np.searchsorted(color, self.keys % self._colors)]

    def key(self, origin: LongArray | int, send: LongArray) -> LongArray:
        """int64 (steps,): the class of the step of an origin's data along a pair; NONE between
        equal ranks and back to the origin, which no data needs."""
        src, dst = self._pairs.src[send], self._pairs.dst[send]
        before, after = self._color[origin, src], self._color[origin, dst]
        key = (before * self._colors + after) * self._colors + self.of_send[send]
        return np.where((before == after) | (dst == origin), NONE, key)

    def _of_rows(self, end: LongArray) -> tuple[LongArray, LongArray]:
        """int64 (steps,): rows, and the classes of all steps that begin or end at their ranks. end:
        int64 (pairs,), this end of pairs."""
        order = np.argsort(end, kind="stable")
        begin = np.searchsorted(end[order], np.arange(len(self._color) + 1))
        count = np.diff(begin)[self.rank]
        if count.sum() > MOST_STEPS:
            raise T612.error(
                expected=f"ranks so alike that at most {MOST_STEPS} steps of data differ",
                found=f"{self._pairs.topology.name}: {count.sum()}",
                remedy="Synthesize for fewer nodes.",
            )
        row, turn = spans(begin[self.rank], count)
        key = self.key(self.origin[row], order[turn])
        return row[key != NONE], key[key != NONE]


def _numbers(*columns: np.ndarray) -> LongArray:
    """int64: numbers from 0, equal where all columns are, flat."""
    rows = np.stack([column.ravel() for column in columns])
    found: LongArray = np.unique(rows, axis=1, return_inverse=True)[1].ravel()
    return found
