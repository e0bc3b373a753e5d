"""Packings: trees that reduce to roots and trees that copy from them, for AllReduce."""

from __future__ import annotations

import numpy as np

from sley.bounds.network import Network

MOST_FLOWS = 4_000
"""The largest product of ranks and links for the linear program, which takes about a second."""


def packed_GBps(network: Network, ranks: int) -> float:  # noqa: N802 - a unit
    """The highest rate of AllReduce by trees: each chunk is reduced along a tree to a root and
    copied along a tree from it, with the best share of the chunks for each root; 0 if the linear
    program is too large or not solved.

    A part of each link's capacity is for copies, the rest for reductions. Trees of copies with
    rate r(v) for each root v exist if all r(v) can flow at once from their roots to any one rank
    (Edmonds 1973). Vertices without a rank only forward: as much flows into them as out of them,
    so that their links can be split off (Bang-Jensen, Frank and Jackson 1995). Trees that reduce
    are trees of copies with all links reversed.

    ranks: the number of ranks, on the first vertices.
    """
    from scipy.optimize import linprog  # late: importing it takes longer than most bounds
    from scipy.sparse import block_array, csr_array, eye_array, kron

    n, m = network.vertices, len(network.src)
    if ranks * m > MOST_FLOWS:
        return 0.0
    at = (np.concatenate([network.src, network.dst]), np.tile(np.arange(m), 2))
    leaving = csr_array((np.repeat([1.0, -1.0], m), at), shape=(n, m))
    # The variables of a direction: each link's capacity, and each link's flow to each rank.
    part, flow = eye_array(m), eye_array(ranks * m)
    for_each = np.ones((ranks, 1))
    inside = block_array([[-kron(for_each, part), flow]])
    # What leaves a vertex, except the rank that the flow is for, is the rate of its own root.
    flows = np.arange(ranks * n)
    others = flows[flows // n != flows % n]
    leaves = kron(eye_array(ranks), leaving, format="csr")[others]
    forwarded = leaving[ranks:]
    balance = block_array([[None, leaves], [forwarded, csr_array((n - ranks, ranks * m))]])
    roots = kron(for_each, eye_array(n, ranks), format="csr")[others]
    roots = block_array([[-roots], [csr_array((n - ranks, ranks))]])
    whole = block_array([[part, csr_array((m, ranks * m))]])
    top = network.GBps.max()
    solved = linprog(
        np.concatenate([np.zeros(2 * m * (1 + ranks)), -np.ones(ranks)]),
        A_ub=block_array(
            [[whole, whole, csr_array((m, ranks))], [inside, None, None], [None, inside, None]]
        ),
        b_ub=np.concatenate([network.GBps / top, np.zeros(2 * ranks * m)]),
        A_eq=block_array([[balance, None, roots], [None, -balance, roots]]),
        b_eq=np.zeros(2 * balance.shape[0]),
        method="highs-ipm",
    )
    return float(-solved.fun * top) if solved.success else 0.0
