"""Bounds of chunks with one destination: AllToAll, Scatter, Gather, SendRecv, AllToNext."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sley.errors import SleyError
from sley.ir.graph import distances
from sley.ir.linear import LinearProgram
from sley.ir.tables import BoolArray, FloatArray, LongArray, distinct, numbering
from sley.model.bounds.cuts import NOTHING, Cuts, RateLimit, sides, tightest
from sley.model.bounds.needs import Exchange
from sley.model.bounds.network import CapacityGraph
from sley.topologies.routes import most_GBps

MOST_FLOWS = 10_000
"""The largest product of commodities and links for the linear program, which takes seconds."""

MOST_PATHS = 10_000
"""The most pairs of ranks of which paths are looked up, which takes a tenth of a second."""

MOST_SPREAD = 2**25
"""The largest product of commodities and links for a flow over shortest paths."""


def exchange(cuts: Cuts, needs: Exchange) -> RateLimit:
    """The bound if each chunk moves from one rank to one other rank: over all ways, or for an
    AllToAll by the best routes along paths, if that is tighter. It is exact if such routes reach
    it, direct transfers do, or all ways are paths."""
    found, topology = _over_links(cuts, needs), cuts.topology
    if not found.exact or not len(needs.src):
        return found
    t, ranks = topology.links, topology.ranks
    if (np.maximum(t.src, t.dst) < ranks).all():
        paths = topology.paths(t.src, t.dst)
        if np.array_equal(paths.target, np.arange(len(t))):
            return found
    if len(needs.src) > MOST_PATHS:
        return replace(found, exact=False)
    if (np.diff(topology.paths(needs.src, needs.dst).offset) > 0).all():
        load = topology.loads(needs.src, needs.dst, needs.chunks) / cuts.GBps
        if load.max() <= found.ratio * (1 + 1e-9):
            return found
    every = len(needs.src) == ranks * (ranks - 1) and (needs.chunks == needs.chunks[0]).all()
    if not every or ranks * len(t) > MOST_FLOWS:
        return replace(found, exact=False)
    try:
        rate = most_GBps(topology)
    except SleyError:  # T612: no routes that are found
        return replace(found, exact=False)
    best = RateLimit(int(needs.chunks[0]) * ranks, rate, "along the best routes", exact=True)
    return found if best.ratio <= found.ratio * (1 + 1e-6) else best


def _over_links(cuts: Cuts, needs: Exchange) -> RateLimit:
    """The bound over all ways.

    A chunk crosses every cut between its two ranks: T >= chunks(S -> rest) / B+(S). The smallest T
    at which all chunks can flow at once is a linear program (maximum concurrent flow) with one
    commodity for each sending rank, or for each receiving rank if these are fewer. Every solution
    of its dual is a lower bound on T (Shahrokhi and Matula 1990): with any lengths of the links,
    T >= sum of chunks * distance / sum of capacity * length. A cut is the case of length 1 for its
    links and length 0 for the others.

    The bound is the tightest of: the simple cuts; the links that are busiest when the chunks flow
    over all shortest paths, with length 1 or 1 / capacity; and, unless that flow reaches one of
    these, the lengths that HiGHS finds. Any lengths give a valid bound, so HiGHS's tolerances do
    not matter. Linear programs beyond MOST_FLOWS are not solved.
    """
    if not len(needs.src):
        return NOTHING
    limits = [cuts.tightest(_cuts_between(cuts, needs))]
    network, src, dst = cuts.network, needs.src, needs.dst
    if len(distinct(dst)) < len(distinct(src)):
        network, src, dst = cuts.backwards, dst, src
    origins, origin = numbering(src, cuts.ranks)
    size = len(origins) * len(network.src)
    if size > MOST_SPREAD:
        return tightest(limits)
    demand = np.zeros((len(origins), network.vertices))
    demand[origin, dst] = needs.chunks
    busy = _load_of_shortest_paths(network, origins, demand) / network.GBps
    busiest = (busy >= busy.max() * (1 - 1e-9)).astype(np.float64)
    for length in (busiest, busiest / network.GBps):
        limits.append(_by_lengths(network, origins, demand, length))
    found = tightest(limits)
    if busy.max() <= found.ratio * (1 + 1e-9):
        return replace(found, exact=True)
    if size > MOST_FLOWS:
        return found
    solved = _dual(network, origins, demand)
    if solved is None:
        return found
    flow = _by_lengths(network, origins, demand, solved)
    return replace(found if flow.ratio <= found.ratio * (1 + 1e-6) else flow, exact=True)


def _cuts_between(cuts: Cuts, needs: Exchange) -> Iterator[tuple[float, BoolArray, bool]]:
    """The chunks that must leave and enter natural groups of GPUs, as for `Cuts.tightest`."""
    for level in cuts.levels:
        a, b = level.group[needs.src], level.group[needs.dst]
        chunks = np.where(a != b, needs.chunks, 0)
        out, into = (np.bincount(side, chunks, level.parts) for side in (a, b))
        for gpus in sides(level, cuts.ranks):
            part = int(level.group[gpus][0])
            for amount, inward in ((out[part], False), (into[part], True)):
                if amount:
                    yield amount, gpus, inward


def _load_of_shortest_paths(
    network: CapacityGraph, origins: LongArray, demand: FloatArray
) -> FloatArray:
    """float64 (links,): the chunks on each link if all chunks use all paths with the fewest links
    at once, split at each vertex in proportion to capacity.

    demand: float64 (origins, vertices), chunks from each origin to each vertex.
    """
    n, links = network.vertices, len(network.src)
    far = distances(n, network.src, network.dst, np.ones(links), origins)
    used = (far[:, network.src] + 1 == far[:, network.dst]) * network.GBps
    into = _sum_by(used, network.dst, n)[:, network.dst]
    share = used / np.maximum(into, np.finfo(np.float64).tiny)
    arriving, load = demand.copy(), np.zeros(links)
    for step in range(int(far[np.isfinite(far)].max()), 0, -1):
        carried = share * np.where(far == step, arriving, 0)[:, network.dst]
        arriving += _sum_by(carried, network.src, n)
        load += carried.sum(axis=0)
    return load


def _sum_by(values: FloatArray, vertex: LongArray, vertices: int) -> FloatArray:
    """float64 (rows, vertices): the sums of the columns of each vertex.

    values: float64 (rows, links). vertex: int64 (links,).
    """
    order = np.argsort(vertex, kind="stable")
    present, first = np.unique(vertex[order], return_index=True)
    sums = np.zeros((len(values), vertices))
    sums[:, present] = np.add.reduceat(values[:, order], first, axis=1)
    return sums


def _by_lengths(
    network: CapacityGraph, origins: LongArray, demand: FloatArray, length: FloatArray
) -> RateLimit:
    """The bound by lengths of the links: chunks * distance over capacity * length."""
    longest = length.max()
    far = distances(network.vertices, network.src, network.dst, length / longest, origins)
    used = demand > 0
    links = int((length > 1e-6 * longest).sum())
    return RateLimit(
        float((demand[used] * far[used]).sum()),
        float((network.GBps * length).sum() / longest),
        f"over {links} links, each crossing counted,",
    )


def _dual(network: CapacityGraph, origins: LongArray, demand: FloatArray) -> FloatArray | None:
    """float64 (links,): the lengths with the tightest bound, None if HiGHS finds none. Solves the
    linear program of `exchange`."""
    k, n, m = len(origins), network.vertices, len(network.src)
    flows, most = np.arange(k * m), k * m
    commodity, link = np.divmod(flows, m)
    left = demand / demand.max()
    left[np.arange(k), origins] -= left.sum(axis=1)
    program = LinearProgram(np.append(np.zeros(most), 1.0))
    capacity = network.GBps / network.GBps.max()
    time = np.full(m, most)
    program.limit([(link, flows, 1.0), (np.arange(m), time, -capacity)], np.zeros(m))
    kept = [
        (commodity * n + network.dst[link], flows, 1.0),
        (commodity * n + network.src[link], flows, -1.0),
    ]
    program.limit(kept, left.ravel(), equal=True)
    solved = program.solve()
    return None if solved is None else np.maximum(-solved.dual[:m], 0)
