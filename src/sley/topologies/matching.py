"""Matching: spanning trees from every rank, at most as high as a limit, for small sizes.

The method is TACOS's (arXiv 2304.05301, section IV): in the order of time, free links are matched
with chunks. Of all sends between two ranks the next one is the one that arrives first, and it takes
a chunk that its source has, its destination lacks, and the fewest ranks have. With a limit, a rank
gets a chunk only over so few sends that all others can still be reached within the limit.
"""

from __future__ import annotations

import numpy as np

from sley.errors.topology import T612
from sley.ir.graph import distances, match_chunks
from sley.ir.tables import LongArray, frozen_array, inverse
from sley.ir.topology import Topology
from sley.ir.words import is_integer
from sley.topologies.forests import MOST_CHUNKS, Forest
from sley.topologies.rates import RankPairs


def match_forest(
    topology: Topology, *, up: bool = False, chunks: int = 1, height: int | None = None
) -> Forest:
    """Trees on all ranks of a topology, which keep links busy, but may lack more of the bound's
    bandwidth than those of `pack_forest`.

    up: for a ReduceScatter, whose data comes up the trees. chunks: of each rank's data. height: the
    most sends between a root and a rank, at least `least_height`; by default as many as trees take.
    Errors: T612.
    """
    pairs = RankPairs.of(topology)
    far = _sends(pairs, up)
    least = int(far.max())
    limit = topology.ranks if height is None else height
    right = is_integer(chunks) and 1 <= chunks <= MOST_CHUNKS
    if not right or not is_integer(limit) or limit < least:
        expected = f"chunks from 1 to {MOST_CHUNKS}, a height from {least}"
        found = f"chunks={chunks!r}, height={height!r}"
        raise T612.error(expected=expected, found=found, remedy=f"Give {expected}.")
    limit = min(limit, topology.ranks)
    if height is None:
        most = np.full_like(far, limit)
    else:
        most = far + limit - far.max(axis=1, keepdims=True)
    order, (src, dst) = pairs.preferred, pairs.ends(up)
    place = inverse(order)[pairs.pair]
    by_place = np.argsort(place, kind="stable")
    parent = match_chunks(
        topology.ranks,
        src=src[order],
        dst=dst[order],
        first=np.searchsorted(place[by_place], np.arange(len(order) + 1)),
        path=pairs.link[by_place],
        time=1 / topology.links.GBps,
        root=np.repeat(np.arange(topology.ranks), chunks),
        most=most.ravel(),
    )
    rows, weight = np.unique(parent, axis=0, return_counts=True)
    return Forest(topology, frozen_array(weight, np.int64), frozen_array(rows, np.int32), up)


def least_height(topology: Topology) -> int:
    """The most sends that a rank's data needs to another rank, if it takes the fewest."""
    return int(_sends(RankPairs.of(topology), up=False).max())


def _sends(pairs: RankPairs, up: bool) -> LongArray:
    """int64 (ranks, ranks): the fewest sends down a tree from each root to each rank."""
    ranks, (src, dst) = pairs.topology.ranks, pairs.ends(up)
    far = distances(ranks, src, dst, np.ones(len(src)), np.arange(ranks))
    found: LongArray = far.astype(np.int64)
    return found
