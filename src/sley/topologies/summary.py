"""Summary: a topology at a glance, with its classes of links, identical nodes and paths."""

from __future__ import annotations

from collections import Counter

import numpy as np

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import inverse
from sley.ir.topology import Topology

LinkClass = tuple[LinkKind, str, float, float, float, int]
"""A class of equal links: kind, ends, nominal and reached GB/s, latency in us (NONE for the
model's), and their number."""

_WORDS = {LinkKind.NVLINK: "NV", LinkKind.PCIE: "PCI", LinkKind.NETWORK: "NET"}


def alike_nodes(topology: Topology) -> list[list[int]]:
    """The nodes in groups whose insides are equal."""
    groups: dict[bytes, list[int]] = {}
    for node, inside in enumerate(_insides(topology)):
        groups.setdefault(inside, []).append(node)
    return list(groups.values())


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
