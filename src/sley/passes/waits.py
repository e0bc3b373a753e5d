"""Waits: what blocks of a rank must wait for, and nothing that is implied (MSCCLang 5.2)."""

from __future__ import annotations

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
    arrives = sender != NONE
    kept = np.zeros(len(before), np.int8)
    waits = np.bincount(block[after], minlength=len(blocks.rank))
    messages = np.bincount(block[arrives], minlength=len(blocks.rank))
    # The edges into each block, each block's from its own place on: rows at which they arrive, and
    # rows that they come from. The last three columns are the search's own.
    waits_room, messages_room = offsets_of(waits), offsets_of(messages)
    _keep(
        len(order),
        SEARCH,
        before,
        after,
        block,
        sender,
        waits_room[:-1].copy(),
        np.zeros(len(before), np.int32),
        np.zeros(len(before), np.int32),
        np.zeros(len(order), np.int64),
        waits_room,
        messages_room[:-1].copy(),
        np.zeros(int(messages_room[-1]), np.int32),
        np.zeros(int(messages_room[-1]), np.int32),
        np.zeros(len(order), np.int64),
        messages_room,
        np.zeros(len(blocks.rank), np.int64),
        np.zeros(len(blocks.rank), np.int32),
        np.zeros(2 * SEARCH + 1, np.int32),
        kept,
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


@Loop
def _keep(
    search: int,
    before: IntArray,
    after: IntArray,
    block: IntArray,
    sender: IntArray,
    waits_end: LongArray,
    waits_row: IntArray,
    waits_source: IntArray,
    waits_upto: LongArray,
    waits_room: LongArray,
    messages_end: LongArray,
    messages_row: IntArray,
    messages_source: IntArray,
    messages_upto: LongArray,
    messages_room: LongArray,
    passed_in: LongArray,
    passed: IntArray,
    stack: IntArray,
    kept: NDArray[np.int8],
) -> None:
    """Fills `kept`: 1 for the candidates, by ascending `after`, that those kept so far don't imply.

    The edges into block b are at x_room[b] ... x_end[b] - 1 of x_row and x_source, by ascending row
    at which they arrive; those that arrive up to row r end before x_upto[r]. passed[b] is the
    highest row of block b that search number passed_in[b] has come through; 0 is no search.
    """
    row = 0
    number = 0
    for candidate in range(len(before)):
        goal, start = before[candidate], after[candidate]
        while row <= start:
            own = block[row]
            if sender[row] != NONE:
                messages_row[messages_end[own]] = row
                messages_source[messages_end[own]] = sender[row]
                messages_end[own] += 1
            messages_upto[row] = messages_end[own]
            waits_upto[row] = waits_end[own]
            row += 1
        # Mostly the waits of the rank imply it, so those are searched first.
        found = False
        for kinds in range(1, 3):
            if found:
                break
            number += 1
            stack[0] = start
            height, left = 1, search
            # Nothing before the goal in the order can happen after it: the search stays between.
            while height > 0 and left > 0 and not found:
                height -= 1
                at = stack[height]
                own = block[at]
                if own == block[goal] and at >= goal:
                    found = True
                    break
                low = goal
                if passed_in[own] == number and passed[own] > low:
                    low = passed[own]
                if at <= low:
                    continue
                passed_in[own] = number
                passed[own] = at
                for kind in range(kinds):
                    end = waits_upto[at] if kind == 0 else messages_upto[at]
                    room = waits_room[own] if kind == 0 else messages_room[own]
                    first = end
                    if kind == 0:
                        while first > room and left > 0 and waits_row[first - 1] > low:
                            first -= 1
                            left -= 1
                    else:
                        while first > room and left > 0 and messages_row[first - 1] > low:
                            first -= 1
                            left -= 1
                    for edge in range(first, end):
                        source = waits_source[edge] if kind == 0 else messages_source[edge]
                        if source >= goal:
                            stack[height] = source
                            height += 1
        if not found:
            kept[candidate] = 1
            own = block[start]
            waits_row[waits_end[own]] = start
            waits_source[waits_end[own]] = goal
            waits_end[own] += 1
            waits_upto[start] = waits_end[own]
