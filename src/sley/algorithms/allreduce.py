"""AllReduce algorithms. Out of place they don't change the caller's input."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sley.algorithms.algorithm import MPICH, algorithm, channel_numbers, stage_numbers
from sley.algorithms.butterflies import Butterfly, hypercube_peers, swing, swing_peers
from sley.algorithms.reducescatter import sum_in_rank_order
from sley.algorithms.rings import accumulator, ring_all_gather, ring_reduce_scatter
from sley.ir.collectives import AllReduce
from sley.ir.orders import SameBits
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, Ref, trace


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


@algorithm("allreduce", "IBing (Zong et al., TACO 2025)")
def bidirectional_ring_allreduce(ranks: int, *, in_place: bool = False) -> Program:
    """AllReduce along one ring in both directions at once, in ranks - 1 steps: half of the ranks on
    either side of a chunk's centre pass on their sums to it, and the total takes the same paths
    back.

    The centre is a rank, or two neighbours that exchange their sums if `ranks` is even.
    Source: the interleaved bidirectional ring (IBing) of Zong et al., ACM TACO 2025, in half of the
    steps of a ring. Errors: L102, L121.
    """
    buffer = "in" if in_place else "out"
    chunk, hops = np.arange(ranks), np.arange(1, (ranks + 1) // 2)[:, None]
    left, right = chunk, (chunk + (ranks % 2 == 0)) % ranks
    before, behind = (left - hops) % ranks, (right + hops) % ranks  # outwards from the centre

    def body(p: ChunkProgram) -> None:
        total = other = accumulator(p, left, "in", buffer, chunk)
        if ranks % 2 == 0:
            other = p.chunk(right, "in", chunk).copy(right, "scratch", 0)
        if len(hops):
            total = total.reduce(_chain_sum(p, before[::-1], buffer, chunk))
            # The last sum of an odd number's one centre is the total.
            other = (other if ranks % 2 == 0 else total).reduce(
                _chain_sum(p, behind[::-1], buffer, chunk)
            )
        if ranks % 2 == 0:  # both add in one order, so that all ranks have the same bits
            total.copy(right, buffer, chunk).reduce(other)
            total.reduce(other)
        for centre, path in ((left, before), (right, behind)):
            part = p.chunk(centre, buffer, chunk)
            for rank in path:
                part = part.copy(rank, buffer, chunk)

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
        part = _chain_sum(p, np.arange(ranks), buffer, 0)
        for rank in reversed(range(ranks - 1)):
            part = part.copy(rank, buffer, 0)

    return trace(AllReduce(ranks, 1, in_place), body)


def _chain_sum(p: ChunkProgram, path: LongArray, buffer: str, index: ArrayLike) -> Ref:
    """The sum of the ranks of a path in the last one: each adds its data to the sum of those
    before. path: int64 (steps,), or (steps, paths) for several."""
    part = p.chunk(path[0], "in", index)
    for rank in path[1:]:
        part = accumulator(p, rank, "in", buffer, index).reduce(part)
    return part


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
    rank, folded = _power_of_two(ranks)
    blocks = len(rank)
    butterfly = Butterfly(hypercube_peers(blocks))
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        source = _fold(p, rank, folded, buffer, blocks)
        butterfly.reduce_scatter(p, rank, buffer=buffer, source=source)
        butterfly.all_gather(p, rank, buffer=buffer)
        _unfold(p, rank, folded, buffer, blocks)

    return trace(AllReduce(ranks, blocks, in_place), body)


@algorithm("allreduce", "Swing (De Sensi et al., NSDI 2024), 3")
def swing_allreduce(
    ranks: int, *, sides: Sequence[int] | None = None, in_place: bool = False
) -> Program:
    """AllReduce in 2 log2(ranks) steps, rounded up, between ranks a third closer than in recursive
    halving and doubling: for rings and tori.

    sides: the sides of a torus with ranks row by row, each even or 1, or one side. The data have
    two parts for each dimension, which start along different links; each part uses its own channel.
    By default one part, on a ring. An odd number of ranks on a ring takes one step more: the last
    rank sends each of the others the data of its block, and receives the result from it.
    Source: Swing (De Sensi et al., NSDI 2024, arXiv 2401.09356), section 3, bandwidth-optimal; on a
    ring, it is also Bine's AllReduce (SC 2025). Errors: L102, L121.
    """
    butterflies = swing("swing-allreduce", ranks, sides)
    blocks = butterflies[0].blocks
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        for part, butterfly in enumerate(butterflies):
            own: dict[str, Any] = {"offset": part * blocks, "buffer": buffer, "channel": part}
            butterfly.reduce_scatter(p, rank, source="in", **own)
            butterfly.all_gather(p, rank, **own)

    return trace(AllReduce(ranks, len(butterflies) * blocks, in_place), body)


@algorithm("allreduce", "Swing (De Sensi et al., NSDI 2024), 3")
def swing_doubling_allreduce(ranks: int, *, in_place: bool = False) -> Program:
    """AllReduce in log2(ranks) steps, in which Swing's pairs of ranks exchange and sum all data.

    For small buffers. The farthest exchange first, so that the sums of all ranks have one order. If
    `ranks` is not a power of two, ranks in excess fold their data as in
    `recursive_halving_doubling_allreduce`.
    Source: Swing (De Sensi et al., NSDI 2024, arXiv 2401.09356), section 3, latency-optimal.
    Errors: L102, L121.
    """
    rank, folded = _power_of_two(ranks)
    place, peers = np.arange(len(rank)), swing_peers([len(rank)])[::-1]
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        held = (_fold(p, rank, folded, buffer, 1), 0)
        if held[0] == buffer and len(peers) == 1:  # one step can't read and write one place
            p.chunk(rank, *held).copy(rank, "scratch", 0)
            held = ("scratch", 0)
        first = place  # the lowest place of each one's sum, which is added first
        # Each step sums in a place of its own, which the next one reads.
        for step, peer in enumerate(peers, start=1):
            into = (buffer, 0) if step == len(peers) else ("scratch", step)
            is_own = first < first[peer]
            one, other = rank[np.where(is_own, [place, peer], [peer, place])]
            p.chunk(one, *held).copy(rank, *into).reduce(p.chunk(other, *held))
            held, first = into, np.minimum(first, first[peer])
        _unfold(p, rank, folded, buffer, 1)

    return trace(AllReduce(ranks, 1, in_place), body)


def _power_of_two(ranks: int) -> tuple[LongArray, int]:
    """The ranks that are left when ranks in excess of a power of two have folded their data into a
    neighbour's, and the number in excess: so many first ones have such a neighbour before them."""
    power = 1 << (int(ranks).bit_length() - 1)
    folded, place = ranks - power, np.arange(power)
    return np.where(place < folded, 2 * place + 1, place + folded), folded


def _fold(p: ChunkProgram, rank: LongArray, folded: int, buffer: str, chunks: int) -> str:
    """Sums the data of the ranks in excess into their neighbours'; the buffer of the sums."""
    if not folded:
        return "in"
    accumulator(p, rank, "in", buffer, 0, chunks)
    own = p.chunk(rank[:folded], buffer, 0, chunks)
    own.reduce(p.chunk(rank[:folded] - 1, "in", 0, chunks))
    return buffer


def _unfold(p: ChunkProgram, rank: LongArray, folded: int, buffer: str, chunks: int) -> None:
    """Copies the results to the ranks in excess."""
    if folded:
        p.chunk(rank[:folded], buffer, 0, chunks).copy(rank[:folded] - 1, buffer, 0)


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
