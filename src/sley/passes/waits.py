"""Waits: what blocks of a rank must wait for, and nothing that is implied (MSCCLang 5.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.tables import NONE, Edges, IntArray, LongArray, offsets_of, ordered_by
from sley.passes.loops import Loop

SEARCH = 256
"""How many edges a search over messages follows before it gives up, so that it does not grow with
the plan; a wait that only a longer way implies is kept."""


def assign_waits(dag: InstructionDag, order: Order, blocks: Blocks, row: LongArray) -> Edges:
    """Waits between blocks of a rank, as rows of the plan (`row`: of each row of the order).

    One for each dependency that nothing else implies: neither the order of the blocks, nor other
    waits, nor messages by way of other ranks, as far as a search of `SEARCH` edges sees.
    """
    before, after = _candidates(dag, order, blocks)
    block = blocks.instruction_block
    sender = _senders(dag, order)
    arrives, count = sender != NONE, len(blocks.rank)
    kept = np.zeros(len(before), np.int8)
    _keep(
        len(order),
        _Candidates(before, after, kept),
        block,
        sender,
        _Incoming.empty(np.bincount(block[after], minlength=count), len(order)),
        _Incoming.empty(np.bincount(block[arrives], minlength=count), len(order)),
        _Search(
            SEARCH,
            np.zeros(count, np.int64),
            np.zeros(count, np.int32),
            np.zeros(2 * SEARCH + 1, np.int32),
        ),
    )
    chosen = kept == 1
    return Edges.from_pairs(len(order), row[after[chosen]], row[before[chosen]])


def _candidates(dag: InstructionDag, order: Order, blocks: Blocks) -> tuple[IntArray, IntArray]:
    """Dependencies between blocks as rows of the order (before, after), by ascending `after`, and
    there by descending `before`: so whatever implies a wait comes before it."""
    at = order.row_of_half(len(dag.forward))
    d = dag.chunks.dependencies
    before = at[2 * d.before.astype(np.int64) + d.before_at_dst]
    after = at[2 * d.after.astype(np.int64) + d.after_at_dst]
    block = blocks.instruction_block.astype(np.int64)
    across = block[before] != block[after]
    before, after = before[across], after[across]
    # Of several instructions of one block, waiting for the latest is enough.
    key = after * len(blocks.rank) + block[before]
    sort = ordered_by(key, before)
    last = np.append(key[sort][1:] != key[sort][:-1], True)[: len(sort)]
    before, after = before[sort][last], after[sort][last]
    sort = ordered_by(after, len(order) - before)
    return before[sort].astype(np.int32), after[sort].astype(np.int32)


def _senders(dag: InstructionDag, order: Order) -> IntArray:
    """int32 (rows,): the row that sends what each row receives, NONE where it receives nothing."""
    sent_at, sender = np.full(len(dag.forward), NONE), np.full(len(order), NONE, np.int32)
    sends = np.flatnonzero(order.send != NONE)
    sent_at[order.send[sends]] = sends
    receives = np.flatnonzero((order.receive != NONE) & dag.remote[order.receive])
    sender[receives] = sent_at[order.receive[receives]]
    return sender


class _Candidates(NamedTuple):
    """Waits that may be needed, by ascending `after`, as rows of the order: `after` waits for
    `before`. kept: 1 for those that are; 0 at first."""

    before: IntArray
    after: IntArray
    kept: NDArray[np.int8]


class _Incoming(NamedTuple):
    """The edges into blocks that are found as the search goes through the rows of the order: those
    into block b are at room[b] to end[b] - 1 of `row` and `source`, by ascending row.

    row, source: the row at which each edge arrives, and the one that it comes from.
    room: int64 (blocks + 1,), where each block's edges begin. end: int64 (blocks,), where they end
    so far. upto: int64 (rows,), where those end that arrive up to each row.
    """

    row: IntArray
    source: IntArray
    room: LongArray
    end: LongArray
    upto: LongArray

    @classmethod
    def empty(cls, counts: NDArray[Any], rows: int) -> _Incoming:
        """Room for `counts` edges into each block, none of them found so far."""
        room = offsets_of(counts)
        row, source = np.zeros((2, int(room[-1])), np.int32)
        return cls(row, source, room, room[:-1].copy(), np.zeros(rows, np.int64))


class _Search(NamedTuple):
    """What searches need beside the edges.

    limit: how many edges a search follows. stack: room for the rows that it comes to.
    passed[b]: the highest row of block b that search number passed_in[b] has come through; 0 is no
    search.
    """

    limit: int
    passed_in: LongArray
    passed: IntArray
    stack: IntArray


def _note(edges: _Incoming, block: int, row: int, source: int) -> None:
    """Adds an edge from `source` into `row` of a block."""
    place = edges.end[block]
    edges.row[place] = row
    edges.source[place] = source
    edges.end[block] = place + 1


def _follow(
    edges: _Incoming,
    at: int,
    block: int,
    low: int,
    goal: int,
    stack: IntArray,
    height: int,
    left: int,
) -> tuple[int, int]:
    """Puts on the stack where edges come from that arrive in a block up to row `at` and after row
    `low`, as far as that is not before the goal. The height of the stack, and how many more edges
    the search may follow."""
    row, source, room, _, upto = edges
    first = end = upto[at]
    begin = room[block]
    while first > begin and left > 0 and row[first - 1] > low:
        first -= 1
        left -= 1
    for edge in range(first, end):
        if source[edge] >= goal:
            stack[height] = source[edge]
            height += 1
    return height, left


def _implied(
    goal: int,
    start: int,
    number: int,
    kinds: int,
    block: IntArray,
    waits: _Incoming,
    messages: _Incoming,
    search: _Search,
) -> bool:
    """Whether row `start` comes after row `goal` by the order of blocks and the waits, and with 2
    `kinds` by the messages too, as far as search number `number` sees."""
    limit, passed_in, passed, stack = search
    stack[0] = start
    height, left = 1, limit
    # Nothing before the goal in the order can happen after it: the search stays between.
    while height > 0 and left > 0:
        height -= 1
        at = stack[height]
        own = block[at]
        if own == block[goal] and at >= goal:
            return True
        low = goal
        if passed_in[own] == number and passed[own] > low:
            low = passed[own]
        if at <= low:
            continue
        passed_in[own] = number
        passed[own] = at
        height, left = _follow(waits, at, own, low, goal, stack, height, left)
        if kinds == 2:
            height, left = _follow(messages, at, own, low, goal, stack, height, left)
    return False


@Loop
def _keep(
    candidates: _Candidates,
    block: IntArray,
    sender: IntArray,
    waits: _Incoming,
    messages: _Incoming,
    search: _Search,
) -> None:
    """Marks the candidates that those kept so far don't imply.

    block, sender: of each row of the order, see `_senders`. waits, messages, search: empty at
    first.
    """
    before, after, kept = candidates
    row = 0
    number = 0
    for candidate in range(len(before)):
        goal, start = before[candidate], after[candidate]
        while row <= start:
            own = block[row]
            if sender[row] != NONE:
                _note(messages, own, row, sender[row])
            messages.upto[row] = messages.end[own]
            waits.upto[row] = waits.end[own]
            row += 1
        # Mostly the waits of the rank imply it, so those are searched first.
        found = False
        for kinds in range(1, 3):
            if not found:
                number += 1
                found = _implied(goal, start, number, kinds, block, waits, messages, search)
        if not found:
            kept[candidate] = 1
            _note(waits, block[start], start, goal)
            waits.upto[start] = waits.end[block[start]]
