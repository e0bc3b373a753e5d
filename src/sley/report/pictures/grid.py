"""Grid: a directed graph from left to right, with a column for each depth, in lanes.

A line that passes columns runs on a track below the boxes of its source's lane; lines of the same
kind from the same box share a track. So lines cross no boxes; they leave and reach boxes through
the gaps between columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sley.report.pictures.canvas import (
    BAND,
    GREY,
    MARGIN,
    SMALL_PT,
    WHITE,
    Box,
    Fill,
    Line,
    Picture,
    Point,
    Style,
    TextLine,
    box_size,
    heading,
    joined,
    text_width,
)

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
    head = heading(title, entries)
    width = max(places.right[-1] if places.right else 0.0, head.width)
    grounds, labels = _bands(lanes, places, width)
    graph = Picture("", 0.0, 0.0, tuple(boxes), tuple(lines), tuple(labels), tuple(grounds))
    return joined(head, width, places.below, [graph])


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
    before: dict[int, list[int]] = defaultdict(list)
    for link in links:
        before[link.target].append(link.source)
    slot = [0] * len(nodes)
    cells: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number, node in enumerate(nodes):
        cells[node.column, node.lane].append(number)
    stacked: dict[int, int] = Counter()

    def origin(number: int) -> tuple[float, int]:
        places = [(nodes[b].lane, slot[b]) for b in before[number]]
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
        fill = Fill("", BAND, WHITE, 0.0)
        grounds.append(Box("", MARGIN, top, width - MARGIN + 0.08, end - top, fill))
        y = places.top[first] + places.box_height / 2
        texts.append(TextLine(MARGIN + 0.08, y, lanes[first].group, bold=True))
        for number in range(first, after):
            y = places.top[number] + places.box_height / 2
            texts.append(TextLine(label, y, lanes[number].label, SMALL_PT, color=GREY))
    return grounds, texts
