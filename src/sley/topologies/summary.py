"""Summary: what people want to know about a topology at a glance."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Topology

LinkClass = tuple[LinkKind, str, float, float, float, int]
"""Links alike: kind, ends, nominal and reached GB/s, latency in us (NONE: the model's), how
many."""

_WORDS = {LinkKind.NVLINK: "NV", LinkKind.PCIE: "PCI", LinkKind.NETWORK: "NET"}
_VERTICES = {VertexKind.SWITCH: "switch", VertexKind.PCIE: "PCIe", VertexKind.NETWORK: "network"}


@dataclass(frozen=True)
class Summary:
    """A topology in few words.

    topology: which.
    links: the links by kind, ends and rates, both directions counted.
    alike: the nodes in groups that look the same from inside.
    """

    topology: Topology
    links: tuple[LinkClass, ...]
    alike: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, topology: Topology) -> Summary:
        """The summary of a topology."""
        groups: dict[bytes, list[int]] = {}
        for node, look in enumerate(_looks(topology)):
            groups.setdefault(look, []).append(node)
        return cls(topology, _link_classes(topology), tuple(map(tuple, groups.values())))

    def matrix(self, node: int) -> list[list[str]]:
        """For each pair of GPUs of a node what joins them and how fast, as nvidia-smi shows it:
        "NV 230", "PCI 24", "-" where they are not linked, "X" for the GPU itself."""
        t = self.topology
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

    def card(self, rank: int) -> str:
        """The network card of a rank: "NIC 3", "-" without."""
        cards = np.flatnonzero(self.topology.vertices.kind == VertexKind.NIC)
        number = int(self.topology.nic[rank])
        return f"NIC {number}" if number < len(cards) else "-"


def _looks(topology: Topology) -> list[bytes]:
    """What tells nodes apart: their links, with the node's own numbers of vertices."""
    t, node = topology.links, topology.vertices.node
    order = np.argsort(node, kind="stable")
    first = np.searchsorted(node[order], np.arange(topology.nodes))
    place = np.empty(len(node), np.int64)
    place[order] = np.arange(len(node))
    inside = node >= 0
    place[inside] -= first[node[inside]]
    used = inside[t.src] & (node[t.src] == node[t.dst])
    columns = (place[t.src], place[t.dst], t.kind, t.nominal_GBps, t.GBps, t.latency_us)
    rows = np.column_stack([c[used].astype(float) for c in columns])
    looks = []
    for one in range(topology.nodes):
        own = rows[node[t.src[used]] == one]
        kinds = topology.vertices.kind[node == one].tobytes()
        looks.append(kinds + own[np.lexsort(own.T)].tobytes())
    return looks


def _link_classes(topology: Topology) -> tuple[LinkClass, ...]:
    t, kind = topology.links, topology.vertices.kind
    ends = np.sort(np.column_stack((kind[t.src], kind[t.dst])), axis=1)
    columns = (t.kind, ends[:, 0], ends[:, 1], t.nominal_GBps, t.GBps, t.latency_us)
    counts = Counter(zip(*(c.tolist() for c in columns), strict=True))
    return tuple(
        (LinkKind(k), f"{_word(a)} - {_word(b)}", nominal, reached, latency, count)
        for (k, a, b, nominal, reached, latency), count in sorted(counts.items())
    )


def _word(kind: int) -> str:
    return _VERTICES.get(VertexKind(kind), VertexKind(kind).name)
