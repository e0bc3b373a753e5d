"""Bounds of what every rank needs: AllGather, Broadcast, and backwards ReduceScatter, Reduce."""

from __future__ import annotations

import numpy as np

from sley.bounds.cuts import NOTHING, Cuts, Limit, best, sides
from sley.bounds.groups import alike
from sley.ir.tables import LongArray


def spread(cuts: Cuts, chunks: LongArray, *, collect: bool = False) -> Limit:
    """The bound where each rank has chunks that all others need, or with `collect` needs chunks
    reduced over all ranks, which is the same with time and links turned round.

    A set S of vertices that leaves out one of the ranks must send out each chunk that its ranks
    have at least once, whatever is copied on the way: T >= max over S of chunks(S) / B+(S), which
    trees of copies over the GPUs reach (ForestColl, arXiv 2402.06787, theorem 1). The maximum is
    found as there by maximum flows: T suffices for rank v if chunks(r) / T flows from every rank
    r at once to v; where it doesn't, the cut that is too narrow gives the next T (Newton's method
    for fractions, Dinkelbach 1967). Switches that multicast change nothing.

    chunks: int64 (ranks,).
    """
    found = best(_simple(cuts, chunks, collect=collect))
    marks = np.zeros(cuts.topology.ranks, np.int64)
    marks[: cuts.ranks] = 1 + chunks
    standing = alike(cuts.topology, cuts.GBps, marks)
    sinks = [v for v in np.unique(standing[: cuts.ranks]).tolist() if chunks.sum() > chunks[v]]
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
            next_ = Limit(
                over, network.leaving_GBps(inside), cuts.words(inside, outward=not collect)
            )
            if next_.ratio <= found.ratio * (1 + 1e-9):
                break
            found = next_
    return Limit(found.chunks, found.GBps, found.where, exact=True)


def _simple(cuts: Cuts, chunks: LongArray, *, collect: bool) -> list[Limit]:
    """What natural groups of GPUs must send and what they need, with the cuts around them."""
    limits = []
    for level in cuts.levels:
        for gpus in sides(level, cuts.ranks):
            for inside in (gpus, ~gpus):
                amount = int(chunks[inside[: cuts.ranks]].sum())
                limits.append(cuts.limit(amount, inside, into=collect))
    return limits
