"""Timeline: when each transfer would be at work, by a simple estimate (ResCCL 4.4).

A transfer moves its tiles one after the other over its links, which carry one transfer at a time,
in the order of the plan. It starts with the first tile of the transfers that it depends on, and
ends no sooner than a tile after the last of theirs. That is equation (5) of ResCCL, transfer by
transfer, with the time of filling the pipeline and the bubbles that come out. It knows nothing of
slots, of contention between links, or of the time that instructions take by themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.ir.dag import InstructionDag, Order
from sley.ir.tables import NONE, Edges, FloatArray, IntArray, LongArray
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
    """

    intra_latency_us: float = 3.4
    inter_latency_us: float = 14.0
    intra_GBps: float = 20.0  # noqa: N815 - a unit
    inter_GBps: float = 6.25  # noqa: N815 - a unit
    tile_bytes: int = 2**20
    tiles: int = 16


@dataclass(frozen=True)
class Timeline:
    """start_us, end_us: float64 (transfers,), when each transfer is at work."""

    start_us: FloatArray
    end_us: FloatArray

    @property
    def time_us(self) -> float:
        """When the last transfer ends."""
        return float(self.end_us.max(initial=0.0))


def estimate_timeline(
    dag: InstructionDag,
    order: Order,
    links: Links,
    costs: Costs,
    blocks: tuple[NDArray[np.int32], NDArray[np.int32]] | None = None,
) -> Timeline:
    """The timeline of the transfers in `order`.

    blocks: int32 (transfers,) each, the thread blocks at source and destination; where they are
    given, a block works on one transfer at a time as well.
    """
    t, d = dag.chunks.program.transfers, dag.chunks.dependencies
    before = Edges.from_pairs(len(t), d.after, d.before)
    latency = np.where(links.crosses, costs.inter_latency_us, costs.intra_latency_us)
    rate = np.where(links.crosses, costs.inter_GBps, costs.intra_GBps) * 1e3  # bytes a microsecond
    tile = t.count * (costs.tile_bytes / rate)
    none = np.full(len(t), NONE, np.int32)
    at_src, at_dst = (none, none) if blocks is None else blocks
    # Both halves of a fused instruction are in one block, which works on them at the same time.
    fused = np.zeros(len(t), bool)
    fused[dag.forward[dag.forward != NONE]] = True
    start, end = np.zeros((2, len(t)))
    _run(
        len(t),
        sequence_of(order, len(t)),
        before.offset,
        before.target,
        latency,
        tile,
        costs.tiles,
        links.first,
        links.second,
        np.zeros(links.number),
        at_src,
        at_dst,
        fused,
        np.zeros(max(int(at_src.max(initial=NONE)), int(at_dst.max(initial=NONE))) + 1),
        start,
        end,
    )
    return Timeline(start, end)


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
