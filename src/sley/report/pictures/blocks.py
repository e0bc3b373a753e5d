"""Pictures of thread-block programs: the instructions of each block of each rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from sley.ir.plan import Plan
from sley.report.pictures.canvas import (
    BAND,
    GREY,
    INK,
    MARGIN,
    WHITE,
    Box,
    Fill,
    Line,
    Picture,
    Point,
    TextLine,
    box_size,
    check_size,
    heading,
    joined,
    text_height,
    text_width,
)
from sley.report.pictures.grid import take_track
from sley.report.pictures.words import (
    WAIT,
    block_peers,
    check_plan,
    instruction_fill,
    instruction_text,
    rank_mask,
    used_fills,
)

_PAGE_WIDTH = 14.0
"""The width in inches after which a new row of ranks begins."""
_RANK_PAD, _RANK_GAP = 0.1, 0.2
_ROW_GAP, _TRACK = 0.08, 0.06
_GUTTER = 0.12
_WAIT = replace(WAIT, port=0.0, width_pt=0.8)
_HEAD_FILL = Fill("", WHITE, INK, 0.8)


@dataclass(frozen=True)
class _Wait:
    """An arrow between two columns of a rank.

    id: its id in an SVG.
    source, target: column and row.
    """

    id: str
    source: tuple[int, int]
    target: tuple[int, int]

    @property
    def gutters(self) -> tuple[int, int]:
        """The gaps beside the source's column and the target's column, on the sides that face each
        other. Gap c is at the left of column c."""
        a, b = self.source[0], self.target[0]
        return (a + 1, b) if b > a else (a, b + 1)

    @property
    def rows(self) -> tuple[int, int]:
        """The rows that it spans, ascending."""
        low, high = sorted((self.source[1], self.target[1]))
        return low, high


def block_picture(plan: Plan, ranks: Collection[int] | None = None) -> Picture:
    """The thread-block programs of a plan (MSCCLang, figure 4): a frame for each rank, a column for
    each block with its peers and channels in the head, a box for each instruction in the order of
    execution, and for each wait an arrow from the instruction that must finish first.

    ranks: the ranks to draw, by default all.
    Ids in an SVG: rank-R, block-R-B, instruction-I, wait-I-J. Errors: P801, V201.
    """
    check_plan(plan)
    chosen = rank_mask(ranks, plan.collective.ranks)
    rows = int(chosen[plan.rank].sum())
    waits = int(chosen[plan.rank[plan.waits.source]].sum())
    check_size("instructions", rows, "waits", waits)
    check_size("thread blocks", int(chosen[plan.block_rank].sum()), "waits", waits)
    drawn = [_rank_picture(plan, rank) for rank in np.flatnonzero(chosen).tolist()]
    fills = used_fills(plan.instructions.op[chosen[plan.rank]])
    head = heading(f"{plan.name}: thread blocks", [*fills, *([_WAIT] if waits else [])])
    width, parts = head.width, []
    x, y, tallest = MARGIN, MARGIN + 0.6, 0.0
    for part in drawn:
        if x > MARGIN and x + part.width > _PAGE_WIDTH:
            x, y, tallest = MARGIN, y + tallest + _RANK_GAP, 0.0
        parts.append(_shift(part, x, y))
        x += part.width + _RANK_GAP
        width, tallest = max(width, x - _RANK_GAP), max(tallest, part.height)
    return joined(head, width, y + tallest, parts)


def _rank_picture(plan: Plan, rank: int) -> Picture:
    """The picture of one rank, with its upper left corner at the origin."""
    blocks = range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1]))
    offset = plan.block_offset
    rows = range(int(offset[blocks.start]), int(offset[blocks.stop]))
    texts = {row: instruction_text(plan, row) for row in rows}
    heads = {block: _head(plan, block) for block in blocks}
    waits = _waits(plan, rank)
    tracks, gaps, above = _tracks(waits)
    head_height = text_height(4) + 0.08
    box_height = max((box_size(text)[1] for text in texts.values()), default=0.0)
    left, right = [], []
    x = _RANK_PAD
    for column, block in enumerate(blocks):
        # The width of a gap between columns.
        x += 2 * _GUTTER + max(len(gaps[column]) - 1, 0) * _TRACK if column else 0.0
        span = range(int(offset[block]), int(offset[block + 1]))
        widest = max(box_size(text)[0] for text in [heads[block], *(texts[r] for r in span)])
        left.append(x)
        x += widest
        right.append(x)
    longest = max((int(plan.step[row]) for row in texts), default=-1) + 1
    top = []
    y = _RANK_PAD + text_height() + 0.06 + head_height + 0.04
    for step in range(longest):
        y += _ROW_GAP + len(above[step]) * _TRACK
        top.append(y)
        y += box_height
    width = max(x + _RANK_PAD, 2 * _RANK_PAD + text_width(f"rank {rank}"))
    boxes = [
        Box(
            f"block-{rank}-{column}",
            left[column],
            _RANK_PAD + text_height() + 0.06,
            right[column] - left[column],
            head_height,
            _HEAD_FILL,
            heads[block],
        )
        for column, block in enumerate(blocks)
    ]
    for row, text in texts.items():
        column, step = int(plan.block_number[plan.block[row]]), int(plan.step[row])
        fill = instruction_fill(int(plan.instructions.op[row]))
        where = (left[column], top[step], right[column] - left[column], box_height)
        boxes.append(Box(f"instruction-{row}", *where, fill, text))
    lines = [
        Line(wait.id, _route(wait, own, left, right, top, box_height), _WAIT, curved=False)
        for wait, own in zip(waits, tracks, strict=True)
    ]
    name = TextLine(_RANK_PAD, _RANK_PAD + text_height() / 2, f"rank {rank}", bold=True)
    frame = Box(f"rank-{rank}", 0.0, 0.0, width, y + _RANK_PAD, Fill("", BAND, GREY, 0.6))
    return Picture("", width, frame.height, tuple(boxes), tuple(lines), (name,), (frame,))


def _head(plan: Plan, block: int) -> tuple[str, ...]:
    sends, receives, channels = block_peers(plan, block)
    return (
        f"block {plan.block_number[block]}",
        f"from {receives}",
        f"to {sends}",
        f"channel {channels}",
    )


def _waits(plan: Plan, rank: int) -> list[_Wait]:
    """The waits of a rank between different blocks; the order within a block implies the others."""
    source, target = plan.waits.target, plan.waits.source
    found = np.flatnonzero((plan.rank[target] == rank) & (plan.block[source] != plan.block[target]))

    def place(row: int) -> tuple[int, int]:
        return int(plan.block_number[plan.block[row]]), int(plan.step[row])

    return [
        _Wait(f"wait-{source[e]}-{target[e]}", place(int(source[e])), place(int(target[e])))
        for e in found.tolist()
    ]


def _tracks(
    waits: list[_Wait],
) -> tuple[list[tuple[int, ...]], dict[int, list[int]], dict[int, list[int]]]:
    """The tracks of arrows, chosen so that no arrow covers another.

    Returns for each wait its tracks in its two gaps, and the one above its target's row if it
    passes columns; and the vertical tracks of each gap, and the horizontal ones above each row.
    """
    gaps: dict[int, list[int]] = defaultdict(list)
    above: dict[int, list[int]] = defaultdict(list)
    tracks: list[tuple[int, ...]] = [()] * len(waits)
    for number, wait in sorted(enumerate(waits), key=lambda w: (w[1].rows, w[0])):
        first, last = wait.gutters
        near = take_track(gaps[first], *wait.rows)
        if first == last:
            tracks[number] = (near, near)
            continue
        far = take_track(gaps[last], *wait.rows)
        span = sorted((first, last))
        tracks[number] = (near, far, take_track(above[wait.target[1]], span[0], span[1]))
    return tracks, gaps, above


def _route(
    wait: _Wait,
    tracks: tuple[int, ...],
    left: list[float],
    right: list[float],
    top: list[float],
    height: float,
) -> tuple[Point, ...]:
    (a, i), (b, j) = wait.source, wait.target
    forward = b > a
    near, far, *over = tracks
    first, last = (right[wait.gutters[n] - 1] + _GUTTER for n in (0, 1))
    x0, x1 = first + near * _TRACK, last + far * _TRACK
    start = (right[a] if forward else left[a], top[i] + height * (0.62 if forward else 0.8))
    end = (left[b] if forward else right[b], top[j] + height * (0.38 if forward else 0.2))
    if not over:
        return (start, (x0, start[1]), (x0, end[1]), end)
    y = top[j] - _ROW_GAP / 2 - over[0] * _TRACK
    return (start, (x0, start[1]), (x0, y), (x1, y), (x1, end[1]), end)


def _shift(part: Picture, x: float, y: float) -> Picture:
    """The picture, shifted by (x, y)."""
    return replace(
        part,
        boxes=tuple(replace(b, x=b.x + x, y=b.y + y) for b in part.boxes),
        grounds=tuple(replace(b, x=b.x + x, y=b.y + y) for b in part.grounds),
        texts=tuple(replace(t, x=t.x + x, y=t.y + y) for t in part.texts),
        lines=tuple(
            replace(line, points=tuple((px + x, py + y) for px, py in line.points))
            for line in part.lines
        ),
    )
