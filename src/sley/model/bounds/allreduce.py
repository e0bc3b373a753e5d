"""Bounds of AllReduce: every rank needs reductions over all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from sley.ir.tables import BoolArray, FloatArray
from sley.model.bounds.cuts import NOTHING, Cuts, RateLimit, tightest
from sley.model.bounds.groups import Level, parents, refines
from sley.model.bounds.spread import by_cuts, spread
from sley.model.bounds.trees import with_trees


def allreduce(cuts: Cuts, chunks: int) -> RateLimit:
    """The bound if all ranks need `chunks` reductions over all ranks: the larger of two bounds.

    Two sides: each side of a cut between ranks must send each chunk at least once, because the
    other side needs it for the result: T >= chunks / B+(S).

    Parts: split the GPUs into p parts, each with a rank. For each chunk, every part but one must
    send its share before any part can know the result; afterwards every part but the first that
    knows it must receive it. These are 2 (p - 1) messages between GPUs of different parts. The
    messages from part P cross every cut around P's GPUs, so T >= 2 (p - 1) chunks / sum B+(P),
    and likewise with B-. Nested partitions are combined into the one with the largest bound.
    Other partitions may give a larger bound; the bound is exact if a ReduceScatter and an
    AllGather together reach it, or trees with the best share for each root.

    Switches that reduce and multicast (NVLS, SHARP) pass messages of several GPUs of a node at
    once, and less often over the links: see `_switched`. Partitions into whole nodes are as above.
    """
    if cuts.ranks == 1:
        return NOTHING
    alone = np.zeros(cuts.ranks, np.int64)
    alone[0] = chunks
    two = tightest([by_cuts(cuts, alone), by_cuts(cuts, alone, collect=True)])
    if cuts.topology.in_network:
        nodes = Level("node", cuts.topology.node[cuts.nearest_rank].astype(np.int64))
        chains = _nested_levels(cuts, [one for one in cuts.levels if refines(nodes, one)])
        parts = (_tightest_parts(cuts, chunks, levels) for levels in chains)
        found = tightest([two, _switched(cuts, chunks), *parts])
        return with_trees(found, cuts, (True, False), chunks)
    share = np.ones(cuts.ranks, np.int64)
    gather, scatter = spread(cuts, share), spread(cuts, share, collect=True)
    chains = _nested_levels(cuts, cuts.levels)
    found = tightest([two, *(_tightest_parts(cuts, chunks, levels) for levels in chains)])
    reached = (gather.ratio + scatter.ratio) * chunks / cuts.ranks
    if gather.exact and scatter.exact and reached <= found.ratio * (1 + 1e-9):
        return replace(found, exact=True)
    return with_trees(found, cuts, (True, False), chunks)


def _switched(cuts: Cuts, chunks: int) -> RateLimit:
    """The bound if switches of nodes reduce and multicast.

    With each GPU as a part, 2 (p - 1) messages are between GPUs. A single one uses a link out of a
    GPU and one into a GPU. A switch that combines those of k GPUs for a rank, or copies the rank's
    to them, uses the rank's link to it and from it and one of each of the k, all at a share of
    their rates, since it reads and writes the rank's own chunks too. The best is k = g - 1, for
    nodes of up to g GPUs: a message then uses (g + 1) / (g - 1) over the share of links to switches
    that do so, on paths inside nodes, and still 2 of others.
    """
    topology, gpus = cuts.topology, int(np.bincount(cuts.topology.node).max())
    if cuts.ranks < topology.ranks or gpus == 1:
        return NOTHING
    share = 1.0 if cuts.nominal else topology.model.switch_efficiency
    uses = min(2.0, (gpus + 1) / (gpus - 1) / share)
    src, dst = np.indices((topology.ranks, topology.ranks)).reshape(2, -1)
    inside = topology.node[src] == topology.node[dst]
    of = np.full(len(topology.links), 2.0)
    of[topology.paths(src[inside], dst[inside]).target] = uses
    ends = (topology.links.src, topology.links.dst)
    messages_GBps = sum(float((cuts.GBps / of)[e < topology.ranks].sum()) for e in ends)  # noqa: N806
    words = "between GPUs, with switches that combine and copy them, in all"
    return RateLimit(2 * (cuts.ranks - 1) * chunks, messages_GBps, words)


def _nested_levels(cuts: Cuts, of: list[Level]) -> Iterator[list[Level]]:
    """Lists of nested partitions, from small to large parts. A GPU without a rank is in the part
    of its nearest rank."""
    groups = [np.unique(level.group[cuts.nearest_rank], return_inverse=True) for level in of]
    levels = [
        Level(level.word, group)
        for level, (parts, group) in zip(of, groups, strict=True)
        if len(parts) > 1
    ]
    chain: list[Level] = []
    for level in levels:
        if not chain or refines(chain[-1], level):
            chain.append(level)
        else:
            yield [chain[0], level]
    if chain:
        yield chain


def _tightest_parts(cuts: Cuts, chunks: int, levels: list[Level]) -> RateLimit:
    """The tightest bound by parts taken from any of the nested levels, found by Newton's method:
    for a ratio x of messages to capacity, a part P has the value 1 - x B+(P), and a larger part is
    split where the values of its parts add up to more."""
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
            used = [level.word for level, c in zip(levels, chosen, strict=True) if c.any()]
            where = f"between {parts} parts (each a {' or a '.join(used)}), in all"
            limits.append(RateLimit(2 * (parts - 1) * chunks, total, where))
            ratio = (parts - 1) / total
            chosen, value = _choose_parts(levels, capacity, ratio)
            if value <= 1 + 1e-9:
                break
    return tightest(limits)


def _capacities(cuts: Cuts, level: Level, *, into: bool) -> FloatArray:
    """float64 (parts,): the smallest capacity of a cut around each part."""
    return np.array(
        [
            cuts.leaving_GBps(level.group == number, into=into, apart=True)
            for number in range(level.parts)
        ]
    )


def _choose_parts(
    levels: list[Level], capacity: list[FloatArray], ratio: float
) -> tuple[list[BoolArray], float]:
    """The partition with the largest total value: bool (parts,) for each level, and the value."""
    value = 1 - ratio * capacity[0]
    cut = [np.zeros(0, bool)]
    for inner, outer, around in zip(levels, levels[1:], capacity[1:], strict=False):
        parent = parents(inner, outer)
        apart = np.bincount(parent, value, outer.parts)
        whole = 1 - ratio * around
        cut.append(apart > whole)
        value = np.maximum(apart, whole)
    chosen: list[BoolArray] = []
    open_ = np.ones(levels[-1].parts, bool)
    for k in range(len(levels) - 1, 0, -1):
        chosen.append(open_ & ~cut[k])
        open_ = (open_ & cut[k])[parents(levels[k - 1], levels[k])]
    return [open_, *chosen[::-1]], float(value.sum())
