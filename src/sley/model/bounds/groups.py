"""Groups: natural groups of GPUs in a topology, and classes of symmetric GPUs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.fabric import VertexKind
from sley.ir.tables import FloatArray, IntArray, LongArray, inverse
from sley.ir.topology import Topology


@dataclass(frozen=True, eq=False)
class Level:
    """A partition of the GPUs.

    word: the name of a part ("node").
    group: int64 (ranks,), the part of each GPU, numbered from 0.
    """

    word: str
    group: LongArray

    @property
    def parts(self) -> int:
        """The number of parts."""
        return int(self.group.max()) + 1


def levels_of(topology: Topology) -> list[Level]:
    """The natural partitions: single GPUs, GPUs that share a network card, nodes, racks (nodes on
    the same switches of the network) and rails (GPUs whose cards are on the same switches). Equal
    partitions appear once, those with a single part not at all. Each of the first four is within
    the next."""
    gpus = np.arange(topology.ranks, dtype=np.int64)
    switches = _switches(topology)
    racks: dict[int, frozenset[int]] = {}
    for node, found in zip(topology.node.tolist(), switches, strict=True):
        racks[node] = racks.get(node, frozenset()) | found
    levels: list[Level] = []
    for word, keys in (
        ("GPU", gpus.tolist()),
        ("group with one network card", topology.nic.tolist()),
        ("node", topology.node.tolist()),
        ("rack", [racks[node] for node in topology.node.tolist()]),
        ("rail", switches),
    ):
        number: dict[object, int] = {}
        group = np.array([number.setdefault(key, len(number)) for key in keys], np.int64)
        if len(number) > 1 and not any(np.array_equal(group, level.group) for level in levels):
            levels.append(Level(word, group))
    return levels


def _switches(topology: Topology) -> list[frozenset[int]]:
    """The network switches next to each GPU's card, or next to a GPU without a card."""
    kind, links = topology.vertices.kind, topology.links
    near: dict[int, set[int]] = {}
    for ends in ((links.src, links.dst), (links.dst, links.src)):
        used = kind[ends[1]] == VertexKind.NETWORK
        for vertex, switch in zip(ends[0][used].tolist(), ends[1][used].tolist(), strict=True):
            near.setdefault(vertex, set()).add(switch)
    cards = np.flatnonzero(kind == VertexKind.NIC).tolist()
    vertex_of = [cards[n] if n < len(cards) else r for r, n in enumerate(topology.nic.tolist())]
    return [frozenset(near.get(vertex, ())) for vertex in vertex_of]


def parents(inner: Level, outer: Level) -> LongArray:
    """int64 (parts of `inner`,): a part of `outer` that shares a GPU with each part."""
    parent = np.zeros(inner.parts, np.int64)
    parent[inner.group] = outer.group
    return parent


def refines(inner: Level, outer: Level) -> bool:
    """Whether every part of `inner` is inside one part of `outer`."""
    return bool((parents(inner, outer)[inner.group] == outer.group).all())


def representatives(
    topology: Topology,
    GBps: FloatArray,  # noqa: N803 - a unit
    mark: IntArray | LongArray,
) -> LongArray:
    """int64 (ranks,): for each GPU, the GPU at the same place in the first equivalent node.

    Two nodes are equivalent if exchanging them, vertex by vertex in order, changes no link and no
    mark. Then every cut around GPUs of one node has an equal cut around those of the other.

    mark: (ranks,), a property of each GPU that an exchange must keep.
    """
    node, kind = topology.vertices.node, topology.vertices.kind
    vertices = len(node)
    inside = node >= 0
    order = np.lexsort((np.arange(vertices), node))
    first = np.searchsorted(node[order], node)
    place = np.where(inside, inverse(order) - first, -1 - np.arange(vertices))
    links = topology.links
    rows: dict[int, list[tuple[float, ...]]] = {}
    marks = np.full(vertices, -1, np.int64)
    marks[: topology.ranks] = mark
    for vertex in np.flatnonzero(inside).tolist():
        row = (0, place[vertex], kind[vertex], marks[vertex])
        rows.setdefault(int(node[vertex]), []).append(row)
    columns = (links.src, links.dst, GBps, links.kind, links.latency_us)
    for src, dst, *rest in zip(*(column.tolist() for column in columns), strict=True):
        a, b = int(node[src]), int(node[dst])
        for own in {a, b} - {-1}:
            # A vertex of another node keeps its global number, so linked nodes are not equivalent.
            ends_of = [place[v] if node[v] == own else -1 - v for v in (src, dst)]
            rows.setdefault(own, []).append((1, *ends_of, *rest))
    first_node: dict[tuple[tuple[float, ...], ...], int] = {}
    chosen = {n: first_node.setdefault(tuple(sorted(rows[n])), n) for n in sorted(rows)}
    by_place = {(int(node[r]), int(place[r])): r for r in range(topology.ranks)}
    return np.array(
        [by_place[chosen[int(node[r])], int(place[r])] for r in range(topology.ranks)], np.int64
    )


def describe_gpus(gpus: LongArray, topology: Topology) -> str:
    """GPUs in words: "GPU 3", "node 1", "nodes 0-3", "12 GPUs from 0 on"."""
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    nodes, counts = np.unique(topology.node[gpus], return_counts=True)
    if topology.nodes > 1 and (counts == np.bincount(topology.node)[nodes]).all():
        if len(nodes) == 1:
            return f"node {nodes[0]}"
        if nodes[-1] - nodes[0] == len(nodes) - 1:
            return f"nodes {nodes[0]}-{nodes[-1]}"
        return f"{len(nodes)} nodes from {nodes[0]} on"
    if gpus[-1] - gpus[0] == len(gpus) - 1:
        return f"GPUs {gpus[0]}-{gpus[-1]}"
    return f"{len(gpus)} GPUs from {gpus[0]} on"
