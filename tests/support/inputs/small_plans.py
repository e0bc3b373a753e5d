"""Plans written by hand, so that the engine is tested without the compiler."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sley.ir.collective import Collective
from sley.ir.collectives import AllGather, AllReduce
from sley.ir.plan import Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, offsets_of
from sley.ir.words import Buffer, LoopOrder, Op, Protocol

IN, OUT, SCRATCH = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH
FILE = "by_hand.py"


@dataclass
class Hand:
    """Blocks of explicit instructions; `line` of a row is its number, from 1."""

    blocks: dict[tuple[int, int], list[dict[str, Any]]] = field(
        default_factory=lambda: defaultdict(list)
    )
    lines: int = 0

    def add(
        self,
        rank: int,
        block: int,
        op: Op,
        src: tuple[int, int] = (0, 0),
        dst: tuple[int, int] = (0, 0),
        *,
        count: int = 1,
        to: int = NONE,
        of: int = NONE,
        channel: int = 0,
        waits: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """An instruction at the block's end; `waits` are (block, step) of the rank."""
        self.lines += 1
        self.blocks[rank, block].append(
            {
                "op": op,
                "src_buffer": src[0],
                "src_index": src[1],
                "dst_buffer": dst[0],
                "dst_index": dst[1],
                "count": count,
                "send_peer": to,
                "recv_peer": of,
                "channel": channel if to != NONE or of != NONE else NONE,
                "source": self.lines - 1,
                "waits": waits,
            }
        )

    def plan(
        self,
        collective: Collective,
        *,
        loop_order: LoopOrder = LoopOrder.TILE,
        slots: int = 1,
        scratch: int = 0,
    ) -> Plan:
        """The plan; every rank has `scratch` chunks of scratch."""
        keys = sorted(self.blocks)
        rows = [row for key in keys for row in self.blocks[key]]
        offset = offsets_of(np.array([len(self.blocks[key]) for key in keys], np.int64))
        start = {key: int(offset[i]) for i, key in enumerate(keys)}
        targets = [
            [start[key[0], block] + step for block, step in row["waits"]]
            for key in keys
            for row in self.blocks[key]
        ]
        columns = {
            name: np.array([row[name] for row in rows], np.int32)
            for name in Instructions.column_names()
            if name not in ("transfer", "forward", "pipeline")
        }
        none = np.full(len(rows), NONE)
        return Plan(
            name="by-hand",
            collective=collective,
            protocol=Protocol.SIMPLE,
            loop_order=loop_order,
            slots=slots,
            instructions=Instructions(**columns, transfer=none, forward=none, pipeline=none),
            block_rank=np.array([key[0] for key in keys], np.int32),
            block_offset=offset,
            waits=Edges(
                offsets_of(np.array([len(t) for t in targets], np.int64)),
                np.array([t for ts in targets for t in ts], np.int32),
            ),
            scratch_chunks=np.full(collective.ranks, scratch, np.int32),
            sources=Sources.of_file(FILE, np.arange(1, self.lines + 1)),
        )


def ring_allreduce(
    ranks: int, *, fused: bool, loop_order: LoopOrder = LoopOrder.TILE, width: int = 1
) -> Plan:
    """In-place ring: a reduce-scatter, then an all-gather, in one block a rank.

    Chunk c starts at rank c. Unfused it receives and sends in different instructions; fused it
    uses all of recv_reduce_send, recv_reduce_copy_send, recv_copy_send. `width` chunks at a time.
    """
    hand = Hand()
    for rank in range(ranks):
        before, after = (rank - 1) % ranks, (rank + 1) % ranks
        hand.add(rank, 0, Op.SEND, (IN, rank * width), count=width, to=after)
        for step in range(1, 2 * ranks - 1):
            chunk = (IN, (rank - step) % ranks * width)
            last, reducing = step == 2 * ranks - 2, step < ranks
            if not fused or last:
                op = Op.RECV_REDUCE_COPY if reducing else Op.RECV
                hand.add(rank, 0, op, chunk, chunk, count=width, of=before)
                if not last:
                    hand.add(rank, 0, Op.SEND, chunk, count=width, to=after)
                continue
            op = Op.RECV_COPY_SEND
            if reducing:
                op = Op.RECV_REDUCE_COPY_SEND if step == ranks - 1 else Op.RECV_REDUCE_SEND
            hand.add(rank, 0, op, chunk, chunk, count=width, to=after, of=before)
    collective = AllReduce(ranks, chunks=ranks * width, in_place=True)
    return hand.plan(collective, loop_order=loop_order, slots=2)


def scratch_allreduce(
    ranks: int, *, loop_order: LoopOrder = LoopOrder.TILE, width: int = 1, slots: int = 1
) -> Plan:
    """Out of place: every rank sends its input to every other; one block for each peer, and one
    that waits for these and reduces. Messages are received into scratch."""
    hand = Hand()
    for rank in range(ranks):
        peers = [p for p in range(ranks) if p != rank]
        hand.add(rank, 0, Op.COPY, (IN, 0), (OUT, 0), count=width)
        for i, peer in enumerate(peers):
            block = i + 1
            hand.add(rank, block, Op.SEND, (IN, 0), count=width, to=peer, channel=3)
            hand.add(
                rank, block, Op.RECV, dst=(SCRATCH, i * width), count=width, of=peer, channel=3
            )
            hand.add(rank, 0, Op.NOP, waits=((block, 1),))
            hand.add(rank, 0, Op.REDUCE, (SCRATCH, i * width), (OUT, 0), count=width)
    return hand.plan(
        AllReduce(ranks, chunks=width),
        loop_order=loop_order,
        slots=slots,
        scratch=width * (ranks - 1),
    )


def direct_allgather(ranks: int, *, in_place: bool, chunks: int = 1) -> Plan:
    """Every rank sends its part to every other; one block for each peer."""
    hand = Hand()
    for rank in range(ranks):
        if not in_place:
            hand.add(rank, 0, Op.COPY, (IN, 0), (OUT, rank * chunks), count=chunks)
        for peer in range(ranks):
            if peer != rank:
                hand.add(rank, 1 + peer, Op.SEND, (IN, 0), count=chunks, to=peer)
                hand.add(rank, 1 + peer, Op.RECV, dst=(OUT, peer * chunks), count=chunks, of=peer)
    return hand.plan(AllGather(ranks, chunks=chunks, in_place=in_place))


def stalling(ranks: int = 2) -> Plan:
    """Every rank receives before it sends."""
    hand = Hand()
    for rank in range(ranks):
        hand.add(rank, 0, Op.RECV, dst=(OUT, 0), of=(rank - 1) % ranks)
        hand.add(rank, 0, Op.SEND, (IN, 0), to=(rank + 1) % ranks)
    return hand.plan(AllReduce(ranks))


def stalling_for_a_slot() -> Plan:
    """Rank 0 sends three messages before rank 1 may take one; right with 3 slots."""
    hand = Hand()
    for _ in range(3):
        hand.add(0, 0, Op.SEND, (IN, 0), to=1)
    hand.add(0, 0, Op.SEND, (IN, 0), to=1, channel=1)
    hand.add(1, 0, Op.RECV, dst=(OUT, 0), of=0, channel=1)
    for _ in range(3):
        hand.add(1, 1, Op.RECV, dst=(OUT, 0), of=0, waits=((0, 0),))
    return hand.plan(AllReduce(2))
