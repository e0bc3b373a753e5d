"""Pictures of DAGs: a program's chunks and a plan's instructions (MSCCLang, figure 4)."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from sley.errors.verifier import V203
from sley.ir.connections import Messages
from sley.ir.dag import Dependencies
from sley.ir.dependencies import dependencies
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.tables import NONE, LongArray
from sley.ir.words import Buffer, TransferKind
from sley.report.pictures.canvas import (
    BLUE,
    GREY,
    INK,
    ORANGE,
    PALE_BLUE,
    PALE_ORANGE,
    Fill,
    Picture,
    Style,
    check_size,
)
from sley.report.pictures.grid import GridLine, GridNode, Lane, layered
from sley.report.pictures.words import (
    MESSAGE,
    ORDER,
    WAIT,
    block_peers,
    check_plan,
    instruction_fill,
    instruction_text,
    rank_mask,
    used_fills,
)

_KINDS = {
    TransferKind.COPY: Fill("copy", PALE_BLUE, BLUE),
    TransferKind.REDUCE: Fill("reduce", PALE_ORANGE, ORANGE),
}
_TRUE = Style("needs the value", INK, port=-0.05)
_FALSE = Style("reuses the place", GREY, "dashed", port=0.06)


def chunk_picture(program: Program, ranks: Collection[int] | None = None) -> Picture:
    """The chunk DAG of a program (MSCCLang 4.1): a box for each transfer, in the column of its
    depth and the lane of its destination rank; a line for each dependency.

    ranks: draws only transfers from or to these, by default all.
    Ids in an SVG: transfer-T, dependency-BEFORE-AFTER. Errors: P801.
    """
    t, chosen = program.transfers, rank_mask(ranks, program.collective.ranks)
    shown = np.flatnonzero(chosen[t.src] | chosen[t.dst])
    before, after, true = _pairs(dependencies(program).dependencies)
    depth = levels(len(t), before, after)
    seen = np.isin(before, shown) & np.isin(after, shown)
    check_size("transfers", len(shown), "dependencies", int(seen.sum()))
    # A part of the program has the order of its depths without empty columns.
    columns = np.searchsorted(np.unique(depth[shown]), depth[shown])
    targets = np.unique(t.dst[shown])
    nodes = []
    for row, column in zip(shown.tolist(), columns.tolist(), strict=True):
        i = t[row]
        source = Buffer(i.src_buffer).chunks(i.src_index, i.count)
        target = Buffer(i.dst_buffer).chunks(i.dst_index, i.count)
        text = f"{i.src} {source} → {i.dst} {target}"
        fill = _KINDS[TransferKind(i.kind)]
        lane = int(np.searchsorted(targets, i.dst))
        nodes.append(GridNode(f"transfer-{row}", column, lane, (fill.word, text), fill))
    place = np.searchsorted(shown, np.column_stack((before, after))[seen]).tolist()
    links = [
        GridLine(f"dependency-{shown[b]}-{shown[a]}", b, a, _TRUE if by_value else _FALSE)
        for (b, a), by_value in zip(place, true[seen].tolist(), strict=True)
    ]
    lanes = [Lane("", f"rank {rank}") for rank in targets.tolist()]
    kinds = [fill for kind, fill in _KINDS.items() if (t.kind[shown] == kind).any()]
    entries: list[Fill | Style] = [*kinds, *dict.fromkeys(link.style for link in links)]
    return layered(f"{program.name}: chunk DAG", lanes, nodes, links, entries)


def _pairs(found: Dependencies) -> tuple[LongArray, LongArray, LongArray]:
    """The pairs of dependent transfers: (before, after, 1 if `after` needs the value)."""
    order = np.lexsort((-found.true, found.after, found.before))
    pairs = np.column_stack((found.before, found.after))[order].astype(np.int64)
    keep = np.ones(len(pairs), bool)
    keep[1:] = (pairs[1:] != pairs[:-1]).any(axis=1)
    return pairs[keep, 0], pairs[keep, 1], found.true[order][keep].astype(np.int64)


def instruction_picture(plan: Plan, ranks: Collection[int] | None = None) -> Picture:
    """The instruction DAG of a plan after fusion (MSCCLang 4.2, 4.3, 5.2): a box for each
    instruction, in the lane of its block, to the right of all its predecessors; lines to the next
    instruction of the block, from send to receive, and for waits.

    ranks: the ranks to draw, by default all.
    Ids in an SVG: instruction-I, order-I-J, message-I-J, wait-I-J. Errors: P801, V203, V201.
    """
    check_plan(plan)
    chosen = rank_mask(ranks, plan.collective.ranks)[plan.rank]
    shown = np.flatnonzero(chosen)
    messages, follows = Messages.of(plan), np.flatnonzero(plan.step > 0)
    kinds = {
        "order": (ORDER, np.column_stack((follows - 1, follows))),
        "message": (MESSAGE, np.column_stack((messages.send, messages.receive))),
        "wait": (WAIT, np.column_stack((plan.waits.target, plan.waits.source)).astype(np.int64)),
    }
    every = np.concatenate([pairs for _, pairs in kinds.values()])
    column = levels(len(plan.instructions), every[:, 0], every[:, 1])
    if (column == NONE).any():
        row = int(np.argmax(column == NONE))
        found = f"{int((column == NONE).sum())} without order, {plan.label(row)} among them"
        raise V203.error(
            expected="instructions that can be ordered",
            found=found,
            remedy="Call sley.verify(plan) to see which instructions wait for one another, "
            "and draw the thread blocks, which need no order.",
        )
    visible = {
        word: (style, pairs[chosen[pairs].all(axis=1)]) for word, (style, pairs) in kinds.items()
    }
    drawn = sum(len(pairs) for _, pairs in visible.values())
    check_size("instructions", len(shown), "lines", drawn)
    columns = np.searchsorted(np.unique(column[shown]), column[shown]).tolist()
    blocks = np.unique(plan.block[shown])
    lane = np.searchsorted(blocks, plan.block[shown]).tolist()
    nodes = []
    for row, at, number in zip(shown.tolist(), columns, lane, strict=True):
        fill = instruction_fill(int(plan.instructions.op[row]))
        nodes.append(GridNode(f"instruction-{row}", at, number, instruction_text(plan, row), fill))
    links = [
        GridLine(
            f"{word}-{b}-{a}", int(np.searchsorted(shown, b)), int(np.searchsorted(shown, a)), s
        )
        for word, (s, pairs) in visible.items()
        for b, a in pairs.tolist()
    ]
    lanes = [_block_lane(plan, block) for block in blocks.tolist()]
    entries: list[Fill | Style] = [
        *used_fills(plan.instructions.op[shown]),
        *(style for style, pairs in visible.values() if len(pairs)),
    ]
    return layered(f"{plan.name}: instruction DAG", lanes, nodes, links, entries)


def _block_lane(plan: Plan, block: int) -> Lane:
    sends, receives, channels = block_peers(plan, block)
    number = plan.block_number[block]
    label = f"block {number}: from {receives}, to {sends}, channel {channels}"
    return Lane(label, f"rank {plan.block_rank[block]}")
