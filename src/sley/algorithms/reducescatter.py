"""ReduceScatter algorithms. In place, a rank's output is the rank's part of its input."""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import algorithm, channel_numbers
from sley.algorithms.rings import accumulator
from sley.ir.collectives import ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, Ref, trace


@algorithm("reducescatter", "MSCCLang, figure 3b")
def ring_reducescatter(
    ranks: int, *, channels: int | None = None, in_place: bool = False
) -> Program:
    """ReduceScatter along one ring: every chunk is passed on once around the ring and reduced at
    each rank.

    Out of place, partial sums are in scratch and the final sum in the output.
    channels: number of channels for the chunks; with None the compiler chooses the channels.
    Source: MSCCLang, figure 3b. Errors: L102, L121.
    """
    numbers = channel_numbers("ring-reducescatter", channels)

    def body(p: ChunkProgram) -> None:
        for turn, channel in enumerate(numbers[:ranks]):
            part = np.arange(turn, ranks, len(numbers))
            c = p.chunk((part + 1) % ranks, "in", part)
            for step in range(1, ranks):
                own = p.chunk((part + step + 1) % ranks, "in", part)
                if not in_place:
                    buffer, index = ("scratch", step - 1) if step < ranks - 1 else ("out", 0)
                    own = own.copy(own.rank, buffer, index)
                c = own.reduce(c, channel=channel)

    return trace(ReduceScatter(ranks, 1, in_place), body)


@algorithm("reducescatter", "MSCCLang 7.1.2")
def all_pairs_reducescatter(ranks: int, *, in_place: bool = False) -> Program:
    """ReduceScatter in one step: every rank sends every other rank its chunk, and sums its own.

    Rank r sums in the order r, r + 1, ..., modulo the number of ranks.
    Source: the first step of MSCCLang's All Pairs, 7.1.2. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        total = p.chunk(rank, "in", rank)
        if not in_place:
            total = total.copy(rank, "out", 0)
        for turn in range(1, ranks):
            total = total.reduce(p.chunk((rank + turn) % ranks, "in", rank))

    return trace(ReduceScatter(ranks, 1, in_place), body)


@algorithm("reducescatter", "MSCCLang 7.1.2")
def one_step_reducescatter(ranks: int, *, in_place: bool = False) -> Program:
    """ReduceScatter in one step: every rank sends every other rank its chunk, and every rank sums
    its own in the order of the ranks.

    Elements are summed as in `one_step_allreduce`, ((x0 + x1) + x2) + ..., whichever rank's chunk
    they are in: with an AllGather after it the bits are the same. A rank sums in scratch until its
    own data are part of the sum.
    Source: the first step of MSCCLang's All Pairs, 7.1.2. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        where = ("in", rank) if in_place else ("out", np.zeros_like(rank))
        sum_in_rank_order(p, rank, *where)

    return trace(ReduceScatter(ranks, 1, in_place), body)


def sum_in_rank_order(p: ChunkProgram, part: LongArray, result: str, place: LongArray) -> None:
    """Every rank sums one chunk from all ranks, in the order of the ranks: in scratch until its own
    data are part of the sum, then in its result. So it never writes there before it has read its
    input.

    part: int64 (ranks,), the chunk of the inputs that each rank sums. result, place: the buffer and
    each rank's chunk of it for the sum; the input in place, where its own data are.
    """
    rank = np.arange(len(part))

    def sent(source: int, to: LongArray) -> Ref:
        return p.chunk(np.full_like(to, source), "in", part[to])

    sent(0, rank[1:]).copy(rank[1:], "scratch", 0)
    accumulator(p, rank[:1], "in", result, part[:1])
    for other in range(1, len(part)):
        total = p.chunk(other, "scratch", 0).reduce(p.chunk(other, "in", part[other]))
        with_own, without = rank[:other], rank[other + 1 :]
        p.chunk(with_own, result, place[with_own]).reduce(sent(other, with_own))
        if len(without):
            p.chunk(without, "scratch", 0).reduce(sent(other, without))
        total.copy(other, result, place[other])
