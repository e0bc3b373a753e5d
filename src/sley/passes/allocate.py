"""Allocate: thread blocks by state (ResCCL 4.4), and within a limit.

From the timeline of the plan with a block for each connection: blocks of a rank that are never at
work at the same time become one (equation 7). With a limit, blocks go on merging, those first that
are least at work at the same time.

A merged block lists its instructions in the order of the plan, so a merge never makes a plan hang:
that order is a complete execution with the plan's slots, whatever block does what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypedDict

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.plan import Estimate
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray, offsets_of
from sley.ir.words import Allocation
from sley.passes.blocks import Blocks, numbered
from sley.passes.links import Links
from sley.passes.loops import LARGE, Loop
from sley.passes.pipelines import whole_transfers
from sley.passes.timeline import Costs, Estimator, Timeline, sequence_of


@dataclass(frozen=True)
class Allocated:
    """What came of the allocation: the order in which blocks list their instructions, the blocks,
    and what is expected of them."""

    order: Order
    blocks: Blocks
    estimate: Estimate


@dataclass(frozen=True)
class _Draft:
    """A way to deal an order to blocks, and its timeline."""

    order: Order
    blocks: Blocks
    timeline: Timeline

    @property
    def most(self) -> int:
        """Blocks of the rank that has most."""
        return int(np.bincount(self.blocks.rank).max(initial=0))

    @cached_property
    def activity(self) -> tuple[FloatArray, FloatArray]:
        """When each instruction of the order is at work: while any of its transfers is."""
        order, timeline = self.order, self.timeline
        first = np.where(order.receive != NONE, order.receive, order.send)
        last = np.where(order.send != NONE, order.send, order.receive)
        start = np.minimum(timeline.start_us[first], timeline.start_us[last])
        return start, np.maximum(timeline.end_us[first], timeline.end_us[last])

    @property
    def busy_us(self) -> FloatArray:
        """float64 (blocks,): for how long each is at work."""
        start, end = self.activity
        blocks = self.blocks
        total = np.bincount(blocks.instruction_block, end - start, minlength=len(blocks.rank))
        return total.astype(np.float64)


def allocate(
    dag: InstructionDag,
    order: Order,
    blocks: Blocks,
    links: Links,
    costs: Costs,
    allocation: Allocation,
    max_blocks: int | None,
) -> Allocated:
    """The blocks of `allocation`, at most `max_blocks` a rank.

    blocks: one for each connection.
    """
    estimator = Estimator.of(dag.chunks, links, costs)
    whole = bool((order.pipeline != NONE).all())
    unmerged = draft = _Draft(order, blocks, estimator.timeline(order, blocks))
    if whole and (allocation is Allocation.STATE or max_blocks is not None):
        # Whole transfers may go in any order that respects their dependencies. By the time at which
        # they start, blocks can share; and what depends on a transfer starts later than it does.
        sequence = sequence_of(order, len(dag.forward))
        by_start = np.argsort(unmerged.timeline.start_us[sequence], kind="stable")
        draft = replace(draft, **_reordered(dag, draft, sequence[by_start]))
    if allocation is Allocation.STATE:
        merged = _by_state(dag, draft)
        draft = _Draft(draft.order, merged, estimator.timeline(draft.order, merged))
    if max_blocks is not None and draft.most > max_blocks:
        # A lower limit can happen to give a better plan; on large plans each try takes seconds.
        lowest = max(max_blocks // 2, 1) if len(order) < LARGE else max_blocks
        draft = min(
            (
                candidate
                for limit in range(max_blocks, lowest - 1, -1)
                for candidate in _within(dag, draft, limit, estimator, whole=whole)
            ),
            key=lambda d: d.timeline.time_us,
        )
    estimate = Estimate(
        time_us=draft.timeline.time_us,
        unmerged_us=unmerged.timeline.time_us,
        busy_us=draft.busy_us,
        tiles=costs.tiles,
    )
    return Allocated(draft.order, draft.blocks, estimate)


class _Dealt(TypedDict):
    """The parts of a draft without its timeline."""

    order: Order
    blocks: Blocks


def _reordered(dag: InstructionDag, draft: _Draft, sequence: IntArray) -> _Dealt:
    """The same blocks, with the whole transfers in another order.

    sequence: int32 (transfers,), that order.
    """
    order, blocks = draft.order, draft.blocks
    pipeline = np.full(len(dag.forward), NONE, np.int32)
    receives = order.receive != NONE
    pipeline[order.receive[receives]] = order.pipeline[receives]
    again = whole_transfers(dag, sequence, pipeline)
    row = np.full(2 * len(dag.forward), NONE)
    row[_halves_of(order)] = np.arange(len(order))
    none = np.zeros(len(blocks.rank), np.int64)
    dealt = numbered(blocks.rank, none, blocks.instruction_block[row[_halves_of(again)]])
    return {"order": again, "blocks": dealt}


def _halves_of(order: Order) -> LongArray:
    """int64 (rows,): 2t where a row of whole transfers sends transfer t, 2t + 1 where it receives
    it or does it locally."""
    sends = order.send != NONE
    return np.where(sends, 2 * order.send.astype(np.int64), 2 * order.receive.astype(np.int64) + 1)


@dataclass(frozen=True)
class _Overlaps:
    """For how long each two blocks of a rank are at work at the same time, by their timeline; or
    how long one would hold up the other, where the order of the plan is another than that of time.

    rank_block: (ranks + 1,), the first block of each rank. offset: (ranks + 1,), where each rank's
    square begins in `time_us`.
    """

    rank_block: LongArray
    offset: LongArray
    time_us: FloatArray

    @classmethod
    def of(cls, draft: _Draft) -> _Overlaps:
        order, blocks = draft.order, draft.blocks
        start, end = draft.activity
        ranks = int(blocks.rank.max(initial=NONE)) + 1
        rank_block = np.searchsorted(blocks.rank, np.arange(ranks + 1))
        offset = offsets_of(np.diff(rank_block) ** 2)
        time_us = np.zeros(int(offset[-1]))
        _measure_overlaps(
            len(order),
            blocks.instruction_block,
            blocks.rank[blocks.instruction_block],
            rank_block,
            offset,
            start,
            end,
            np.zeros(len(blocks.rank)),
            time_us,
        )
        return cls(rank_block, offset, time_us)

    def within(self, family: LongArray) -> _Overlaps:
        """The same, with blocks of different families never to be merged.

        family: (blocks,), a number for each."""
        size = np.diff(self.rank_block)
        rank = np.repeat(np.arange(len(size)), size**2)
        one, two = np.divmod(np.arange(len(rank)) - self.offset[rank], size[rank])
        low = self.rank_block[rank]
        apart = family[low + one] != family[low + two]
        return _Overlaps(self.rank_block, self.offset, np.where(apart, np.inf, self.time_us))


def _by_state(dag: InstructionDag, draft: _Draft) -> Blocks:
    """Blocks that are never at work at the same time become one: a colouring of each rank's
    blocks, first come, first served.

    Blocks of one peer and direction, on different channels, use the same link and hardly ever work
    at the same time. So the colouring is tried twice, with these merged first and without; the one
    with fewer blocks wins.
    """
    overlaps = _Overlaps.of(draft)
    direct = _coloured(draft, overlaps)
    paired = _coloured(draft, overlaps.within(_peers(dag, draft.order, draft.blocks)))
    again = _coloured(paired, _Overlaps.of(paired))
    return min(again, direct, key=lambda d: (d.most, len(d.blocks.rank))).blocks


def _peers(dag: InstructionDag, order: Order, blocks: Blocks) -> LongArray:
    """int64 (blocks,): a number for the peer and direction of a block's first message, its own for
    one without messages."""
    t = dag.chunks.program.transfers
    peer = np.where(order.send != NONE, t.dst[order.send], t.src[order.receive])
    remote = (order.send != NONE) | dag.remote[order.receive]
    rows = np.flatnonzero(remote)[::-1]  # the first row of a block is written last
    family = -1 - np.arange(len(blocks.rank))
    family[blocks.instruction_block[rows]] = 2 * peer[rows] + (order.send[rows] != NONE)
    return family


def _coloured(draft: _Draft, overlaps: _Overlaps) -> _Draft:
    """The blocks after merging those that don't overlap; the timeline stays as it was."""
    blocks = draft.blocks
    first = np.full(len(blocks.rank), np.inf)
    np.minimum.at(first, blocks.instruction_block, draft.activity[0])
    colour = np.full(len(blocks.rank), NONE, np.int32)
    _colour(
        len(draft.order),
        overlaps.rank_block,
        np.lexsort((first, blocks.rank)),
        overlaps.offset,
        overlaps.time_us,
        colour,
    )
    return replace(draft, blocks=_merged(blocks, colour))


def _within(
    dag: InstructionDag, draft: _Draft, limit: int, estimator: Estimator, *, whole: bool
) -> Iterator[_Draft]:
    """Ways to have at most `limit` blocks a rank: merging those that are least at work at the same
    time, or spreading the work evenly; in the order as it is, or as the blocks become free."""
    blocks, o = draft.blocks, _Overlaps.of(draft)
    least = (np.arange(len(blocks.rank)) - o.rank_block[blocks.rank]).astype(np.int32)
    _merge_least(len(draft.order), o.rank_block, o.offset, o.time_us, limit, least)
    for colour in (least, _spread(blocks.rank, draft.busy_us, o.rank_block, limit)):
        merged = _merged(blocks, colour)
        fixed = _Draft(draft.order, merged, estimator.timeline(draft.order, merged))
        yield fixed
        if whole:
            dealt = _reordered(dag, fixed, estimator.greedy(fixed.order, merged))
            yield _Draft(**dealt, timeline=estimator.timeline(**dealt))


def _merged(blocks: Blocks, colour: IntArray) -> Blocks:
    """The blocks of a rank with one colour as one block."""
    span = int(colour.max(initial=NONE)) + 1
    names, new = np.unique(blocks.rank.astype(np.int64) * span + colour, return_inverse=True)
    none = np.zeros(len(names), np.int64)
    return numbered(names // max(span, 1), none, new[blocks.instruction_block])


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
    """Fills `overlap`, see `_Overlaps`. until: (blocks,), zero at first."""
    for k in range(len(block)):
        own, r = block[k], rank[k]
        low, high = rank_block[r], rank_block[r + 1]
        size, base = high - low, offset[r]
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
    colour: IntArray,
) -> None:
    """Fills `colour`: each block, in the order `by_start`, gets the first colour that no block has
    with which it overlaps."""
    for r in range(len(rank_block) - 1):
        low, high = rank_block[r], rank_block[r + 1]
        for place in range(low, high):
            own = by_start[place]
            row = offset[r] + (own - low) * (high - low) - low
            chosen, free = 0, False
            while not free:
                free = True
                for other in range(low, high):
                    if colour[other] == chosen and overlap[row + other] > 0:
                        free = False
                if not free:
                    chosen += 1
            colour[own] = chosen


@Loop
def _merge_least(
    rank_block: LongArray, offset: LongArray, overlap: FloatArray, limit: int, colour: IntArray
) -> None:
    """Merges, in each rank, the two blocks with the least overlap, until `limit` are left.

    colour: (blocks,), each block's own number in its rank at first; merged ones end with one.
    """
    for r in range(len(rank_block) - 1):
        low, size, base = rank_block[r], rank_block[r + 1] - rank_block[r], offset[r]
        left = size
        while left > limit:
            best, one, two = -1.0, 0, 0
            for a in range(size):
                if colour[low + a] != a:
                    continue
                for b in range(a + 1, size):
                    if colour[low + b] != b:
                        continue
                    value = overlap[base + a * size + b]
                    if best < 0 or value < best:
                        best, one, two = value, a, b
            for b in range(size):
                if colour[low + b] == two:
                    colour[low + b] = one
                overlap[base + one * size + b] += overlap[base + two * size + b]
                overlap[base + b * size + one] = overlap[base + one * size + b]
            left -= 1


def _spread(rank: IntArray, busy: FloatArray, rank_block: LongArray, limit: int) -> IntArray:
    """For each block one of `limit` colours of its rank, the busiest first to the least busy."""
    colour = np.zeros(len(rank), np.int32)
    order = np.lexsort((-busy, rank))
    turn = np.arange(len(rank)) - rank_block[rank[order]]
    load = np.zeros((len(rank_block) - 1, limit))
    for step in range(int(turn.max(initial=NONE)) + 1):
        blocks = order[turn == step]
        least = np.argmin(load[rank[blocks]], axis=1)
        colour[blocks] = least
        load[rank[blocks], least] += busy[blocks]
    return colour
