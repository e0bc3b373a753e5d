"""Pictures of programs and plans (MSCCLang, figure 4): the chunks of a program, the instructions of
a plan, and its thread blocks side by side.

The first two are directed graphs from left to right, with a column for each depth, in lanes. A line
that passes columns runs on a track below the boxes of its source's lane; lines of the same kind
from the same box share a track. So lines cross no boxes; they leave and reach boxes through the
gaps between columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sley.errors.verifier import V203
from sley.ir.connections import Messages
from sley.ir.dag import Dependencies
from sley.ir.dependencies import dependencies
from sley.ir.faults import check_tables
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.tables import NONE, BoolArray, ByteArray, LongArray, by_key
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    REDUCES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    Op,
    TransferKind,
)
from sley.report.pictures.canvas import (
    MARGIN,
    SMALL_PT,
    Box,
    Color,
    Fill,
    Line,
    Picture,
    Point,
    Style,
    TextLine,
    box_size,
    text_height,
    text_width,
)
from sley.report.tables import check_rank

_REDUCING_PT = 1.9

SEND = Fill.tinted("sends", Color.BLUE)
RECEIVE = Fill.tinted("receives", Color.GREEN)
BOTH = Fill.tinted("receives and sends", Color.PURPLE)
LOCAL = Fill.tinted("local", Color.GREY)
REDUCING = Fill("thick frame: reduces", Color.WHITE, Color.GREY, _REDUCING_PT)

ORDER = Style("next in its block", Color.GREY, width_pt=1.2)
MESSAGE = Style("message", Color.BLUE, port=-0.07)
WAIT = Style("wait", Color.ORANGE, "dashed", port=0.07)


def instruction_text(plan: Plan, row: int) -> tuple[str, ...]:
    """An instruction in lines: its operation, its operands, and its peers if it has any."""
    i = plan.instructions[row]
    read = Buffer(i.src_buffer).chunks(i.src_index, i.count) if READS_SOURCE[i.op] else ""
    written = Buffer(i.dst_buffer).chunks(i.dst_index, i.count) if WRITES_DESTINATION[i.op] else ""
    if read == written:
        operands = read or "-"
    else:
        operands = f"{read} → {written}".strip() if written else read
    peers = [f"from {_join(plan.peers(i.recv_peer))}"] if RECEIVES[i.op] else []
    peers += [f"to {_join(plan.peers(i.send_peer))}"] if SENDS[i.op] else []
    return Op(i.op).name.lower(), operands, *([", ".join(peers)] if peers else [])


def instruction_fill(op: int) -> Fill:
    """The style of an instruction's box: a colour for its kind, a thick frame if it reduces."""
    sends, receives = bool(SENDS[op]), bool(RECEIVES[op])
    fill = BOTH if sends and receives else SEND if sends else RECEIVE if receives else LOCAL
    return Fill(fill.word, fill.face, fill.edge, _REDUCING_PT) if REDUCES[op] else fill


def used_fills(ops: ByteArray) -> list[Fill]:
    """The styles of these operations' boxes, for the legend."""
    words = {instruction_fill(op).word for op in np.unique(ops).tolist()}
    fills = [fill for fill in (SEND, RECEIVE, BOTH, LOCAL) if fill.word in words]
    return [*fills, REDUCING] if REDUCES[ops].any() else fills


def block_peers(plan: Plan, block: int) -> tuple[str, str, str]:
    """The ranks that a block sends to, those that it receives from, and its channels, in words."""
    rows = slice(int(plan.block_offset[block]), int(plan.block_offset[block + 1]))
    t = plan.instructions
    sends, receives = (
        sorted({rank for peer in set(column[rows].tolist()) for rank in plan.peers(peer)})
        for column in (t.send_peer, t.recv_peer)
    )
    channels = sorted(set(t.channel[rows].tolist()) - {NONE})
    return _join(sends), _join(receives), _join(channels)


def _join(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) or "-"


def rank_mask(ranks: Collection[int] | None, total: int) -> BoolArray:
    """bool (total,): whether each rank is drawn; all if `ranks` is None. Errors: L101."""
    if ranks is None:
        return np.ones(total, bool)
    for rank in ranks:
        check_rank(rank, total)
    chosen = np.zeros(total, bool)
    chosen[list(ranks)] = True
    return chosen


_KINDS = {
    TransferKind.COPY: Fill.tinted("copy", Color.BLUE),
    TransferKind.REDUCE: Fill.tinted("reduce", Color.ORANGE),
}
_TRUE = Style("needs the value", Color.INK, port=-0.05)
_FALSE = Style("reuses the place", Color.GREY, "dashed", port=0.06)


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
    Picture.check_size("transfers", len(shown), "dependencies", int(seen.sum()))
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
    check_tables(plan)
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
    Picture.check_size("instructions", len(shown), "lines", drawn)
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


_BOX_GAP = 0.12
_TRACK = 0.07
_LANE_PAD = 0.1
_GROUP_GAP = 0.08
_GAP, _GAP_OF_LINE, _GAP_LINES = 0.34, 0.03, 14
"""Gaps between columns: the smallest width, the width that each line adds, and the most lines that
add to it."""


@dataclass(frozen=True)
class GridNode:
    """A box of the graph.

    column: its depth; lane: its lane. Boxes of the same lane and column are stacked.
    """

    id: str
    column: int
    lane: int
    text: tuple[str, ...]
    fill: Fill


@dataclass(frozen=True)
class GridLine:
    """A line of the graph from a node to a node in a later column, both by their positions."""

    id: str
    source: int
    target: int
    style: Style


@dataclass(frozen=True)
class Lane:
    """A lane and its label. Consecutive lanes of the same group share a band and the group's
    label."""

    label: str
    group: str


@dataclass(frozen=True)
class _Places:
    """The positions of everything.

    slot: the place of each node among those of its lane and column.
    track: the track of each link that needs one, in the lane of its source.
    left, right: the ends of the boxes of each column.
    top, track_top: the upper end of each lane's boxes and of its tracks.
    below: the lower end of the last lane.
    box_height: the height of all boxes.
    """

    slot: list[int]
    track: dict[int, int]
    left: list[float]
    right: list[float]
    top: list[float]
    track_top: list[float]
    below: float
    box_height: float


def layered(
    title: str,
    lanes: Sequence[Lane],
    nodes: Sequence[GridNode],
    links: Sequence[GridLine],
    entries: Sequence[Fill | Style],
) -> Picture:
    """The picture of a graph.

    entries: the entries of the legend.
    """
    places = _place(lanes, nodes, links)
    boxes = []
    for node, slot in zip(nodes, places.slot, strict=True):
        x, end = places.left[node.column], places.right[node.column]
        y = places.top[node.lane] + slot * (places.box_height + _BOX_GAP)
        boxes.append(Box(node.id, x, y, end - x, places.box_height, node.fill, node.text))
    lines = [
        Line(link.id, _points(places, nodes, boxes, number, link), link.style)
        for number, link in enumerate(links)
    ]
    head = Picture.heading(title, entries)
    width = max(places.right[-1] if places.right else 0.0, head.width)
    grounds, labels = _bands(lanes, places, width)
    graph = Picture("", 0.0, 0.0, tuple(boxes), tuple(lines), tuple(labels), tuple(grounds))
    return head.joined(width, places.below, [graph])


def _place(lanes: Sequence[Lane], nodes: Sequence[GridNode], links: Sequence[GridLine]) -> _Places:
    slot, stacked = _slots(nodes, links)
    track, tracks = _tracks(nodes, links, slot)
    sizes = [box_size(node.text) for node in nodes]
    height = max((h for _, h in sizes), default=0.0)
    columns = max((node.column for node in nodes), default=-1) + 1
    widths = [0.0] * columns
    for node, (width, _) in zip(nodes, sizes, strict=True):
        widths[node.column] = max(widths[node.column], width)
    left, right = [], []
    x = MARGIN + _label_width(lanes)
    for column, width in enumerate(widths):
        crossing = sum(nodes[k.source].column < column <= nodes[k.target].column for k in links)
        x += _GAP + _GAP_OF_LINE * min(crossing, _GAP_LINES) if column else 0.15
        left.append(x)
        x += width
        right.append(x)
    top, track_top = [], []
    y = MARGIN + 0.62
    for number, lane in enumerate(lanes):
        if number and lane.group != lanes[number - 1].group:
            y += _GROUP_GAP
        top.append(y + _LANE_PAD)
        boxes = max(stacked[number], 1)
        y += _LANE_PAD + boxes * (height + _BOX_GAP)
        track_top.append(y)
        y += tracks.get(number, 0) * _TRACK + (_LANE_PAD if tracks.get(number) else 0)
    return _Places(slot, track, left, right, top, track_top, y, height)


def _slots(
    nodes: Sequence[GridNode], links: Sequence[GridLine]
) -> tuple[list[int], dict[int, int]]:
    """The slot of each node, and the number of slots of each lane. The nodes of a lane and column
    have the order of their predecessors' positions."""
    before = by_key((link.target, link.source) for link in links)
    slot = [0] * len(nodes)
    cells = by_key(((node.column, node.lane), number) for number, node in enumerate(nodes))
    stacked: dict[int, int] = Counter()

    def origin(number: int) -> tuple[float, int]:
        places = [(nodes[b].lane, slot[b]) for b in before.get(number, ())]
        mean = sum(lane + place / 100 for lane, place in places) / max(len(places), 1)
        return mean, number

    # Column by column, as the order in a cell follows the slots of predecessors, which are to the
    # left of it.
    for (_, lane), members in sorted(cells.items()):
        for place, number in enumerate(sorted(members, key=origin)):
            slot[number] = place
        stacked[lane] = max(stacked[lane], len(members))
    return slot, stacked


def _tracks(
    nodes: Sequence[GridNode], links: Sequence[GridLine], slot: list[int]
) -> tuple[dict[int, int], dict[int, int]]:
    """The track of each link that needs one, and the number of tracks of each lane."""
    taken = {(n.column, n.lane, place) for n, place in zip(nodes, slot, strict=True)}
    wanted: dict[tuple[int, Style], list[int]] = defaultdict(list)
    for number, link in enumerate(links):
        source, target = nodes[link.source], nodes[link.target]
        between = range(source.column + 1, target.column)
        level = source.lane == target.lane and slot[link.source] == slot[link.target]
        free = all((c, source.lane, slot[link.source]) not in taken for c in between)
        if between and not (level and free):
            wanted[link.source, link.style].append(number)
    ends: dict[int, list[int]] = defaultdict(list)
    track: dict[int, int] = {}
    for (node, _), members in sorted(wanted.items(), key=lambda w: nodes[w[0][0]].column):
        lane = ends[nodes[node].lane]
        first = nodes[node].column + 1
        last = max(nodes[links[number].target].column for number in members) - 1
        track |= dict.fromkeys(members, take_track(lane, first, last))
    return track, {lane: len(found) for lane, found in ends.items()}


def take_track(ends: list[int], first: int, last: int) -> int:
    """Takes the first track that is free from `first` on, up to `last`, and returns it.

    ends: the end of the last interval on each track.
    """
    # Taken in the order of their beginnings, intervals need no more tracks than overlap anywhere.
    place = next((t for t, end in enumerate(ends) if end < first), len(ends))
    ends[place : place + 1] = [last]
    return place


def _points(
    places: _Places, nodes: Sequence[GridNode], boxes: list[Box], number: int, link: GridLine
) -> tuple[Point, ...]:
    source, target = boxes[link.source], boxes[link.target]
    middle = places.box_height / 2 + link.style.port
    start = (source.x + source.width, source.y + middle)
    end = (target.x, target.y + middle)
    if number not in places.track:
        return (start, end)
    lane = nodes[link.source].lane
    y = places.track_top[lane] + (places.track[number] + 0.5) * _TRACK
    first, last = nodes[link.source].column + 1, nodes[link.target].column - 1
    return (start, (places.left[first], y), (places.right[last], y), end)


def _label_width(lanes: Sequence[Lane]) -> float:
    group = max((text_width(lane.group) for lane in lanes), default=0.0)
    label = max((text_width(lane.label, SMALL_PT) for lane in lanes), default=0.0)
    return group + label + 0.2


def _bands(
    lanes: Sequence[Lane], places: _Places, width: float
) -> tuple[list[Box], list[TextLine]]:
    """A band behind each group of lanes, and the labels at its left."""
    grounds, texts = [], []
    firsts = [n for n, lane in enumerate(lanes) if not n or lane.group != lanes[n - 1].group]
    label = MARGIN + 0.1 + max((text_width(lane.group) for lane in lanes), default=0.0) + 0.1
    for first, after in pairwise([*firsts, len(lanes)]):
        top = places.top[first] - _LANE_PAD
        end = places.below if after == len(lanes) else places.top[after] - _LANE_PAD - _GROUP_GAP
        fill = Fill("", Color.BAND, Color.WHITE, 0.0)
        grounds.append(Box("", MARGIN, top, width - MARGIN + 0.08, end - top, fill))
        y = places.top[first] + places.box_height / 2
        texts.append(TextLine(MARGIN + 0.08, y, lanes[first].group, bold=True))
        for number in range(first, after):
            y = places.top[number] + places.box_height / 2
            texts.append(TextLine(label, y, lanes[number].label, SMALL_PT, color=Color.GREY))
    return grounds, texts


_PAGE_WIDTH = 14.0
"""The width in inches after which a new row of ranks begins."""
_RANK_PAD, _RANK_GAP = 0.1, 0.2
_ROW_GAP, _WAIT_TRACK = 0.08, 0.06
_GUTTER = 0.12
_WAIT = replace(WAIT, port=0.0, width_pt=0.8)
_HEAD_FILL = Fill("", Color.WHITE, Color.INK, 0.8)


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
    check_tables(plan)
    chosen = rank_mask(ranks, plan.collective.ranks)
    rows = int(chosen[plan.rank].sum())
    waits = int(chosen[plan.rank[plan.waits.source]].sum())
    Picture.check_size("instructions", rows, "waits", waits)
    Picture.check_size("thread blocks", int(chosen[plan.block_rank].sum()), "waits", waits)
    drawn = [_rank_picture(plan, rank) for rank in np.flatnonzero(chosen).tolist()]
    fills = used_fills(plan.instructions.op[chosen[plan.rank]])
    head = Picture.heading(f"{plan.name}: thread blocks", [*fills, *([_WAIT] if waits else [])])
    width, parts = head.width, []
    x, y, tallest = MARGIN, MARGIN + 0.6, 0.0
    for part in drawn:
        if x > MARGIN and x + part.width > _PAGE_WIDTH:
            x, y, tallest = MARGIN, y + tallest + _RANK_GAP, 0.0
        parts.append(_shift(part, x, y))
        x += part.width + _RANK_GAP
        width, tallest = max(width, x - _RANK_GAP), max(tallest, part.height)
    return head.joined(width, y + tallest, parts)


def _rank_picture(plan: Plan, rank: int) -> Picture:
    """The picture of one rank, with its upper left corner at the origin."""
    blocks = range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1]))
    offset = plan.block_offset
    rows = range(int(offset[blocks.start]), int(offset[blocks.stop]))
    texts = {row: instruction_text(plan, row) for row in rows}
    heads = {block: _head(plan, block) for block in blocks}
    waits = _waits(plan, rank)
    tracks, gaps, above = _wait_tracks(waits)
    head_height = text_height(4) + 0.08
    box_height = max((box_size(text)[1] for text in texts.values()), default=0.0)
    left, right = [], []
    x = _RANK_PAD
    for column, block in enumerate(blocks):
        # The width of a gap between columns.
        x += 2 * _GUTTER + max(len(gaps[column]) - 1, 0) * _WAIT_TRACK if column else 0.0
        span = range(int(offset[block]), int(offset[block + 1]))
        widest = max(box_size(text)[0] for text in [heads[block], *(texts[r] for r in span)])
        left.append(x)
        x += widest
        right.append(x)
    longest = max((int(plan.step[row]) for row in texts), default=-1) + 1
    top = []
    y = _RANK_PAD + text_height() + 0.06 + head_height + 0.04
    for step in range(longest):
        y += _ROW_GAP + len(above[step]) * _WAIT_TRACK
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
    frame = Box(
        f"rank-{rank}", 0.0, 0.0, width, y + _RANK_PAD, Fill("", Color.BAND, Color.GREY, 0.6)
    )
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


def _wait_tracks(
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
    x0, x1 = first + near * _WAIT_TRACK, last + far * _WAIT_TRACK
    start = (right[a] if forward else left[a], top[i] + height * (0.62 if forward else 0.8))
    end = (left[b] if forward else right[b], top[j] + height * (0.38 if forward else 0.2))
    if not over:
        return (start, (x0, start[1]), (x0, end[1]), end)
    y = top[j] - _ROW_GAP / 2 - over[0] * _WAIT_TRACK
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
