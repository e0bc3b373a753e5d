"""One-sided plans, written operation by operation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from sley.ir.collective import Collective
from sley.ir.one_sided import Action, Counters, OneSidedPlan, Operations, Ranges
from sley.ir.sources import Sources
from sley.ir.tables import NONE, offsets_of
from sley.ir.words import Buffer, Protocol

BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}


class At(NamedTuple):
    """A range: `At(rank, "i", 0, count)`; packets of scratch with packet=True."""

    rank: int
    buffer: str
    index: int
    count: int = 1
    packet: bool = False


class Row(NamedTuple):
    action: Action
    thread: int = NONE
    target: int = NONE
    port: int = NONE
    relaxed: bool = False
    moves: tuple[tuple[tuple[At, ...], tuple[At, ...]], ...] = ()


@dataclass
class Block:
    """A block: its rank and its operations; methods add operations and return the block."""

    rank: int
    rows: list[Row] = field(default_factory=list)

    def join(self) -> Block:
        return self._add(Row(Action.JOIN))

    def move(self, sources: Sequence[At], destinations: Sequence[At]) -> Block:
        moves = ((tuple(sources), tuple(destinations)),)
        return self._add(Row(Action.MOVE, moves=moves))

    def post(self, counter: int, *, thread: int = 0, relaxed: bool = False) -> Block:
        return self._add(Row(Action.POST, thread, counter, relaxed=relaxed))

    def wait(self, counter: int, *, thread: int = 0, relaxed: bool = False) -> Block:
        return self._add(Row(Action.WAIT, thread, counter, relaxed=relaxed))

    def barrier(self, number: int) -> Block:
        return self._add(Row(Action.BARRIER, target=number))

    def push(
        self, port: int, sources: Sequence[At], destinations: Sequence[At], *, thread: int = 0
    ) -> Block:
        moves = ((tuple(sources), tuple(destinations)),)
        return self._add(Row(Action.PUSH, thread, port=port, moves=moves))

    def push_post(self, port: int, counter: int, *, thread: int = 0) -> Block:
        return self._add(Row(Action.PUSH_POST, thread, counter, port))

    def flush(self, port: int, *, thread: int = 0) -> Block:
        return self._add(Row(Action.FLUSH, thread, port=port))

    def _add(self, row: Row) -> Block:
        self.rows.append(row)
        return self


def plan_of(
    collective: Collective,
    blocks: Sequence[Block],
    *,
    counters: Sequence[tuple[int, int, int]] = (),
    ports: Sequence[int] = (),
    scratch: int = 0,
    copies: int = 1,
    protocol: Protocol = Protocol.SIMPLE,
) -> OneSidedPlan:
    """The plan of blocks, in the order of their ranks; counters are (rank, peer, initial)."""
    rows = [row for block in blocks for row in block.rows]
    ranges, move = [], 0
    for number, row in enumerate(rows):
        for sides in row.moves:
            for writes, side in enumerate(sides):
                ranges += [
                    (number, move, writes, at.rank, BUFFERS[at.buffer], *at[2:], False)
                    for at in side
                ]
            move += 1
    sizes = [len(block.rows) for block in blocks]
    columns = np.array(ranges, np.int64).reshape(-1, 9).T
    table = np.array(counters, np.int64).reshape(-1, 3).T
    return OneSidedPlan(
        name="plan",
        collective=collective,
        protocol=protocol,
        parts=1,
        operations=Operations(
            action=np.array([row.action for row in rows], np.int8),
            thread=np.array([row.thread for row in rows], np.int32),
            target=np.array([row.target for row in rows], np.int32),
            port=np.array([row.port for row in rows], np.int32),
            relaxed=np.array([row.relaxed for row in rows], bool),
            step=np.concatenate([np.arange(size) for size in [*sizes, 0]]).astype(np.int32),
            word=np.array([row.action for row in rows], np.int8),
            source=np.full(len(rows), NONE, np.int32),
        ),
        ranges=Ranges(*columns),
        counters=Counters(*table),
        block_rank=np.array([block.rank for block in blocks], np.int32),
        block_offset=offsets_of(np.array(sizes, np.int64)),
        ports=np.array(ports, np.int32),
        scratch_chunks=np.full(collective.ranks, scratch, np.int32),
        scratch_copies=copies,
        words=tuple(action.name.lower() for action in Action),
        sources=Sources.of_file("", []),
    )
