"""Bounds of chunks that every rank needs: AllGather, Broadcast; reversed, ReduceScatter, Reduce."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sley.ir.tables import BoolArray, LongArray
from sley.model.bounds.cuts import NOTHING, Cuts, RateLimit, sides
from sley.model.bounds.groups import representatives
from sley.model.bounds.trees import with_trees


def spread(cuts: Cuts, chunks: LongArray, *, collect: bool = False) -> RateLimit:
    """The bound if each rank has chunks that all others need, or with `collect`, if each rank needs
    chunks reduced over all ranks; the second is the first with time and links reversed.

    chunks: int64 (ranks,), the number of chunks that each rank has, or needs.
    """
    found = by_cuts(cuts, chunks, collect=collect)
    if not found.exact or found is NOTHING:
        return found
    return with_trees(found, cuts, (collect,), int(chunks.sum()), chunks)


def by_cuts(cuts: Cuts, chunks: LongArray, *, collect: bool = False) -> RateLimit:
    """The bound of `spread` over all ways: exact for them, unless flows would take too long.

    A set S of vertices without one of the ranks must send each chunk of its ranks at least once,
    even if GPUs copy it on the path: T >= max over S of chunks(S) / B+(S). Trees of copies over the
    GPUs reach this bound (ForestColl, arXiv 2402.06787, theorem 1). As there, maximum flows find
    the maximum: T suffices for rank v if chunks(r) / T can flow from every rank r to v at once; if
    it does not suffice, the cut that is too narrow gives the next T (Newton's method for
    fractions, Dinkelbach 1967). Switches that multicast don't change the bound.
    """
    found = cuts.tightest(_simple_cuts(cuts, chunks, collect=collect))
    marks = np.zeros(cuts.topology.ranks, np.int64)
    marks[: cuts.ranks] = 1 + chunks
    first = np.unique(representatives(cuts.topology, cuts.GBps, marks)[: cuts.ranks]).tolist()
    sinks = [v for v in first if chunks.sum() > chunks[v]]
    if not sinks:
        return NOTHING
    if len(sinks) > cuts.affordable:
        return found
    network = cuts.backwards if collect else cuts.network
    supply = np.zeros(cuts.topology.ranks)
    for sink in sinks:
        while True:
            supply[: cuts.ranks] = chunks / found.ratio
            inside = network.supplied_cut(supply, sink)
            over = int(chunks[inside[: cuts.ranks]].sum())
            if not over:
                break
            next_ = RateLimit(
                over, network.leaving_GBps(inside), cuts.describe(inside, outward=not collect)
            )
            if next_.ratio <= found.ratio * (1 + 1e-9):
                break
            found = next_
    return replace(found, exact=True)


def _simple_cuts(
    cuts: Cuts, chunks: LongArray, *, collect: bool
) -> Iterator[tuple[float, BoolArray, bool]]:
    """The chunks that natural groups of GPUs must send and receive, as for `Cuts.tightest`."""
    for level in cuts.levels:
        for gpus in sides(level, cuts.ranks):
            for inside in (gpus, ~gpus):
                amount = int(chunks[inside[: cuts.ranks]].sum())
                yield amount, inside, collect
