"""Waits: what blocks of a rank must wait for, and nothing that is implied (MSCCLang 5.2)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.tables import NONE, Edges, LongArray
from sley.passes.blocks import Blocks

SEARCH = 64
"""How many edges a search over messages follows before it gives up, so that it does not grow with
the plan; a wait that only a longer way implies is kept."""


def assign_waits(dag: InstructionDag, order: Order, blocks: Blocks, row: LongArray) -> Edges:
    """Waits between blocks of a rank, as rows of the plan (`row`: of each row of the order).

    One for each dependency that nothing else implies: not the order of the blocks, not other waits
    (exactly), not messages by way of other ranks (by a search of `SEARCH` edges).
    """
    before, after = _candidates(dag, order, blocks)
    kept = _Clocks(blocks).irredundant(before, after)
    kept = _Messages(dag, order, blocks).irredundant(kept)
    pairs = np.array(kept, np.int64).reshape(-1, 2)
    return Edges.from_pairs(len(order), row[pairs[:, 1]], row[pairs[:, 0]])


def _candidates(dag: InstructionDag, order: Order, blocks: Blocks) -> tuple[list[int], list[int]]:
    """Dependencies between blocks as rows of the order (before, after), by ascending `after`, and
    there by descending `before`: so whatever implies a wait comes before it."""
    at = _instruction_of_halves(dag, order)
    d = dag.chunks.dependencies
    before = at[2 * d.before.astype(np.int64) + d.before_at_dst]
    after = at[2 * d.after.astype(np.int64) + d.after_at_dst]
    block = blocks.instruction_block.astype(np.int64)
    across = block[before] != block[after]
    before, after = before[across], after[across]
    # Of several instructions of one block, waiting for the latest is enough.
    key = after * len(blocks.rank) + block[before]
    sort = np.lexsort((before, key))
    last = np.append(key[sort][1:] != key[sort][:-1], True)[: len(sort)]
    before, after = before[sort][last], after[sort][last]
    sort = np.lexsort((-before, after))
    return before[sort].tolist(), after[sort].tolist()


def _instruction_of_halves(dag: InstructionDag, order: Order) -> LongArray:
    """int64 (2 * transfers,): the row of the order that does each half of a transfer."""
    at = np.full(2 * len(dag.forward), NONE)
    rows = np.arange(len(order))
    sends, receives = order.send != NONE, order.receive != NONE
    at[2 * order.send[sends].astype(np.int64)] = rows[sends]
    at[2 * order.receive[receives].astype(np.int64) + 1] = rows[receives]
    local = np.flatnonzero(~dag.remote)
    at[2 * local] = at[2 * local + 1]
    return at


class _Clocks:
    """Vector clocks within each rank: known[b][c] is up to which row of block c block b has surely
    waited. What a block learns is logged, with the row from which it knows it, and whoever waits
    for it reads on from where it read last."""

    def __init__(self, blocks: Blocks) -> None:
        self._block_of = blocks.instruction_block.tolist()
        self._known: list[dict[int, int]] = [{} for _ in blocks.rank]
        self._log: list[list[tuple[int, int, int]]] = [[] for _ in blocks.rank]
        self._read: dict[tuple[int, int], int] = {}

    def irredundant(self, before: list[int], after: list[int]) -> list[tuple[int, int]]:
        """The candidates that those kept so far don't imply."""
        kept = []
        for earlier, later in zip(before, after, strict=True):
            here, there = self._block_of[later], self._block_of[earlier]
            if self._known[here].get(there, NONE) < earlier:
                self._learn(here, later, there, earlier)
                self._read_on(here, later, there, earlier)
                kept.append((earlier, later))
        return kept

    def _learn(self, here: int, later: int, block: int, row: int) -> None:
        if self._known[here].get(block, NONE) < row:
            self._known[here][block] = row
            self._log[here].append((later, block, row))

    def _read_on(self, here: int, later: int, there: int, earlier: int) -> None:
        """Learns what block `there` knew at row `earlier`."""
        log, position = self._log[there], self._read.get((here, there), 0)
        while position < len(log) and log[position][0] <= earlier:
            self._learn(here, later, *log[position][1:])
            position += 1
        self._read[here, there] = position


class _Messages:
    """The happens-before order over all ranks, as far as `SEARCH` edges reach."""

    def __init__(self, dag: InstructionDag, order: Order, blocks: Blocks) -> None:
        self._block_of = blocks.instruction_block.tolist()
        # Edges into each block, ascending: the rows at which they arrive and where they come from.
        self._arrive: list[list[int]] = [[] for _ in blocks.rank]
        self._come: list[list[int]] = [[] for _ in blocks.rank]
        self._sender = np.full(len(order), NONE)
        receives = np.flatnonzero((order.receive != NONE) & dag.remote[order.receive])
        sent_at = np.full(len(dag.forward), NONE)
        sends = np.flatnonzero(order.send != NONE)
        sent_at[order.send[sends]] = sends
        self._sender[receives] = sent_at[order.receive[receives]]

    def irredundant(self, candidates: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The candidates (ascending by their second) that no way over other ranks implies."""
        kept = []
        sender, row = self._sender.tolist(), 0
        for earlier, later in candidates:
            while row <= later:
                if sender[row] != NONE:
                    self._add(sender[row], row)
                row += 1
            if not self._reaches(earlier, later):
                kept.append((earlier, later))
                self._add(earlier, later)
        return kept

    def _add(self, source: int, target: int) -> None:
        block = self._block_of[target]
        self._arrive[block].append(target)
        self._come[block].append(source)

    def _reaches(self, goal: int, start: int) -> bool:
        """Whether row `goal` happens before row `start`. Nothing before the goal in the order can
        happen after it, so the search stays between the two."""
        goal_block = self._block_of[goal]
        passed: dict[int, int] = {}
        stack, left = [start], SEARCH
        while stack and left:
            row = stack.pop()
            block = self._block_of[row]
            if block == goal_block and row >= goal:
                return True
            low = max(passed.get(block, goal), goal)
            if row <= low:
                continue
            passed[block] = row
            arrive, come = self._arrive[block], self._come[block]
            for k in range(bisect_right(arrive, low), bisect_right(arrive, row)):
                if come[k] >= goal:
                    stack.append(come[k])
                    left -= 1
                    if not left:
                        break
        return False
