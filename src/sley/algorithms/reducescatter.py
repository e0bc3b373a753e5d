"""ReduceScatter algorithms. In place, a rank's output is the rank's part of its input."""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import algorithm, channel_numbers, check_even
from sley.algorithms.butterflies import Butterfly, swing_peers
from sley.ir.collectives import ReduceScatter
from sley.ir.orders import BALANCED, SameBits
from sley.ir.program import Program
from sley.ir.tables import NONE, LongArray
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
def one_step_reducescatter(
    ranks: int, *, same_bits: SameBits = True, in_place: bool = False
) -> Program:
    """ReduceScatter in one step: every rank sends every other rank its chunk, and every rank sums
    its own in the order of the ranks.

    Elements are summed as in `one_step_allreduce`, ((x0 + x1) + x2) + ..., whichever rank's chunk
    they are in: with an AllGather after it the bits are the same. A rank sums in scratch until its
    own data are part of the sum. same_bits: with "balanced" by the balanced tree of the ranks.
    Source: the first step of MSCCLang's All Pairs, 7.1.2. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        where = ("in", rank) if in_place else ("out", np.zeros_like(rank))
        sum_in_rank_order(p, rank, *where, same_bits=same_bits)

    return trace(ReduceScatter(ranks, 1, in_place), body)


@algorithm("reducescatter", "Swing (De Sensi et al., NSDI 2024), 3")
def swing_reducescatter(ranks: int, *, in_place: bool = False) -> Program:
    """ReduceScatter in log2(ranks) steps, rounded up: Swing's pairs of ranks exchange the sums that
    they don't keep. The number of ranks must be even.

    Source: the first half of Swing (De Sensi et al., NSDI 2024, arXiv 2401.09356), section 3; also
    Bine's ReduceScatter (SC 2025). Errors: L102, L121.
    """
    check_even("swing-reducescatter", ranks)
    buffer, result = ("in", None) if in_place else ("scratch", "out")
    butterfly = Butterfly(swing_peers([ranks]))

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        butterfly.reduce_scatter(p, rank, buffer=buffer, source="in", result=result)

    return trace(ReduceScatter(ranks, 1, in_place), body)


def sum_in_rank_order(
    p: ChunkProgram, part: LongArray, result: str, place: LongArray, *, same_bits: SameBits
) -> None:
    """Every rank sums one chunk from all ranks, in the order of the ranks, or by their balanced
    tree: in scratch until its own data are part of the sum. So it never writes to its result before
    it has read its input.

    part: int64 (ranks,), the chunk of the inputs that each rank sums. result, place: the buffer and
    each rank's chunk of it for the sum; the input in place, where its own data are.
    """
    rank = np.arange(len(part))
    term = np.tile(rank, (len(part), 1))
    early = "scratch", np.zeros_like(rank)
    sum_terms(p, rank, term, "in", part, (result, place), early, same_bits=same_bits)


def slots_of(terms: int) -> int:
    """The chunks of scratch in which a balanced tree of so many terms is summed."""
    return (terms - 1).bit_length() or 1


def sum_terms(
    p: ChunkProgram,
    rank: LongArray,
    term: LongArray,
    source: str,
    part: LongArray,
    result: tuple[str, LongArray],
    early: tuple[str, LongArray],
    *,
    same_bits: SameBits,
    channel: int | None = None,
) -> None:
    """Each of some ranks sums chunks of others and its own: in a given order, or with BALANCED by
    the balanced tree of the terms (`ir.orders`).

    rank: int64 (sums,), the rank that makes each sum. term: int64 (sums, terms), the ranks in
    order; NONE behind the last. source, part: the buffer with the terms, and the chunk of it that
    is summed; int64 (sums,), or (sums, terms) if ranks have it in different places. result, early:
    buffers and chunks, int64 (sums,), for the sum from the rank's own term on, and before it. Of a
    balanced tree `early` is the first of `slots_of` the terms chunks, and the result is written
    once, at the end.
    """
    part = part if part.ndim > 1 else np.tile(part, (term.shape[1], 1)).T
    own, size = np.argmax(term == rank[:, None], axis=1), (term != NONE).sum(axis=1)

    def sent(turn: int, sums: LongArray) -> Ref:
        return p.chunk(term[sums, turn], source, part[sums, turn])

    def sum_of(where: tuple[str, LongArray], sums: LongArray, slot: int = 0) -> Ref:
        return p.chunk(rank[sums], where[0], where[1][sums] + slot)

    def copy(chunks: Ref, where: tuple[str, LongArray], sums: LongArray, slot: int = 0) -> None:
        chunks.copy(rank[sums], where[0], where[1][sums] + slot, channel=channel)

    def in_turn() -> None:
        if len(later := np.flatnonzero(own > 0)):
            copy(sent(0, later), early, later)
        if source != result[0]:
            at_first = np.flatnonzero(own == 0)
            copy(sent(0, at_first), result, at_first)
        for turn in range(1, term.shape[1]):
            joins, with_own, without = (
                np.flatnonzero((turn < size) & which)
                for which in (own == turn, own < turn, own > turn)
            )
            total = None
            if len(joins):
                total = sum_of(early, joins).reduce(sent(turn, joins))
            if len(without):  # the ranks behind the sender first: not all senders begin with rank 0
                sum_of(early, without).reduce(sent(turn, without), channel=channel)
            if len(with_own):
                sum_of(result, with_own).reduce(sent(turn, with_own), channel=channel)
            if total is not None and early[0] != result[0]:
                copy(total, result, joins)

    def in_a_tree() -> None:
        """As a binary counter counts: each chunk of scratch holds the sum of a power of two of
        terms, smaller ones behind larger ones, and two equal ones become one."""
        for turn in range(term.shape[1]):
            sums, top = np.flatnonzero(turn < size), (turn & ~1).bit_count()
            if turn % 2:
                sum_of(early, sums, top).reduce(sent(turn, sums), channel=channel)
            else:
                copy(sent(turn, sums), early, sums, top)
            for slot in reversed(range(top)):
                if slot + 1 < (turn + 1).bit_count():  # unequal: only behind the last term
                    sums = np.flatnonzero(size == turn + 1)
                if len(sums):
                    sum_of(early, sums, slot).reduce(sum_of(early, sums, slot + 1))
        if result[0] != early[0] or (result[1] != early[1]).any():
            every = np.arange(len(rank))
            copy(sum_of(early, every), result, every)

    (in_a_tree if same_bits == BALANCED else in_turn)()
