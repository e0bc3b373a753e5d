"""Merging: which thread blocks of a rank become one.

Merged are blocks that are never active at the same time (ResCCL 4.4, equation 7), or, down to a
limit, those that are for the shortest time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.compiler.passes.blocks import number_blocks
from sley.compiler.passes.loops import Loop
from sley.ir.dag import Blocks, Order
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray, offsets_of


@dataclass(frozen=True)
class Overlaps:
    """For each pair of blocks of a rank, the time in which both are active; for plans not in
    timeline order, the delay that one would cause the other.

    rank_block: (ranks + 1,), the first block of each rank. offset: (ranks + 1,), where the square
    matrix of each rank begins in `time_us`.
    """

    rank_block: LongArray
    offset: LongArray
    time_us: FloatArray

    @classmethod
    def of(cls, order: Order, blocks: Blocks, start: FloatArray, end: FloatArray) -> Overlaps:
        """start, end: float64 (rows,), when each row of the order is active."""
        ranks = int(blocks.rank.max(initial=NONE)) + 1
        rank_block = np.searchsorted(blocks.rank, np.arange(ranks + 1))
        size = np.diff(rank_block)
        offset = offsets_of(size**2)
        time_us = np.zeros(int(offset[-1]))
        _measure_overlaps(
            int(size.max(initial=0)) * len(order),
            blocks.instruction_block,
            blocks.rank,
            rank_block,
            offset,
            start,
            end,
            np.zeros(len(blocks.rank)),
            time_us,
        )
        return cls(rank_block, offset, time_us)

    def colours(self, first: FloatArray, family: LongArray | None = None) -> IntArray:
        """int32 (blocks,): colours of the blocks of each rank, different ones where two overlap;
        first come, first served.

        first: float64 (blocks,), when each starts. family: (blocks,), the family of each; blocks of
        different families have different colours.
        """
        blocks = int(self.rank_block[-1])
        rank = np.repeat(np.arange(len(self.rank_block) - 1), np.diff(self.rank_block))
        colour = np.full(blocks, NONE, np.int32)
        _colour(
            len(self.time_us),
            self.rank_block,
            np.lexsort((first, rank)),
            self.offset,
            self.time_us,
            np.zeros(blocks, np.int64) if family is None else family,
            np.full(blocks + 1, NONE),
            colour,
        )
        return colour

    def merges(self, least: int) -> Merges:
        """Merges of the two blocks that overlap least, down to `least` blocks a rank."""
        blocks = int(self.rank_block[-1])
        into, left = np.full((2, blocks), NONE, np.int32)
        _merge_least(
            4 * len(self.time_us),
            self.rank_block,
            self.offset,
            self.time_us.copy(),
            least,
            np.zeros(blocks, np.int64),
            np.zeros(blocks, np.int32),
            np.zeros(blocks),
            into,
            left,
        )
        return Merges(into, left)


@dataclass(frozen=True)
class Merges:
    """Merges of blocks into others, one after another in each rank.

    into: int32 (blocks,), the block of a lower number that each one is merged into, or NONE.
    left: int32 (blocks,), the number of blocks of the rank before that merge.
    """

    into: IntArray
    left: IntArray

    def colours(self, limit: int | LongArray) -> LongArray:
        """int64 (blocks,): colours, equal for blocks that are merged when a rank has `limit`
        blocks, one number or that of each block's rank."""
        own = np.arange(len(self.into))
        colour = np.where(self.left > limit, self.into, own)
        # A block is merged into a lower number, so following the merges ends; each pass doubles the
        # steps that are followed.
        while True:
            further = colour[colour]
            if np.array_equal(further, colour):
                return colour
            colour = further


def merge(blocks: Blocks, colour: IntArray | LongArray) -> Blocks:
    """Merges the blocks of a rank that have the same colour."""
    span = int(colour.max(initial=NONE)) + 1
    names, new = np.unique(blocks.rank.astype(np.int64) * span + colour, return_inverse=True)
    none = np.zeros(len(names), np.int64)
    return number_blocks(names // max(span, 1), none, new[blocks.instruction_block])


def spread(blocks: Blocks, busy: FloatArray, limit: IntArray | LongArray) -> IntArray:
    """int32 (blocks,): a colour for each block: from the busiest block of a rank on, the colour
    with the least load.

    busy: float64 (blocks,), how long each is active. limit: (ranks,), the colours of each rank.
    """
    rank = blocks.rank
    colour = np.zeros(len(rank), np.int32)
    order = np.lexsort((-busy, rank))
    first = np.searchsorted(rank, np.arange(len(limit)))
    turn = np.arange(len(rank)) - first[rank[order]]
    load = np.where(np.arange(limit.max(initial=0)) < limit[:, None], 0.0, np.inf)
    # Longest first to the least load is within a third of the best possible (Graham, 1969). Each
    # step places the next block of all ranks at once: ranks don't share colours.
    for step in range(int(turn.max(initial=NONE)) + 1):
        now = order[turn == step]
        least = np.argmin(load[rank[now]], axis=1)
        colour[now] = least
        load[rank[now], least] += busy[now]
    return colour


def deal(blocks: Blocks, limit: IntArray | LongArray) -> LongArray:
    """int64 (blocks,): the colours of each rank in turn. limit: (ranks,), their numbers."""
    return _places(blocks)[0] % limit[blocks.rank]


def runs(blocks: Blocks, limit: IntArray | LongArray) -> LongArray:
    """int64 (blocks,): one colour for neighbouring blocks of a rank, about as many for each.
    limit: (ranks,), the numbers of colours."""
    place, size = _places(blocks)
    return place * limit[blocks.rank] // size


def _places(blocks: Blocks) -> tuple[LongArray, LongArray]:
    """int64 (blocks,): the place of each block within its rank, and the number of blocks there."""
    size = np.bincount(blocks.rank)
    return np.arange(len(blocks.rank)) - offsets_of(size)[blocks.rank], size[blocks.rank]


@Loop
def _measure_overlaps(
    block: IntArray,
    rank: IntArray,
    rank_block: LongArray,
    offset: LongArray,
    start: FloatArray,
    end: FloatArray,
    until: FloatArray,
    overlap: FloatArray,
) -> None:
    """Fills `overlap`, see `Overlaps`. until: (blocks,), zero at first."""
    # Rows come by start, so what another block has begun before is all that this row can meet, and
    # of that the last end is enough: a block runs one row after another.
    for k in range(len(block)):
        own = block[k]
        r = rank[own]
        low, high = rank_block[r], rank_block[r + 1]
        size, base = high - low, offset[r]
        # A rank has tens of blocks; to pass over those that have ended takes more than to look.
        for other in range(low, high):
            if other != own and until[other] > start[k]:
                common = min(until[other], end[k]) - start[k]
                overlap[base + (own - low) * size + other - low] += common
                overlap[base + (other - low) * size + own - low] += common
        until[own] = max(until[own], end[k])


@Loop
def _colour(
    rank_block: LongArray,
    by_start: LongArray,
    offset: LongArray,
    overlap: FloatArray,
    family: LongArray,
    taken_for: LongArray,
    colour: IntArray,
) -> None:
    """Fills `colour`: each block, in the order `by_start`, gets the first colour that none of the
    blocks has that it overlaps with, or that are of another family.

    taken_for: (blocks + 1,), NONE at first: the last block for which each colour was taken.
    """
    for r in range(len(rank_block) - 1):
        low, high = rank_block[r], rank_block[r + 1]
        for place in range(low, high):
            own = by_start[place]
            row = offset[r] + (own - low) * (high - low) - low
            for other in range(low, high):
                if colour[other] == NONE:
                    continue
                if overlap[row + other] > 0 or family[other] != family[own]:
                    taken_for[colour[other]] = own
            # Ends: there are fewer blocks before this one than colours.
            chosen = 0
            while taken_for[chosen] == own:
                chosen += 1
            colour[own] = chosen


@Loop
def _merge_least(
    rank_block: LongArray,
    offset: LongArray,
    overlap: FloatArray,
    least: int,
    alive: LongArray,
    partner: IntArray,
    common: FloatArray,
    into: IntArray,
    left: IntArray,
) -> None:
    """Fills `into` and `left`, see `Merges`, both NONE at first; changes `overlap`.

    Blocks are numbered within the rank. alive: (blocks,), filled with those that are not merged.
    partner: (blocks,), the one that each overlaps least; NONE where a merge has changed it.
    common: (blocks,), how long they overlap; how long at least, where the partner is NONE.
    """
    for r in range(len(rank_block) - 1):
        low, size, base = rank_block[r], rank_block[r + 1] - rank_block[r], offset[r]
        for a in range(size):
            alive[low + a], partner[low + a], common[low + a] = a, NONE, 0
        end = low + size
        # Greedy, one pair at a time: the best partition into `least` sets is NP-hard, and one run
        # down to the least serves all larger limits.
        while end - low > least and end - low > 1:
            one, two = NONE, NONE
            # Ends: each round finds the partner of a block that has none. Merging only increases
            # overlaps, so the others' partners need not be known.
            while two == NONE:
                one = alive[low]
                for place in range(low + 1, end):
                    if common[low + alive[place]] < common[low + one]:
                        one = alive[place]
                two = partner[low + one]
                if two == NONE:
                    best, best_us = NONE, 0.0
                    for place in range(low, end):
                        b = alive[place]
                        us = overlap[base + one * size + b]
                        if b != one and (best == NONE or us < best_us):
                            best, best_us = b, us
                    partner[low + one], common[low + one] = best, best_us
            if two < one:
                one, two = two, one
            into[low + two] = low + one
            left[low + two] = end - low
            kept = low
            for place in range(low, end):
                if alive[place] != two:
                    alive[kept] = alive[place]
                    kept += 1
            end -= 1
            partner[low + one] = NONE
            # The sum may count a time twice. It is only compared with others, and the exact time
            # would need all rows again.
            for place in range(low, end):
                b, us = alive[place], overlap[base + two * size + alive[place]]
                if partner[low + b] == two or (partner[low + b] == one and us > 0):
                    partner[low + b] = NONE
                overlap[base + one * size + b] += us
                overlap[base + b * size + one] = overlap[base + one * size + b]
