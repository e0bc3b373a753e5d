"""Waits: what blocks of a rank must wait for, and nothing that is implied (MSCCLang 5.2)."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from sley.ir.dag import InstructionDag, Order
from sley.ir.tables import NONE, Edges, LongArray
from sley.passes.blocks import Blocks

SEARCH = 256
"""How many edges a search over messages follows before it gives up, so that it does not grow with
the plan; a wait that only a longer way implies is kept."""


def assign_waits(dag: InstructionDag, order: Order, blocks: Blocks, row: LongArray) -> Edges:
    """Waits between blocks of a rank, as rows of the plan (`row`: of each row of the order).

    One for each dependency that nothing else implies: neither the order of the blocks, nor other
    waits, nor messages by way of other ranks, as far as a search of `SEARCH` edges sees.
    """
    before, after = _candidates(dag, order, blocks)
    kept = _HappensBefore(dag, order, blocks).irredundant(before, after)
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


class _HappensBefore:
    """The order that blocks, messages and the waits kept so far impose."""

    def __init__(self, dag: InstructionDag, order: Order, blocks: Blocks) -> None:
        self._block_of = blocks.instruction_block.tolist()
        self._waits, self._messages = _Arrivals(len(blocks.rank)), _Arrivals(len(blocks.rank))
        sent_at, sender = np.full(len(dag.forward), NONE), np.full(len(order), NONE)
        sends = np.flatnonzero(order.send != NONE)
        sent_at[order.send[sends]] = sends
        receives = np.flatnonzero((order.receive != NONE) & dag.remote[order.receive])
        sender[receives] = sent_at[order.receive[receives]]
        self._sender = sender.tolist()

    def irredundant(self, before: list[int], after: list[int]) -> list[tuple[int, int]]:
        """The candidates, by ascending `after`, that those kept so far don't imply."""
        kept, row = [], 0
        for earlier, later in zip(before, after, strict=True):
            while row <= later:
                if self._sender[row] != NONE:
                    self._messages.add(self._block_of[row], row, self._sender[row])
                row += 1
            # Mostly the waits of the rank imply it, so those are searched first.
            if self._reaches(earlier, later, [self._waits]):
                continue
            if not self._reaches(earlier, later, [self._waits, self._messages]):
                kept.append((earlier, later))
                self._waits.add(self._block_of[later], later, earlier)
        return kept

    def _reaches(self, goal: int, start: int, edges: list[_Arrivals]) -> bool:
        """Whether row `goal` happens before row `start`. Nothing before the goal in the order can
        happen after it, so the search stays between the two."""
        goal_block = self._block_of[goal]
        passed: dict[int, int] = {}
        stack, left = [start], SEARCH
        while stack and left > 0:
            row = stack.pop()
            block = self._block_of[row]
            if block == goal_block and row >= goal:
                return True
            low = max(passed.get(block, goal), goal)
            if row <= low:
                continue
            passed[block] = row
            for kind in edges:
                sources = kind.between(block, low, row, left)
                left -= len(sources)
                stack += [source for source in sources if source >= goal]
        return False


class _Arrivals:
    """Edges into blocks, each block's by ascending row at which they arrive."""

    def __init__(self, blocks: int) -> None:
        self._rows: list[list[int]] = [[] for _ in range(blocks)]
        self._sources: list[list[int]] = [[] for _ in range(blocks)]

    def add(self, block: int, row: int, source: int) -> None:
        self._rows[block].append(row)
        self._sources[block].append(source)

    def between(self, block: int, low: int, high: int, limit: int) -> list[int]:
        """Sources of the edges that arrive after row `low` and not after row `high`, the last
        `limit` of them."""
        rows = self._rows[block]
        end = bisect_right(rows, high)
        return self._sources[block][max(bisect_right(rows, low), end - limit) : end]
