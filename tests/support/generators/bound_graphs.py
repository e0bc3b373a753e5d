"""Small random topologies, and exhaustive searches of their cuts and paths."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder, Topology

RATES = (1.0, 2.0, 3.0, 5.0, 12.5, 48.5)


@st.composite
def topologies(draw: st.DrawFn, most_gpus: int = 5, most_switches: int = 2) -> Topology:
    """GPUs and switches on a ring in both directions, with further links, some in one direction
    only."""
    gpus = draw(st.integers(2, most_gpus))
    switches = draw(st.integers(0, most_switches))
    nodes = draw(st.sampled_from([1, 1, 2]))
    builder = Builder("drawn", np.arange(gpus) * nodes // gpus)
    for _ in range(switches):
        builder.add(VertexKind.SWITCH, [0])
    n = gpus + switches
    order = draw(st.permutations(range(n)))
    pairs = {(order[i], order[(i + 1) % n]) for i in range(n)}
    pairs |= {(b, a) for a, b in pairs}
    vertex = st.integers(0, n - 1)
    pairs |= set(draw(st.lists(st.tuples(vertex, vertex), max_size=6)))
    for src, dst in sorted(pairs):
        if src != dst:
            rate = draw(st.sampled_from(RATES))
            kind = draw(st.sampled_from(list(LinkKind)[: nodes + 1]))
            builder.link([src], [dst], kind, rate * 1.25, rate)
    return builder.topology()


def cut_GBps(topology: Topology, inside: set[int]) -> float:  # noqa: N802 - a unit
    """The capacity out of a set of vertices, link by link."""
    t = topology.links
    return sum(row.GBps for row in t if row.src in inside and row.dst not in inside)


def vertex_sets(topology: Topology) -> list[set[int]]:
    """Every set of vertices with a GPU in it and one outside."""
    n, gpus = len(topology.vertices), set(range(topology.ranks))
    sets = [set(s) for k in range(1, n) for s in combinations(range(n), k)]
    return [s for s in sets if s & gpus and gpus - s]


def backwards(topology: Topology) -> Topology:
    """The same topology with every link reversed."""
    links = topology.links
    turned = type(links)(
        links.dst, links.src, links.kind, links.nominal_GBps, links.GBps, links.latency_us
    )
    return Topology("backwards", topology.vertices, turned, topology.model, topology.in_network)


def partitions(items: list[int]) -> list[list[set[int]]]:
    """Every way to split items into parts."""
    if not items:
        return [[]]
    first, rest = items[0], partitions(items[1:])
    grown = [[p | {first} if p is q else p for p in parts] for parts in rest for q in parts]
    return grown + [[{first}, *parts] for parts in rest]


def simple_ways(topology: Topology, src: int, dst: int) -> list[list[int]]:
    """Every path between two vertices that visits none twice, as rows of the links."""
    after: dict[int, list[tuple[int, int]]] = {}
    for row, link in enumerate(topology.links):
        after.setdefault(link.src, []).append((link.dst, row))
    found = []
    open_ = [([src], [])]
    while open_:
        seen, rows = open_.pop()
        if seen[-1] == dst:
            found.append(rows)
            continue
        for vertex, row in after.get(seen[-1], []):
            if vertex not in seen:
                open_.append(([*seen, vertex], [*rows, row]))
    return found
