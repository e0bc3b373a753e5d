"""Timeline: an estimate of when each transfer is active (ResCCL 4.4).

A transfer moves its tiles one after another over its links, which carry one transfer at a time, in
the order of the plan. It starts after the first tile of the transfers that it depends on, and ends
at least one tile after the last tile of these. This is equation (5) of ResCCL for each transfer;
the time to fill the pipeline and the bubbles follow from it. The estimate ignores slots, contention
between links, and the instructions' own time. A copy that is one instruction with a send is active
with it and takes no time of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from sley.compiler.passes.loops import Arcs, Loop
from sley.errors.compiler import C304
from sley.ir.dag import Blocks, InstructionDag, Links, Order
from sley.ir.tables import NONE, Edges, FloatArray, IntArray, LongArray, inverse
from sley.ir.words import is_integer, is_real


@dataclass(frozen=True)
class Costs:
    """The parameters of the estimate. The defaults are those of A100s with 200 Gb/s cards.

    intra_latency_us, inter_latency_us: latency of a hop inside a node and between nodes (NCCL's
        tuner, Simple protocol, ring).
    intra_GBps, inter_GBps: rate of one thread block inside a node (NCCL's tuner, per channel) and
        between nodes (ResCCL, figure 4: four blocks fill a card of 25 GB/s).
    tile_bytes: size of a tile of a chunk (ResCCL, table 2).
    tiles: number of tiles of a chunk.

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
    """start_us, end_us: float64 (transfers,), when each transfer starts and ends."""

    start_us: FloatArray
    end_us: FloatArray

    @property
    def time_us(self) -> float:
        """When the last transfer ends."""
        return float(self.end_us.max(initial=0.0))


@dataclass(frozen=True)
class Estimator:
    """The transfers with their dependencies, links and costs; estimates timelines from them.

    copied: `InstructionDag.copied`, as in the orders. later: the transfers that depend on each
    one, or on the copy that it sends too. latency_us, tile_us: float64 (transfers,), the latency of
    a hop and the time to move one tile; 0 for copies that are sent.
    """

    links: Links
    tiles: int
    copied: IntArray
    later: Edges
    latency_us: FloatArray
    tile_us: FloatArray

    @classmethod
    def of(cls, dag: InstructionDag, links: Links, costs: Costs) -> Estimator:
        """dag: as ordered (`InstructionDag.as_ordered`)."""
        t = dag.chunks.program.transfers
        latency = np.where(links.crosses, costs.inter_latency_us, costs.intra_latency_us)
        rate = np.where(links.crosses, costs.inter_GBps, costs.intra_GBps) * 1e3  # bytes a us
        return cls(
            links=links,
            tiles=costs.tiles,
            copied=dag.copied,
            later=Edges.from_pairs(len(t), *dag.dependencies),
            latency_us=np.where(dag.sent, 0, latency),
            tile_us=np.where(dag.sent, 0, t.count * (costs.tile_bytes / rate)),
        )

    def timeline(self, order: Order, blocks: Blocks) -> Timeline:
        """The timeline of the transfers in the order of their first instructions."""
        return self._run(order, blocks, greedy=False)[0]

    def greedy(self, order: Order, blocks: Blocks) -> IntArray:
        """int32 (transfers,): the transfers in an order in which always the one comes next that
        can start first, by its links and blocks; ties as in `order`."""
        return self._run(order, blocks, greedy=True)[1]

    def _run(self, order: Order, blocks: Blocks, *, greedy: bool) -> tuple[Timeline, IntArray]:
        """The timeline and the order of the transfers: that of `order`, or the greedy one."""
        transfers = len(self.tile_us)
        sequence = sequence_of(order, transfers)
        start, end = np.zeros((2, transfers))
        _run(
            transfers,
            greedy,
            # Numba needs integers of one type, 64 bits, in the queue.
            Arcs(self.later.offset, self.later.target.astype(np.int64)),
            np.bincount(self.later.target, minlength=transfers).astype(np.int32),
            inverse(sequence),
            *self._needs(order, blocks),
            _Times(start, end),
            sequence,
        )
        sends = np.flatnonzero(self.copied != NONE)
        for times in (start, end):
            times[self.copied[sends]] = times[sends]
        return Timeline(start, end), sequence

    def _needs(self, order: Order, blocks: Blocks) -> tuple[_Needs, FloatArray]:
        """The needs of the transfers, and when links and blocks are free at first. A local transfer
        has a block at its destination alone, a copy that is sent none."""
        none = self.links.number + len(blocks.rank)
        block = self.links.number + blocks.instruction_block
        at_src, at_dst = np.full((2, len(self.tile_us)), none, np.int32)
        sends, receives = order.send != NONE, order.receive != NONE
        at_dst[order.receive[receives]] = block[receives]
        at_src[order.send[sends]] = block[sends]
        sent = order.send[order.fused]
        with_copies = self.copied[sent] != NONE
        at_dst[self.copied[sent[with_copies]]] = none
        waits_for = at_src.copy()
        waits_for[sent[~with_copies]] = none
        needs = _Needs(
            self.latency_us,
            self.tile_us,
            self.tiles * self.tile_us,
            np.where(self.links.first == NONE, none, self.links.first),
            np.where(self.links.second == NONE, none, self.links.second),
            at_src,
            at_dst,
            waits_for,
        )
        return needs, np.zeros(none + 1)


def sequence_of(order: Order, transfers: int) -> IntArray:
    """int32 (transfers,): the transfers in the order in which they begin."""
    first = np.full(transfers, len(order))
    rows = np.arange(len(order))
    for column in (order.receive, order.send):
        used = column != NONE
        np.minimum.at(first, column[used], rows[used])
    return np.argsort(first, kind="stable").astype(np.int32)


class _Needs(NamedTuple):
    """The times, links and blocks of transfers, (transfers,) each. Links and blocks share one
    numbering, whose last number means neither.

    latency, tile, tiles: microseconds of a hop, of moving one tile, of moving all tiles.
    first_link, second_link: the links. at_src, at_dst: the blocks at both ends.
    waits_for: the block at the source that the transfer waits for; not one whose send is fused with
    a receive, since then the receive waits for the block.
    """

    latency: FloatArray
    tile: FloatArray
    tiles: FloatArray
    first_link: IntArray
    second_link: IntArray
    at_src: IntArray
    at_dst: IntArray
    waits_for: IntArray


class _Times(NamedTuple):
    """When transfers start and end, (transfers,) each; before a transfer starts, the earliest times
    that its dependencies allow, 0 at first."""

    start: FloatArray
    end: FloatArray


@Loop
def _run(
    greedy: bool,
    later: Arcs,
    waiting: IntArray,
    place: LongArray,
    needs: _Needs,
    free: FloatArray,
    times: _Times,
    sequence: IntArray,
) -> None:
    """Fills `times`. The transfers run in the order of `sequence`, or `greedy`, which fills it:
    always the one comes next that can start first, ties by `place`.

    later: the transfers that depend on each one. waiting: how many each depends on. free: (links
    and blocks + 1,), when each becomes free; always 0 for neither.
    """
    (offset, target), (start, end) = later, times
    latency, tile, tiles, first_link, second_link, at_src, at_dst, waits_for = needs
    queue = [(0.0, 0, 0)]
    queue.pop()
    if greedy:
        for t in range(len(sequence)):
            if waiting[t] == 0:
                queue.append((0.0, place[t], t))
        heapify(queue)
    taken = 0
    while taken < len(sequence):
        if greedy:
            soonest, _, t = heappop(queue)
        else:
            soonest, t = np.inf, sequence[taken]
        first, second, src, dst = first_link[t], second_link[t], at_src[t], at_dst[t]
        begin = max(start[t], free[first], free[second], free[waits_for[t]], free[dst])
        if begin > soonest:
            heappush(queue, (begin, place[t], t))
            continue
        finish = max(begin + latency[t] + tiles[t], end[t])
        start[t], end[t] = begin, finish
        free[src] = max(free[src], finish)
        free[first] = free[second] = free[dst] = finish
        free[-1] = 0.0
        sequence[taken] = t
        taken += 1
        for edge in range(offset[t], offset[t + 1]):
            after = target[edge]
            start[after] = max(start[after], begin + latency[t] + tile[t])
            end[after] = max(end[after], finish + tile[after])
            if greedy:
                waiting[after] -= 1
                if waiting[after] == 0:
                    heappush(queue, (start[after], place[after], after))
