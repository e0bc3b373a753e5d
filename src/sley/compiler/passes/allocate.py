"""Allocate: thread blocks by state (ResCCL 4.4), and within a limit.

By the timeline of the plan with a block for each connection, blocks of a rank that are never active
at the same time are merged (equation 7). A limit merges further blocks, first those that are active
at the same time for the shortest time. Of small plans, other ways to share as many blocks are
simulated, and the fastest is taken.

A merged block lists its instructions in the order of the plan, so merging never makes a plan hang:
that order is a complete execution with the plan's slots for any allocation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice

import numpy as np

from sley.compiler.passes.blocks import number_blocks
from sley.compiler.passes.merging import Overlaps, deal, merge, runs, spread
from sley.compiler.passes.order import eager
from sley.compiler.passes.pipelines import whole_transfers
from sley.compiler.passes.timeline import Estimator, Timeline, sequence_of
from sley.ir.dag import Allocated, Blocks, InstructionDag, Order
from sley.ir.plan import Estimate
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray
from sley.ir.words import Allocation

PATIENCE = 200_000
"""Instructions of all the drafts together that lower limits may add."""

SIMULATED = 100_000
"""Instructions of all the drafts together that are simulated, about half a second."""

OTHERS = 4
"""Drafts within a limit that are simulated beside the one with the shortest estimate."""

Simulate = Callable[[Order, Blocks], Sequence[Callable[[float], float]]]
"""For calls of several sizes, small ones first, the functions that simulate them: each returns the
time in microseconds, or infinity where it is longer than what it gets."""


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
        main = np.where(order.send != NONE, order.send, order.receive)
        start, end = timeline.start_us[main], timeline.end_us[main]
        fused = np.flatnonzero(order.fused)
        received = order.receive[fused]
        start[fused] = np.minimum(start[fused], timeline.start_us[received])
        end[fused] = np.maximum(end[fused], timeline.end_us[received])
        return start, end

    def moving_us(self, estimator: Estimator) -> FloatArray:
        """float64 (blocks,): how long each moves a tile of all its data."""
        main = np.where(self.order.send != NONE, self.order.send, self.order.receive)
        return self._per_block(estimator.tile_us[main])

    @property
    def busy_us(self) -> FloatArray:
        """float64 (blocks,): how long each is active."""
        start, end = self.activity
        return self._per_block(end - start)

    def _per_block(self, each_us: FloatArray) -> FloatArray:
        """float64 (blocks,): the sum over the instructions of each."""
        block, blocks = self.blocks.instruction_block, len(self.blocks.rank)
        return np.bincount(block, each_us, minlength=blocks).astype(np.float64)


def allocate(
    dag: InstructionDag,
    order: Order,
    blocks: Blocks,
    estimator: Estimator,
    allocation: Allocation,
    max_blocks: int | None,
    simulate: Simulate | None = None,
    slots: int | None = None,
) -> Allocated:
    """The blocks of `allocation`, at most `max_blocks` a rank.

    dag: as ordered (`InstructionDag.as_ordered`). blocks: one for each connection, or instance. By
    state, these stay if merging them would increase the estimated time: where receives come long
    after their sends, as in the msccl schedule, the timeline, which doesn't separate the two, can
    be wrong about when a block is active.
    slots: as for `eager`, whose order is simulated too; None if messages take several slots.
    """
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
    limit, others = np.bincount(draft.blocks.rank), []
    if max_blocks is not None and exceeds:
        # Blocks merged by state are only one start: even if they fit, another may be faster.
        others = [d for d in (draft,) if _most(d.blocks) <= max_blocks]
        for begin in {id(d): d for d in (draft, connection)}.values():
            others += _merge_to_limit(dag, begin, max_blocks, estimator)
        draft, *others = sorted(others, key=lambda d: d.time_us)
        limit = np.minimum(limit, max_blocks)
    if simulate is not None and draft is not unmerged:
        fits = (d for d in others if (np.bincount(d.blocks.rank) <= limit).all())
        ways = ((d.order, d.blocks) for d in islice(fits, OTHERS))
        found = chain(_shares(dag, unmerged, draft.blocks, limit, estimator, slots), ways)
        draft = _fastest(draft, found, unmerged, estimator, simulate, exceeds)
    estimate = Estimate(draft.time_us, unmerged.time_us, draft.busy_us, estimator.tiles)
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
    half = 2 * np.where(sends, again.send, again.receive) + ~sends
    return again, number_blocks(blocks.rank, none, blocks.instruction_block[row[half]])


def _by_state(dag: InstructionDag, draft: _Draft) -> Blocks:
    """Merges blocks that are never active at the same time.

    Blocks of one peer and direction, on different channels, use the same link and are hardly ever
    active at the same time. So there are two tries, with these merged first and without; the one
    with fewer blocks wins.
    """
    order, (start, end) = draft.order, draft.activity

    def merge_apart(blocks: Blocks, overlaps: Overlaps, family: LongArray | None = None) -> Blocks:
        first = np.full(len(blocks.rank), np.inf)
        np.minimum.at(first, blocks.instruction_block, start)
        return merge(blocks, overlaps.colours(first, family))

    overlaps = Overlaps.of(order, draft.blocks, start, end)
    paired = merge_apart(draft.blocks, overlaps, _peers(dag, order, draft.blocks))
    ways = [
        merge_apart(paired, Overlaps.of(order, paired, start, end)),
        merge_apart(draft.blocks, overlaps),
    ]
    # The fullest rank decides how many thread blocks a call occupies on every GPU.
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
    busy, ranks = draft.busy_us, np.ones(len(np.bincount(draft.blocks.rank)), np.int64)
    # Neither way of merging is better on all plans, nor either order, and nothing bounds the time
    # of one before its timeline is known: all four are estimated.
    for here in limits:
        for colour in (merges.colours(here), spread(draft.blocks, busy, here * ranks)):
            fixed = _Draft.of(estimator, draft.order, merge(draft.blocks, colour))
            yield fixed
            if draft.order.whole:
                sequence = estimator.greedy(fixed.order, fixed.blocks)
                yield _Draft.of(estimator, *_reorder(dag, fixed.order, fixed.blocks, sequence))


def _fastest(
    draft: _Draft,
    ways: Iterator[tuple[Order, Blocks]],
    unmerged: _Draft,
    estimator: Estimator,
    simulate: Simulate,
    exceeds: bool,
) -> _Draft:
    """The fastest of a draft and other ways to share blocks, by simulation; or the unmerged plan.

    The timeline says how many blocks are enough, but it ranks drafts badly: its links carry one
    transfer at a time, although it takes several blocks to fill a link, and in tile order it ends
    with the first tile, although the block with the most work decides a call of many tiles.

    exceeds: whether the unmerged plan has too many blocks.
    """
    tries = SIMULATED // max(len(draft.order), 1) - 2
    if tries < 0 or not len(draft.order):
        return draft
    most = [time_us(np.inf) for time_us in simulate(draft.order, draft.blocks)]
    best, fastest = float(np.log(most).sum()), None
    # Every way is simulated, since none has a bound.
    for order, blocks in islice(ways, tries):
        # A size at which it is slower rules a way out, however fast it is at another: what the
        # simulation changes makes no call slower. Larger calls, which take longer to simulate, need
        # not be simulated then.
        score = 0.0
        for number, time_us in enumerate(simulate(order, blocks)):
            # At the last size it has to take less than the fastest way leaves it.
            left = np.exp(best - score) if number == len(most) - 1 else np.inf
            score += float(np.log(time_us(min(most[number], left))))
            if score == np.inf:
                break
        if score < best - 1e-9:
            best, fastest = score, (order, blocks)
    if not exceeds and _most(draft.blocks) < _most(unmerged.blocks):
        # Sharing is worth its time only while it leaves more of the GPU to others: a plan occupies
        # its blocks for as long as it runs. The unmerged plan must be so much faster that the last
        # simulation, the longest, ends where it isn't.
        fewer = np.log(_most(unmerged.blocks) / _most(draft.blocks))
        left = best - fewer * len(most)
        *small, large = simulate(unmerged.order, unmerged.blocks)
        left -= sum(float(np.log(time_us(np.inf))) for time_us in small)
        if large(np.exp(left)) < np.exp(left):
            return unmerged
    return _Draft.of(estimator, *fastest) if fastest else draft


def _shares(
    dag: InstructionDag,
    unmerged: _Draft,
    drafted: Blocks,
    limit: LongArray,
    estimator: Estimator,
    slots: int | None,
) -> Iterator[tuple[Order, Blocks]]:
    """Ways to share blocks, at most `limit` (ranks,) on each rank.

    Blocks share by their loads (the bytes that they move, or how long they are active), in turn, as
    neighbours, or by least overlap. Each way is in greedy orders for calls of one tile and of many,
    or in the eager order, with that of the draft's blocks; and in that of the schedule: which of
    them is faster depends on the call. Of large plans only the first ways are simulated, so those
    come first that are more often the fastest.
    """
    begin = unmerged.blocks
    if (limit >= np.bincount(begin.rank)).all():
        # Nothing is shared, but another order may be better.
        colours: list[IntArray | LongArray] = [np.arange(len(begin.rank))]
    else:
        overlaps = Overlaps.of(unmerged.order, begin, *unmerged.activity)
        colours = [
            spread(begin, unmerged.moving_us(estimator), limit),
            spread(begin, unmerged.busy_us, limit),
            deal(begin, limit),
            runs(begin, limit),
            overlaps.merges(int(limit.min())).colours(limit[begin.rank]),
        ]
    # Where ranks have equal loads, several ways are one.
    ways = (merge(begin, colour) for colour in colours)
    shared = list({blocks.instruction_block.tobytes(): blocks for blocks in ways}.values())
    if unmerged.order.whole:
        for tiles in sorted({1, estimator.tiles}):
            here = replace(estimator, tiles=tiles)
            for blocks in shared:
                yield _reorder(dag, unmerged.order, blocks, here.greedy(unmerged.order, blocks))
    elif slots is not None:
        rows = eager(dag, unmerged.order, slots)
        for blocks in (drafted, *shared):
            none = np.zeros(len(blocks.rank), np.int64)
            again = number_blocks(blocks.rank, none, blocks.instruction_block[rows])
            yield unmerged.order.pick(rows), again
    yield from ((unmerged.order, blocks) for blocks in shared)
