"""Forests: spanning trees from every rank that together reach the bandwidth bound of an AllGather
on any topology; reversed, that of a ReduceScatter.

The steps are ForestColl's (arXiv 2402.06787, section 5):

1. *Whole trees.* Each rank's data is cut into `chunks`, one for each tree from it, and a link
   carries whole chunks in the time of all. The data of all ranks can flow to every rank at the same
   time exactly if it can flow to each one alone, which maximum flows tell.
2. *Edge splitting.* The links into a switch are joined to those out of it in pairs, as long as
   these flows stay possible, until only ranks are left.
3. *Packing.* Trees grow edge by edge, where the flows of the trees that are not complete stay
   possible (Edmonds 1973; Bérczi and Frank 2010).

Trees go along the paths that transfers take (`Topology.paths`): a link that no pair of ranks uses,
or a way through a switch that no pair takes, is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np

from sley.errors.topology import T612
from sley.ir.graph import depths, flow_values, strong_components
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray, Value, frozen_array
from sley.ir.topology import Topology
from sley.ir.words import is_integer, is_real

MOST_CHUNKS = 4096
"""Bound on the chunks of each rank's data."""

MOST_RANKS = 128
"""Bound on the ranks of a topology: the time of packing grows with their fourth power."""

WITHIN = 0.05
"""The share of the bound's bandwidth that few trees may lack, by default: trees that come closer
are more, and need more thread blocks."""

_TRIED_CHUNKS = 32
"""The most chunks of each rank's data that are tried, if the user gives no number."""

_TRIED_FORESTS = 6
"""The most forests that are packed, each with more chunks than the one before."""

_DOUBLINGS = 64
"""Steps by which a time grows until there is room for all flows."""

_HALVINGS = 5
"""Steps in which the shortest time is looked for at which switches can be split."""

_ROUNDS = 20
"""Rounds in which the rates around vertices are made equal."""

_FINE = 1 << 20
"""Chunks of each rank's data for which whole numbers on links are as good as the links' rates."""

Room: TypeAlias = dict[tuple[int, int], int]
"""The chunks that may go from one vertex to another, for pairs of vertices with some."""


@dataclass(frozen=True, eq=False, repr=False)
class Forest(Value):
    """Spanning trees from every rank to all others.

    topology: where they are. weight: int64 (trees,), the chunks that each tree carries.
    parent: int32 (trees, ranks), the rank that sends to each; NONE for the tree's root.
    up: whether data comes up the trees, as in a ReduceScatter, not down, as in an AllGather.
    """

    topology: Topology
    weight: LongArray
    parent: IntArray
    up: bool = False

    @property
    def chunks(self) -> int:
        """The chunks of all trees together."""
        return int(self.weight.sum())

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
    def loads(self) -> LongArray:
        """int64 (links,): the chunks that each link of the topology carries."""
        tree, rank = np.nonzero(self.parent != NONE)
        ends = (self.parent[tree, rank], rank)
        paths = self.topology.paths(*(ends[::-1] if self.up else ends))
        carried = np.repeat(self.weight[tree], np.diff(paths.offset))
        return frozen_array(np.bincount(paths.target, carried, len(self.topology.links)), np.int64)

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The data of all trees over the time of the busiest link; infinite for one rank."""
        busiest = float((self.loads / self.topology.links.GBps).max(initial=0))
        return self.chunks / busiest if busiest else float("inf")

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
    bound's bandwidth, or of several numbers up to 32 the one with the most bandwidth. Where
    switches can't be split along the paths of transfers without loss, trees stay below the bound.
    Errors: T612.
    """
    check_request(topology, chunks, within, MOST_RANKS)
    if topology.ranks == 1:
        return Forest(topology, np.ones(1, np.int64), np.full((1, 1), NONE, np.int32), up)
    ways = Ways.of(topology)
    ways = ways.reversed() if up else ways
    every = np.ones(topology.ranks, np.int64)
    fine = ways.least_time(_FINE * every)
    assert fine is not None  # the ranks are linked
    # The fine time is up to a millionth too long.
    least, tries = topology.ranks * _FINE / fine * (1 - within - 1e-6), 0
    best: Forest | None = None
    for number in range(1, _TRIED_CHUNKS + 1) if chunks is None else (chunks,):
        time = ways.least_time(number * every)
        last = number in (chunks, _TRIED_CHUNKS)
        if time is None or (topology.ranks * number / time < least and not (last and not best)):
            continue
        found = forest_on(ways, topology, number * every, up=up)
        if found and (best is None or found.algbw_GBps > best.algbw_GBps * (1 + 1e-9)):
            best = found
        tries += 1
        if (best and best.algbw_GBps >= least) or tries == _TRIED_FORESTS:
            break
    if best is None:
        raise T612.error(
            expected="a topology whose switches can be split along the paths of transfers",
            found=topology.name,
            remedy="Give another number of chunks.",
        )
    return best


def check_request(topology: Topology, chunks: int | None, within: float, most_ranks: int) -> None:
    """Refuses arguments as for `pack_forest`, and more ranks. Errors: T612."""
    right = chunks is None or (is_integer(chunks) and 1 <= chunks <= MOST_CHUNKS)
    if not right or not (is_real(within) and 0 <= within < 1):
        expected = f"chunks from 1 to {MOST_CHUNKS}, within a share of the bound from 0 to 1"
        raise T612.error(expected=expected, found=f"chunks={chunks!r}, within={within!r}")
    if topology.ranks > most_ranks:
        raise T612.error(
            expected=f"at most {most_ranks} ranks",
            found=f"{topology.name}: {topology.ranks}",
            remedy="Synthesize for fewer nodes.",
        )


def forest_on(ways: Ways, topology: Topology, chunks: LongArray, *, up: bool) -> Forest | None:
    """The trees with the shortest time that splitting and packing find; None if no time is enough.

    ways: those of the topology, reversed for `up`. chunks: int64 (ranks,), of each rank's data.
    """
    time = ways.least_time(chunks)
    if time is None:
        return None
    room, step, low = ways.between_ranks(chunks, time), 1.02, time
    for _ in range(_DOUBLINGS):
        if room is not None:
            break
        low, time = time, time * step
        step = min(step * step, 2.0)
        room = ways.between_ranks(chunks, time)
    for _ in range(_HALVINGS if low < time else 0):
        middle = (low + time) / 2
        better = ways.between_ranks(chunks, middle)
        if better is None:
            low = middle
        else:
            time, room = middle, better
    found = None if room is None else _pack(chunks, room)
    if found is None:
        return None
    weight, parent = found
    return Forest(topology, frozen_array(weight, np.int64), frozen_array(parent, np.int32), up)


@dataclass(frozen=True, eq=False)
class Ways:
    """The links that transfers use, between vertices that they pass.

    ranks: on the first vertices. vertices: how many; a vertex of the topology that transfers pass
    in several ways which share no link is one for each of these. src, dst: int64 (links,).
    GBps: float64 (links,), as `_balanced` limits them. node, place: of each rank, its node, and its
    place among the node's. passes: the pairs of ranks (source, destination) that pass each vertex.
    """

    ranks: int
    vertices: int
    src: LongArray
    dst: LongArray
    GBps: FloatArray
    node: list[int]
    place: list[int]
    passes: Mapping[int, set[tuple[int, int]]]

    @classmethod
    def of(cls, topology: Topology) -> Ways:
        """The ways of a topology."""
        ranks, links = topology.ranks, topology.links
        src, dst = np.indices((ranks, ranks), np.int32).reshape(2, -1)
        linked = topology.are_linked(src, dst)
        src, dst = src[linked], dst[linked]
        paths = topology.paths(src, dst)
        follows = np.ones(len(paths.target), bool)
        follows[paths.offset[:-1]] = False
        at = np.flatnonzero(follows)
        # Of two links that follow each other, the first one's end and the other's start are one.
        count = len(links)
        before, after = paths.target[at - 1] + count, paths.target[at].astype(np.int64)
        both = np.unique(np.stack([before, after]), axis=1)
        group = strong_components(2 * count, both.ravel(), both[::-1].ravel())
        used = np.unique(paths.target).astype(np.int64)
        inner = np.unique(
            np.concatenate(
                [
                    group[used][links.src[used] >= ranks],
                    group[used + count][links.dst[used] >= ranks],
                ]
            )
        )
        own = np.searchsorted(inner, group) + ranks
        start = np.where(links.src[used] < ranks, links.src[used], own[used])
        end = np.where(links.dst[used] < ranks, links.dst[used], own[used + count])
        passes = defaultdict[int, set[tuple[int, int]]](set)
        pair = np.repeat(np.arange(len(src)), np.diff(paths.offset))[at]
        columns = (own[paths.target[at]], src[pair], dst[pair])
        for vertex, a, b in zip(*(c.tolist() for c in columns), strict=True):
            passes[vertex].add((a, b))
        node = topology.node.tolist()
        seen = defaultdict[int, int](int)
        place = []
        for one in node:
            place.append(seen[one])
            seen[one] += 1
        vertices = ranks + len(inner)
        GBps = _balanced(ranks, vertices, start, end, links.GBps[used])  # noqa: N806 - a unit
        return cls(ranks, vertices, start, end, GBps, node, place, passes)

    def limited(self, src: LongArray, dst: LongArray, GBps: FloatArray) -> Ways:  # noqa: N803
        """The ways with other links between the same vertices, and their rates."""
        return replace(self, src=src, dst=dst, GBps=GBps)

    def reversed(self) -> Ways:
        """The ways with the direction of every link reversed."""
        passes = {v: {(b, a) for a, b in pairs} for v, pairs in self.passes.items()}
        return replace(self, src=self.dst, dst=self.src, passes=passes)

    def room(self, time: float) -> Room:
        """The whole chunks that links carry in a time, a chunk being 1 at 1 GB/s."""
        found: Room = defaultdict(int)
        # A chunk that just fits must not be lost by rounding.
        whole = np.floor(self.GBps * time * (1 + 1e-9)).astype(np.int64)
        for a, b, c in zip(self.src.tolist(), self.dst.tolist(), whole.tolist(), strict=True):
            found[a, b] += c
        return {link: c for link, c in found.items() if c}

    def suffices(self, room: Room, chunks: LongArray) -> bool:
        """Whether the chunks of every rank can flow to each rank. chunks: int64 (ranks,)."""
        ends = np.array(list(room), np.int64).reshape(-1, 2)
        every, need = np.arange(self.ranks), int(chunks.sum())
        values = flow_values(
            self.vertices + 1,
            np.concatenate([ends[:, 0], np.full(self.ranks, self.vertices)]),
            np.concatenate([ends[:, 1], every]),
            np.concatenate([np.array(list(room.values()), np.int64), chunks]),
            self.vertices,
            every,
            need,
        )
        return bool((values >= need).all())

    def least_time(self, chunks: LongArray) -> float | None:
        """The shortest time, to about 1e-7, whose room suffices; None if none does. chunks: int64
        (ranks,), of each rank's data."""
        into = np.bincount(self.dst, self.GBps, self.vertices)[: self.ranks]
        needed = chunks.sum() - chunks
        if (into[needed > 0] <= 0).any():
            return None
        low = high = float((needed[needed > 0] / into[needed > 0]).max(initial=0))
        for _ in range(_DOUBLINGS):
            if self.suffices(self.room(high), chunks):
                break
            low, high = high, 1.5 * high
        else:
            return None
        while high - low > 1e-7 * high:
            middle = (low + high) / 2
            if self.suffices(self.room(middle), chunks):
                high = middle
            else:
                low = middle
        return high

    def between_ranks(self, chunks: LongArray, time: float) -> Room | None:
        """The room of a time without switches; None if it is too small for how they are split."""
        room: Room | None = self.room(time)
        degree = np.bincount(np.concatenate([self.src, self.dst]), minlength=self.vertices)
        # Small vertices first: from cards, the links of ranks come to the network.
        for vertex in sorted(range(self.ranks, self.vertices), key=degree.__getitem__):
            if room is not None:
                room = self._split(room, vertex, chunks)
        return room

    def _split(self, room: Room, vertex: int, chunks: LongArray) -> Room | None:
        """The room without a vertex, whose links in and out are joined; None if that leaves too
        little."""
        ins = {a: c for (a, b), c in room.items() if b == vertex}
        outs = {b: c for (a, b), c in room.items() if a == vertex}
        rest = {link: c for link, c in room.items() if vertex not in link}
        pairs = self._preferred(vertex, ins, outs)
        for words in (2, 1, 0):
            joined = dict(rest)
            for (a, b), amount in _divided(pairs, ins, outs, words):
                joined[a, b] = joined.get((a, b), 0) + amount
            if self.suffices(joined, chunks):
                return joined
        # Else pair by pair, each as much as leaves enough.
        for _, a, b in pairs:
            low, high = 0, min(room.get((a, vertex), 0), room.get((vertex, b), 0))
            most = high
            while low < most:
                if self.suffices(_joined(room, a, vertex, b, high), chunks):
                    low = high
                else:
                    most = high - 1
                high = (low + most + 1) // 2
            if low:
                room = _joined(room, a, vertex, b, low)
        rest = {link: c for link, c in room.items() if vertex not in link}
        return rest if self.suffices(rest, chunks) else None

    def _preferred(
        self, vertex: int, ins: Iterable[int], outs: Iterable[int]
    ) -> list[tuple[tuple[int, ...], int, int]]:
        """The pairs of ends of a vertex's links in and out, the preferred first, with their order:
        of ranks, those in other nodes, and there those in the same place. Without the pairs of
        ranks that don't pass the vertex."""
        found = []
        for i, a in enumerate(sorted(ins)):
            for j, b in enumerate(sorted(outs)):
                if a == b:
                    continue
                if max(a, b) >= self.ranks:
                    found.append(((2, 0, 0, j - i), a, b))
                elif (a, b) in self.passes[vertex]:
                    nodes, places = (self.node[b] - self.node[a], self.place[b] - self.place[a])
                    order = (nodes == 0, places != 0, nodes % self.ranks, places % self.ranks)
                    found.append((order, a, b))
        return sorted(found)


def _balanced(
    ranks: int, vertices: int, src: LongArray, dst: LongArray, rates: FloatArray
) -> FloatArray:
    """float64 (links,): the rates, limited where the links into a vertex that only forwards carry
    more than those out of it, or less: a flow to one rank could use all of a card that several
    ranks share, but trees to all of them can't."""
    rates = rates.copy()
    # Ends: rates only fall, and where they still would after this many rounds, trees carry less.
    for _ in range(_ROUNDS):
        before = rates.copy()
        for vertex in range(ranks, vertices):
            sides = [np.flatnonzero(ends == vertex) for ends in (src, dst)]
            least = min(float(rates[side].sum()) for side in sides)
            for side in sides:
                order = side[np.argsort(rates[side])]
                left = least
                # The slowest links keep their rates while an equal share of the rest is more.
                for at, link in enumerate(order):
                    rates[link] = min(rates[link], left / (len(order) - at))
                    left -= rates[link]
        if np.allclose(rates, before, rtol=1e-9):
            break
    return rates


def _joined(room: Room, a: int, vertex: int, b: int, amount: int) -> Room:
    """The room after `amount` of the links from `a` to a vertex and from there to `b` are one."""
    made = dict(room)
    for link, change in (((a, vertex), -amount), ((vertex, b), -amount), ((a, b), amount)):
        made[link] = made.get(link, 0) + change
    return {link: c for link, c in made.items() if c}


def _divided(
    pairs: list[tuple[tuple[int, ...], int, int]],
    ins: Mapping[int, int],
    outs: Mapping[int, int],
    words: int,
) -> Iterator[tuple[tuple[int, int], int]]:
    """What each pair gets of the links in and out, if all pairs get about as much of which the
    first `words` of the order are equal, the preferred ones first."""
    left = ({**ins}, {**outs})
    classes = defaultdict[tuple[int, ...], list[tuple[int, int]]](list)
    for order, a, b in pairs:
        classes[order[:words]].append((a, b))
    for _, members in sorted(classes.items()):
        # Ends: each round takes at least 1 of what is left.
        while members := [(a, b) for a, b in members if left[0][a] and left[1][b]]:
            users = [defaultdict[int, int](int), defaultdict[int, int](int)]
            for ends in members:
                for side, end in enumerate(ends):
                    users[side][end] += 1
            shares = [
                min(left[side][end] // users[side][end] for side, end in enumerate(ends))
                for ends in members
            ]
            for (a, b), share in zip(members, shares, strict=True):
                amount = min(max(share, 1), left[0][a], left[1][b])
                if amount:
                    left[0][a] -= amount
                    left[1][b] -= amount
                    yield (a, b), amount


@dataclass(frozen=True)
class _Growing:
    """Equal trees that grow together. weight: how many. parent, depth: of the ranks that they have
    reached."""

    root: int
    weight: int
    parent: dict[int, int]
    depth: dict[int, int]


def _pack(chunks: LongArray, room: Room) -> tuple[list[int], list[list[int]]] | None:
    """Weights and parents of so many trees from each rank in the room between ranks; None if there
    are none, since their flows are not possible. chunks: int64 (ranks,).

    All trees grow by one level after the other: the last ones would else be left with long ways.
    """
    ranks = len(chunks)
    left = np.zeros((ranks, ranks), np.int64)
    for link, amount in room.items():
        left[link] = amount
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
