"""Waits: the waits between blocks of a rank, without redundant ones (MSCCLang 5.2)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.loops import Loop
from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, offsets_of, sorted_rows

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
        np.stack([block, sender, sender, sender], axis=1).ravel(),
        _Incoming.empty(np.bincount(block[after], minlength=count)),
        _Incoming.empty(np.bincount(block[arrives], minlength=count)),
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
    dag: InstructionDag, order: Order, blocks: Blocks, at: IntArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """Dependencies between blocks as rows of the order (before, after), by ascending `after`, then
    by descending `before`: so the waits that imply a wait come before it. And whether the chunks
    that both access have one place in both.

    at: int32 (2 * transfers,), `Order.row_of_half`.
    """
    program, block = dag.chunks.program, blocks.instruction_block
    ends = np.stack([program.source_cells, program.destination_cells], axis=1).ravel()
    earlier, later = dag.chunks.half_pairs()
    before, after, moved = at[earlier], at[later], ends[earlier] != ends[later]
    own, other = block[after], block[before]
    across = own != other
    before, after, moved = before[across], after[across], moved[across]
    # Dependencies are within a rank, so few bits tell the blocks apart.
    place = other[across] - offsets_of(np.bincount(blocks.rank))[blocks.rank[own[across]]]
    # Of several instructions of one block, only the latest needs a wait. Of several dependencies on
    # that one, one that isn't aligned decides.
    after, place, before, moved = sorted_rows(after, place, before, moved)
    last = np.ones(len(after), bool)
    last[:-1] = (after[1:] != after[:-1]) | (place[1:] != place[:-1])
    after, behind, moved = sorted_rows(after[last], len(order) - before[last], moved[last])
    return (len(order) - behind).astype(np.int32), after.astype(np.int32), ~moved


def _senders(dag: InstructionDag, order: Order, at: IntArray) -> IntArray:
    """int32 (rows,): the row that sends the message that each row receives, or NONE. at: as for
    `_candidates`."""
    sender = np.full(len(order), NONE, np.int32)
    receives = dag.receives(order)
    sender[receives] = at[2 * order.receive[receives]]
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
    """Edges into blocks, added row by row of the order: those into block b are the edges room[b] to
    end[b] - 1, by ascending row.

    ends: int32 (2 * edges,), the target and the source of each edge, rows of the order.
    room: int64 (blocks + 1,), where each block's edges begin. end: int32 (blocks,), where they end
    so far.
    """

    ends: IntArray
    room: LongArray
    end: IntArray

    @classmethod
    def empty(cls, counts: NDArray[Any]) -> _Incoming:
        """No edges yet, and room for `counts` edges into each block."""
        room = offsets_of(counts)
        return cls(np.zeros(2 * int(room[-1]), np.int32), room, room[:-1].astype(np.int32))


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
    edges.ends[2 * place] = row
    edges.ends[2 * place + 1] = source
    edges.end[block] = place + 1


def _follow(
    edges: _Incoming,
    end: int,
    block: int,
    low: int,
    goal: int,
    stack: IntArray,
    height: int,
    left: int,
) -> tuple[int, int]:
    """Pushes the sources, from the goal on, of the edges before `end` into rows from `low` + 1 on
    of a block. Returns the height of the stack, and how many more edges the search may follow."""
    ends, room, _ = edges
    first = end
    begin = room[block]
    # Edges into `low` and before were searched. An early end only keeps a wait that is redundant.
    while first > begin and left > 0 and ends[2 * first - 2] > low:
        first -= 1
        left -= 1
    for edge in range(first, end):
        source = ends[2 * edge + 1]
        if source >= goal:
            stack[height] = source
            height += 1
    return height, left


def _implied(
    goal: int,
    start: int,
    number: int,
    by_messages: bool,
    rows: IntArray,
    waits: _Incoming,
    messages: _Incoming,
    search: _Search,
) -> bool:
    """Whether the order in blocks and the waits, and if `by_messages` the messages, imply that row
    `start` comes after row `goal`, as far as search number `number` finds out."""
    limit, passed_in, passed, stack = search
    stack[0] = start
    height, left = 1, limit
    goal_block = rows[4 * goal]
    # Rows before the goal can't come after it, so the search stays between `goal` and `start`.
    while height > 0 and left > 0:
        height -= 1
        at = stack[height]
        own = rows[4 * at]
        if own == goal_block:
            return True
        low = goal
        if passed_in[own] == number and passed[own] > low:
            low = passed[own]
        if at <= low:
            continue
        passed_in[own] = number
        passed[own] = at
        height, left = _follow(waits, rows[4 * at + 2], own, low, goal, stack, height, left)
        if by_messages:
            height, left = _follow(messages, rows[4 * at + 3], own, low, goal, stack, height, left)
    return False


def _passed_on(goal: int, start: int, rows: IntArray) -> bool:
    """Whether row `goal` sent the message that row `start` receives, and other ranks passed it
    on."""
    at = start
    while at > goal:  # a message is sent by an earlier row
        at = rows[4 * at + 1]
    return at == goal


@Loop
def _keep(
    candidates: _Candidates,
    rows: IntArray,
    waits: _Incoming,
    messages: _Incoming,
    search: _Search,
) -> None:
    """Marks the candidates that the candidates kept before them don't imply.

    rows: int32 (4 * rows,), of each row of the order its block, its sender (`_senders`), and room
    for the values of `end` of its block's waits and messages right after it. waits, messages:
    empty.
    """
    before, after, aligned, kept = candidates
    row = 0
    number = 0
    for candidate in range(len(before)):
        goal, start = before[candidate], after[candidate]
        # Candidates ascend by `after`: every edge that a path into `start` can use is known by now.
        while row <= start:
            own = rows[4 * row]
            if rows[4 * row + 1] != NONE:
                _add(messages, own, row, rows[4 * row + 1])
            rows[4 * row + 2] = waits.end[own]
            rows[4 * row + 3] = messages.end[own]
            row += 1
        # Most redundant waits are implied by the rank's own waits, so these are searched first.
        number += 2
        if not (
            _implied(goal, start, number - 1, False, rows, waits, messages, search)
            or (
                (aligned[candidate] or not _passed_on(goal, start, rows))
                and _implied(goal, start, number, True, rows, waits, messages, search)
            )
        ):
            kept[candidate] = 1
            _add(waits, rows[4 * start], start, goal)
            rows[4 * start + 2] = waits.end[rows[4 * start]]
