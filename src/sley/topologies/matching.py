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
from sley.ir.tables import LongArray, frozen_array
from sley.ir.topology import Topology
from sley.ir.words import is_integer
from sley.topologies.forests import MOST_CHUNKS, Forest


def match_forest(
    topology: Topology, *, up: bool = False, chunks: int = 1, height: int | None = None
) -> Forest:
    """Trees on all ranks of a topology, which keep links busy but may lack more of the bound's
    bandwidth than those of `pack_forest`.

    up: for a ReduceScatter, whose data comes up the trees. chunks: of each rank's data. height: the
    most sends between a root and a rank, at least `least_height`; by default as many as trees take.
    Errors: T612.
    """
    src, dst = _pairs(topology, up)
    far = _sends(topology.ranks, src, dst)
    least = int(far.max())
    limit = least if height is None else height
    right = is_integer(chunks) and 1 <= chunks <= MOST_CHUNKS
    if not right or not is_integer(limit) or limit < least:
        expected = f"chunks from 1 to {MOST_CHUNKS}, a height from {least}"
        raise T612.error(expected=expected, found=f"chunks={chunks!r}, height={height!r}")
    if height is None:
        most = np.full_like(far, topology.ranks)
    else:
        most = far + limit - far.max(axis=1, keepdims=True)
    paths = topology.paths(*((dst, src) if up else (src, dst)))
    parent = match_chunks(
        topology.ranks,
        src=src,
        dst=dst,
        first=paths.offset.astype(np.int64),
        path=paths.target.astype(np.int64),
        time=1 / topology.links.GBps,
        root=np.repeat(np.arange(topology.ranks), chunks),
        most=most.ravel(),
    )
    rows, weight = np.unique(parent, axis=0, return_counts=True)
    return Forest(topology, frozen_array(weight, np.int64), frozen_array(rows, np.int32), up)


def least_height(topology: Topology) -> int:
    """The most sends that a rank's data needs to another rank, if it takes the fewest."""
    return int(_sends(topology.ranks, *_pairs(topology, up=False)).max())


def _pairs(topology: Topology, up: bool) -> tuple[LongArray, LongArray]:
    """The pairs of ranks above and below one another in trees: of those with equal arrivals, the
    first ones are in the same place of their nodes, and the next ones by a turn of the ranks."""
    ranks, node = topology.ranks, topology.node
    src, dst = np.indices((ranks, ranks), np.int32).reshape(2, -1)
    linked = topology.are_linked(*((dst, src) if up else (src, dst)))
    src, dst = src[linked], dst[linked]
    by_node = np.argsort(node, kind="stable")
    place = np.empty(ranks, np.int64)
    place[by_node] = np.arange(ranks) - np.searchsorted(node[by_node], node[by_node])
    order = np.lexsort(((dst - src) % ranks, place[src] != place[dst]))
    return src[order].astype(np.int64), dst[order].astype(np.int64)


def _sends(ranks: int, src: LongArray, dst: LongArray) -> LongArray:
    """int64 (ranks, ranks): the fewest sends from each rank to each one."""
    far = distances(ranks, src, dst, np.ones(len(src)), np.arange(ranks))
    found: LongArray = far.astype(np.int64)
    return found
