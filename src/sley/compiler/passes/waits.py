"""Waits: the waits between blocks of a rank, without redundant ones (MSCCLang 5.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.loops import Loop
from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, offsets_of, ordered_by

SEARCH = 256
"""Edges that a search follows before it gives up, so that its cost does not grow with the plan; a
wait that only a longer path implies is kept."""

SEARCHED = 12
"""Edges that the two searches for a candidate follow on average, in large plans of the library's
algorithms: most searches end at once."""


def assign_waits(dag: InstructionDag, order: Order, blocks: Blocks, row: LongArray) -> Edges:
    """The waits between blocks of a rank, as rows of the plan.

    There is one for each dependency that neither the order in the blocks, nor other waits, nor
    messages by way of other ranks imply, as far as a search of `SEARCH` edges finds out. A message
    that other ranks pass on and send back implies no wait between chunks at different places in it:
    it may be moved in pieces (docs/machine.md). If the counts vary, messages imply nothing: they
    are left out where chunks are short.

    row: the row of the plan of each row of the order.
    """
    at = order.row_of_half(dag.chunks.program.transfers)
    before, after, aligned = _candidates(dag, order, blocks, at)
    block = blocks.instruction_block
    sender = _senders(dag, order, at)
    if dag.chunks.program.collective.varies:
        sender[:] = NONE
    arrives, count = sender != NONE, len(blocks.rank)
    kept = np.zeros(len(before), np.int8)
    _keep(
        len(order) + SEARCHED * len(before),
        _Candidates(before, after, aligned, kept),
        block,
        sender,
        _Incoming.empty(np.bincount(block[after], minlength=count), len(order)),
        _Incoming.empty(np.bincount(block[arrives], minlength=count), len(order)),
        _Search(
            SEARCH,
            np.zeros(count, np.int64),
            np.zeros(count, np.int32),
            # An edge pushes one row at most, so a search can't leave its stack.
            np.zeros(2 * SEARCH + 1, np.int32),
        ),
    )
    chosen = kept == 1
    return Edges.from_pairs(len(order), row[after[chosen]], row[before[chosen]])


def _candidates(
    dag: InstructionDag, order: Order, blocks: Blocks, at: LongArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """Dependencies between blocks as rows of the order (before, after), by ascending `after`, then
    by descending `before`: so the waits that imply a wait come before it. And whether the chunks
    that both access have one place in both.

    at: int64 (2 * transfers,), `Order.row_of_half`.
    """
    d, program = dag.chunks.dependencies, dag.chunks.program
    ends = np.stack([program.source_cells, program.destination_cells], axis=1).ravel()
    earlier = 2 * d.before.astype(np.int64) + d.before_at_dst
    later = 2 * d.after.astype(np.int64) + d.after_at_dst
    before, after, aligned = at[earlier], at[later], ends[earlier] == ends[later]
    block = blocks.instruction_block.astype(np.int64)
    across = block[before] != block[after]
    before, after, aligned = before[across], after[across], aligned[across]
    # Of several instructions of one block, only the latest needs a wait. Of several dependencies on
    # that one, one that isn't aligned decides.
    key = after * len(blocks.rank) + block[before]
    sort = ordered_by(key, 2 * before + ~aligned)
    last = np.append(key[sort][1:] != key[sort][:-1], True)[: len(sort)]
    before, after, aligned = before[sort][last], after[sort][last], aligned[sort][last]
    sort = ordered_by(after, len(order) - before)
    return before[sort].astype(np.int32), after[sort].astype(np.int32), aligned[sort]


def _senders(dag: InstructionDag, order: Order, at: LongArray) -> IntArray:
    """int32 (rows,): the row that sends the message that each row receives, or NONE. at: as for
    `_candidates`."""
    sender = np.full(len(order), NONE, np.int32)
    receives = dag.receives(order)
    sender[receives] = at[2 * order.receive[receives].astype(np.int64)]
    return sender


class _Candidates(NamedTuple):
    """Possible waits of `after` for `before`, rows of the order, by ascending `after`. aligned:
    whether the chunks that both access have one place in both. kept: 1 for those that are not
    redundant; 0 at first."""

    before: IntArray
    after: IntArray
    aligned: BoolArray
    kept: NDArray[np.int8]


class _Incoming(NamedTuple):
    """Edges into blocks, added row by row of the order: those into block b are at room[b] to
    end[b] - 1 of `row` and `source`, by ascending row.

    row, source: the target and the source of each edge, rows of the order.
    room: int64 (blocks + 1,), where each block's edges begin. end: int64 (blocks,), where they end
    so far. upto: int64 (rows,), the value of `end` for the row's block right after the row.
    """

    row: IntArray
    source: IntArray
    room: LongArray
    end: LongArray
    upto: LongArray

    @classmethod
    def empty(cls, counts: NDArray[Any], rows: int) -> _Incoming:
        """No edges yet, and room for `counts` edges into each block."""
        room = offsets_of(counts)
        row, source = np.zeros((2, int(room[-1])), np.int32)
        return cls(row, source, room, room[:-1].copy(), np.zeros(rows, np.int64))


class _Search(NamedTuple):
    """The state of searches.

    limit: how many edges a search follows. stack: room for the rows that it still has to visit.
    passed[b]: the highest row of block b visited by search number passed_in[b]; searches are
    numbered from 1.
    """

    limit: int
    passed_in: LongArray
    passed: IntArray
    stack: IntArray


def _add(edges: _Incoming, block: int, row: int, source: int) -> None:
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
    """Pushes the sources, from the goal on, of the edges into rows `low` + 1 to `at` of a block.
    Returns the height of the stack, and how many more edges the search may follow."""
    row, source, room, _, upto = edges
    first = end = upto[at]
    begin = room[block]
    # Edges into `low` and before were searched. An early end only keeps a wait that is redundant.
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
    by_messages: bool,
    block: IntArray,
    waits: _Incoming,
    messages: _Incoming,
    search: _Search,
) -> bool:
    """Whether the order in blocks and the waits, and if `by_messages` the messages, imply that row
    `start` comes after row `goal`, as far as search number `number` finds out."""
    limit, passed_in, passed, stack = search
    stack[0] = start
    height, left = 1, limit
    # Rows before the goal can't come after it, so the search stays between `goal` and `start`.
    while height > 0 and left > 0:
        height -= 1
        at = stack[height]
        own = block[at]
        if own == block[goal]:
            return True
        low = goal
        if passed_in[own] == number and passed[own] > low:
            low = passed[own]
        if at <= low:
            continue
        passed_in[own] = number
        passed[own] = at
        height, left = _follow(waits, at, own, low, goal, stack, height, left)
        if by_messages:
            height, left = _follow(messages, at, own, low, goal, stack, height, left)
    return False


def _passed_on(goal: int, start: int, sender: IntArray) -> bool:
    """Whether row `goal` sent the message that row `start` receives, and other ranks passed it
    on."""
    at = start
    while at > goal:  # a message is sent by an earlier row
        at = sender[at]
    return at == goal


@Loop
def _keep(
    candidates: _Candidates,
    block: IntArray,
    sender: IntArray,
    waits: _Incoming,
    messages: _Incoming,
    search: _Search,
) -> None:
    """Marks the candidates that the candidates kept before them don't imply.

    block: the block of each row of the order. sender: see `_senders`. waits, messages: empty.
    """
    before, after, aligned, kept = candidates
    row = 0
    number = 0
    for candidate in range(len(before)):
        goal, start = before[candidate], after[candidate]
        # Candidates ascend by `after`: every edge that a path into `start` can use is known by now.
        while row <= start:
            own = block[row]
            if sender[row] != NONE:
                _add(messages, own, row, sender[row])
            messages.upto[row] = messages.end[own]
            waits.upto[row] = waits.end[own]
            row += 1
        # Most redundant waits are implied by the rank's own waits, so these are searched first.
        number += 2
        if not (
            _implied(goal, start, number - 1, False, block, waits, messages, search)
            or (
                (aligned[candidate] or not _passed_on(goal, start, sender))
                and _implied(goal, start, number, True, block, waits, messages, search)
            )
        ):
            kept[candidate] = 1
            _add(waits, block[start], start, goal)
            waits.upto[start] = waits.end[block[start]]
