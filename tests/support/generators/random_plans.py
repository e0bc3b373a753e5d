"""Random correct plans without a compiler: blocks that send early and receive late."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import sley
from sley.ir.plan import Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges, offsets_of
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    REDUCES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    LoopOrder,
    Op,
)

BLOCKS = 2
"""The number of blocks of each rank; block b uses channel b."""

SCRATCH = 3
"""The number of scratch chunks of each rank."""

LARGEST = 64
"""The most inputs in the sum of a value: larger sums test nothing new."""

Place = tuple[int, int]
Value = Counter[tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """One instruction with the rows of its rank that it waits for."""

    op: Op
    src: Place
    dst: Place
    count: int
    send: int
    recv: int
    waits: tuple[tuple[int, int], ...]


@dataclass
class PlanMaker:
    """Executes a plan while it draws it: every instruction was possible when it was drawn, and two
    conflicting instructions of a rank are in one block or ordered by a wait."""

    random: Random
    ranks: int
    chunks: int
    in_place: bool
    blocks: dict[tuple[int, int], list[Row]] = field(default_factory=dict)
    memory: dict[tuple[int, Place], Value] = field(default_factory=dict)
    wires: dict[tuple[int, int, int], deque[tuple[int, list[Value]]]] = field(default_factory=dict)
    touched: dict[tuple[int, Place], list[tuple[int, int, bool]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in range(self.ranks):
            for block in range(BLOCKS):
                self.blocks[rank, block] = []
            for index in range(self.chunks):
                self.memory[rank, (Buffer.INPUT, index)] = Counter({(rank, index): 1})

    def plan(self, steps: int) -> Plan:
        """A plan of up to `steps` instructions and the receives that empty all connections; its
        collective promises some of the final outputs."""
        for _ in range(steps):
            self._step(finishing=False)
        while any(self.wires.values()):
            self._step(finishing=True)
        return self._built()

    def _step(self, finishing: bool) -> None:
        rank, block = self.random.randrange(self.ranks), self.random.randrange(BLOCKS)
        coming = [p for p in range(self.ranks) if self.wires.get((p, rank, block))]
        ops = [op for op in Op if op != Op.NOP and (coming or not RECEIVES[op])]
        if finishing:
            ops = [op for op in ops if RECEIVES[op] and (not SENDS[op] or self._unlikely())]
        if not ops:
            return
        op = self.random.choice(ops)
        recv = self.random.choice(coming) if RECEIVES[op] else NONE
        count = self.wires[recv, rank, block][0][0] if recv != NONE else self._count()
        if count > self.chunks:
            return
        src, dst = self._place(count), self._place(count)
        if recv != NONE and self.random.random() < 0.5:
            src = dst
        if READS_SOURCE[op] and not self._holds(rank, src, count):
            return
        if op == Op.REDUCE and not self._holds(rank, dst, count):
            return
        overlap = self._key(src)[0] == self._key(dst)[0] and abs(src[1] - dst[1]) < count
        same = self._key(src) == self._key(dst) and RECEIVES[op]
        if READS_SOURCE[op] and WRITES_DESTINATION[op] and overlap and not same:
            return
        peers = [p for p in range(self.ranks) if p != rank]
        send = self.random.choice(peers) if SENDS[op] else NONE
        self._do(rank, block, op, src, dst, count, send, recv)

    def _unlikely(self) -> bool:
        return self.random.random() < 0.05

    def _count(self) -> int:
        return self.random.choice([1, 1, 1, 2])

    def _place(self, count: int) -> Place:
        buffer = self.random.choice([Buffer.INPUT, Buffer.OUTPUT, Buffer.OUTPUT, Buffer.SCRATCH])
        size = SCRATCH if buffer == Buffer.SCRATCH else self.chunks
        return buffer, self.random.randint(0, size - count)

    def _key(self, place: Place) -> Place:
        aliased = self.in_place and place[0] == Buffer.OUTPUT
        return (Buffer.INPUT, place[1]) if aliased else place

    def _range(self, rank: int, place: Place, count: int) -> list[tuple[int, Place]]:
        return [(rank, self._key((place[0], place[1] + k))) for k in range(count)]

    def _holds(self, rank: int, place: Place, count: int) -> bool:
        return all(cell in self.memory for cell in self._range(rank, place, count))

    def _do(
        self,
        rank: int,
        block: int,
        op: Op,
        src: Place,
        dst: Place,
        count: int,
        send: int,
        recv: int,
    ) -> None:
        reads = self._range(rank, src, count) if READS_SOURCE[op] else []
        writes = self._range(rank, dst, count) if WRITES_DESTINATION[op] else []
        values: list[Value] = [Counter() for _ in range(count)]
        if recv != NONE:
            values = self.wires[recv, rank, block][0][1]
        if op == Op.REDUCE:
            values = [self.memory[cell] for cell in writes]
        if reads:
            local = [self.memory[cell] for cell in reads]
            combined = [a + b for a, b in zip(values, local, strict=True)]
            values = combined if REDUCES[op] else local
        if max(value.total() for value in values) > LARGEST:
            return
        if recv != NONE:
            self.wires[recv, rank, block].popleft()
        for cell, value in zip(writes, values, strict=False):
            self.memory[cell] = value
        if send != NONE:
            self.wires.setdefault((rank, send, block), deque()).append((count, values))
        at = len(self.blocks[rank, block])
        waits: dict[int, int] = {}
        for cells, write in ((reads, False), (writes, True)):
            for cell in cells:
                for other, step, wrote in self.touched.get(cell, []):
                    if other != block and (write or wrote):
                        waits[other] = max(waits.get(other, 0), step)
        for cells, write in ((reads, False), (writes, True)):
            for cell in cells:
                self.touched.setdefault(cell, []).append((block, at, write))
        row = Row(op, src, dst, count, send, recv, tuple(waits.items()))
        self.blocks[rank, block].append(row)

    def _built(self) -> Plan:
        steps = [row for rows in self.blocks.values() for row in rows]
        offset = offsets_of(np.array([len(rows) for rows in self.blocks.values()]))
        names = list(self.blocks)
        start = dict(zip(names, offset.tolist(), strict=False))
        channel = [block for (_, block), rows in self.blocks.items() for _ in rows]
        ranks = [rank for (rank, _), rows in self.blocks.items() for _ in rows]
        pairs = [
            (at, start[ranks[at], block] + step)
            for at, row in enumerate(steps)
            for block, step in row.waits
        ]
        source, target = np.array(pairs, np.int64).reshape(-1, 2).T
        none = [NONE] * len(steps)
        columns: dict[str, Any] = {
            "op": [row.op for row in steps],
            "src_buffer": [row.src[0] for row in steps],
            "src_index": [row.src[1] for row in steps],
            "dst_buffer": [row.dst[0] for row in steps],
            "dst_index": [row.dst[1] for row in steps],
            "count": [row.count for row in steps],
            "send_peer": [row.send for row in steps],
            "recv_peer": [row.recv for row in steps],
            "channel": channel,
        }
        return Plan(
            name="random",
            collective=self._collective(),
            protocol=sley.Protocol.LL,
            loop_order=LoopOrder.TILE,
            slots=max(len(steps), 1),
            instructions=Instructions(
                **columns, transfer=none, forward=none, pipeline=none, source=none
            ),
            block_rank=np.array([rank for rank, _ in names], np.int32),
            block_offset=offset,
            waits=Edges.from_pairs(len(steps), source, target),
            scratch_chunks=np.full(self.ranks, SCRATCH, np.int32),
            sources=Sources.of_file("", []),
        )

    def _collective(self) -> sley.Collective:
        def expected(rank: int, index: int) -> list[tuple[int, int]] | None:
            value = self.memory.get((rank, self._key((Buffer.OUTPUT, index))))
            if value is None or (rank + index) % 4 == 3:
                return None
            return list(value.elements())

        return sley.Custom(
            "random", self.ranks, self.chunks, self.chunks, expected, in_place=self.in_place
        )


def random_plan(seed: int) -> Plan:
    """A correct plan of 2-4 ranks with a connection in every direction and channel."""
    random = Random(seed)
    maker = PlanMaker(
        random, random.randint(2, 4), random.randint(2, 4), in_place=random.random() < 0.5
    )
    return maker.plan(random.choice([4, 8, 16, 32, 64]))
