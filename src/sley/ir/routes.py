"""Routes: the linked ranks of a topology, and the links on the path between two ranks."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from sley.ir.fabric import LinkKind, TopologyLinks, VertexKind, Vertices
from sley.ir.graph import strong_components
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, by_key


def card_groups(vertices: Vertices, links: TopologyLinks) -> dict[tuple[int, ...], list[int]]:
    """The ranks with the same nearest cards of their node, by these cards' vertices."""
    graph = _Graph(vertices, links)
    near = cache(graph.cards_near)
    return by_key((near(graph.beside(rank)), rank) for rank in range(vertices.ranks))


def nearest_cards(vertices: Vertices, links: TopologyLinks) -> LongArray:
    """int64 (ranks,): the vertex of each rank's network card, or NONE: one of the nearest cards of
    its node; ranks with the same nearest cards are spread over them."""
    card = np.full(vertices.ranks, NONE, np.int64)
    for cards, members in card_groups(vertices, links).items():
        for turn, rank in enumerate(members if cards else ()):
            card[rank] = cards[turn * len(cards) // len(members)]
    return card


class Pairs:
    """The linked ranks: directly, or through vertices other than GPUs.

    cards: whether links may pass network cards and the network.
    """

    def __init__(self, vertices: Vertices, links: TopologyLinks, *, cards: bool) -> None:
        kind, n, ranks = vertices.kind, len(vertices), vertices.ranks
        gpu = kind == VertexKind.GPU
        inner = ~gpu if cards else ~gpu & (kind < VertexKind.NIC)
        src, dst = links.src.astype(np.int64), links.dst.astype(np.int64)
        self._size = n
        direct = gpu[src] & gpu[dst] & (cards | (links.kind < LinkKind.NETWORK))
        self._direct = np.unique((src * n + dst)[direct])
        groups, self._reach = _groups(n, src, dst, inner)
        self._up = _columns(ranks, src, groups[dst], gpu[src] & inner[dst])
        self._down = _columns(ranks, dst, groups[src], gpu[dst] & inner[src])

    def linked(self, src: IntArray, dst: IntArray) -> BoolArray:
        """bool (pairs,): whether the first of each pair is linked to the second."""
        key = src.astype(np.int64) * self._size + dst
        found = np.isin(key, self._direct)
        for up in self._up.T:
            for down in self._down.T:
                a, b = up[src], down[dst]
                found |= (a != NONE) & (b != NONE) & self._reach[a, b]
        return found


def _groups(
    n: int, src: LongArray, dst: LongArray, inner: BoolArray
) -> tuple[LongArray, BoolArray]:
    """The group of each inner vertex, whose vertices reach one another, or NONE; and whether one
    group reaches another."""
    used = inner[src] & inner[dst]
    group = strong_components(n, src[used], dst[used])
    numbers = np.unique(group[inner])  # each GPU is a group of its own, without a number
    names = np.full(n, NONE)
    names[numbers] = np.arange(len(numbers))
    group = np.where(inner, names[group], NONE)
    reach = np.eye(max(len(numbers), 1), dtype=bool)
    a, b = group[src[used]], group[dst[used]]
    reach[a, b] = True
    if (a != b).any():  # else no group reaches another
        while True:
            wider = (reach.astype(np.float32) @ reach.astype(np.float32)) > 0
            if (wider == reach).all():
                break
            reach = wider
    return group, reach


def _columns(ranks: int, rank: LongArray, group: LongArray, used: BoolArray) -> LongArray:
    """int64 (ranks, most groups of a rank): the groups next to each rank, then NONE."""
    near = Edges.from_pairs(ranks, rank[used], group[used])
    width = np.diff(near.offset)
    columns = np.full((ranks, int(width.max(initial=0))), NONE)
    columns[np.arange(columns.shape[1]) < width[:, None]] = near.target
    return columns


class _Graph:
    """A topology's links by vertex: (other end, row, kind) of each link from it, and to it."""

    def __init__(self, vertices: Vertices, links: TopologyLinks) -> None:
        self.kind: list[int] = vertices.kind.tolist()
        self.after: list[list[tuple[int, int, int]]] = [[] for _ in self.kind]
        self.before: list[list[tuple[int, int, int]]] = [[] for _ in self.kind]
        self._onward = cache(self._links_onward)
        rows = zip(links.src.tolist(), links.dst.tolist(), links.kind.tolist(), strict=True)
        for row, (src, dst, kind) in enumerate(rows):
            self.after[src].append((dst, row, kind))
            self.before[dst].append((src, row, kind))

    def beside(self, vertex: int) -> frozenset[int]:
        """The cards and vertices of PCIe that a vertex is linked to."""
        near = (VertexKind.PCIE, VertexKind.NIC)
        return frozenset(other for other, _, _ in self.after[vertex] if self.kind[other] in near)

    def cards_near(self, beside: frozenset[int]) -> tuple[int, ...]:
        """The cards with the fewest links between them and a rank beside these vertices, inside its
        node."""
        front, seen = set(beside), set(beside)
        while front:
            found = sorted(v for v in front if self.kind[v] == VertexKind.NIC)
            if found:
                return tuple(found)
            front = {other for vertex in front for other in self.beside(vertex)} - seen
            seen |= front
        return ()

    def walk(
        self, start: int, through: frozenset[int], links: frozenset[int]
    ) -> dict[int, tuple[int, int]]:
        """The vertices of kinds `through` that can be reached from `start` over such vertices and
        links of kinds `links`: how many are reached before each, and the link by which it is."""
        arrived = {start: (0, NONE)}
        # The queue grows while it is read. Ends: each vertex comes into it once.
        queue = [start]
        for vertex in queue:
            for other, row in self._onward(vertex, through, links):
                if other not in arrived:
                    arrived[other] = (len(queue), row)
                    queue.append(other)
        return arrived

    def _links_onward(
        self, vertex: int, through: frozenset[int], links: frozenset[int]
    ) -> list[tuple[int, int]]:
        """(destination, row) of the links of some kinds from a vertex to vertices of kinds
        `through`. Found once: a switch has links to thousands of cards, at which ways end."""
        return [
            (v, row) for v, row, k in self.after[vertex] if k in links and self.kind[v] in through
        ]


_INSIDE = frozenset({VertexKind.SWITCH, VertexKind.PCIE})
_FAST = frozenset({LinkKind.NVLINK})
_LOCAL = frozenset({LinkKind.NVLINK, LinkKind.PCIE})
_ANY = frozenset(LinkKind)
_OUTSIDE = frozenset({VertexKind.NETWORK})
_NO_GPU = frozenset(VertexKind) - {VertexKind.GPU}


_MOST_PATHS = 2**16
"""Paths that are kept: a search asks again and again for the same ranks, and all ranks of other
nodes are reached by the same ways to cards and between them."""


class Routes:
    """The paths between ranks: the fewest links of the fastest kind inside a node or where NVLink
    joins nodes, else through both ranks' cards between nodes."""

    def __init__(self, vertices: Vertices, links: TopologyLinks, card: LongArray) -> None:
        self._graph = _Graph(vertices, links)
        self._source: list[int] = links.src.tolist()
        self._node: list[int] = vertices.node.tolist()
        self._card: list[int] = card.tolist()
        self._walk = cache(self._graph.walk)
        self._way = lru_cache(_MOST_PATHS)(self._find_way)
        self.path = lru_cache(_MOST_PATHS)(self._path)

    def _path(self, src: int, dst: int) -> list[int]:
        """The links from one rank to another, in order; none if they are not linked."""
        if src == dst:
            return []
        if fast := self._way(src, dst, _INSIDE, _FAST):
            return fast
        if self._node[src] == self._node[dst]:
            return self._way(src, dst, _INSIDE, _LOCAL)
        a, b = self._card[src], self._card[dst]
        if NONE not in (a, b) and a != b:
            parts = (
                self._way(src, a, _INSIDE, _LOCAL),
                self._way(a, b, _OUTSIDE, _ANY),
                self._way(b, dst, _INSIDE, _LOCAL),
            )
            if all(parts):
                return [row for part in parts for row in part]
        return self._way(src, dst, _NO_GPU, _ANY)

    def _find_way(
        self, start: int, end: int, through: frozenset[VertexKind], links: frozenset[LinkKind]
    ) -> list[int]:
        arrived = self._walk(start, through, links)
        # The end is reached from the vertex that was reached first, by the first of its links.
        into = self._graph.before[end]
        last = [(arrived[v][0], row) for v, row, k in into if v in arrived and k in links]
        if not last:
            return []
        rows = [min(last)[1]]
        while (vertex := self._source[rows[-1]]) != start:
            rows.append(arrived[vertex][1])
        return rows[::-1]
