"""Allocate: thread blocks by state (ResCCL 4.4), and within a limit.

By the timeline of the plan with a block for each connection, blocks of a rank that are never active
at the same time are merged (equation 7). A limit merges further blocks, first those that are active
at the same time for the shortest time.

A merged block lists its instructions in the order of the plan, so merging never makes a plan hang:
that order is a complete execution with the plan's slots for any allocation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.compiler.passes.blocks import number_blocks
from sley.compiler.passes.merging import Overlaps, merge, spread
from sley.compiler.passes.pipelines import whole_transfers
from sley.compiler.passes.timeline import Costs, Estimator, Timeline, sequence_of
from sley.ir.dag import Allocated, Blocks, InstructionDag, Links, Order
from sley.ir.plan import Estimate
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray
from sley.ir.words import Allocation

PATIENCE = 200_000
"""Instructions of all the drafts together that lower limits may add."""


@dataclass(frozen=True)
class _Draft:
    """A way to allocate an order to blocks, and its timeline."""

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
        """When each instruction of the order is active: while any of its transfers is."""
        order, timeline = self.order, self.timeline
        first = np.where(order.receive != NONE, order.receive, order.send)
        last = np.where(order.send != NONE, order.send, order.receive)
        start = np.minimum(timeline.start_us[first], timeline.start_us[last])
        return start, np.maximum(timeline.end_us[first], timeline.end_us[last])

    @property
    def busy_us(self) -> FloatArray:
        """float64 (blocks,): how long each is active."""
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

    blocks: one for each connection. By state, these stay if merging them would increase the
    estimated time: where receives come long after their sends, as in the msccl schedule, the
    timeline, which doesn't separate the two, can be wrong about when a block is active.
    """
    dag = dag.as_ordered(order)
    estimator = Estimator.of(dag, links, costs)
    unmerged = draft = _Draft.of(estimator, order, blocks)
    exceeds = max_blocks is not None and _most(blocks) > max_blocks
    if order.whole and (allocation is Allocation.STATE or exceeds):
        # Whole transfers may run in any order that respects their dependencies. The order of their
        # starts does, since a transfer starts later than those that it depends on; and in it
        # connections can share blocks.
        sequence = sequence_of(order, len(dag.forward))
        by_start = np.argsort(unmerged.timeline.start_us[sequence], kind="stable")
        draft = _Draft(*_reorder(dag, order, blocks, sequence[by_start]), unmerged.timeline)
    connection = draft
    if allocation is Allocation.STATE:
        shared = _Draft.of(estimator, draft.order, _by_state(dag, draft))
        if shared.time_us <= unmerged.time_us * (1 + 1e-9):
            draft = shared
    if max_blocks is not None and exceeds:
        # Blocks merged by state are only one start: even if they fit, another may be faster.
        ways = [d for d in (draft,) if _most(d.blocks) <= max_blocks]
        for begin in {id(d): d for d in (draft, connection)}.values():
            ways += _merge_to_limit(dag, begin, max_blocks, estimator)
        draft = min(ways, key=lambda d: d.time_us)
    estimate = Estimate(draft.time_us, unmerged.time_us, draft.busy_us, costs.tiles)
    return Allocated(draft.order, draft.blocks, estimate)


def _most(blocks: Blocks) -> int:
    """The largest number of blocks of a rank."""
    return int(np.bincount(blocks.rank).max(initial=0))


def _reorder(
    dag: InstructionDag, order: Order, blocks: Blocks, sequence: IntArray
) -> tuple[Order, Blocks]:
    """The whole transfers in another order, on the same blocks.

    sequence: int32 (transfers,), the transfers in that order.
    """
    pipeline = np.full(len(dag.forward), NONE, np.int32)
    receives = order.receive != NONE
    pipeline[order.receive[receives]] = order.pipeline[receives]
    again = whole_transfers(dag, sequence, pipeline)
    row = order.row_of_half(dag.chunks.program.transfers)
    none = np.zeros(len(blocks.rank), np.int64)
    sends = again.send != NONE
    half = 2 * np.where(sends, again.send, again.receive).astype(np.int64) + ~sends
    return again, number_blocks(blocks.rank, none, blocks.instruction_block[row[half]])


def _by_state(dag: InstructionDag, draft: _Draft) -> Blocks:
    """Merges blocks that are never active at the same time.

    Blocks of one peer and direction, on different channels, use the same link and are hardly ever
    active at the same time. So there are two tries, with these merged first and without; the one
    with fewer blocks wins.
    """
    order, (start, end) = draft.order, draft.activity

    def merge_apart(blocks: Blocks, overlaps: Overlaps) -> Blocks:
        first = np.full(len(blocks.rank), np.inf)
        np.minimum.at(first, blocks.instruction_block, start)
        return merge(blocks, overlaps.colours(first))

    overlaps = Overlaps.of(order, draft.blocks, start, end)
    paired = merge_apart(draft.blocks, overlaps.within(_peers(dag, order, draft.blocks)))
    ways = [
        merge_apart(paired, Overlaps.of(order, paired, start, end)),
        merge_apart(draft.blocks, overlaps),
    ]
    return min(ways, key=lambda blocks: (_most(blocks), len(blocks.rank)))


def _peers(dag: InstructionDag, order: Order, blocks: Blocks) -> LongArray:
    """int64 (blocks,): a number for the peer and direction of each block's first message, a unique
    one for a block without messages."""
    t = dag.chunks.program.transfers
    peer = np.where(order.send != NONE, t.dst[order.send], t.src[order.receive])
    remote = (order.send != NONE) | dag.remote[order.receive]
    rows = np.flatnonzero(remote)[::-1]  # the first row of a block is written last
    family = -1 - np.arange(len(blocks.rank))
    family[blocks.instruction_block[rows]] = 2 * peer[rows] + (order.send[rows] != NONE)
    return family


def _merge_to_limit(
    dag: InstructionDag, draft: _Draft, limit: int, estimator: Estimator
) -> Iterator[_Draft]:
    """Drafts with at most `limit` blocks a rank: merged by least overlap or spread evenly, in the
    order of the draft or in that in which blocks become free.

    A lower limit can give a better plan, so lower limits are tried too, down to half.
    """
    tries = max(PATIENCE // max(len(draft.order), 1), 1)
    limits = range(min(limit, _most(draft.blocks)), max(limit // 2, limit - tries, 0), -1)
    limits = limits or range(limit, limit - 1, -1)
    merges = Overlaps.of(draft.order, draft.blocks, *draft.activity).merges(limits[-1])
    busy = draft.busy_us
    for here in limits:
        for colour in (merges.colours(here), spread(draft.blocks, busy, here)):
            fixed = _Draft.of(estimator, draft.order, merge(draft.blocks, colour))
            yield fixed
            if draft.order.whole:
                sequence = estimator.greedy(fixed.order, fixed.blocks)
                yield _Draft.of(estimator, *_reorder(dag, fixed.order, fixed.blocks, sequence))
