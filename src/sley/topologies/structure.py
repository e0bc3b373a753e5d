"""Structure: what the vertices and links of a topology form: classes of equal links, identical
nodes and paths; the sides of a mesh or torus; and rings of GPUs along the links of machines
without a switch between their GPUs.

Each ring visits every GPU once, node by node, and has a rate. The rates of the rings over a link
together are at most the link's. NCCL searches for such rings too (src/graph/search.cc): 6 on a
DGX-1, whose GPUs have 6 NVLinks each. RCCL has tables of them (src/graph/rome_models.cc): on
several nodes of 8 MI300X, each ring enters a node at one of 8 GPUs and leaves it at another.

The search is a backtracking one for one ring after the other. Where every link has one of the same
rate in the opposite direction, it takes a ring along with its reverse. Choices are random with a
fixed seed, and a search that gets stuck begins again with others, up to a number of attempts and
steps. So the same topology always has the same rings.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.graph import maximum_flow
from sley.ir.tables import FloatArray, LongArray, by_key, frozen_array, inverse
from sley.ir.topology import Topology

LinkClass = tuple[LinkKind, str, float, float, float, int]
"""A class of equal links: kind, ends, nominal and reached GB/s, latency in us (NONE for the
model's), and their number."""

_WORDS = {LinkKind.NVLINK: "NV", LinkKind.PCIE: "PCI", LinkKind.NETWORK: "NET"}


def alike_nodes(topology: Topology) -> list[list[int]]:
    """The nodes in groups whose insides are equal."""
    insides = enumerate(_insides(topology))
    return list(by_key((inside, node) for node, inside in insides).values())


def path_matrix(topology: Topology, node: int) -> list[list[str]]:
    """The path between each pair of GPUs of a node and its GB/s, in nvidia-smi's words:
    "NV 230", "PCI 24", "-" for GPUs that are not linked, "X" for the GPU itself."""
    t = topology
    ranks = np.flatnonzero(t.node == node)
    src, dst = np.repeat(ranks, len(ranks)), np.tile(ranks, len(ranks))
    paths = t.paths(src, dst)
    cells = []
    for i, (a, b) in enumerate(zip(src.tolist(), dst.tolist(), strict=True)):
        rows = paths.target[paths.offset[i] : paths.offset[i + 1]]
        if a == b or not len(rows):
            cells.append("X" if a == b else "-")
            continue
        kind = LinkKind(int(t.links.kind[rows].max()))
        cells.append(f"{_WORDS[kind]} {t.links.GBps[rows].min():.4g}")
    return [cells[i : i + len(ranks)] for i in range(0, len(cells), len(ranks))]


def card_of(topology: Topology, rank: int) -> str:
    """The network card of a rank: "NIC 3", or "-" for a rank without a card."""
    cards = np.flatnonzero(topology.vertices.kind == VertexKind.NIC)
    number = int(topology.nic[rank])
    return f"NIC {number}" if number < len(cards) else "-"


def _insides(topology: Topology) -> list[bytes]:
    """The vertices and links of each node, numbered within the node; equal for equal nodes."""
    t, node = topology.links, topology.vertices.node
    order = np.argsort(node, kind="stable")
    first = np.searchsorted(node[order], np.arange(topology.nodes))
    place = inverse(order)
    inside = node >= 0
    place[inside] -= first[node[inside]]
    used = inside[t.src] & (node[t.src] == node[t.dst])
    columns = (place[t.src], place[t.dst], t.kind, t.nominal_GBps, t.GBps, t.latency_us)
    rows = np.column_stack([c[used].astype(float) for c in columns])
    insides = []
    for one in range(topology.nodes):
        own = rows[node[t.src[used]] == one]
        kinds = topology.vertices.kind[node == one].tobytes()
        insides.append(kinds + own[np.lexsort(own.T)].tobytes())
    return insides


def link_classes(topology: Topology) -> tuple[LinkClass, ...]:
    """The classes of equal links; both directions count."""
    t, kind = topology.links, topology.vertices.kind
    ends = np.sort(np.column_stack((kind[t.src], kind[t.dst])), axis=1)
    columns = (t.kind, ends[:, 0], ends[:, 1], t.nominal_GBps, t.GBps, t.latency_us)
    counts = Counter(zip(*(c.tolist() for c in columns), strict=True))
    return tuple(
        (
            LinkKind(k),
            f"{VertexKind(a).word} - {VertexKind(b).word}",
            nominal,
            reached,
            latency,
            count,
        )
        for (k, a, b, nominal, reached, latency), count in sorted(counts.items())
    )


MOST_AXES = 3
"""The most dimensions that are looked for."""


def sides_of(topology: Topology, *, routed: bool = False) -> tuple[int, ...] | None:
    """The sides of a mesh or torus in two or three dimensions, with ranks row by row: each GPU is
    linked to its neighbours along each axis, maybe the last along an axis to the first, and to
    nothing else. None for other topologies. routed: whether a ring is one, too, and a lattice where
    each GPU has a router, which the links join."""
    kind, links = topology.vertices.kind, topology.links
    own = kind[links.src] == VertexKind.GPU
    place = np.arange(len(kind))
    if (kind != VertexKind.GPU).any():
        routers, number = np.unique(links.dst[own], return_counts=True)
        if not routed or len(kind) - topology.ranks != len(routers) or (number != 1).any():
            return None
        place[links.dst[own]] = links.src[own]
    ends = np.column_stack((place[links.src], place[links.dst]))
    ends = ends[ends[:, 0] != ends[:, 1]]
    return _lattice(topology.ranks, ends, [(topology.ranks,)] * routed)


def _lattice(
    ranks: int, ends: LongArray, first: Sequence[tuple[int, ...]] = ()
) -> tuple[int, ...] | None:
    """The sides with which links between these ranks make a mesh or torus. first: tried first."""
    pairs = {(a, b) for a, b in np.sort(ends, axis=1).tolist()}
    for sides in (*first, *_sides(ranks, MOST_AXES)):
        if _is_lattice(sides, pairs):
            return sides
    return None


def steps(sides: tuple[int, ...], a: int, b: int) -> LongArray:
    """int64 (axes,): the steps along each axis from one rank of a lattice to another."""
    found: LongArray = np.subtract(np.unravel_index(b, sides), np.unravel_index(a, sides))
    return found


def _sides(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """All products of 2 to `most` numbers from 2 on that are `number`."""
    # In every order of the factors, since ranks count along the last side first.
    for side in range(2, number // 2 + 1):
        if number % side:
            continue
        yield (side, number // side)
        if most > 2:
            yield from ((side, *rest) for rest in _sides(number // side, most - 1))


def _is_lattice(sides: tuple[int, ...], pairs: set[tuple[int, int]]) -> bool:
    rank = np.arange(math.prod(sides)).reshape(sides)
    needed: set[tuple[int, int]] = set()
    wraps: set[tuple[int, int]] = set()
    for axis in range(len(sides)):
        along = np.moveaxis(rank, axis, 0)
        needed |= set(zip(along[:-1].ravel().tolist(), along[1:].ravel().tolist(), strict=True))
        wraps |= set(zip(along[0].ravel().tolist(), along[-1].ravel().tolist(), strict=True))
    return needed <= pairs <= needed | wraps


_ATTEMPTS, _STEPS, _STEPS_OF_A_RING = 200, 20_000, 400
"""The most attempts and steps of a search for a number of rings, and the most steps for one."""

_MOST_GPUS = 64
"""Larger nodes have no rings here: their search takes too long."""

_Ring = list[int]


@dataclass(frozen=True, eq=False)
class LinkRings:
    """Rings along links.

    orders: int64 (rings, ranks), the ranks of each ring in the order in which it visits them.
    GBps: the rate of each ring.
    """

    orders: LongArray
    GBps: float


def link_rings(topology: Topology) -> LinkRings:
    """The rings along the direct links between the GPUs of each node.

    A ring's rate is that of one of the links, so a link of twice the rate has two rings; or half of
    the slowest link's. Of all such rates, it is the one with the largest sum over all rings that
    are found; of equal sums the highest. On several nodes a ring passes each node between two of
    its GPUs' cards, which count as links to one more vertex; the nodes have the same number of
    rings, at the rate of the slowest. Without rings the rate is 0: with switches between the GPUs,
    where no ring exists, and with nodes of one GPU, of different sizes, or of more than 64.
    """
    ranks, links, nodes = topology.ranks, topology.links, topology.nodes
    node, gpus = topology.node, ranks // nodes
    direct = (links.src < ranks) & (links.dst < ranks)
    direct[direct] = node[links.src[direct]] == node[links.dst[direct]]
    own = np.argsort(node, kind="stable")
    if ranks % nodes or gpus > _MOST_GPUS or (node[own] != np.arange(ranks) // gpus).any():
        direct[:] = False
    rates = np.zeros((ranks, ranks))
    np.add.at(rates, (links.src[direct], links.dst[direct]), links.GBps[direct])
    if nodes == 1 or not direct.any():
        return _rings_along(rates.tobytes(), ranks)
    found, out = [], _rates_out(topology, own)
    for one in own.reshape(nodes, gpus):
        inside, nic = np.pad(rates[np.ix_(one, one)], (1, 0)), topology.nic[one]
        # Of the GPUs that share a card, rings enter at the first and leave at the last.
        enters = np.unique(nic, return_index=True)[1]
        leaves = gpus - 1 - np.unique(nic[::-1], return_index=True)[1]
        inside[0, 1 + enters] = out[one[enters]]
        inside[1 + leaves, 0] = out[one[leaves]]
        rings = _rings_along(inside.tobytes(), gpus + 1)
        found.append(LinkRings(one[rings.orders[:, 1:] - 1], rings.GBps))
    number = min(len(one.orders) for one in found)
    orders = np.concatenate([one.orders[:number] for one in found], axis=1)
    # A rank at the end of a node may be linked to others on the next one, but not to the first.
    orders = orders[topology.are_linked(orders, np.roll(orders, -1, axis=1)).all(axis=1)]
    rate = min(one.GBps for one in found) if len(orders) else 0.0
    return LinkRings(frozen_array(orders, np.int64), rate)


def _rates_out(topology: Topology, ranks: LongArray) -> FloatArray:
    """float64 (ranks,): the rate from each rank to another node; 0 for a rank that isn't linked to
    one. ranks: int (ranks,), node by node."""
    paths = topology.paths(ranks, np.roll(ranks, len(ranks) // topology.nodes))
    rates = np.zeros(len(ranks))
    for rank, path in zip(ranks, np.split(paths.target, paths.offset[1:-1]), strict=True):
        rates[rank] = topology.links.GBps[path].min() if len(path) else 0.0
    return rates


@lru_cache(maxsize=64)
def _rings_along(rates_bytes: bytes, ranks: int) -> LinkRings:
    """The rings along links. rates_bytes: float64 (ranks, ranks), the rate from GPU to GPU."""
    rates = np.frombuffer(rates_bytes).reshape(ranks, ranks)
    best = LinkRings(frozen_array(np.zeros((0, ranks)), np.int64), 0.0)
    known = np.unique(rates[rates > 0])
    for rate in [*known[::-1].tolist(), *(known[:1] / 2).tolist()]:
        room = (rates / rate + 1e-9).astype(np.int64)
        for number in range(_most_rings(room), 0, -1):
            if number * rate <= len(best.orders) * best.GBps:
                break
            found = _search(room, number)
            if found:
                best = LinkRings(frozen_array(np.array(found), np.int64), rate)
                break
    return best


def _most_rings(room: LongArray) -> int:
    """An upper bound of the number of rings: each has a way from GPU 0 to every other, and back."""
    src, dst = np.nonzero(room)
    graph = len(room), src, dst, room[src, dst]
    others = range(1, len(room))
    return min(maximum_flow(*graph, ends)[0] for i in others for ends in ((0, i), (i, 0)))


def _search(room: LongArray, number: int) -> list[_Ring]:
    """Rings of which no more than room[a, b] go from a to b; empty if the search doesn't find
    as many."""
    chance, steps = random.Random(0), _STEPS
    symmetric = bool((room == room.T).all())
    for attempt in range(_ATTEMPTS):
        left, rings = room.tolist(), list[_Ring]()
        while len(rings) < number:
            # In an odd number of rings, one has no reverse; often then others have none either.
            paired = symmetric and number - len(rings) > 1 and (number % 2 == 0 or attempt % 2 == 0)
            ring, taken = _find_ring(left, paired, chance)
            steps -= taken
            if not ring and not rings and taken < _STEPS_OF_A_RING:
                return []  # no ring exists
            if not ring:
                break
            for way in (ring, [ring[0], *ring[:0:-1]])[: 1 + paired]:
                rings.append(way)
                for a, b in zip(way, way[1:] + way[:1], strict=True):
                    left[a][b] -= 1
        if len(rings) == number:
            return rings
        if steps <= 0:
            break
    return []


def _find_ring(
    left: Sequence[Sequence[int]], paired: bool, chance: random.Random
) -> tuple[_Ring, int]:
    """A ring through links with room left, in both directions if `paired`, and the number of steps
    of its search; empty if a search of `_STEPS_OF_A_RING` finds none."""
    gpus = range(len(left))
    free = [[left[a][b] > 0 and (not paired or left[b][a] > 0) for b in gpus] for a in gpus]

    def following(gpu: int) -> _Ring:
        """The GPUs that may come next, the best last: first those over links with the most room,
        then those with the fewest GPUs after them."""
        found = [other for other in gpus if free[gpu][other] and other not in visited]
        chance.shuffle(found)
        after = {b: sum(free[b][c] for c in gpus if c not in visited) for b in found}
        return sorted(found, key=lambda other: (left[gpu][other], -after[other]))

    ring, visited = [0], {0}
    open_choices = [following(0)]
    for step in range(_STEPS_OF_A_RING):
        if len(ring) == len(left) and free[ring[-1]][0]:
            return ring, step
        if open_choices[-1]:
            ring.append(open_choices[-1].pop())
            visited.add(ring[-1])
            open_choices.append(following(ring[-1]))
        else:
            open_choices.pop()
            if not open_choices:
                return [], step
            visited.remove(ring.pop())
    return [], _STEPS_OF_A_RING
