"""A machine for plans that moves messages in pieces, in plain Python.

MSCCL's kernels send a message in parts of some chunks, each through a slot of its own; they move a
part slice after slice (Simple), or each word when it has come (LL, LL128). sley's engines move a
message at once. Every chunk has a few words with symbolic values: a random number for an input, the
sum for a reduction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from random import Random

from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import READS_SOURCE, RECEIVES, REDUCES, SENDS, WRITES_DESTINATION, Op
from support.machines.direct_machine import HangError, WrongError

WORDS = 2
"""Words of a chunk."""


class Unit(Enum):
    """What an engine moves at once: a part of a message, the next word, or any word."""

    PART = "part"
    NEXT_WORD = "next word"
    ANY_WORD = "any word"


@dataclass
class Connection:
    """parts: the words of the parts that were begun, None for those to come. taken: the number of
    parts that have been received whole."""

    parts: list[list[int | None]] = field(default_factory=list)
    taken: int = 0


@dataclass
class Block:
    """A thread block: its rows to come; of the current one the chunks to come, and of its current
    part the first chunk, the words to come, and its places on the connections."""

    rows: list[int]
    first: int = 0
    words: list[int] = field(default_factory=list)
    incoming: list[int | None] = field(default_factory=list)
    outgoing: list[int | None] = field(default_factory=list)


class Machine:
    """One run of a plan without groups, of one tile.

    together: the chunks of a part; 0 for all of a message.
    """

    def __init__(self, plan: Plan, unit: Unit, together: int, slots: int, random: Random) -> None:
        self.plan, self.unit, self.slots, self.random = plan, unit, slots, random
        t, layout = plan.instructions, plan.layout
        self.op, self.count = t.op.tolist(), t.count.tolist()
        self.together = together or max(self.count, default=1)
        self.source = layout.cell(plan.rank, t.src_buffer.clip(0), t.src_index).tolist()
        self.target = layout.cell(plan.rank, t.dst_buffer.clip(0), t.dst_index).tolist()
        self.finished = [False] * len(t)
        self.connections: dict[tuple[int, int, int], Connection] = {}
        self.weights = [random.getrandbits(50) for _ in plan.collective.initial]
        self.memory: list[int | None] = [None] * (layout.cells * WORDS)
        for cell, chunk in zip(
            plan.collective.input_cells(layout).tolist(), range(len(self.weights)), strict=True
        ):
            if plan.collective.initial[chunk]:
                for w in range(WORDS):
                    self.memory[cell * WORDS + w] = self.weights[chunk] * WORDS + w
        self.blocks = [
            Block(list(range(int(a), int(b))))
            for a, b in zip(plan.block_offset, plan.block_offset[1:], strict=False)
        ]

    def run(self) -> None:
        """Runs to the end, and compares the outputs. The blocks have random priorities, which
        change from time to time, so that some run far ahead."""
        change = self.random.choice((0.0, 0.05, 0.5))
        blocks = self.random.sample(self.blocks, len(self.blocks))
        while any(block.rows for block in blocks):
            if self.random.random() < change:
                self.random.shuffle(blocks)
            if not any(self._step(block) for block in blocks if block.rows):
                raise HangError("stuck")
        self._compare()

    def _step(self, block: Block) -> bool:
        """The next step of a block; False if it must wait."""
        row = block.rows[0]
        if block.words:
            return self._move(block, row)
        if block.first >= self.count[row] or self.op[row] == Op.NOP:
            if not all(self.finished[k] for k in self.plan.waits[row].tolist()):
                return False
            self.finished[row] = True
            block.first = 0
            block.rows.pop(0)
            return True
        return self._begin(block, row)

    def _ends(self, row: int) -> tuple[Connection | None, Connection | None]:
        t, rank = self.plan.instructions, int(self.plan.rank[row])
        channel = int(t.channel[row])

        def end(src: int, dst: int) -> Connection:
            return self.connections.setdefault((src, dst, channel), Connection())

        return (
            end(int(t.recv_peer[row]), rank) if RECEIVES[self.op[row]] else None,
            end(rank, int(t.send_peer[row])) if SENDS[self.op[row]] else None,
        )

    def _begin(self, block: Block, row: int) -> bool:
        """Begins the next part of a row: after its waits, with the part's message and a slot."""
        into, out = self._ends(row)
        if not all(self.finished[k] for k in self.plan.waits[row].tolist()):
            return False
        if into is not None and len(into.parts) == into.taken:
            return False
        if out is not None and len(out.parts) - out.taken >= self.slots:
            return False
        words = (min(block.first + self.together, self.count[row]) - block.first) * WORDS
        block.words = list(range(words))
        if into is not None:
            block.incoming = into.parts[into.taken]
        if out is not None:
            block.outgoing = [None] * words
            out.parts.append(block.outgoing)
        return True

    def _move(self, block: Block, row: int) -> bool:
        """Moves words of the current part; the last ones end it."""
        receives = bool(RECEIVES[self.op[row]])
        ready = [w for w in block.words if not receives or block.incoming[w] is not None]
        if self.unit is Unit.PART:
            chosen = ready if len(ready) == len(block.words) else []
        elif self.unit is Unit.NEXT_WORD:
            chosen = [w for w in ready[:1] if w == block.words[0]]
        else:
            chosen = [self.random.choice(ready)] if ready else []
        values = [self._value(block, row, word) for word in chosen]
        for word, value in zip(chosen, values, strict=True):
            if WRITES_DESTINATION[self.op[row]]:
                self.memory[(self.target[row] + block.first) * WORDS + word] = value
            if SENDS[self.op[row]]:
                block.outgoing[word] = value
            block.words.remove(word)
        if chosen and not block.words:
            into, _ = self._ends(row)
            if into is not None:
                into.taken += 1
            block.first += self.together
        return bool(chosen)

    def _value(self, block: Block, row: int, word: int) -> int | None:
        op = self.op[row]
        operands = []
        if RECEIVES[op]:
            operands.append(block.incoming[word])
        if READS_SOURCE[op]:
            operands.append(self.memory[(self.source[row] + block.first) * WORDS + word])
        if op == Op.REDUCE:
            operands.append(self.memory[(self.target[row] + block.first) * WORDS + word])
        # A number of its own for what holds no data: a result that depends on it is wrong.
        known = [self.random.getrandbits(60) if value is None else value for value in operands]
        return sum(known) if REDUCES[op] else known[0]

    def _compare(self) -> None:
        c = self.plan.collective
        for cell, value in zip(
            c.output_cells(self.plan.layout).tolist(), c.expected.tolist(), strict=True
        ):
            if value == NONE:
                continue
            inputs = c.values[value].tolist()
            for w in range(WORDS):
                promised = sum(self.weights[k] * WORDS + w for k in inputs)
                if self.memory[cell * WORDS + w] != promised:
                    raise WrongError(f"cell {cell}")


def is_right(plan: Plan, unit: Unit, together: int, slots: int, random: Random, runs: int) -> bool:
    """Whether some runs in random orders all have the promised result; HangError if one hangs."""
    try:
        for _ in range(runs):
            Machine(plan, unit, together, slots, random).run()
    except WrongError:
        return False
    return True
