"""Forests: spanning trees from every rank that together reach the bandwidth bound of an AllGather
on any topology; reversed, that of a ReduceScatter.

As in ForestColl (arXiv 2402.06787, section 5), each rank's data is cut into `chunks`, one for each
tree from it. All trees exist exactly if the data of all ranks can flow to each one alone, which
maximum flows tell; they grow edge by edge, where the flows of the trees that are not complete stay
possible (Edmonds 1973; Bérczi and Frank 2010).

Trees go along the paths that transfers take (`Topology.paths`). So what each pair of ranks may
carry is not found by splitting the links of switches, as there, but by a linear program over pairs
(`sley.topologies.rates`), and rounded to whole chunks: splitting one switch after the other loses
bandwidth where the paths of several pairs share links behind several switches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sley.errors import SleyError
from sley.errors.topology import T612
from sley.ir.graph import depths, flow_values
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray, Value, frozen_array, inverse
from sley.ir.topology import Topology
from sley.ir.words import is_integer, is_real
from sley.topologies.groups import Group
from sley.topologies.rates import RankPairs, TreeRates, tree_rates

MOST_CHUNKS = 4096
"""Bound on the chunks of each rank's data."""

MOST_RANKS = 128
"""Bound on the ranks that are packed together: the time grows with their fourth power."""

MOST_ACROSS = 2048
"""Bound on the ranks on nodes with as many GPUs."""

WITHIN = 0.05
"""The share of the bandwidth along paths that few trees may lack by default: trees that come closer
are more, and need more thread blocks."""

_TRIED_CHUNKS = 32
"""The most chunks of each rank's data that are tried, if the user gives no number."""

_TRIED_NUMBERS = (1, 2, 4, 8, 16, 32)
"""The chunks of each rank's data of which the best are taken, if none come close enough."""

_LONGEST = 1e6
"""The longest time that is tried, as a multiple of the one without whole chunks: a pair with such a
small share of the data has no part in it."""

_HALVINGS = 5
"""How many times the interval is halved that holds the shortest time for whole chunks."""

_ROUNDING = 1e-9
"""The share of a time by which rounding must not lose a chunk that just fits."""


@dataclass(frozen=True, eq=False, repr=False)
class Forest(Value):
    """Spanning trees from every rank to all others.

    topology: where they are. weight: int64 (trees,), the chunks that each tree carries.
    parent: int32 (trees, ranks), the rank that sends to each; NONE for the tree's root.
    up: whether data comes up the trees, as in a ReduceScatter, not down, as in an AllGather.
    switched: whether switches reduce and multicast what a rank and the others of its node pass.
    """

    topology: Topology
    weight: LongArray
    parent: IntArray
    up: bool = False
    switched: bool = False

    @property
    def chunks(self) -> int:
        """The chunks of all trees together."""
        return int(self.weight.sum())

    @cached_property
    def root(self) -> LongArray:
        """int64 (trees,): the root of each tree."""
        return frozen_array((self.parent == NONE).argmax(axis=1), np.int64)

    @property
    def rows(self) -> LongArray:
        """int64 (trees, 1 + ranks): the weight of each tree, then the parent of each rank, as
        `sley.algorithms.forest_allgather` takes them."""
        return np.column_stack([self.weight, self.parent])

    @cached_property
    def depth(self) -> IntArray:
        """int32 (trees, ranks): the sends between the root and each rank."""
        return frozen_array(depths(self.parent), np.int32)

    @property
    def height(self) -> int:
        """The most sends between a root and a rank."""
        return int(self.depth.max())

    @cached_property
    def loads(self) -> FloatArray:
        """float64 (links,): the chunks that each link of the topology carries, in units of its rate
        for single messages."""
        tree, rank = np.nonzero(self.parent != NONE)
        above, node = self.parent[tree, rank], self.topology.node
        far = np.full(len(rank), not self.switched) | (node[above] != node[rank])
        src, dst = (rank, above) if self.up else (above, rank)
        loads = self.topology.loads(src[far], dst[far], self.weight[tree[far]]).astype(np.float64)
        heads = np.unique(np.stack([tree, above])[:, ~far], axis=1)
        passed = np.bincount(heads[1], self.weight[heads[0]], self.topology.ranks)
        for head in np.flatnonzero(passed).tolist():
            used = self.topology.switch_links(head, up=self.up)
            loads[used] += passed[head] / self.topology.model.switch_efficiency
        return frozen_array(loads, np.float64)

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The data of all trees over the time of the busiest link; infinite for one rank."""
        return self.topology.algbw_GBps(self.loads, self.chunks)

    @property
    def binomial(self) -> Forest:
        """The trees with a rank's leaves on its node as a binomial tree below it: it then adds the
        data of a few ranks in turn, not of all. Some ranks may have no link to their new parent."""
        tree, rank = np.nonzero(self.parent != NONE)
        above, ranks = self.parent[tree, rank], self.topology.ranks
        inner = np.zeros(self.parent.shape, bool)
        inner[tree, above] = True
        near = ~inner[tree, rank] & (self.topology.node[above] == self.topology.node[rank])
        tree, rank, above = tree[near], rank[near], above[near]
        key = tree * ranks + above
        order = np.lexsort(((rank - above) % ranks, key))
        tree, rank, above, key = tree[order], rank[order], above[order], key[order]
        first = np.searchsorted(key, key)
        # Numbered from 1: below the one without the last bit of its number, or the rank.
        number = np.arange(len(key)) - first + 1
        upper = number & (number - 1)
        parent = self.parent.copy()
        parent[tree, rank] = np.where(upper == 0, above, rank[first + upper - 1])
        return replace(self, parent=parent)

    def __repr__(self) -> str:
        return (
            f"Forest({self.topology.name}: {len(self.weight)} trees, height {self.height}, "
            f"{self.algbw_GBps:.2f} GB/s)"
        )


def pack_forest(
    topology: Topology,
    *,
    up: bool = False,
    chunks: int | None = None,
    within: float = WITHIN,
) -> Forest:
    """Trees on all ranks of a topology.

    up: for a ReduceScatter, whose data comes up the trees; else for an AllGather.
    chunks: of each rank's data; by default the fewest whose trees lack at most `within` of the
    most bandwidth along the paths of transfers, or of several numbers up to 32 the one with the
    most bandwidth. Errors: T612.
    """
    many = topology.ranks > MOST_RANKS
    check_request(topology, chunks, within, MOST_ACROSS if many else MOST_RANKS)
    if topology.ranks == 1:
        return Forest(topology, np.ones(1, np.int64), np.full((1, 1), NONE, np.int32), up)
    made = (_Chained if many else _Packed)(topology, up)
    least = made.algbw_GBps * (1 - within) * (1 - _ROUNDING)
    for number in range(1, _TRIED_CHUNKS + 1) if chunks is None else ():
        found = made.forest(number, 1 / (1 - within))
        if found is not None and found.algbw_GBps >= least:
            return found
    numbers = _TRIED_NUMBERS if chunks is None else (chunks,)
    tried = [one for number in numbers if (one := made.forest(number, _LONGEST)) is not None]
    if not tried:
        raise T612.error(
            expected="a number of chunks for which trees can be packed",
            found=f"{topology.name}, chunks: {', '.join(map(str, numbers))}",
            remedy="Give another number of chunks.",
        )
    return max(tried, key=lambda one: one.algbw_GBps)


def chained_GBps(topology: Topology, *, up: bool) -> float:  # noqa: N802 - a unit
    """The most bandwidth of trees that are chains of nodes, with equal shares of their roots.
    Errors: T612."""
    return _Chained(topology, up).algbw_GBps


def check_request(topology: Topology, chunks: int | None, within: float, most_ranks: int) -> None:
    """Refuses chunks and shares that `pack_forest` can't take, and too many ranks. Errors: T612."""
    right = chunks is None or (is_integer(chunks) and 1 <= chunks <= MOST_CHUNKS)
    if not right or not (is_real(within) and 0 <= within < 1):
        expected = f"chunks from 1 to {MOST_CHUNKS}, within a share from 0 to below 1"
        found = f"chunks={chunks!r}, within={within!r}"
        raise T612.error(expected=expected, found=found, remedy=f"Give {expected}.")
    if topology.ranks > most_ranks:
        raise T612.error(
            expected=f"at most {most_ranks} ranks",
            found=f"{topology.name}: {topology.ranks}",
            remedy="Synthesize for fewer nodes.",
        )


class _Packed:
    """Trees of all ranks that are packed together. algbw_GBps: the most of any. Errors: T612."""

    def __init__(self, topology: Topology, up: bool) -> None:
        self._every = np.ones(topology.ranks, np.int64)
        self._rates = tree_rates(RankPairs.of(topology), (up,), self._every)
        self.algbw_GBps = self._rates.algbw_GBps

    def forest(self, chunks: int, longest: float) -> Forest | None:
        """The trees with so many chunks of each rank's data; None if their time is longer than this
        multiple of the least."""
        return forest_on(self._rates, chunks * self._every, longest=longest)


class _Chained:
    """Trees of more ranks, from trees of each kind of nodes. Data from other nodes comes to all
    places of a node alike, or to the best ones where that is needed to be as fast as the slowest
    node. algbw_GBps: the most of any. Errors: T612."""

    def __init__(self, topology: Topology, up: bool) -> None:
        self._nodes, self._ups = _Nodes(topology), (up,)
        pairs = [RankPairs.with_chains(topology, kind.ranks) for kind in self._nodes.kinds]
        best = [tree_rates(one, self._ups, None) for one in pairs]
        self.algbw_GBps = min(one.algbw_GBps for one in best)
        alike = [
            tree_rates(one, self._ups, np.ones(len(one.group), np.int64))
            if len(np.unique(one.src[one.src == one.dst])) == len(one.group)
            else rates
            for one, rates in zip(pairs, best, strict=True)
        ]
        enough = self.algbw_GBps * (1 - _ROUNDING)
        kinds = zip(best, alike, strict=True)
        self._rates = [b if one.algbw_GBps < enough else one for b, one in kinds]

    def forest(self, chunks: int, longest: float) -> Forest | None:
        """As for `_Packed`."""
        inner = list[Forest]()
        for rates in self._rates:
            shares = apportioned(rates.root, chunks * len(rates.root))
            own = tree_rates(rates.pairs, self._ups, shares)
            found = forest_on(own, shares, longest=longest * own.algbw_GBps / self.algbw_GBps)
            if found is None:
                return None
            inner.append(found)
        # Each chunk of a place takes a tree of each kind of nodes, from its place or one near it.
        place = np.repeat(np.arange(inner[0].parent.shape[1]), chunks)
        order = [np.argsort(one.root, kind="stable") for one in inner]
        taken = [np.repeat(at, one.weight[at]) for at, one in zip(order, inner, strict=True)]
        rows, weight = np.unique(np.stack([place, *taken]), axis=1, return_counts=True)
        return self._nodes.chained(inner, rows[1:], rows[0], weight)


def apportioned(shares: FloatArray, number: int) -> LongArray:
    """int64: so many in proportion to shares, by the largest remainders."""
    exact = shares / shares.sum() * number
    whole: LongArray = np.floor(exact + _ROUNDING).astype(np.int64)
    order = np.argsort(whole - exact, kind="stable")
    whole[order[: number - int(whole.sum())]] += 1
    return whole


class _Nodes:
    """The nodes of a topology, and trees that are chains over all nodes, from which a tree goes in
    each. So the cards carry no more than they have to.

    kinds: the ranks of a node of each kind, with their links, also to the network. kind: int64
    (nodes,). places: int64 (nodes, gpus), the ranks of each node. Errors: T612.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology, nodes = topology, topology.nodes
        gpus = np.bincount(topology.node)
        groups = list[Group]()
        if nodes > 1 and (gpus == gpus[0]).all() and gpus[0] <= MOST_RANKS:
            self.places = np.argsort(topology.node, kind="stable").reshape(nodes, -1)
            groups = [Group.of(topology, ranks) for ranks in self.places.tolist()]
        self.kinds, self.kind = list[Group](), list[int]()
        for group in groups:
            equal = [one.topology.links == group.topology.links for one in self.kinds]
            self.kind.append(equal.index(True) if any(equal) else len(self.kinds))
            self.kinds += [] if any(equal) else [group]
        joined = [len(RankPairs.of(one.topology).src) > 0 for one in self.kinds]
        if not groups or (gpus[0] > 1 and not all(joined)):
            raise self._no_trees("more on nodes with as many joined GPUs")

    def _no_trees(self, expected: str) -> SleyError:
        found, remedy = (
            f"{self._topology.name}: {self._topology.ranks}",
            "Synthesize for fewer nodes.",
        )
        return T612.error(
            expected=f"at most {MOST_RANKS} ranks, or {expected}", found=found, remedy=remedy
        )

    def chained(
        self, inner: Sequence[Forest], trees: LongArray, home: LongArray, weight: LongArray
    ) -> Forest:
        """A tree from each node for each column of `trees`, int64 (kinds, columns), which are rows
        of the trees of each kind of nodes. home, weight: int64 (columns,), the place of the root
        and the chunks."""
        nodes, columns = len(self.places), np.arange(trees.shape[1])
        row = [trees[kind] for kind in self.kind]
        own = [inner[kind].parent[at] for kind, at in zip(self.kind, row, strict=True)]
        root = [inner[kind].root[at] for kind, at in zip(self.kind, row, strict=True)]
        chain = np.empty((len(columns), self._topology.ranks), np.int32)
        for node, places in enumerate(self.places):
            chain[:, places] = places[own[node]]
            above, below = self.places[node - 1][root[node - 1]], places[root[node]]
            if not self._topology.are_linked(above, below).all():
                raise self._no_trees("links from node to node between all places that trees pass")
            chain[columns, below] = above
        parent = np.tile(chain, (nodes, 1, 1))
        for node, places in enumerate(self.places):
            turned = own[node].copy()
            # Data goes from its own place to the root, and on as from there.
            at, above = home.copy(), np.full(len(home), NONE)
            while (on := at != NONE).any():
                following = turned[columns[on], at[on]]
                turned[columns[on], at[on]] = above[on]
                above[on], at[on] = at[on], following
            parent[node][:, places] = np.where(turned == NONE, NONE, places[turned])
        return Forest(
            self._topology,
            frozen_array(np.tile(weight, nodes), np.int64),
            frozen_array(parent.reshape(-1, self._topology.ranks), np.int32),
            inner[0].up,
            inner[0].switched,
        )


def across_nodes(topology: Topology, make: Callable[[Topology], Forest | None]) -> Forest | None:
    """Trees for more ranks than are packed together, on equal nodes, from those that `make` makes
    for a node; None for fewer ranks, other nodes, or none from `make`. Errors: T612."""
    if topology.ranks <= MOST_RANKS or len((nodes := _Nodes(topology)).kinds) > 1:
        return None
    inner = make(nodes.kinds[0].topology)
    if inner is None:
        return None
    return nodes.chained([inner], np.arange(len(inner.weight))[None], inner.root, inner.weight)


def forest_on(
    rates: TreeRates, chunks: LongArray, direction: int = 0, *, longest: float = _LONGEST
) -> Forest | None:
    """The trees with the shortest time that is found, by the rates of pairs in one direction; None
    if there are none.

    chunks: int64 (ranks,), of each rank's data. longest: of times, as a multiple of the rates'.
    """
    unit = chunks.sum() / rates.algbw_GBps
    low, high, step = 1.0, 1.0, min(1.05, longest)
    while (room := _sufficient_room(rates, direction, high * unit, chunks)) is None:
        if high >= longest:
            return None
        low, high, step = high, min(high * step, longest), step * step
    for _ in range(_HALVINGS if low < high else 0):
        middle = (low + high) / 2
        less = _sufficient_room(rates, direction, middle * unit, chunks)
        low, high, room = (middle, high, room) if less is None else (low, middle, less)
    pairs = rates.pairs
    found = _pack(*_of_vertices(pairs, chunks, room))
    if found is None:
        return None
    if pairs.are_switched:
        found = _through_switches(pairs, chunks, room, *found)
    weight, parent = (frozen_array(*one) for one in zip(found, (np.int64, np.int32), strict=True))
    return Forest(pairs.topology, weight, parent, rates.ups[direction], pairs.are_switched)


def _of_vertices(
    pairs: RankPairs, chunks: LongArray, room: LongArray
) -> tuple[LongArray, LongArray]:
    """The chunks and the room of what trees join, from those of ranks."""
    vertex, number = pairs.vertex, int(pairs.vertex.max()) + 1
    each, between = np.zeros(number, np.int64), np.zeros((number, number), np.int64)
    np.add.at(each, vertex, chunks)
    np.add.at(between, (vertex[:, None], vertex), room)
    np.fill_diagonal(between, 0)
    return each, between


def _through_switches(
    pairs: RankPairs, chunks: LongArray, room: LongArray, weight: list[int], parent: list[list[int]]
) -> tuple[list[int], list[list[int]]]:
    """Weights and parents of trees of ranks, from those of trees of nodes: in each node a head is
    the parent of the others. Trees are divided where no ranks have room for all of them."""
    node, left, roots = pairs.vertex, room.copy(), chunks.copy()
    weights, parents = list[int](), list[list[int]]()
    # Equal trees, and the known heads of nodes with their parents.
    waiting = list[tuple[int, list[int], dict[int, tuple[int, int]]]]()
    waiting += ((*trees, {}) for trees in zip(weight[::-1], parent[::-1], strict=True))
    # Ends: each turn adds a head; trees that are divided keep those that they have.
    while waiting:
        most, above, heads = waiting.pop()
        ready = [n for n, a in enumerate(above) if n not in heads and (a == NONE or a in heads)]
        if not ready:
            of = [heads[n] for n in node.tolist()]
            weights.append(most)
            parents.append([a if rank == head else head for rank, (head, a) in enumerate(of)])
            continue
        to = np.flatnonzero(node == ready[0])
        if above[ready[0]] == NONE:
            head, source = int(to[roots[to].argmax()]), NONE
            taken = min(most, int(roots[head]))
            roots[head] -= taken
        else:
            # From the head if it has room: others pass data on a step later.
            own = heads[above[ready[0]]][0]
            others = np.flatnonzero(node == above[ready[0]])
            src = np.array([own]) if left[own, to].any() else others
            place = np.unravel_index(left[np.ix_(src, to)].argmax(), (len(src), len(to)))
            source, head = int(src[place[0]]), int(to[place[1]])
            taken = min(most, int(left[source, head]))
            left[source, head] -= taken
        if taken < most:
            waiting.append((most - taken, above, heads))
        waiting.append((taken, above, {**heads, ready[0]: (head, source)}))
    return weights, parents


def _sufficient_room(
    rates: TreeRates, direction: int, time: float, chunks: LongArray
) -> LongArray | None:
    """int64 (ranks, ranks): the whole chunks that may go from one rank to another in a time, as
    trees go down, a chunk being 1 at 1 GB/s; None if chunks can't flow to all ranks.

    Pairs get the whole part of their rates, then each one more, as far as the links on its path
    have room, first the pairs that lack most; then the room that is left.
    """
    pairs, ranks = rates.pairs, len(rates.root)
    exact = rates.GBps[direction] * time * (1 + _ROUNDING)
    own = pairs.src == pairs.dst
    exact[own] = chunks[pairs.src[own]]
    room = np.floor(exact).astype(np.int64)
    left = rates.links_GBps[direction] * time * (1 + _ROUNDING) - pairs.loads(room)
    if own.any() and left.min() < 0:
        return None
    lacks = np.round(exact - room, 6)
    turn = inverse(pairs.preferred)
    for one, first in ((True, (turn, -lacks)), (False, (turn,))):
        free = np.minimum.reduceat(left[pairs.link] / pairs.times, pairs.offset[:-1])
        for pair in np.lexsort(first).tolist():
            if free[pair] >= 1 and not own[pair] and (lacks[pair] or not one):
                path = slice(pairs.offset[pair], pairs.offset[pair + 1])
                links, times = pairs.link[path], pairs.times[path]
                more = int((left[links] / times).min())
                more = min(more, 1) if one else more
                left[links] -= more * times
                room[pair] += more
    found = np.zeros((ranks, ranks), np.int64)
    found[pairs.ends(rates.ups[direction])] = room
    return found if _suffices(*_of_vertices(pairs, chunks, found)) else None


def _suffices(chunks: LongArray, room: LongArray) -> bool:
    """Whether the chunks of every rank can flow to each rank. chunks: int64 (ranks,)."""
    ranks, need = len(chunks), int(chunks.sum())
    every = np.arange(ranks)
    if ranks == 1:
        return True
    if (room.sum(axis=0) < need - chunks).any() or (room.sum(axis=1) < chunks).any():
        return False
    src, dst = np.nonzero(room)
    values = flow_values(
        ranks + 1,
        np.concatenate([src, np.full(ranks, ranks)]),
        np.concatenate([dst, every]),
        np.concatenate([room[src, dst], chunks]),
        ranks,
        every,
        need,
    )
    return bool((values >= need).all())


@dataclass(frozen=True)
class _Growing:
    """Equal trees that grow together. weight: how many. parent, depth: of the ranks that they have
    reached."""

    root: int
    weight: int
    parent: dict[int, int]
    depth: dict[int, int]


def _pack(chunks: LongArray, room: LongArray) -> tuple[list[int], list[list[int]]] | None:
    """Weights and parents of so many trees from each rank in the room between ranks; None if there
    are none, since their flows are not possible. chunks: int64 (ranks,). room: (ranks, ranks).

    All trees grow by one level after the other: the last ones would else be left with long ways.
    """
    ranks, left = len(chunks), room.copy()
    roots = [root for root in reversed(range(ranks)) if chunks[root]]
    waiting = [_Growing(root, int(chunks[root]), {root: NONE}, {root: 0}) for root in roots]
    done = list[_Growing]()
    for level in range(ranks):
        grown = list[_Growing]()
        while waiting:
            trees = waiting.pop()
            others = _Others([*waiting, *grown], left)
            # Ends: each edge adds a rank, and no tree gets more than all.
            while (found := _next_edge(trees, others, level)) is not None:
                most, a, b = found
                if most < trees.weight:  # the edge is for some of the trees
                    more = trees.weight - most
                    waiting.append(_Growing(trees.root, more, {**trees.parent}, {**trees.depth}))
                    trees = replace(trees, weight=most)
                    others = _Others([*waiting, *grown], left)
                left[a, b] -= most
                trees.parent[b], trees.depth[b] = a, level + 1
            (done if len(trees.parent) == ranks else grown).append(trees)
        waiting = grown[::-1]
    if waiting:
        return None
    parents = [[trees.parent[rank] for rank in range(ranks)] for trees in done]
    return [trees.weight for trees in done], parents


def _next_edge(trees: _Growing, others: _Others, level: int) -> tuple[int, int, int] | None:
    """An edge (amount, source, destination) from a rank of a level by which as many of some equal
    trees as possible may grow: of those with the most room, the one to the next rank. None if none
    may grow."""
    left, ranks, best = others.left, len(others.left), None
    src = [rank for rank, depth in trees.depth.items() if depth == level]
    dst = [rank for rank in range(ranks) if rank not in trees.parent]
    edges = [(-int(left[a, b]), (b - a) % ranks, a, b) for a in src for b in dst if left[a, b]]
    for *_, a, b in sorted(edges):
        amount = others.most(a, b, trees.weight)
        if amount > (best[0] if best else 0):
            best = amount, a, b
        if amount == trees.weight:
            break
    return best


class _Others:
    """The trees that wait while some grow, and the room that they will need.

    All can still be completed if into every set S of ranks fit as many chunks as there are trees
    without a rank in S (Edmonds 1973). By an edge (a, b), growing trees take room from the sets
    with b and without a. The flow from a to b of the room, and of one for each waiting tree that it
    fills from where the tree is, shows the tightest of these sets.
    """

    def __init__(self, waiting: list[_Growing], left: LongArray) -> None:
        self.left = left
        self._needed = sum(trees.weight for trees in waiting)
        self._roots = defaultdict[int, int](int)
        src, dst, room = list[int](), list[int](), list[int]()
        self._partial = [trees for trees in waiting if len(trees.parent) > 1]
        for trees in waiting:
            if len(trees.parent) == 1:
                self._roots[trees.root] += trees.weight
        for extra, trees in enumerate(self._partial, len(left)):
            src += [extra] * len(trees.parent)
            dst += trees.parent
            room += [trees.weight] * len(trees.parent)
        # From the edge's source to the roots of trees, and to what stands for trees that grew.
        starts = [*self._roots.items()]
        starts += [(extra, t.weight) for extra, t in enumerate(self._partial, len(left))]
        self._starts = np.array(starts, np.int64).reshape(-1, 2).T
        self._extra = tuple(np.array(column, np.int64) for column in (src, dst, room))

    def most(self, a: int, b: int, weight: int) -> int:
        """How many of `weight` growing trees may take the edge from a to b."""
        wanted = min(weight, int(self.left[a, b]))
        to, amount = self._starts
        src, dst = np.nonzero(self.left)
        columns = (
            (src, np.full(len(to), a), self._extra[0]),
            (dst, to, self._extra[1]),
            (self.left[src, dst], amount, self._extra[2]),
        )
        src, dst, room = (np.concatenate(parts) for parts in columns)
        useful = (src != dst) & (dst != a)
        found = flow_values(
            len(self.left) + len(self._partial),
            src[useful],
            dst[useful],
            room[useful],
            a,
            np.array([b]),
            self._needed + wanted,
        )
        return max(0, min(wanted, int(found[0]) - self._needed))
