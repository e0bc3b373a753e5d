"""Waits: the waits between blocks of a rank, without redundant ones (MSCCLang 5.2)."""

from __future__ import annotations

import numpy as np

from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.extension import load
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, offsets_of, sorted_rows

SEARCH = 256
"""Edges that a search follows before it gives up, so that its cost does not grow with the plan; a
wait that only a longer path implies is kept."""


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
    sender = np.full(len(order), NONE, np.int32)  # of the message that each row receives
    if not dag.chunks.program.collective.varies:
        receives = dag.receives(order)
        sender[receives] = at[2 * order.receive[receives]]
    # Each search depends on the waits kept before it, so the loop is native.
    needed = load("sley.ir._graphs").needed_waits(
        SEARCH,
        before=before,
        after=after,
        aligned=aligned,
        block=blocks.instruction_block,
        sender=sender,
    )
    chosen = needed == 1
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
