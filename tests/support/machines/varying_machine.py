"""The machine for varying counts (docs/machine.md), one execution at a time.

An oracle of its own for the verifier's rules and the compiler's waits: it knows no happens-before
order. Data are words that name their chunk and tile; tile 0 holds the number of the chunk's tiles.
"""

from __future__ import annotations

from collections import defaultdict, deque
from random import Random
from typing import NamedTuple

from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES, SENDS, WRITES_DESTINATION, LoopOrder, Op
from sley.verification.direct import pulls


class WrongRunError(Exception):
    """A run that hangs, writes outside of a chunk's memory or ends with a wrong result."""


class _Message(NamedTuple):
    """send: its instruction. cell: the first cell of pulled data, or NONE. data: others."""

    send: int
    cell: int
    data: list[object]


class VaryingMachine:
    """One run, with blocks of random speeds. tiles: for each input chunk, how many tiles it has.
    slots: of a connection."""

    def __init__(self, plan: Plan, tiles: list[int], slots: int, random: Random) -> None:
        self.plan, self.tiles, self.slots, self.random = plan, tiles, slots, random
        c, layout = plan.collective, plan.layout
        self.memory: dict[tuple[int, int], object] = {}
        self.owner: dict[int, int] = {}  # the input chunk that belongs into a cell of the caller's
        for chunk, cell in enumerate(c.input_cells(layout).tolist()):
            self.owner[cell] = chunk
            self.memory[cell, 0] = tiles[chunk]
            self.memory |= {(cell, tile): (chunk, tile) for tile in range(1, tiles[chunk] + 1)}
        for cell, value in zip(c.output_cells(layout).tolist(), c.expected.tolist(), strict=True):
            self.owner[cell] = int(c.values[value][0])
        t = plan.instructions  # as lists, which are faster than columns
        self.rank, self.op, self.count = plan.rank.tolist(), t.op.tolist(), t.count.tolist()
        self.ends = [t.send_peer.tolist(), t.recv_peer.tolist(), t.channel.tolist()]
        rows = range(len(t))
        self.source = layout.cell(plan.rank, t.src_buffer, t.src_index).tolist()
        self.target = layout.cell(plan.rank, t.dst_buffer, t.dst_index).tolist()
        self.waits = [plan.waits[row].tolist() for row in rows]
        self.fifo: dict[tuple[int, ...], deque[_Message]] = defaultdict(deque)
        self.pulls = pulls(plan)
        self.holds = [self.pulls.holds[row].tolist() for row in rows]
        self.read: set[tuple[int, int]] = set()  # the messages (send, tile) that have been received
        self.lengths: dict[int, list[int]] = {}
        self.done: set[tuple[int, int]] = set()

    @classmethod
    def check(cls, plan: Plan, tiles: list[int], random: Random, schedules: int = 20) -> None:
        """Runs in several orders, with as many slots as the plan needs. Raises WrongRunError."""
        for _ in range(schedules):
            cls(plan, tiles, plan.slots, random).run()

    @classmethod
    def check_any(cls, plan: Plan, random: Random) -> None:
        """`check` with several counts, which instances of a chunk share."""
        for most in (1, 3):
            tiles = [random.randint(0, most) for _ in plan.collective.initial]
            cls.check(plan, tiles, random, schedules=4)

    def run(self) -> None:
        """Runs to the end. Raises WrongRunError."""
        queues = [deque(self._executions(k)) for k in range(len(self.plan.block_rank))]
        speed = [self.random.choice([1.0, 1.0, 0.01]) for _ in queues]
        while any(queues):
            ready = [k for k, queue in enumerate(queues) if queue and self._is_ready(*queue[0])]
            if not ready:
                raise WrongRunError("hang")
            (block,) = self.random.choices(ready, [speed[k] for k in ready])
            self._execute(*queues[block].popleft())
        for cell in self.plan.collective.output_cells(self.plan.layout).tolist():
            chunk = self.owner[cell]
            for tile in range(1, self.tiles[chunk] + 1):
                if self.memory.get((cell, tile)) != (chunk, tile):
                    raise WrongRunError(
                        f"result: {self.memory.get((cell, tile))}, not {(chunk, tile)}"
                    )

    def _executions(self, block: int) -> list[tuple[int, int]]:
        """The executions of a block."""
        rows = range(int(self.plan.block_offset[block]), int(self.plan.block_offset[block + 1]))
        tiles = range(max(self.tiles, default=0) + 1)
        if self.plan.loop_order is LoopOrder.TILE:
            return [(row, tile) for tile in tiles for row in rows]
        return [(row, tile) for row in rows for tile in tiles]

    def _moves(self, row: int, tile: int) -> bool:
        return tile == 0 or tile <= max(self.lengths[row], default=0)

    def _is_ready(self, row: int, tile: int) -> bool:
        if any((other, tile) not in self.done for other in self.waits[row]):
            return False
        for send in self.holds[row]:
            if (send, tile) not in self.read and self._moves(send, tile):
                return False
        if not self._moves(row, tile):
            return True
        if RECEIVES[self.op[row]] and not self.fifo[self._incoming(row)]:
            return False
        return not SENDS[self.op[row]] or len(self.fifo[self._outgoing(row)]) < self.slots

    def _outgoing(self, row: int) -> tuple[int, ...]:
        return self.rank[row], self.ends[0][row], self.ends[2][row]

    def _incoming(self, row: int) -> tuple[int, ...]:
        return self.ends[1][row], self.rank[row], self.ends[2][row]

    def _execute(self, row: int, tile: int) -> None:
        self.done.add((row, tile))
        op = self.op[row]
        if op == Op.NOP:
            self.lengths.setdefault(row, [])
            return
        if not self._moves(row, tile):
            return
        if RECEIVES[op]:
            send, cell, data = self.fifo[self._incoming(row)].popleft()
            self.read.add((send, tile))
            if cell != NONE:
                data = self._load(cell, row, tile)
        else:
            data = self._load(self.source[row], row, tile)
        if tile == 0:
            if not all(isinstance(length, int) for length in data):
                raise WrongRunError("the length of nothing")
            self.lengths[row] = [int(length) for length in data]  # type: ignore[call-overload]
        if WRITES_DESTINATION[op]:
            for part in range(self.count[row]):
                self._write(self.target[row] + part, tile, data[part], self.lengths[row][part])
        if SENDS[op]:
            cell = NONE
            if self.pulls.pulled[row]:
                rank, buffer, index = self.rank[row], self.pulls.buffer[row], self.pulls.index[row]
                cell = int(self.plan.layout.cell(rank, buffer, index))
            self.fifo[self._outgoing(row)].append(_Message(row, cell, data))

    def _load(self, cell: int, row: int, tile: int) -> list[object]:
        return [self.memory.get((cell + part, tile)) for part in range(self.count[row])]

    def _write(self, cell: int, tile: int, value: object, length: int) -> None:
        if tile > length:
            return
        owner = self.owner.get(cell)
        if owner is not None and tile > self.tiles[owner]:
            raise WrongRunError(f"tile {tile} outside of {self.plan.layout.name(cell)}")
        self.memory[cell, tile] = value
