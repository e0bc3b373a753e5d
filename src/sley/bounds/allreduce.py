"""Bounds of AllReduce: reductions over all ranks that every rank needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sley.bounds.cuts import NOTHING, Cuts, Limit, best
from sley.bounds.groups import Level, within
from sley.bounds.spread import spread
from sley.ir.tables import BoolArray, FloatArray, LongArray


def allreduce(cuts: Cuts, chunks: int) -> Limit:
    """The bound where all ranks need `chunks` reductions over all ranks; the larger of two.

    Two sides: of any cut with ranks on both sides each side must send each chunk at least once,
    T >= chunks / B+(S), since the other can't know the result without. With switches that reduce
    and multicast (NVLS, SHARP) this one alone holds: a switch then needs only one message a chunk
    from each GPU and sends one to each.

    Parts: split the GPUs into p parts with a rank each. For each chunk, every part but one has
    sent its share before the first of them knows the result, and every part but that one is sent
    something afterwards: 2 (p - 1) messages from GPUs of one part to GPUs of another, and those
    from part P cross every cut around P's GPUs, so T >= 2 (p - 1) chunks / sum B+(P), and the
    same with B-. Partitions that lie in one another are combined as narrows most. The best of all
    partitions isn't known to be found; the bound is exact where ReduceScatter and AllGather
    together reach it.
    """
    if cuts.ranks == 1:
        return NOTHING
    alone = np.zeros(cuts.ranks, np.int64)
    alone[0] = chunks
    two = best([spread(cuts, alone), spread(cuts, alone, collect=True)])
    if cuts.topology.in_network:
        return replace(two, exact=False)
    share = np.ones(cuts.ranks, np.int64)
    gather, scatter = spread(cuts, share), spread(cuts, share, collect=True)
    found = best([two, *(_best_parts(cuts, chunks, levels) for levels in _nested(cuts))])
    reached = (gather.ratio + scatter.ratio) * chunks / cuts.ranks
    both = gather.exact and scatter.exact
    return replace(found, exact=both and reached <= found.ratio * (1 + 1e-9))


def _nested(cuts: Cuts) -> Iterator[list[Level]]:
    """Partitions by rank, each list from small to large parts that lie in one another. GPUs that
    take no part are in that of their ward."""
    groups = [np.unique(level.group[cuts.wards], return_inverse=True) for level in cuts.levels]
    levels = [
        Level(level.word, group)
        for level, (parts, group) in zip(cuts.levels, groups, strict=True)
        if len(parts) > 1
    ]
    chain: list[Level] = []
    for level in levels:
        if not chain or within(chain[-1], level):
            chain.append(level)
        else:
            yield [chain[0], level]
    yield chain


def _best_parts(cuts: Cuts, chunks: int, levels: list[Level]) -> Limit:
    """The best bound by parts that are parts of any of the levels, by Newton's method: for a
    ratio x of messages to capacity, each part is worth 1 - x B+(P), and a larger part is cut where
    that is worth more."""
    limits = []
    for into in (False, True):
        capacity = [_capacities(cuts, level, into=into) for level in levels]
        chosen = [
            np.ones(len(c), bool) if k == 0 else np.zeros(len(c), bool)
            for k, c in enumerate(capacity)
        ]
        while True:
            parts = sum(int(c.sum()) for c in chosen)
            total = sum(float(c[k].sum()) for c, k in zip(capacity, chosen, strict=True))
            where = _words(levels, chosen, parts)
            limits.append(Limit(2 * (parts - 1) * chunks, total, where))
            ratio = (parts - 1) / total
            chosen, worth = _choose(levels, capacity, ratio)
            if worth <= 1 + 1e-9:
                break
    return best(limits)


def _capacities(cuts: Cuts, level: Level, *, into: bool) -> FloatArray:
    """float64 (parts,): the least capacity of a cut around each part."""
    return np.array(
        [
            cuts.leaving_GBps(level.group == number, into=into, apart=True)
            for number in range(level.parts)
        ]
    )


def _choose(
    levels: list[Level], capacity: list[FloatArray], ratio: float
) -> tuple[list[BoolArray], float]:
    """The parts of most worth that make a partition, and their worth together."""
    worth = 1 - ratio * capacity[0]
    cut = [np.zeros(0, bool)]
    for inner, outer, around in zip(levels, levels[1:], capacity[1:], strict=False):
        parent = _parents(inner, outer)
        apart = np.bincount(parent, worth, outer.parts)
        whole = 1 - ratio * around
        cut.append(apart > whole)
        worth = np.maximum(apart, whole)
    chosen: list[BoolArray] = []
    open_ = np.ones(levels[-1].parts, bool)
    for k in range(len(levels) - 1, 0, -1):
        chosen.append(open_ & ~cut[k])
        open_ = (open_ & cut[k])[_parents(levels[k - 1], levels[k])]
    return [open_, *chosen[::-1]], float(worth.sum())


def _parents(inner: Level, outer: Level) -> LongArray:
    parent = np.zeros(inner.parts, np.int64)
    parent[inner.group] = outer.group
    return parent


def _words(levels: list[Level], chosen: list[BoolArray], parts: int) -> str:
    used = [level.word for level, some in zip(levels, chosen, strict=True) if some.any()]
    return f"among {parts} parts, each a {' or a '.join(used)}, together"
