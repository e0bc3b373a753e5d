"""Timeline: an estimate of when each transfer is active (ResCCL 4.4).

A transfer moves its tiles one after another over its links, which carry one transfer at a time, in
the order of the plan. It starts after the first tile of the transfers that it depends on, and ends
at least one tile after the last tile of these. This is equation (5) of ResCCL for each transfer;
the time to fill the pipeline and the bubbles follow from it. The estimate ignores slots, contention
between links, and the instructions' own time. A copy that is one instruction with a send is active
with it and takes no time of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np

from sley.compiler.passes.loops import Arcs, Loop
from sley.ir.cost_model import CostModel
from sley.ir.dag import Blocks, InstructionDag, Links, Order
from sley.ir.fabric import LinkKind
from sley.ir.program import Program
from sley.ir.tables import NONE, Edges, FloatArray, IntArray, LongArray, inverse, numbering
from sley.ir.topology import Topology
from sley.ir.words import Protocol

TILES = 16
"""The tiles of a chunk in the call that is estimated, in instruction order (assumption: 32 MB of
Simple)."""


@dataclass(frozen=True)
class HopCosts:
    """The costs of moving the chunks of transfers, by a topology's cost model.

    longest: the number of chunks that fill a tile, those of the longest message.
    latency_us: float64 (transfers,), from the end of a move until the receiver sees it; 0 within a
        rank.
    chunk_us: float64 (transfers,), the time of a thread block to move one chunk of a tile.
    """

    longest: int
    latency_us: FloatArray
    chunk_us: FloatArray

    @classmethod
    def of(
        cls, program: Program, topology: Topology | None, protocol: Protocol, *, per_chunk: bool
    ) -> HopCosts:
        """topology: None for A100s on one NVSwitch, `CostModel()`. per_chunk: whether each chunk of
        a message fills a tile."""
        t, model = program.transfers, topology.model if topology else CostModel()
        latency = np.where(t.remote, model.nvlink_latency_us[protocol], 0.0)
        rate = np.where(t.remote, model.nvlink_block_GBps, model.local_block_GBps)
        if topology:
            rows = np.flatnonzero(t.remote)
            latency[rows], rate[rows] = _over_paths(topology, t.src[rows], t.dst[rows], protocol)
        # The longest message fills a tile, as in the simulation.
        longest = 1 if per_chunk else int(t.count.max(initial=1))
        # Data that stays in its rank carries no protocol flags.
        flags = np.where(t.remote, model.wire_efficiency[protocol], 1.0)
        return cls(longest, latency, model.tile_bytes[protocol] / longest / (flags * rate * 1e3))


def _over_paths(
    topology: Topology, src: IntArray, dst: IntArray, protocol: Protocol
) -> tuple[FloatArray, FloatArray]:
    """The latency in microseconds of a hop from each rank to another, and the rate in GB/s at which
    a block moves data there: its own, or that of the narrowest link."""
    limit, model = topology.ranks, topology.model
    # Many transfers have the same ends, and a path takes longer than a look-up.
    pairs, pair = numbering(src.astype(np.int64) * limit + dst, limit * limit)
    paths = topology.paths(*np.divmod(pairs, limit))
    if not len(pairs):
        return np.zeros(0), np.zeros(0)
    kind = topology.slowest_kinds(paths)
    by_kind = np.array([(model.latency_us(k)[protocol], model.block_GBps(k)) for k in LinkKind])
    narrowest = np.minimum.reduceat(topology.links.GBps[paths.target], paths.offset[:-1])
    latency = topology.hop_latencies(paths, by_kind[kind, 0])
    return latency[pair], np.minimum(by_kind[kind, 1], narrowest)[pair]


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

    tiles: the tiles of a chunk in a call. copied: `InstructionDag.copied`, as in the orders. later:
    the transfers that depend on each one, or on the copy that it sends too. latency_us, tile_us:
    float64 (transfers,), the latency of a hop and the time to move one tile; 0 for copies that are
    sent.
    """

    links: Links
    tiles: int
    copied: IntArray
    later: Edges
    latency_us: FloatArray
    tile_us: FloatArray

    @classmethod
    def of(cls, dag: InstructionDag, links: Links, costs: HopCosts, tiles: int) -> Estimator:
        """dag: as ordered (`InstructionDag.as_ordered`)."""
        t = dag.chunks.program.transfers
        return cls(
            links=links,
            tiles=tiles,
            copied=dag.copied,
            later=Edges.from_pairs(len(t), *dag.dependencies),
            latency_us=np.where(dag.sent, 0, costs.latency_us),
            tile_us=np.where(dag.sent, 0, t.count * costs.chunk_us),
        )

    def timeline(self, order: Order, blocks: Blocks) -> Timeline:
        """The timeline of the transfers in the order of their first instructions."""
        return self._run(order, blocks, greedy=False)[0]

    def greedy(self, order: Order, blocks: Blocks) -> IntArray:
        """int32 (transfers,): whole transfers in an order for these blocks, by dynamic levels (Sih
        and Lee, 1993): always the one comes next with the longest way to the end of the call, less
        the time until its links and blocks are free; ties as in `order`.

        In a call of one tile a message fits into its connection, so a send doesn't wait for the
        block that receives it; in one of many tiles it does.
        """
        return self._run(order, blocks, greedy=True)[1]

    def _run(self, order: Order, blocks: Blocks, *, greedy: bool) -> tuple[Timeline, IntArray]:
        """The timeline and the order of the transfers: that of `order`, or the greedy one."""
        transfers = len(self.tile_us)
        # Also where greedy: ties come in the order of the plan.
        sequence = sequence_of(order, transfers)
        start, end, way = np.zeros((3, transfers))
        _run(
            transfers,
            greedy,
            greedy and self.tiles == 1,
            # Numba needs integers of one type, 64 bits, in the queue.
            Arcs(self.later.offset, self.later.target.astype(np.int64)),
            np.bincount(self.later.target, minlength=transfers).astype(np.int32),
            inverse(sequence),
            *self._needs(order, blocks),
            way,
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
    for column in (order.receive, order.send):  # each transfer comes once in either
        rows = np.flatnonzero(column != NONE)
        first[column[rows]] = np.minimum(first[column[rows]], rows)
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
    apart: bool,
    later: Arcs,
    waiting: IntArray,
    place: LongArray,
    needs: _Needs,
    free: FloatArray,
    way: FloatArray,
    times: _Times,
    sequence: IntArray,
) -> None:
    """Fills `times`. The transfers run in the order of `sequence`, or `greedy`, which fills it:
    always the one comes next with the longest way less its start, ties by `place`.

    apart: whether a send doesn't wait for the block that receives it. later: the transfers that
    depend on each one. waiting: how many each depends on. free: (links and blocks + 1,), when each
    becomes free; always 0 for neither. way: (transfers,), 0 at first; if greedy, filled with the
    time of the longest chain that begins with each.
    """
    (offset, target), (start, end) = later, times
    latency, tile, tiles, first_link, second_link, at_src, at_dst, waits_for = needs
    queue = [(0.0, 0, 0)]
    queue.pop()
    if greedy:
        # Backwards, all that depends on a transfer comes before it.
        for t in sequence[::-1]:
            way[t] = latency[t] + tiles[t]
            for edge in range(offset[t], offset[t + 1]):
                way[t] = max(way[t], latency[t] + tile[t] + way[target[edge]])
            if waiting[t] == 0:
                queue.append((-way[t], place[t], t))
        heapify(queue)
    taken = 0
    # Without cycles some transfer always waits for nothing, so each turn takes one or, if greedy,
    # puts one back that then starts later: every link and block delays it at most once for each
    # transfer taken in between.
    while taken < len(sequence):
        if greedy:
            # A key in the queue is at most that with which its transfer can start, since links and
            # blocks only become free later. So one that can start with its key is the first of all.
            least, _, t = heappop(queue)
        else:
            least, t = np.inf, sequence[taken]
        first, second, src, dst = first_link[t], second_link[t], at_src[t], at_dst[t]
        begin = max(start[t], free[first], free[second], free[waits_for[t]])
        if not apart:
            begin = max(begin, free[dst])
        if begin - way[t] > least:
            heappush(queue, (begin - way[t], place[t], t))
            continue
        arrival = max(begin + latency[t], free[dst])
        finish = max(arrival + tiles[t], end[t])
        start[t], end[t] = begin, finish
        free[dst] = finish
        sent = begin + tiles[t] if apart else finish
        free[src] = max(free[src], sent)
        free[first] = free[second] = sent
        free[-1] = 0.0  # a transfer without a second link or a block has written there
        sequence[taken] = t
        taken += 1
        # In any order that respects the dependencies, all that a transfer waits for comes before
        # it, so its earliest times are complete when its own turn comes.
        for edge in range(offset[t], offset[t + 1]):
            after = target[edge]
            start[after] = max(start[after], arrival + tile[t])
            end[after] = max(end[after], finish + tile[after])
            if greedy:
                waiting[after] -= 1
                if waiting[after] == 0:
                    heappush(queue, (start[after] - way[after], place[after], after))
