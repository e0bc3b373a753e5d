"""Memory: the cells of a one-sided machine, and the ranges of them that moves access."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from sley.ir.one_sided import OneSidedPlan
from sley.ir.tables import NONE
from sley.ir.words import Buffer
from sley.verification.values import Values

PLAIN, DATA, FLAG = 0, 1, 2
"""What a cell holds: plain data, or the first or the second half of a packet."""


@dataclass(frozen=True)
class Range:
    """A range of a move. cell: its first cell in copy 0. size: chunks of a copy of the scratch, 0
    in other buffers. switched: whether a switch accesses it."""

    rank: int
    cell: int
    count: int
    packet: bool
    size: int
    switched: bool

    def cells(self, copy: int) -> np.ndarray:
        """The cells of its chunks, of packets the first halves."""
        return np.arange(self.count) * (1 + self.packet) + self.cell + self.size * copy


Moves = dict[int, list[tuple[list[Range], list[Range]]]]
"""By operation, its moves: their sources and their destinations."""


class Memory:
    """The cells: what they hold, their last writes, the reads since, and who has waited for the
    packets there (`waiters`)."""

    def __init__(self, cells: int) -> None:
        self.values = Values.nothing(cells)
        self.kind = np.zeros(cells, np.int8)
        self.call = np.full(cells, NONE, np.int64)
        self.move = np.full(cells, NONE, np.int64)
        self.place = np.zeros(cells, np.int64)  # of the chunk among those of the move
        self.agent = np.zeros(cells, np.int64)
        self.epoch = np.full(cells, NONE, np.int64)
        self.reads: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (move, place)
        self.waiters: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (agent, epoch)


def moves_of(plan: OneSidedPlan) -> Moves:
    """The moves of all operations."""
    r, first = plan.ranges, plan.first_cells
    found: dict[int, dict[int, tuple[list[Range], list[Range]]]] = defaultdict(dict)
    for k in range(len(r)):
        rank = int(r.rank[k])
        size = int(plan.scratch_chunks[rank]) if r.buffer[k] == Buffer.SCRATCH else 0
        item = Range(
            rank, int(first[k]), int(r.count[k]), bool(r.packet[k]), size, bool(r.switched[k])
        )
        sides = found[int(r.operation[k])].setdefault(int(r.move[k]), ([], []))
        sides[int(r.writes[k])].append(item)
    return {row: list(moves.values()) for row, moves in found.items()}


def user_cells(plan: OneSidedPlan) -> list[np.ndarray]:
    """By rank, the cells of its input and output."""
    layout = plan.layout
    return [
        np.unique(
            np.concatenate(
                [
                    np.arange(layout.size[buffer, rank]) + layout.base[buffer, rank]
                    for buffer in (Buffer.INPUT, Buffer.OUTPUT)
                ]
            )
        )
        for rank in range(plan.collective.ranks)
    ]
