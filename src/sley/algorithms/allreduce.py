"""AllReduce algorithms. Out of place they don't change the caller's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from sley.algorithms.algorithm import MPICH, algorithm, channel_numbers, stage_numbers
from sley.algorithms.reducescatter import sum_in_rank_order
from sley.algorithms.rings import accumulator, ring_all_gather, ring_reduce_scatter
from sley.ir.collectives import AllReduce
from sley.ir.orders import SameBits
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, trace


@algorithm("allreduce", "MSCCLang 7.1.1")
def ring_allreduce(ranks: int, *, channels: int | None = None, in_place: bool = False) -> Program:
    """AllReduce along one ring: every chunk is passed on twice around the ring, first reduced, then
    copied.

    channels: number of channels for the chunks; with None the compiler chooses the channels.
    Source: MSCCLang 7.1.1. Errors: L102, L121.
    """
    numbers = channel_numbers("ring-allreduce", channels)
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        ring = np.arange(ranks)
        ring_reduce_scatter(p, ring, 0, 1, buffer=buffer, source="in", channels=numbers)
        ring_all_gather(p, ring, 0, 1, buffer=buffer, channels=numbers)

    return trace(AllReduce(ranks, ranks, in_place), body)


@algorithm("allreduce", "MSCCLang 7.1.2")
def one_step_allreduce(
    ranks: int, *, same_bits: SameBits = True, in_place: bool = False
) -> Program:
    """AllReduce in one step: every rank sends its data to every other, and every rank sums all of
    it.

    All ranks sum in the order of the ranks, ((x0 + x1) + x2) + ..., so all results have the same
    bits. A rank sums in scratch until its own data are part of the sum. same_bits: with "balanced"
    they sum by the balanced tree of the ranks, ((x0 + x1) + (x2 + x3)) + ..., instead.
    Source: MSCCLang 7.1.2's All Pairs without its second step. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        whole = np.zeros(ranks, np.int64)
        sum_in_rank_order(p, whole, "in" if in_place else "out", whole, same_bits=same_bits)

    return trace(AllReduce(ranks, 1, in_place), body)


@algorithm("allreduce", "MSCCLang 7.1.2")
def all_pairs_allreduce(
    ranks: int, *, stage_channels: Sequence[int] | None = None, in_place: bool = False
) -> Program:
    """AllReduce in two steps: each rank sums one chunk from all ranks, and sends the sum to all
    others.

    Rank r sums its chunk in the order r, r + 1, ..., modulo the number of ranks.
    stage_channels: a channel for each of the two steps; with None the compiler chooses them. With
    different channels, the first step of a tile doesn't wait for the second step of the tile
    before.
    Source: MSCCLang 7.1.2. Errors: L102, L121.
    """
    summing, sharing = stage_numbers("all-pairs-allreduce", stage_channels, 2)
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        total = accumulator(p, rank, "in", buffer, rank)
        for turn in range(1, ranks):
            total = total.reduce(p.chunk((rank + turn) % ranks, "in", rank), channel=summing)
        for turn in range(1, ranks):
            total.copy((rank + turn) % ranks, buffer, rank, channel=sharing)

    return trace(AllReduce(ranks, ranks, in_place), body)


@algorithm("allreduce", "MSCCLang 7.1.2")
def rank_order_allreduce(
    ranks: int, *, same_bits: SameBits = True, in_place: bool = False
) -> Program:
    """AllReduce in two steps: each rank sums one chunk in the order of the ranks, and sends the sum
    to all others.

    Elements are summed as in `one_step_allreduce`, by `same_bits`, so that small and large calls
    give the same bits.
    Source: MSCCLang's All Pairs, 7.1.2, in one order. Errors: L102, L121.
    """
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        sum_in_rank_order(p, rank, buffer, rank, same_bits=same_bits)
        for turn in range(1, ranks):
            p.chunk(rank, buffer, rank).copy((rank + turn) % ranks, buffer, rank)

    return trace(AllReduce(ranks, ranks, in_place), body)


@algorithm("allreduce", "NCCL")
def chain_allreduce(ranks: int, *, in_place: bool = False) -> Program:
    """AllReduce along one chain: each rank adds its data to the sum of those before, and the total
    takes the same path back.

    Elements are summed as in `one_step_allreduce`, and each rank is linked to its neighbours alone.
    Source: NCCL's trees within a node. Errors: L102, L121.
    """
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        part = p.chunk(0, "in", 0)
        for rank in range(1, ranks):
            part = accumulator(p, rank, "in", buffer, 0).reduce(part)
        for rank in reversed(range(ranks - 1)):
            part = part.copy(rank, buffer, 0)

    return trace(AllReduce(ranks, 1, in_place), body)


@algorithm("allreduce", "MSCCLang 2, 5.1, 7.2")
def hierarchical_allreduce(
    nodes: int, gpus: int, *, node_instances: int = 1, in_place: bool = False
) -> Program:
    """AllReduce with rings within the nodes, across the nodes, and within the nodes again.

    node_instances: number of parallel parts of the phases within the nodes (`nodes` in MSCCLang).
    The three phases use channels 0, 1 and 2.
    Source: MSCCLang, figures 1 and 3, section 5.1. Errors: L102, L121.
    """
    buffer = "in" if in_place else "out"
    rank = np.arange(nodes * gpus).reshape(nodes, gpus)
    share = np.arange(gpus) * nodes

    def body(p: ChunkProgram) -> None:
        with p.parallelize(node_instances):
            ring_reduce_scatter(p, rank, 0, nodes, buffer=buffer, source="in", channels=[0])
        summed = buffer if gpus > 1 else "in"
        ring_reduce_scatter(p, rank.T, share, 1, buffer=buffer, source=summed, channels=[1])
        ring_all_gather(p, rank.T, share, 1, buffer=buffer, channels=[1])
        with p.parallelize(node_instances):
            ring_all_gather(p, rank, 0, nodes, buffer=buffer, channels=[2])

    collective = AllReduce(nodes * gpus, nodes * gpus, in_place)
    return trace(collective, body)


@algorithm("allreduce", f"{MPICH}, 4.5")
def recursive_halving_doubling_allreduce(ranks: int, *, in_place: bool = False) -> Program:
    """AllReduce in 2 log2(ranks) steps: a ReduceScatter by recursive halving, then an AllGather by
    recursive doubling.

    If `ranks` is not a power of two, the ranks in excess first send their data to a neighbour,
    which reduces it into its own, and receive the result from it at the end.
    Source: Rabenseifner's algorithm in Thakur, Rabenseifner, Gropp, Optimization of Collective
    Communication Operations in MPICH (2005), section 4.5. Errors: L102, L121.
    """
    power = 1 << (int(ranks).bit_length() - 1)
    folded, place = ranks - power, np.arange(power)
    rank = np.where(place < folded, 2 * place + 1, place + folded)
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        source = "in"
        if folded:
            accumulator(p, rank, "in", buffer, 0, power)
            own, source = p.chunk(rank[:folded], buffer, 0, power), buffer
            own.reduce(p.chunk(rank[:folded] - 1, "in", 0, power))
        distances = [1 << level for level in range(power.bit_length() - 1)]
        for distance in reversed(distances):
            half, partner = (place ^ distance) & -distance, rank[place ^ distance]
            sent = p.chunk(rank, source, half, distance)
            accumulator(p, partner, source, buffer, half, distance).reduce(sent)
            source = buffer
        for distance in distances:
            half = place & -distance
            p.chunk(rank, buffer, half, distance).copy(rank[place ^ distance], buffer, half)
        if folded:
            result = p.chunk(rank[:folded], buffer, 0, power)
            result.copy(rank[:folded] - 1, buffer, 0)

    return trace(AllReduce(ranks, power, in_place), body)


@algorithm("allreduce", "Sanders et al. 2009; NCCL 2.4")
def double_binary_tree_allreduce(ranks: int, *, in_place: bool = False) -> Program:
    """AllReduce over two binary trees, each for half of the data: up to the root, and down again.

    A rank with children in one tree has none in the other (except for one rank if their number is
    odd), so no rank sends more than twice its data. Each tree uses its own channel.
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and
    scan (2009); the trees are those of NCCL 2.4. Errors: L102, L121.
    """
    place = np.arange(ranks)
    mirrored = (place + 1) % ranks if ranks % 2 else ranks - 1 - place
    pairs = list(tree_levels(ranks))
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        for tree, rank in enumerate((place, mirrored)):
            # Even places have children; odd places have none and send their input.
            accumulator(p, rank[::2], "in", buffer, tree)
            for child, parent in pairs:
                held = p.chunk(rank[child], "in" if child[0] % 2 else buffer, tree)
                p.chunk(rank[parent], buffer, tree).reduce(held, channel=tree)
            for child, parent in reversed(pairs):
                total = p.chunk(rank[parent], buffer, tree)
                total.copy(rank[child], buffer, tree, channel=tree)

    return trace(AllReduce(ranks, 2, in_place), body)


def tree_levels(ranks: int) -> Iterator[tuple[LongArray, LongArray]]:
    """Children and parents of NCCL's binary tree, from the leaves up; each pair of arrays has a
    parent at most once.

    The lowest set bit of a place is its level. Its parent has the next higher bit set instead; if
    that place does not exist, the parent has neither of the two bits.
    """
    bit = 1
    while bit < ranks:
        child = np.arange(bit, ranks, 2 * bit)
        parent = (child ^ bit) | (bit << 1)
        parent = np.where(parent < ranks, parent, child ^ bit)
        for side in (parent > child, parent < child):
            if side.any():
                yield child[side], parent[side]
        bit <<= 1
