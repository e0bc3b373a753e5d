"""Packings: trees that reduce to roots and trees that copy from them, for AllReduce."""

from __future__ import annotations

import numpy as np

from sley.ir.linear import LinearProgram
from sley.model.bounds.network import CapacityGraph

MOST_FLOWS = 4_000
"""The largest product of ranks and links for the linear program, which takes about a second."""


def packed_GBps(network: CapacityGraph, ranks: int) -> float:  # noqa: N802 - a unit
    """The highest rate of AllReduce by trees: each chunk is reduced along a tree to a root and
    copied along a tree from it, with the best share of the chunks for each root. 0 if the linear
    program is too large or not solved.

    A part of each link's capacity is for copies, the rest for reductions. Trees of copies with
    rate r(v) for each root v exist if all r(v) can flow at once from their roots to any one rank
    (Edmonds 1973). Vertices without a rank only forward: as much flows into them as out of them,
    so that their links can be split off (Bang-Jensen, Frank and Jackson 1995). Trees that reduce
    are trees of copies with all links reversed.

    ranks: the number of ranks, on the first vertices.
    """
    n, m = network.vertices, len(network.src)
    if ranks * m > MOST_FLOWS:
        return 0.0
    # The variables: of each direction a part of each link's capacity, and each link's flow to each
    # rank; then the rate of each root.
    link, root = np.arange(m), np.arange(ranks)
    rank, link_of = np.divmod(np.arange(ranks * m), m)
    parts = link, (1 + ranks) * m + link
    flows = m + np.arange(ranks * m), (2 + ranks) * m + np.arange(ranks * m)
    rates = 2 * (1 + ranks) * m + root
    program = LinearProgram(np.append(np.zeros(rates[0]), -np.ones(ranks)))
    top = network.GBps.max()
    program.limit([(link, part, 1.0) for part in parts], network.GBps / top)
    for sign, part, flow in zip((1.0, -1.0), parts, flows, strict=True):
        within = np.arange(ranks * m)
        program.limit([(within, flow, 1.0), (within, part[link_of], -1.0)], np.zeros(ranks * m))
        # What leaves a vertex, except the rank that the flow is for, is the rate of its own root.
        row = root[:, None] * (n - 1) + np.arange(n) - (np.arange(n) > root[:, None])
        leaving, inner = [], []
        for vertex, factor in ((network.src, sign), (network.dst, -sign)):
            own = np.flatnonzero(vertex[link_of] != rank)
            leaving.append((row[rank[own], vertex[link_of[own]]], flow[own], factor))
            own = np.flatnonzero(vertex >= ranks)
            inner.append((vertex[own] - ranks, part[own], factor))
        of, other = np.nonzero(root[:, None] != root)
        leaving.append((row[of, other], rates[other], -1.0))
        program.limit(leaving, np.zeros(ranks * (n - 1)), equal=True)
        program.limit(inner, np.zeros(n - ranks), equal=True)
    solved = program.solve("ipm")
    return 0.0 if solved is None else -solved.value * float(top)
