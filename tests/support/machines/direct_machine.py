"""A machine for plans with direct messages, in plain Python: docs/machine.md, using every freedom
that it leaves against the plan.

Tiles hold symbolic values: an input chunk is a random number, a reduction the sum. An execution
takes several steps, with arbitrary other steps between them: begin, read, write, give back,
publish. The receiver reads the content of a pulled message at the sender; it must stay unchanged
there until the receiver gives it back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from random import Random

import numpy as np

from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import NONE
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
from sley.verification.direct import Pulls


class HangError(AssertionError):
    """No block can make a step."""


class TornError(AssertionError):
    """A pulled message was overwritten before it had been consumed."""


class WrongError(AssertionError):
    """An output chunk doesn't hold the promised value."""


@dataclass
class Connection:
    """published, consumed: numbers of messages. slots: the values of staged messages, by slot.
    sent: the send and the tile of each message in flight."""

    published: int = 0
    consumed: int = 0
    slots: dict[int, list[int | None]] = field(default_factory=dict)
    sent: deque[tuple[int, int]] = field(default_factory=deque)


@dataclass
class Block:
    """A thread block: its remaining executions, its current execution, and the next step of
    that."""

    todo: Iterator[tuple[int, int]]
    at: tuple[int, int] | None = None
    phase: int = 0
    values: list[int | None] = field(default_factory=list)


class Machine:
    """One run of a plan.

    bounded: whether a pulled message waits for a free slot as well; docs/machine.md leaves this
    open. slots: of each connection; by default the plan's.
    """

    def __init__(
        self, plan: Plan, pulls: Pulls, tiles: int, *, bounded: bool, slots: int | None = None
    ) -> None:
        self.plan, self.pulls, self.bounded = plan, pulls, bounded
        self.slots = plan.slots if slots is None else slots
        t, layout, rank = plan.instructions, plan.layout, plan.rank
        self.op, self.count = t.op.tolist(), t.count.tolist()
        self.source = layout.cell(rank, np.maximum(t.src_buffer, 0), t.src_index).tolist()
        self.target = layout.cell(rank, np.maximum(t.dst_buffer, 0), t.dst_index).tolist()
        self.lies = layout.cell(rank, np.maximum(pulls.buffer, 0), pulls.index).tolist()
        self.finished = [0] * len(t)
        self.taken = [0] * len(t)  # for each send, the number of consumed tiles
        ends: dict[tuple[int, int, int], Connection] = {}
        self.out, self.into = (
            [
                ends.setdefault((src(r), dst(r), int(t.channel[r])), Connection())
                if does[t.op[r]]
                else Connection()
                for r in range(len(t))
            ]
            for does, src, dst in (
                (SENDS, lambda r: int(rank[r]), lambda r: int(t.send_peer[r])),
                (RECEIVES, lambda r: int(t.recv_peer[r]), lambda r: int(rank[r])),
            )
        )
        random = Random(tiles)
        self.weights = [random.getrandbits(60) for _ in plan.collective.initial]
        self.memory: list[list[int | None]] = [self._initial() for _ in range(tiles)]
        self.version = [[0] * layout.cells for _ in range(tiles)]
        self.as_sent: dict[tuple[int, int], list[int]] = {}
        self.send_of = Messages.of(plan).send_of.tolist()
        self.blocks = [
            Block(self._order(range(int(start), int(end)), tiles))
            for start, end in zip(plan.block_offset, plan.block_offset[1:], strict=False)
        ]
        for block in self.blocks:
            block.at = next(block.todo, None)

    def _order(self, rows: range, tiles: int) -> Iterator[tuple[int, int]]:
        if self.plan.loop_order is LoopOrder.INSTRUCTION:
            return iter(product(rows, range(tiles)))
        return ((row, tile) for tile, row in product(range(tiles), rows))

    def _initial(self) -> list[int | None]:
        c, layout = self.plan.collective, self.plan.layout
        memory: list[int | None] = [None] * layout.cells
        for rank in range(c.ranks):
            for index in range(int(c.input_chunks[rank])):
                chunk = int(c.input_offset[rank]) + index
                if c.initial[chunk]:
                    cell = int(layout.cell(rank, Buffer.INPUT, index))
                    memory[cell] = self.weights[chunk]
        return memory

    def run(self, random: Random, slow: int = NONE) -> None:
        """Runs to the end, one step of one block at a time, in random order; then compares the
        outputs.

        slow: a block that makes a step only if no other block can.
        """
        while True:
            busy = [b for b, block in enumerate(self.blocks) if block.at is not None]
            if not busy:
                break
            random.shuffle(busy)
            busy.sort(key=lambda b: b == slow)
            able = next((b for b in busy if self._can_go_on(self.blocks[b])), NONE)
            if able == NONE:
                stuck = [self.plan.label(self.blocks[b].at[0]) for b in busy]
                raise HangError(f"stuck at {stuck}")
            for _ in range(1 if able == slow else random.choice((1, 1, 5))):
                if self._can_go_on(self.blocks[able]):
                    self._step(self.blocks[able])
        self._compare()

    def _can_go_on(self, block: Block) -> bool:
        """Whether a block can make a step: only the beginning of an execution waits."""
        if block.at is None:
            return False
        if block.phase:
            return True
        row, tile = block.at
        out, into = self.out[row], self.into[row]
        room = out.published - out.consumed < self.slots
        return (
            all(self.finished[w] > tile for w in self.plan.waits[row].tolist())
            and all(self.taken[s] > tile for s in self.pulls.holds[row].tolist())
            and (not RECEIVES[self.op[row]] or into.published > into.consumed)
            and (room or not SENDS[self.op[row]] or (self.pulls.pulled[row] and not self.bounded))
        )

    def _step(self, block: Block) -> None:
        assert block.at is not None
        row, tile = block.at
        (self._begin, self._read, self._write, self._give_back, self._publish)[block.phase](
            block, row, tile
        )
        block.phase += 1
        if block.phase == 5:
            block.phase, block.at = 0, next(block.todo, None)

    def _begin(self, block: Block, row: int, tile: int) -> None:
        if RECEIVES[self.op[row]]:
            assert self.into[row].sent[0] == (self.send_of[row], tile)

    def _read(self, block: Block, row: int, tile: int) -> None:
        op, count = self.op[row], self.count[row]
        memory = self.memory[tile]
        operands = []
        if RECEIVES[op]:
            operands.append(self._message(row, tile))
        if READS_SOURCE[op]:
            operands.append(memory[self.source[row] : self.source[row] + count])
        if op == Op.REDUCE:
            operands.append(memory[self.target[row] : self.target[row] + count])
        if REDUCES[op]:
            block.values = [a + b for a, b in zip(*operands, strict=True)]
        elif operands:
            block.values = list(operands[0])

    def _message(self, row: int, tile: int) -> list[int | None]:
        """The values that a receive reads: at the sender, or in the slot."""
        send = self.send_of[row]
        if self.pulls.pulled[send]:
            self._check_unchanged(send, tile)
            return self.memory[tile][self.lies[send] : self.lies[send] + self.count[send]]
        into = self.into[row]
        return into.slots[into.consumed % self.slots]

    def _versions(self, send: int, tile: int) -> list[int]:
        return self.version[tile][self.lies[send] : self.lies[send] + self.count[send]]

    def _check_unchanged(self, send: int, tile: int) -> None:
        if self._versions(send, tile) != self.as_sent[send, tile]:
            raise TornError(f"what {self.plan.label(send)} sent has been overwritten")

    def _write(self, block: Block, row: int, tile: int) -> None:
        op, count, first = self.op[row], self.count[row], self.target[row]
        if WRITES_DESTINATION[op]:
            self.memory[tile][first : first + count] = block.values
            for cell in range(first, first + count):
                self.version[tile][cell] += 1
        if SENDS[op] and not self.pulls.pulled[row]:
            out = self.out[row]
            assert out.published - out.consumed < self.slots
            out.slots[out.published % self.slots] = list(block.values)

    def _give_back(self, block: Block, row: int, tile: int) -> None:
        if not RECEIVES[self.op[row]]:
            return
        send = self.send_of[row]
        if self.pulls.pulled[send]:
            self._check_unchanged(send, tile)
        self.taken[send] += 1
        self.into[row].consumed += 1
        self.into[row].sent.popleft()

    def _publish(self, block: Block, row: int, tile: int) -> None:
        if SENDS[self.op[row]]:
            if self.pulls.pulled[row]:
                self.as_sent[row, tile] = self._versions(row, tile)
            self.out[row].published += 1
            self.out[row].sent.append((row, tile))
        self.finished[row] += 1

    def _compare(self) -> None:
        c, layout = self.plan.collective, self.plan.layout
        for rank in range(c.ranks):
            for index in range(int(c.output_chunks[rank])):
                value = int(c.expected[int(c.output_offset[rank]) + index])
                if value == NONE:
                    continue
                promised = sum(self.weights[k] for k in c.values[value].tolist())
                cell = int(layout.cell(rank, Buffer.OUTPUT, index))
                for memory in self.memory:
                    if memory[cell] != promised:
                        raise WrongError(f"rank {rank} out[{index}]")
