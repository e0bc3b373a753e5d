"""Trees: the fastest ones along the paths that data takes between GPUs, as a bound."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from sley.errors import SleyError
from sley.ir.fabric import VertexKind
from sley.ir.tables import LongArray
from sley.model.bounds.cuts import Cuts, RateLimit
from sley.topologies.forests import MOST_RANKS, chained_GBps
from sley.topologies.rates import RankPairs, TreeRates, tree_rates

_ROUNDING = 1e-6
"""The share of a rate that the solver's rounding may make up."""

_ROUNDS = 20
"""The most rounds of cuts: packaged machines take 10; large irregular ones would take minutes."""


def with_trees(
    found: RateLimit,
    cuts: Cuts,
    ups: tuple[bool, ...],
    chunks: int,
    shares: LongArray | None = None,
) -> RateLimit:
    """A bound by cuts, or the one by trees along the paths between GPUs (`Topology.paths`) if that
    is tighter and no algorithm is faster than trees. It is exact if trees reach it.

    If each root has its own chunks, none is faster: at least the data of the roots on one side of a
    cut crosses to each rank on the other, and then there are trees (Edmonds 1973). In an AllReduce
    2 (p - 1) messages pass between any p parts of the ranks for each chunk. If each path has the
    same rates in both directions, the means of what passes in both are rates of undirected trees
    that cross as often (Tutte 1961, Nash-Williams 1961), and each of them carries sums one way and
    results the other. Switches that reduce or multicast may be faster.

    found: the bound by cuts. chunks: of all trees. ups, shares: as for `tree_rates`. It isn't exact
    where GPUs without a rank may pass data on, nor for more than `MOST_RANKS` ranks, unless chains
    of equal nodes reach it.
    """
    topology = cuts.topology
    if cuts.ranks < topology.ranks:
        return replace(found, exact=False)
    if shares is not None and (shares == shares[0]).all() and topology.nodes > 1:
        with suppress(SleyError):  # T612: nodes differ
            # Of one node alone, and so found faster.
            rate = chained_GBps(topology, up=ups[0]) * (1 + _ROUNDING)
            if rate * found.ratio >= chunks:
                return replace(found, exact=True)
    if topology.ranks > MOST_RANKS:
        return replace(found, exact=False)
    try:
        pairs = RankPairs.of(topology)
        rates = tree_rates(pairs, ups, shares, _ROUNDS)
        if len(ups) == 2 and topology.has_switches:
            through = tree_rates(RankPairs.through_switches(topology), (False,), None)
            rates = max(rates, through, key=lambda one: one.algbw_GBps)
    except SleyError:  # T612: no trees join all ranks along these paths
        return replace(found, exact=False)
    best = RateLimit(
        chunks, rates.algbw_GBps * (1 + _ROUNDING), _limited_by(rates), exact=rates.reached
    )
    if best.ratio <= found.ratio * (1 + _ROUNDING):
        return replace(found, exact=rates.reached)
    fastest = not topology.in_network and (len(ups) == 1 or pairs.are_symmetric)
    return best if fastest else replace(found, exact=False)


def _limited_by(rates: TreeRates) -> str:
    links, kind = rates.pairs.topology.links, rates.pairs.topology.vertices.kind
    ends = np.sort([kind[links.src], kind[links.dst]], axis=0)[:, rates.limiting]
    words = (" - ".join(VertexKind(one).word for one in of) for of in np.unique(ends, axis=1).T)
    return f"along trees over the paths between GPUs, limited by links {', '.join(words)}"
