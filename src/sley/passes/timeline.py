"""Timeline: when each transfer would be at work, by a simple estimate (ResCCL 4.4).

A transfer moves its tiles one after the other over its links, which carry one transfer at a time,
in the order of the plan. It starts with the first tile of the transfers that it depends on, and
ends no sooner than a tile after the last of theirs. That is equation (5) of ResCCL, transfer by
transfer, with the time of filling the pipeline and the bubbles that come out. It knows nothing of
slots, of contention between links, or of the time that instructions take by themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from sley.errors.compiler import C304
from sley.ir.dag import Blocks, ChunkDag, Order
from sley.ir.tables import NONE, Edges, FloatArray, IntArray, LongArray
from sley.ir.words import is_integer, is_real
from sley.passes.links import Links
from sley.passes.loops import Loop


@dataclass(frozen=True)
class Costs:
    """What the estimate reckons with. The values are those of A100s with 200 Gb/s cards.

    intra_latency_us, inter_latency_us: of a hop inside a node and between nodes (NCCL's tuner,
        Simple protocol, ring).
    intra_GBps, inter_GBps: how fast one thread block moves data inside a node (NCCL's tuner, per
        channel) and between nodes (ResCCL, figure 4: four blocks fill a card of 25 GB/s).
    tile_bytes: what an instruction moves of a chunk at a time (ResCCL, table 2).
    tiles: how many tiles a chunk has.

    All are positive and finite. Errors: C304.
    """

    intra_latency_us: float = 3.4
    inter_latency_us: float = 14.0
    intra_GBps: float = 20.0  # noqa: N815 - a unit
    inter_GBps: float = 6.25  # noqa: N815 - a unit
    tile_bytes: int = 2**20
    tiles: int = 16

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole = field.name in ("tile_bytes", "tiles")
            right = is_integer(value) if whole else is_real(value) and math.isfinite(value)
            if not right or value <= 0:
                raise C304.error(
                    expected=f"{field.name} as a positive {'integer' if whole else 'number'}",
                    found=f"{field.name}={value!r}",
                )


@dataclass(frozen=True)
class Timeline:
    """start_us, end_us: float64 (transfers,), when each transfer is at work."""

    start_us: FloatArray
    end_us: FloatArray

    @property
    def time_us(self) -> float:
        """When the last transfer ends."""
        return float(self.end_us.max(initial=0.0))


@dataclass(frozen=True)
class Estimator:
    """What makes timelines: the transfers with their dependencies, links and costs.

    before, later: the dependencies, backwards and forwards. latency_us, tile_us: float64
    (transfers,), of a hop and of moving one tile.
    """

    links: Links
    tiles: int
    before: Edges
    later: Edges
    latency_us: FloatArray
    tile_us: FloatArray

    @classmethod
    def of(cls, dag: ChunkDag, links: Links, costs: Costs) -> Estimator:
        t, d = dag.program.transfers, dag.dependencies
        rate = np.where(links.crosses, costs.inter_GBps, costs.intra_GBps) * 1e3  # bytes a us
        return cls(
            links=links,
            tiles=costs.tiles,
            before=Edges.from_pairs(len(t), d.after, d.before),
            later=Edges.from_pairs(len(t), d.before, d.after),
            latency_us=np.where(links.crosses, costs.inter_latency_us, costs.intra_latency_us),
            tile_us=t.count * (costs.tile_bytes / rate),
        )

    def timeline(self, order: Order, blocks: Blocks) -> Timeline:
        """The timeline of the transfers in `order`: each takes its links and both its blocks when
        its first instruction has its turn there."""
        transfers = len(self.tile_us)
        at_src, at_dst = self._ends(order, blocks)
        # Both halves of a fused instruction are in one block, which does them at the same time.
        fused = np.zeros(transfers, bool)
        fused[order.send[order.fused]] = True
        start, end = np.zeros((2, transfers))
        _run(
            transfers,
            sequence_of(order, transfers),
            self.before.offset,
            self.before.target,
            self.latency_us,
            self.tile_us,
            self.tiles,
            self.links.first,
            self.links.second,
            np.zeros(self.links.number),
            at_src,
            at_dst,
            fused,
            np.zeros(len(blocks.rank)),
            start,
            end,
        )
        return Timeline(start, end)

    def greedy(self, order: Order, blocks: Blocks) -> IntArray:
        """int32 (transfers,): an order of whole transfers in which always the one comes next that
        can start first, ties as in `order`: what links and blocks are free for."""
        transfers = len(self.tile_us)
        at_src, at_dst = self._ends(order, blocks)
        place = np.empty(transfers, np.int64)
        place[sequence_of(order, transfers)] = np.arange(transfers)
        sequence = np.empty(transfers, np.int32)
        _list(
            transfers,
            self.later.offset,
            self.later.target.astype(np.int64),  # what the queue holds are numbers of one kind
            np.bincount(self.later.target, minlength=transfers).astype(np.int32),
            place,
            self.latency_us,
            self.tile_us,
            self.tiles,
            self.links.first,
            self.links.second,
            np.zeros(self.links.number),
            at_src,
            at_dst,
            np.zeros(len(blocks.rank)),
            np.zeros(transfers),
            np.zeros(transfers),
            sequence,
        )
        return sequence

    def _ends(self, order: Order, blocks: Blocks) -> tuple[IntArray, IntArray]:
        """int32 (transfers,) each: the blocks at source and destination, NONE where there is none
        (a local operation has one at its destination)."""
        at_src, at_dst = np.full((2, len(self.tile_us)), NONE, np.int32)
        sends, receives = order.send != NONE, order.receive != NONE
        at_dst[order.receive[receives]] = blocks.instruction_block[receives]
        at_src[order.send[sends]] = blocks.instruction_block[sends]
        return at_src, at_dst


def sequence_of(order: Order, transfers: int) -> IntArray:
    """int32 (transfers,): the transfers in the order in which they begin."""
    first = np.full(transfers, len(order))
    rows = np.arange(len(order))
    for column in (order.receive, order.send):
        used = column != NONE
        np.minimum.at(first, column[used], rows[used])
    return np.argsort(first, kind="stable").astype(np.int32)


@Loop
def _run(
    sequence: IntArray,
    offset: LongArray,
    before: IntArray,
    latency: FloatArray,
    tile: FloatArray,
    tiles: int,
    first_link: IntArray,
    second_link: IntArray,
    link_free: FloatArray,
    at_src: IntArray,
    at_dst: IntArray,
    fused: NDArray[np.bool_],
    block_free: FloatArray,
    start: FloatArray,
    end: FloatArray,
) -> None:
    """Fills `start` and `end`. before: the transfers that each one depends on."""
    for k in range(len(sequence)):
        t = sequence[k]
        begin, last = 0.0, 0.0
        for edge in range(offset[t], offset[t + 1]):
            p = before[edge]
            begin = max(begin, start[p] + latency[p] + tile[p])
            last = max(last, end[p])
        a, b, src, dst = first_link[t], second_link[t], at_src[t], at_dst[t]
        if a != NONE:
            begin = max(begin, link_free[a])
        if b != NONE:
            begin = max(begin, link_free[b])
        if src != NONE and not fused[t]:
            begin = max(begin, block_free[src])
        if dst != NONE:
            begin = max(begin, block_free[dst])
        finish = max(begin + latency[t] + tiles * tile[t], last + tile[t])
        start[t], end[t] = begin, finish
        if a != NONE:
            link_free[a] = finish
        if b != NONE:
            link_free[b] = finish
        if src != NONE:
            block_free[src] = max(block_free[src], finish)
        if dst != NONE:
            block_free[dst] = max(block_free[dst], finish)


@Loop
def _list(
    offset: LongArray,
    later: LongArray,
    waiting: IntArray,
    place: LongArray,
    latency: FloatArray,
    tile: FloatArray,
    tiles: int,
    first_link: IntArray,
    second_link: IntArray,
    link_free: FloatArray,
    at_src: IntArray,
    at_dst: IntArray,
    block_free: FloatArray,
    earliest: FloatArray,
    least_end: FloatArray,
    sequence: IntArray,
) -> None:
    """Fills `sequence`. later: the transfers that depend on each one; waiting: on how many each
    depends. earliest, least_end: when each could start and end for its dependencies; 0 at first.
    """
    queue = [(0.0, 0, 0)]
    queue.pop()
    for t in range(len(sequence)):
        if waiting[t] == 0:
            queue.append((0.0, place[t], t))
    heapify(queue)
    taken = 0
    while len(queue) > 0:
        time, _, t = heappop(queue)
        a, b, src, dst = first_link[t], second_link[t], at_src[t], at_dst[t]
        begin = earliest[t]
        if a != NONE:
            begin = max(begin, link_free[a])
        if b != NONE:
            begin = max(begin, link_free[b])
        if src != NONE:
            begin = max(begin, block_free[src])
        if dst != NONE:
            begin = max(begin, block_free[dst])
        if begin > time:
            heappush(queue, (begin, place[t], t))
            continue
        finish = max(begin + latency[t] + tiles * tile[t], least_end[t])
        sequence[taken] = t
        taken += 1
        if a != NONE:
            link_free[a] = finish
        if b != NONE:
            link_free[b] = finish
        if src != NONE:
            block_free[src] = finish
        if dst != NONE:
            block_free[dst] = finish
        for edge in range(offset[t], offset[t + 1]):
            after = later[edge]
            earliest[after] = max(earliest[after], begin + latency[t] + tile[t])
            least_end[after] = max(least_end[after], finish + tile[after])
            waiting[after] -= 1
            if waiting[after] == 0:
                heappush(queue, (earliest[after], place[after], after))
