"""Small random topologies, and exhaustive searches of their cuts and paths."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import strategies as st
from scipy.optimize import linprog

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder, Topology

RATES = (1.0, 2.0, 3.0, 5.0, 12.5, 48.5)


@st.composite
def topologies(
    draw: st.DrawFn, most_gpus: int = 5, most_switches: int = 2, least_gpus: int = 2
) -> Topology:
    """GPUs and switches on a ring in both directions, with further links, some in one direction
    only."""
    gpus = draw(st.integers(least_gpus, most_gpus))
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


def rate_along_paths(topology: Topology, shares: list[float], *, up: bool = False) -> float:
    """The most of all trees along the paths between GPUs, by a row for each set of ranks: as much
    as the roots outside have crosses into it, or out of it up trees. shares: of the roots."""
    src, dst = (one.ravel() for one in np.indices((topology.ranks, topology.ranks)))
    joined = np.diff(topology.paths(src, dst).offset) > 0
    src, dst = src[joined], dst[joined]
    paths = topology.paths(src, dst)
    uses = np.zeros((len(topology.links), len(src) + 1))
    np.add.at(uses, (paths.target, paths.source), 1)
    from_, to = (dst, src) if up else (src, dst)
    rows, every = [], range(topology.ranks)
    for inside in (set(s) for k in range(1, topology.ranks) for s in combinations(every, k)):
        enters = [-1.0 * (b in inside and a not in inside) for a, b in zip(from_, to, strict=True)]
        rows.append([*enters, sum(shares[rank] for rank in every if rank not in inside)])
    cost = np.append(np.zeros(len(src)), -1.0)
    limits = np.append(topology.links.GBps, np.zeros(len(rows)))
    solved = linprog(cost, A_ub=np.concatenate([uses, np.array(rows)]), b_ub=limits)
    return float(-solved.fun)


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
