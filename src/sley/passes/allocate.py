"""Allocate: thread blocks by state (ResCCL 4.4), and within a limit.

From the timeline of the plan with a block for each connection: blocks of a rank that are never at
work at the same time become one (equation 7). With a limit, blocks go on merging, those first that
are least at work at the same time.

A merged block lists its instructions in the order of the plan, so a merge never makes a plan hang:
that order is a complete execution with the plan's slots, whatever block does what.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.plan import Estimate
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray
from sley.ir.words import Allocation
from sley.passes.blocks import numbered
from sley.passes.links import Links
from sley.passes.merging import Overlaps, merged, spread
from sley.passes.pipelines import whole_transfers
from sley.passes.timeline import Costs, Estimator, Timeline, sequence_of

PATIENCE = 200_000
"""Instructions that trying lower limits may go through, all tries together."""


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

    @classmethod
    def of(cls, estimator: Estimator, order: Order, blocks: Blocks) -> _Draft:
        return cls(order, blocks, estimator.timeline(order, blocks))

    @property
    def time_us(self) -> float:
        return self.timeline.time_us

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

    blocks: one for each connection. By state, a plan whose estimated time would grow keeps these:
    where receives come long after their sends, as in the msccl schedule, the timeline, which takes
    a transfer as one thing, can be wrong about when a block is at work.
    """
    estimator = Estimator.of(dag.chunks, links, costs)
    unmerged = draft = _Draft.of(estimator, order, blocks)
    exceeds = max_blocks is not None and _most(blocks) > max_blocks
    if order.whole and (allocation is Allocation.STATE or exceeds):
        # Whole transfers may go in any order that respects their dependencies. By the time at which
        # they start, blocks can share; and what depends on a transfer starts later than it does.
        sequence = sequence_of(order, len(dag.forward))
        by_start = np.argsort(unmerged.timeline.start_us[sequence], kind="stable")
        draft = _Draft(*_reordered(dag, order, blocks, sequence[by_start]), unmerged.timeline)
    connection = draft
    if allocation is Allocation.STATE:
        shared = _Draft.of(estimator, draft.order, _by_state(dag, draft))
        if shared.time_us <= unmerged.time_us * (1 + 1e-9):
            draft = shared
    if max_blocks is not None and exceeds:
        # Blocks that share by state are one way to begin; that they fit doesn't make them the best.
        ways = [d for d in (draft,) if _most(d.blocks) <= max_blocks]
        for begin in {id(d): d for d in (draft, connection)}.values():
            ways += _within(dag, begin, max_blocks, estimator)
        draft = min(ways, key=lambda d: d.time_us)
    estimate = Estimate(draft.time_us, unmerged.time_us, draft.busy_us, costs.tiles)
    return Allocated(draft.order, draft.blocks, estimate)


def _most(blocks: Blocks) -> int:
    """Blocks of the rank that has most."""
    return int(np.bincount(blocks.rank).max(initial=0))


def _reordered(
    dag: InstructionDag, order: Order, blocks: Blocks, sequence: IntArray
) -> tuple[Order, Blocks]:
    """The same blocks, with the whole transfers of the order in another one.

    sequence: int32 (transfers,), that order.
    """
    pipeline = np.full(len(dag.forward), NONE, np.int32)
    receives = order.receive != NONE
    pipeline[order.receive[receives]] = order.pipeline[receives]
    again = whole_transfers(dag, sequence, pipeline)
    row = np.full(2 * len(dag.forward), NONE)
    row[_halves_of(order)] = np.arange(len(order))
    none = np.zeros(len(blocks.rank), np.int64)
    return again, numbered(blocks.rank, none, blocks.instruction_block[row[_halves_of(again)]])


def _halves_of(order: Order) -> LongArray:
    """int64 (rows,): 2t where a row of whole transfers sends transfer t, 2t + 1 where it receives
    it or does it locally."""
    sends = order.send != NONE
    return np.where(sends, 2 * order.send.astype(np.int64), 2 * order.receive.astype(np.int64) + 1)


def _by_state(dag: InstructionDag, draft: _Draft) -> Blocks:
    """Blocks that are never at work at the same time become one.

    Blocks of one peer and direction, on different channels, use the same link and hardly ever work
    at the same time. So it is tried twice, with these merged first and without; the way that ends
    with fewer blocks wins.
    """
    order, (start, end) = draft.order, draft.activity

    def coloured(blocks: Blocks, overlaps: Overlaps) -> Blocks:
        first = np.full(len(blocks.rank), np.inf)
        np.minimum.at(first, blocks.instruction_block, start)
        return merged(blocks, overlaps.colours(first))

    overlaps = Overlaps.of(order, draft.blocks, start, end)
    paired = coloured(draft.blocks, overlaps.within(_peers(dag, order, draft.blocks)))
    ways = [
        coloured(paired, Overlaps.of(order, paired, start, end)),
        coloured(draft.blocks, overlaps),
    ]
    return min(ways, key=lambda blocks: (_most(blocks), len(blocks.rank)))


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


def _within(
    dag: InstructionDag, draft: _Draft, limit: int, estimator: Estimator
) -> Iterator[_Draft]:
    """Ways to have at most `limit` blocks a rank: merging those that are least at work at the same
    time, or spreading the work evenly; in the order as it is, or as the blocks become free.

    A lower limit can happen to give a better plan, so some are tried too, down to half.
    """
    tries = max(PATIENCE // max(len(draft.order), 1), 1)
    limits = range(min(limit, _most(draft.blocks)), max(limit // 2, limit - tries, 0), -1)
    limits = limits or range(limit, limit - 1, -1)
    merges = Overlaps.of(draft.order, draft.blocks, *draft.activity).merges(limits[-1])
    busy = draft.busy_us
    for here in limits:
        for colour in (merges.colours(here), spread(draft.blocks, busy, here)):
            fixed = _Draft.of(estimator, draft.order, merged(draft.blocks, colour))
            yield fixed
            if draft.order.whole:
                sequence = estimator.greedy(fixed.order, fixed.blocks)
                yield _Draft.of(estimator, *_reordered(dag, fixed.order, fixed.blocks, sequence))
