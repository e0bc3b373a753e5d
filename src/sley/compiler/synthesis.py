"""Synthesis: programs along trees or routes that are made for a topology."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from sley.algorithms import Algorithm, for_collective
from sley.errors import did_you_mean, without_inner_frames
from sley.errors.topology import T612
from sley.ir.program import Program
from sley.ir.tables import NONE, FloatArray, Value
from sley.ir.topology import Topology
from sley.topologies import (
    Forest,
    Routing,
    find_routes,
    least_height,
    link_rings,
    match_forest,
    pack_forest,
    topology_of,
)
from sley.topologies.forests import MOST_RANKS, WITHIN, across_nodes, apportioned, forest_on
from sley.topologies.rates import RankPairs, TreeRates, tree_rates
from sley.topologies.structure import sides_of

ROUTED = "alltoall"
"""The collective that takes routes."""

_DIRECTIONS = {"allgather": (False,), "reducescatter": (True,), "allreduce": (True, False)}
"""Whether data comes up trees, not down, for each forest of a collective."""

OF_TREES = ("height", "chunks")
"""Parameters of `synthesize` that an algorithm along trees takes on a topology, too."""

_MOST_SUMS = 1 << 14
"""About the most sums of a program in several orders."""

FEW_CHUNKS = (1, 2, 4)
"""Chunks of each rank's data whose trees are compared, of each height."""

_GAIN = 1.2
"""How many times as much bandwidth higher trees have to give."""

MOST_MERGED = 1.25
"""The connections for each thread block up to which trees may share blocks: more cost too much."""

_MOST_CONNECTIONS = 64
"""The connections of a rank above which trees only share channels."""

_SHARES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""The average chunks of a root that are tried where roots have different shares."""

_MOST_FEW = 4
"""Bound on the few trees of an AllReduce for each rank; their connections end the search before."""

_FILLED = 0.97
"""The load of a link, as a share of the busiest one's, above which it is about as busy."""

_ROUNDING = 1e-6
"""The share of a bandwidth that rounding may make up."""


@dataclass(frozen=True, eq=False, repr=False)
class Synthesis(Value):
    """Trees or routes for a collective.

    collective: allgather, reducescatter, allreduce or alltoall. parts: the forests that its data
    takes, one after the other, with as many chunks, up and down for an AllReduce; or the routes of
    an AllToAll.
    """

    collective: str
    parts: tuple[Forest | Routing, ...]

    @classmethod
    def of(
        cls,
        collective: str,
        topology: Topology,
        *,
        chunks: int | None = None,
        within: float = WITHIN,
        height: int | None = None,
        switches: bool = True,
    ) -> Synthesis:
        """The trees or routes for a topology: trees of `pack_forest`, or with a height of
        `match_forest`. switches: whether an AllReduce without given chunks or height may use those
        that reduce and multicast, if trees then have more bandwidth. Errors: T612."""
        collective = algorithm_of(collective).collective
        if collective == ROUTED and height is None:
            return cls(collective, (find_routes(topology, chunks=chunks, within=within),))
        if collective == ROUTED:
            raise T612.error(
                expected=f"no height, which trees have: for {', '.join(_DIRECTIONS)}",
                found=f"height={height!r} for {collective}",
                remedy="Give no height.",
            )
        forests = list[Forest]()
        for up in _DIRECTIONS[collective]:
            if forests and _is_symmetric(topology):
                forests.append(replace(forests[0], up=up))
            elif height is not None:
                few = 1 if chunks is None else chunks
                forests.append(match_forest(topology, up=up, chunks=few, height=height))
            else:
                number = forests[0].chunks // topology.ranks if forests else chunks
                forests.append(pack_forest(topology, up=up, chunks=number, within=within))
        made = cls(collective, tuple(forests))
        open_choice = chunks is None and height is None and topology.ranks > 1
        if collective != "allreduce" or not open_choice:
            return made
        pairs, ups = RankPairs.of(topology), _DIRECTIONS[collective]
        further = list[Synthesis]()
        if topology.ranks <= MOST_RANKS:
            further += [cls(collective, found) for found in _by_shares(pairs, ups, within, made)]
        further += through_switches(topology, within) if switches else []
        return max([made, *further], key=lambda one: one.algbw_GBps)

    @property
    def topology(self) -> Topology:
        """The topology for which they are made."""
        return self.parts[0].topology

    @property
    def switched(self) -> bool:
        """Whether switches reduce and multicast."""
        part = self.parts[0]
        return isinstance(part, Forest) and part.switched

    @property
    def chunks(self) -> int:
        """The chunks of a call's data."""
        return self.parts[0].chunks

    @property
    def sends(self) -> int:
        """The most sends that follow one another, up and down."""
        return sum(part.height for part in self.parts)

    @property
    def loads(self) -> FloatArray:
        """float64 (links,): the chunks that each link of the topology carries."""
        loads: FloatArray = np.stack([part.loads for part in self.parts]).sum(axis=0, dtype=float)
        return loads

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The size of a call over the time of the busiest link; infinite for one rank."""
        return self.topology.algbw_GBps(self.loads, self.chunks)

    @property
    def arguments(self) -> dict[str, list[Any]]:
        """The arguments of the collective's algorithm: routes; or trees, and up_trees if an
        AllReduce has others for its sums, and the ranks' switches if these reduce and multicast."""
        up, down = (self.parts[side].rows.tolist() for side in (0, -1))
        if self.collective == ROUTED:
            return {"routes": down}
        trees = {"trees": down} | ({} if up == down else {"up_trees": up})
        return trees | ({"switches": self.topology.node.tolist()} if self.switched else {})

    @property
    def sum_orders(self) -> int:
        """The orders of sums in which all leaves below a rank send at the same time, as far as few
        transfers allow; 1 without sums, or where results go on along whole trees."""
        up = self.parts[0]
        passed_on = len(self.parts) > 1 and self.sends > 2
        if not isinstance(up, Forest) or not up.up or up.switched or passed_on:
            return 1
        tree, rank = np.nonzero(up.parent != NONE)
        above, at = tree * self.topology.ranks + up.parent[tree, rank], up.parent.shape
        leaf = ~np.isin(np.ravel_multi_index((tree, rank), at), above)
        leaves = int(np.bincount(above, leaf).max(initial=1))
        return max(1, min(leaves, _MOST_SUMS // up.parent.size))

    @property
    def connections(self) -> int:
        """The most connections of a rank, each in one direction, if trees with a common edge have
        channels of their own; 0 for routes."""
        counts = np.zeros(self.topology.ranks, np.int64)
        for part in self.parts:
            if isinstance(part, Forest):
                tree, rank = np.nonzero(part.parent != NONE)
                for end in (rank, part.parent[tree, rank]):
                    counts += np.bincount(end, minlength=len(counts))
        return int(counts.max())

    @property
    def is_even(self) -> bool:
        """Whether all parts are trees that carry one chunk."""
        return all(isinstance(p, Forest) and bool((p.weight == 1).all()) for p in self.parts)

    @property
    def even(self) -> Synthesis:
        """The same trees, each as several that carry one chunk: one thread block may not move a
        heavy tree's data as fast as a link. Not for routes."""
        parts = list[Forest | Routing]()
        for part in self.parts:
            if isinstance(part, Forest):
                parent = np.repeat(part.parent, part.weight, axis=0)
                part = replace(part, weight=np.ones(len(parent), np.int64), parent=parent)
            parts.append(part)
        return replace(self, parts=tuple(parts))

    @cached_property
    def binomial(self) -> Synthesis | None:
        """The same with `Forest.binomial` for sums; None if these are the same trees, some ranks
        have no link to their new parent, or a link would carry more."""
        up = self.parts[0]
        if not isinstance(up, Forest) or not up.up or up.switched:
            return None
        found, topology = up.binomial, self.topology
        changed = found.parent != up.parent
        linked = topology.linked[np.nonzero(changed)[1], found.parent[changed]]
        if not changed.any() or not linked.all():
            return None
        made = replace(self, parts=(found, *self.parts[1:]))
        return made if made.algbw_GBps >= self.algbw_GBps * (1 - _ROUNDING) else None

    @property
    def leaves_wait(self) -> bool:
        """Whether a ReduceScatter may be faster if roots add the data of leaves last: they have
        others below, and on several nodes the links for sums within nodes are about the busiest."""
        up, topology = self.parts[0], self.topology
        if len(self.parts) > 1 or not isinstance(up, Forest) or not up.up or topology.nodes < 2:
            return False
        tree, rank = np.nonzero(up.parent != NONE)
        above = up.parent[tree, rank]
        # Trees with roots that leaves and others send to.
        inner = np.isin(tree * topology.ranks + rank, tree * topology.ranks + above)
        joined = up.depth[tree, rank] == 1
        mixed = np.intersect1d(tree[joined & inner], tree[joined & ~inner])
        # The busiest of the links that carry something within a node.
        near = topology.node[rank] == topology.node[above]
        busy = up.loads / topology.links.GBps
        inside = busy[topology.loads(rank[near], above[near], np.ones(near.sum())) > 0]
        return len(mixed) > 0 and bool(inside.max(initial=0) > _FILLED * busy.max())

    def program(
        self,
        *,
        in_place: bool = False,
        channels: int | None = None,
        sum_orders: int = 1,
        leaves_last: bool = False,
    ) -> Program:
        """The program for all ranks. channels: the most of trees. sum_orders: into which sums
        divide the data. leaves_last: whether roots add the data of leaves last."""
        ranks = self.topology.ranks
        arguments = {"ranks": ranks, **self.arguments}
        arguments |= {} if channels is None else {"channels": channels}
        arguments |= {} if sum_orders == 1 else {"sum_orders": sum_orders}
        arguments |= {"leaves_last": True} if leaves_last else {}
        return algorithm_of(self.collective).function(**arguments, in_place=in_place)

    def compared_programs(
        self, most_blocks: int, *, in_place: bool, leaves_last: bool = False
    ) -> list[Program]:
        """The programs that are compared if so many thread blocks fit on a GPU: trees with common
        edges on channels of their own, unless they would have too many connections, and all on one,
        as more instances of fewer connections may fill links better; on two where own ones may not
        fit, though passing data on takes a block for two connections."""
        # With switches a block announces data to many.
        if self.collective == ROUTED or self.switched:
            return [self.program(in_place=in_place)]
        most = MOST_MERGED * most_blocks if self.is_even else _MOST_CONNECTIONS
        fit = self.connections <= most
        own = self.topology.ranks <= MOST_RANKS and fit
        few = not own or self.connections > most_blocks
        made = list[Program]()
        for number in [*[None] * own, 1, *[2] * few]:
            program = self.program(in_place=in_place, channels=number, leaves_last=leaves_last)
            if all(program.transfers != one.transfers for one in made):
                made.append(program)
        return made


@without_inner_frames
def synthesize(
    collective: str,
    topology: Topology | str,
    *,
    chunks: int | None = None,
    within: float = WITHIN,
    height: int | None = None,
    switches: bool = True,
    in_place: bool = False,
) -> Program:
    """A program for all ranks of a topology, along trees (ForestColl, arXiv 2402.06787) or routes,
    whose link loads come close to the bandwidth bound.

    collective: allgather, reducescatter, allreduce or alltoall. topology: a topology, or its name.
    chunks, within: as for `sley.topologies.pack_forest` and `find_routes`. height: of trees for
    small sizes, the most sends between a root and a rank, as for `sley.topologies.match_forest`.
    switches: whether an AllReduce without given chunks or height may use the topology's switches,
    if they reduce and multicast. Errors: T604, T612.
    """
    made = Synthesis.of(
        collective,
        topology_of(topology),
        chunks=chunks,
        within=within,
        height=height,
        switches=switches,
    )
    return made.program(in_place=in_place)


def arguments_on(
    topology: Topology,
    parameters: Collection[str],
    given: Mapping[str, Any],
    collective: str | None = None,
    *,
    switches: bool = True,
) -> dict[str, Any]:
    """The arguments, besides its sizes, of an algorithm for all ranks of a topology: the given
    ones, and if it has such parameters, rings along the links, the sides of a torus for Swing, and
    trees or routes.

    parameters: the algorithm's. given: by name; for trees maybe `OF_TREES`. collective: the one for
    which to make trees or routes, if any. switches: as for `synthesize`. Errors: T604, T612.
    """
    missing, made = set(parameters) - given.keys(), dict(given)
    if "orders" in missing and "rings" not in given:
        along = link_rings(topology).orders.tolist()
        made |= {"orders": along} if along else {}
    if "sides" in missing:
        sides = sides_of(topology, routed=True)
        made |= {"sides": sides} if sides and all(side % 2 == 0 for side in sides) else {}
    routes = {"trees", "routes"}
    if collective is not None and missing & routes and not given.keys() & routes:
        numbers = {word: made.pop(word) for word in OF_TREES if word in made}
        made |= Synthesis.of(collective, topology, **numbers, switches=switches).arguments
    return made


def low_trees(collective: str, topology: Topology, until: float = float("inf")) -> list[Synthesis]:
    """The front of trees with few chunks, by ascending height, from the least possible one until
    higher ones have hardly more bandwidth, or the monotonic clock is at `until`; none for a
    collective that takes no trees, or for more ranks than are packed together, since matching needs
    their third power. Errors: T612."""
    made = list[Synthesis]()
    if collective not in _DIRECTIONS or topology.ranks > MOST_RANKS:
        return made
    for height in range(least_height(topology), topology.ranks):
        before, row = made, list[Synthesis]()
        for number in FEW_CHUNKS:
            if time.monotonic() < until:
                row.append(Synthesis.of(collective, topology, chunks=number, height=height))
        made = front([*made, *without_multiples(row)]) if row else made
        if made == before:
            break
    return made


def few_trees(topology: Topology, most_blocks: int, until: float = float("inf")) -> list[Synthesis]:
    """The front of AllReduces along even trees from few ranks, by ascending number, each with more
    bandwidth than those before, as long as about so many blocks suffice for all connections, or
    until the monotonic clock is at `until`. The trees of all ranks would share blocks, in which
    they wait for one another. Errors: T612."""
    ranks, made = topology.ranks, list[Synthesis]()
    best = tree_rates(RankPairs.of(topology), _DIRECTIONS["allreduce"], None)
    # Bandwidth depends on how well numbers divide rates: of small machines every one is tried.
    for number in range(max(ranks // 4, 1), _MOST_FEW * ranks, max(ranks // 8, 1)):
        most_GBps = made[-1].algbw_GBps if made else 0.0  # noqa: N806 - a unit
        if most_GBps >= best.algbw_GBps * (1 - _ROUNDING) or time.monotonic() >= until:
            break
        found = _by_rates(best, number)
        if not found:
            continue
        one = Synthesis("allreduce", found).even
        if one.connections > MOST_MERGED * most_blocks:
            break
        if one.algbw_GBps > most_GBps * (1 + _ROUNDING):
            made.append(one)
    return made


def along_rings(collective: str, topology: Topology) -> Synthesis | None:
    """Trees that are chains along the rings of `link_rings`; None without rings. All their links
    have data to send from the start to the end."""
    orders = link_rings(topology).orders
    rings, ranks = orders.shape
    if not rings:
        return None
    forests = list[Forest | Routing]()
    for up in _DIRECTIONS[collective]:
        above = np.empty((rings, ranks), np.int32)
        np.put_along_axis(above, orders, np.roll(orders, -1 if up else 1, axis=1), axis=1)
        parent = np.repeat(above, ranks, axis=0)
        parent[np.arange(len(parent)), np.tile(np.arange(ranks), rings)] = NONE
        forests.append(Forest(topology, np.ones(len(parent), np.int64), parent, up))
    return Synthesis(collective, tuple(forests))


def without_multiples(made: list[Synthesis]) -> list[Synthesis]:
    """Without those whose trees are the ones of fewer chunks."""
    return [one for one in made if np.gcd.reduce(one.parts[0].weight) == 1]


def front(made: list[Synthesis]) -> list[Synthesis]:
    """Those that are worth comparing, by ascending sends, then chunks: one stays if no kept one
    with as few sends and fewer chunks has more bandwidth, and if it has `_GAIN` times as much as
    all other kept ones with no more chunks. The one with the most bandwidth always stays."""
    order = sorted(made, key=lambda one: (one.sends, one.chunks, -one.algbw_GBps))
    most = max(order, key=lambda one: one.algbw_GBps)
    kept = list[Synthesis]()
    for one in order:
        needed = [
            k.algbw_GBps * (1 if k.sends == one.sends and k.chunks < one.chunks else _GAIN)
            for k in kept
            if k.chunks <= one.chunks
        ]
        if one is most or one.algbw_GBps >= max(needed, default=0) * (1 - 1e-9):
            kept.append(one)
    return kept


def tree_directions(collective: str) -> tuple[bool, ...]:
    """Whether data comes up trees, not down, for each forest of a collective; none for an AllToAll.
    Errors: T612."""
    return _DIRECTIONS.get(algorithm_of(collective).collective, ())


def algorithm_of(collective: str) -> Algorithm:
    """The algorithm of a collective that takes trees or routes. Errors: T612."""
    for one in for_collective(collective):
        if one.is_synthesised:
            return one
    served = (*_DIRECTIONS, ROUTED)
    raise T612.error(
        expected=f"one of {', '.join(served)}, which trees or routes serve",
        found=repr(collective),
        remedy=did_you_mean(str(collective), served),
    )


def through_switches(topology: Topology, within: float = WITHIN) -> list[Synthesis]:
    """AllReduces in which switches reduce and multicast within nodes, by ascending bandwidth; none
    without such switches, or for too many ranks."""
    forests = _switched(topology, within)
    return [Synthesis("allreduce", (replace(down, up=True), down)) for down in forests]


def _switched(topology: Topology, within: float) -> list[Forest]:
    """The trees of the results."""
    if not topology.has_switches:
        return []
    across = across_nodes(topology, lambda node: next(reversed(_switched(node, within)), None))
    if across is not None or topology.ranks > MOST_RANKS:
        return [] if across is None else [across]
    pairs = RankPairs.through_switches(topology)
    return [forest for (forest,) in _by_shares(pairs, (False,), within)]


def _by_shares(
    pairs: RankPairs, ups: tuple[bool, ...], within: float, equal: Synthesis | None = None
) -> list[tuple[Forest, ...]]:
    """Trees of AllReduces, for each direction, whose roots have other shares of the data than equal
    ones, if these may be faster by more than `within`, up to the first that comes as close to the
    best shares: a rank that few links join had better be no root, since it would receive its share
    twice. Each has more bandwidth than those before it.

    equal: trees of equal shares, if there are any.
    """
    best, made = tree_rates(pairs, ups, None), list[tuple[Forest, ...]]()
    most_GBps = 0.0 if equal is None else equal.algbw_GBps  # noqa: N806 - a unit
    for number in _SHARES:
        if best.algbw_GBps * (1 - within) <= most_GBps:
            break
        found = _by_rates(best, number * len(best.root))
        if found:
            up = replace(found[0], up=True)
            reached = Synthesis("allreduce", (up, found[-1])).algbw_GBps
            if reached > most_GBps:
                most_GBps = reached  # noqa: N806 - a unit
                made.append(found)
    return made


def _by_rates(best: TreeRates, number: int) -> tuple[Forest, ...]:
    """Trees of so many chunks, a forest for each direction of some rates, that divide the data
    among roots in about the same way; none if there are none in some direction."""
    chunks = apportioned(best.root, number)
    rates = tree_rates(best.pairs, best.ups, chunks)
    forests = [forest_on(rates, chunks, direction) for direction in range(len(best.ups))]
    return () if None in forests else tuple(one for one in forests if one is not None)


def _is_symmetric(topology: Topology) -> bool:
    """Whether every link has one of the same rate in the opposite direction."""
    t = topology.links
    rows = [np.column_stack((a, b, t.GBps)) for a, b in ((t.src, t.dst), (t.dst, t.src))]
    forth, back = (one[np.lexsort(one.T)] for one in rows)
    return bool((forth == back).all())
