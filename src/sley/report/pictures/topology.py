"""Pictures of topologies: GPUs, switches and cards by node, and the links between them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from itertools import pairwise, product
from math import cos, pi, sin

import numpy as np

from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.ir.topology import Topology
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
    text_height,
    text_width,
)
from sley.topologies.structure import sides_of, steps

_SPACING = 1.02
"""Distance between the middles of neighbouring boxes in a row."""
_BOX_WIDTH, _BOX_HEIGHT = 0.74, 0.26
_ROW = 0.8
_RING = 0.2
"""Radius of a ring of GPUs, for each GPU: large enough that lines pass a neighbour at its side."""
_FRAME_PAD, _FRAME_GAP, _TIER_GAP = 0.16, 0.3, 0.3

_FILLS = {
    VertexKind.GPU: Fill.tinted("GPU", Color.GREEN),
    VertexKind.SWITCH: Fill.tinted("switch", Color.ORANGE),
    VertexKind.PCIE: Fill.tinted("PCIe switch or CPU", Color.GREY),
    VertexKind.NIC: Fill.tinted("network card", Color.BLUE),
    VertexKind.NETWORK: Fill.tinted("network", Color.PURPLE),
}
_COLORS = {
    LinkKind.NVLINK: ("NVLink", Color.GREEN, 1.6),
    LinkKind.PCIE: ("PCIe", Color.GREY, 1.1),
    LinkKind.NETWORK: ("network", Color.BLUE, 1.1),
}
_FRAME = Fill("", Color.BAND, Color.GREY, 0.6)
_LABEL = Fill("", Color.WHITE, Color.WHITE, 0.0)
_ARC = 0.24
"""The bend of a link between two boxes of a row: this times one more than the boxes it passes."""
_ARC_POINTS = 64
_ALONG = (0.5, 0.4, 0.6, 0.32, 0.68, 0.25, 0.75, 0.18, 0.82)
"""Positions of a label along its link, the best first."""
_ASIDE = (0.0, 0.21, -0.21)
"""Distances of a label below its link, the best first."""
_WIDTH = 18.0
"""The width of a row of nodes, in inches, if more than one node doesn't fit."""
_SHOWN_RATES = 4
"""The most rates of a kind of link in the legend."""


@dataclass(frozen=True)
class _Joint:
    """All links of a kind between two vertices a < b, with the rates from a to b and from b to a; 0
    means no link."""

    a: int
    b: int
    kind: LinkKind
    there_GBps: float  # noqa: N815 - a unit
    back_GBps: float  # noqa: N815

    @property
    def label(self) -> str:
        rates = dict.fromkeys(rate for rate in (self.there_GBps, self.back_GBps) if rate)
        return " / ".join(f"{rate:g}" for rate in rates)


def topology_picture(topology: Topology) -> Picture:
    """A topology as a graph: a frame for each node with its GPUs, switches and cards, the network
    above, and a line for the links between two vertices, both directions in one, with the rate in
    GB/s that transfers reach. If the directions differ, "20 / 10" is the rate from the vertex with
    the lower number and the rate back; a link in only one direction has an arrow.

    Meshes and tori are drawn as rows and columns, in three dimensions as layers behind one another;
    links around the edge are bows. Switches are bars along all vertices that they link, unless two
    bars would overlap. Nodes that don't fit into a row continue in others, each below the parts of
    the network that join its nodes, drawn again. Ids in an SVG: vertex-V, link-A-B-KIND. Errors:
    P801.
    """
    joints = _joints(topology)
    Picture.check_size(
        "vertices",
        len(topology.vertices),
        "links",
        len(joints),
        "Draw the same kind of cluster with fewer nodes or GPUs.",
    )
    sides = sides_of(topology)
    rows, frames, names = _lattice(topology, sides) if sides else _place(topology, joints)
    boxes = [row[v] for row in rows for v in sorted(row)]
    lines = []
    for joint in joints:
        row = next(row for row in rows if joint.a in row and joint.b in row)
        lines.append(_line(joint, row, sides))
    labels: list[Box] = []
    for joint, line in zip(joints, lines, strict=True):
        labels += _label(joint.label, line, [*boxes, *labels])
    kinds = np.unique(topology.vertices.kind).tolist()
    entries = [_FILLS[VertexKind(kind)] for kind in kinds]
    head = Picture.heading(f"{topology.name}: topology", [*entries, *_link_entries(joints)])
    width = max(head.width, *(box.x + box.width for box in [*boxes, *frames]))
    height = max(box.y + box.height for box in [*boxes, *frames])
    graph = Picture("", 0.0, 0.0, (*labels, *boxes), tuple(lines), tuple(names), tuple(frames))
    return head.joined(width, height, [graph])


def _joints(topology: Topology) -> list[_Joint]:
    """The links, those of a kind between two vertices as one, in the order of the vertices."""
    rates: dict[tuple[int, int, int], list[float]] = defaultdict(lambda: [0.0, 0.0])
    for link in topology.links:
        a, b = sorted((link.src, link.dst))
        rates[a, b, link.kind][link.src > link.dst] += link.GBps
    return [_Joint(a, b, LinkKind(kind), *both) for (a, b, kind), both in sorted(rates.items())]


def _link_entries(joints: list[_Joint]) -> list[Style]:
    """The legend's lines: each kind of link with its rates."""
    entries = []
    for kind, (word, color, width) in _COLORS.items():
        labels = sorted({j.label for j in joints if j.kind is kind}, key=lambda x: (len(x), x))
        if labels:
            more = ", ..." if len(labels) > _SHOWN_RATES else ""
            rates = f"{', '.join(labels[:_SHOWN_RATES])}{more} GB/s"
            entries.append(Style(f"{word}, {rates}", color, width_pt=width, arrow=False))
    return entries


def _lattice(
    topology: Topology, sides: tuple[int, ...]
) -> tuple[list[dict[int, Box]], list[Box], list[TextLine]]:
    """The boxes of a mesh or torus, in rows and columns, which need no frame."""
    top, places = MARGIN + 0.66, {}
    for v, (x, y) in enumerate(lattice_middles(sides, (_BOX_WIDTH, _BOX_HEIGHT))):
        places[v] = _box(topology, v, x - _BOX_WIDTH / 2 + MARGIN, y - _BOX_HEIGHT / 2 + top)
    return [places], [], []


def _place(
    topology: Topology, joints: list[_Joint]
) -> tuple[list[dict[int, Box]], list[Box], list[TextLine]]:
    """The boxes of the vertices in each row of nodes, with the network above them; the frames of
    the nodes, and their names."""
    neighbours: dict[int, list[int]] = defaultdict(list)
    for joint in joints:
        neighbours[joint.a].append(joint.b)
        neighbours[joint.b].append(joint.a)
    node = topology.vertices.node
    drawn = [
        _node(topology, np.flatnonzero(node == number).tolist(), neighbours)
        for number in range(topology.nodes)
    ]
    outside = np.flatnonzero(node == NONE).tolist()
    rows: list[dict[int, Box]] = []
    frames, names = [], []
    top = MARGIN + 0.66
    for numbers in _rows([width for _, width, _ in drawn], topology, joints):
        inside = {v for number in numbers for v in drawn[number][0]}
        # The first row has the whole network, the others what joins their nodes.
        shown = [v for v in outside if not rows or inside.intersection(neighbours[v])]
        tiers = _tiers(shown, neighbours)
        top += _ROW * len(tiers)
        left, places = MARGIN, {}
        for number in numbers:
            found, width, height = drawn[number]
            for vertex, box in found.items():
                places[vertex] = replace(box, x=box.x + left, y=box.y + top)
            frames.append(Box(f"node-{number}", left, top, width, height, _FRAME))
            names.append(
                TextLine(
                    left + 0.08,
                    top + height - 0.1,
                    f"node {number}",
                    SMALL_PT,
                    color=Color.GREY,
                    bold=True,
                )
            )
            left += width + _FRAME_GAP
        span = (MARGIN, left - _FRAME_GAP)
        for number, tier in enumerate(tiers, 1):
            placed = _tier(topology, tier, places, neighbours, span, top - number * _ROW)
            again = {v for row in rows for v in row}  # an id names one box
            places |= {v: replace(b, id="") if v in again else b for v, b in placed.items()}
        rows.append(places)
        top += max(drawn[number][2] for number in numbers) + _FRAME_GAP
    return rows, frames, names


def _rows(widths: list[float], topology: Topology, joints: list[_Joint]) -> list[list[int]]:
    """The nodes of each row: as many as fit, in rows of about equal numbers; one row if links join
    vertices of two nodes directly, which would cross others."""
    node, nodes = topology.vertices.node, len(widths)
    fit = max(1, int(_WIDTH / (max(widths) + _FRAME_GAP)))
    if any(NONE not in ends and len(ends) > 1 for ends in ({node[j.a], node[j.b]} for j in joints)):
        fit = nodes
    rows = -(-nodes // fit)
    return [part.tolist() for part in np.array_split(np.arange(nodes), rows)]


def _tiers(vertices: list[int], neighbours: dict[int, list[int]]) -> list[list[int]]:
    """Groups of vertices by their distance from all other vertices, the nearest first."""
    tiers: list[list[int]] = []
    left = set(vertices)
    while left:  # each tier takes some: those beside the tiers before, or all that nothing joins
        tier = sorted(v for v in left if any(o not in left for o in neighbours[v])) or sorted(left)
        tiers.append(tier)
        left -= set(tier)
    return tiers


def _tier(
    topology: Topology,
    row: list[int],
    below: dict[int, Box],
    neighbours: dict[int, list[int]],
    span: tuple[float, float],
    y: float,
) -> dict[int, Box]:
    """The boxes of vertices outside of nodes: bars along the vertices that they link, or shares of
    equal width."""
    joined = {v: [below[o] for o in neighbours[v] if o in below] for v in row}
    means = {v: _mean([box.x + box.width / 2 for box in joined[v]], span[0]) for v in row}
    share, boxes = (span[1] - span[0]) / len(row), {}
    for n, v in enumerate(sorted(row, key=lambda v: (means[v], v))):
        gap = _TIER_GAP if n else 0.0
        boxes[v] = _box(topology, v, span[0] + n * share + gap, y, share - gap)
    return boxes if len(row) == 1 else _bars(boxes, below, neighbours)


def _node(
    topology: Topology, inside: list[int], neighbours: dict[int, list[int]]
) -> tuple[dict[int, Box], float, float]:
    """The boxes of one node relative to its upper left corner, and its width and height.

    From top to bottom: cards and PCIe by their distance from GPUs, GPUs, switches. GPUs that are
    linked only to one another form a circle.
    """
    kind = topology.vertices.kind
    gpus = [v for v in inside if kind[v] == VertexKind.GPU]
    switches = [v for v in inside if kind[v] == VertexKind.SWITCH]
    near = {v: [o for o in neighbours[v] if o in inside] for v in inside}
    over = _tiers([v for v in inside if v not in gpus and v not in switches], near)
    ring = len(gpus) > 2 and len(gpus) == len(inside) and any(near.values())
    radius = max(1.0, len(gpus) * _RING) if ring else 0.0
    widest = max(len(row) for row in (gpus, switches, *over)) * _SPACING
    span = 2 * radius + _BOX_WIDTH if ring else widest
    middle: dict[int, float] = {}
    # GPUs first, then their neighbours, so that each vertex is above those that it links.
    rows = [gpus, switches, *over] if switches else [gpus, *over]
    ordered = [_across(row, near, middle, span) for row in rows]
    room = [0.0 if ring else _arc_room(row, near) for row in ordered]
    order = [*range(len(rows) - 1, len(rows) - 1 - len(over), -1), *range(len(rows) - len(over))]
    tops, y = {}, _FRAME_PAD
    for number in order:
        above = room[number] if rows[number] in over else 0.0
        tops[number] = y + above
        y += _ROW + room[number] + (2 * radius if number == 0 else 0.0)
    boxes = {}
    for number, row in enumerate(ordered):
        for v in row:
            boxes[v] = _box(topology, v, middle[v] - _BOX_WIDTH / 2, tops[number])
    if ring:
        center = (_FRAME_PAD + span / 2, tops[0] + radius)
        for place, v in enumerate(gpus):  # clockwise; the first two are at the top
            angle = -pi / 2 + 2 * pi * (place - 0.5) / len(gpus)
            x, top = center[0] + radius * cos(angle), center[1] + radius * sin(angle)
            boxes[v] = replace(boxes[v], x=x - _BOX_WIDTH / 2, y=top)
    joined = {v: boxes[v] for v in gpus}
    for row in rows[1:]:
        joined |= _bars({v: boxes[v] for v in row}, joined, neighbours)
    boxes |= joined
    return boxes, span + 2 * _FRAME_PAD, y - _ROW + _BOX_HEIGHT + 2 * _FRAME_PAD


def _across(
    row: list[int], near: dict[int, list[int]], middle: dict[int, float], span: float
) -> list[int]:
    """A row in the order of its neighbours in earlier rows; stores the middle of each of its boxes
    in `middle`."""
    keys = {v: _mean([middle[o] for o in near[v] if o in middle], float(v)) for v in row}
    ordered = sorted(row, key=lambda v: (keys[v], v))
    for place, vertex in enumerate(ordered):
        middle[vertex] = _FRAME_PAD + span * (place + 0.5) / len(row)
    return ordered


def _arc_room(row: list[int], near: dict[int, list[int]]) -> float:
    """The height of a row's arcs around its boxes."""
    place = {v: n for n, v in enumerate(row)}
    longest = max((place[o] - place[v] for v in row for o in near[v] if o in place), default=0)
    return longest * _ARC if longest > 1 else 0.0


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


def _box(topology: Topology, v: int, x: float, y: float, width: float = _BOX_WIDTH) -> Box:
    """The box of a vertex, by its upper left corner."""
    fill = _FILLS[VertexKind(int(topology.vertices.kind[v]))]
    return Box(f"vertex-{v}", x, y, width, _BOX_HEIGHT, fill, (topology.vertex_label(v),))


def _bars(
    row: dict[int, Box], placed: dict[int, Box], neighbours: dict[int, list[int]]
) -> dict[int, Box]:
    """The boxes of a row, each except cards as wide as its neighbours among the boxes placed
    before; all unchanged if two of them would overlap."""
    bars: dict[int, Box] = {}
    for vertex, own in row.items():
        joined = [placed[o] for o in neighbours[vertex] if o in placed]
        bars[vertex] = own
        if joined and own.fill is not _FILLS[VertexKind.NIC]:
            left = min(box.x for box in joined)
            right = max(box.x + box.width for box in joined)
            bars[vertex] = replace(own, x=left, width=right - left)
    order = sorted(bars.values(), key=lambda box: box.x)
    return bars if all(a.x + a.width < b.x for a, b in pairwise(order)) else row


def _line(joint: _Joint, places: dict[int, Box], sides: tuple[int, ...] | None) -> Line:
    a, b = places[joint.a], places[joint.b]
    _, color, width = _COLORS[joint.kind]
    one_way = not (joint.there_GBps and joint.back_GBps)
    style = Style("", color, width_pt=width, arrow=one_way)
    around = sides is not None and np.abs(steps(sides, joint.a, joint.b)).sum() > 1
    points = bow(a, b) if around else _between(a, b, places)
    backwards = one_way and not joint.there_GBps
    points = points[::-1] if backwards else points
    return Line(f"link-{joint.a}-{joint.b}-{joint.kind.name.lower()}", points, style, curved=False)


def _between(a: Box, b: Box, places: dict[int, Box]) -> tuple[Point, ...]:
    """A line between two boxes: straight, or an arc around the boxes between them."""
    passed = _between_in_row(a, b, places)
    if passed:
        return _arc(a, b, passed)
    x0, x1 = _opposite(a, b)
    start, end = (x0, a.y + a.height / 2), (x1, b.y + b.height / 2)
    return (_clip(start, end, a), _clip(end, start, b))


def _arc(a: Box, b: Box, passed: int) -> tuple[Point, ...]:
    """Half an ellipse between two boxes of a row: below GPUs and switches, above other boxes."""
    down = a.fill in (_FILLS[VertexKind.GPU], _FILLS[VertexKind.SWITCH])
    y = a.y + (a.height if down else 0.0)
    center, reach = (a.x + b.x + (a.width + b.width) / 2) / 2, (b.x - a.x) / 2
    depth = (1 if down else -1) * _ARC * (passed + 1)
    angles = [pi * n / (_ARC_POINTS - 1) for n in range(_ARC_POINTS)]
    return tuple((center - reach * cos(angle), y + depth * sin(angle)) for angle in angles)


def _between_in_row(a: Box, b: Box, places: dict[int, Box]) -> int:
    """The number of boxes between two boxes of a row; 0 for boxes of different rows."""
    if abs(a.y - b.y) >= _BOX_HEIGHT:
        return 0
    left, right = sorted((a.x, b.x))
    return sum(left < box.x < right and abs(box.y - a.y) < _BOX_HEIGHT for box in places.values())


def _opposite(a: Box, b: Box) -> tuple[float, float]:
    """The x coordinates of a link's ends: the middle of each box, but on a bar the point opposite
    the narrower box's middle."""
    x0, x1 = a.x + a.width / 2, b.x + b.width / 2
    if a.width > b.width and a.x <= x1 <= a.x + a.width:
        return x1, x1
    if b.width > a.width and b.x <= x0 <= b.x + b.width:
        return x0, x0
    return x0, x1


def _clip(inside: Point, outside: Point, box: Box) -> Point:
    """The point where a line from the middle height of a box leaves the box."""
    (x, y), dx, dy = inside, outside[0] - inside[0], outside[1] - inside[1]
    edge = box.x + box.width if dx > 0 else box.x
    shares = [(edge - x) / dx] if dx else []
    shares += [box.height / 2 / abs(dy)] if dy else []
    share = min([1.0, *shares])
    return (x + share * dx, y + share * dy)


def _label(text: str, line: Line, taken: list[Box]) -> list[Box]:
    """The label of a link at the first position where it covers nothing; none if there is none."""
    size = SMALL_PT
    width, height = text_width(text, size) + 0.04, text_height(1, size)
    middle = len(line.points) // 2
    (x0, y0), (x1, y1) = line.points[middle - 1], line.points[middle]
    # On the link itself first: a label beside it may seem to be another link's.
    for aside, along in product(_ASIDE, _ALONG):
        x = x0 + along * (x1 - x0) - width / 2
        y = y0 + along * (y1 - y0) - height / 2 + aside
        if not any(
            x < o.x + o.width and o.x < x + width and y < o.y + o.height and o.y < y + height
            for o in taken
        ):
            return [Box("", x, y, width, height, _LABEL, (text,), size)]
    return []


_ROOM = 0.62
"""The distance between neighbouring boxes, across and down."""
_LAYER = (0.5, 0.36)
"""The distance from a layer of a third axis to the next one, across and up."""
_BOW = 0.3
"""How far a bow leaves the straight line in its middle."""
_POINTS = 121


def lattice_middles(sides: tuple[int, ...], box: tuple[float, float]) -> list[Point]:
    """The middle of each rank's box, for boxes of this width and height: rows and columns, and
    layers of a third axis, the first one in front."""
    layers, rows, columns = (1, *sides)[-3:]
    deep = layers - 1
    across = box[0] + _ROOM + deep * _LAYER[0]
    down = box[1] + _ROOM + deep * _LAYER[1]
    middles = []
    for rank in range(layers * rows * columns):
        layer, row, column = np.unravel_index(rank, (layers, rows, columns))
        x = box[0] / 2 + _BOW + column * across + layer * _LAYER[0]
        y = box[1] / 2 + _BOW + row * down + (deep - layer) * _LAYER[1]
        middles.append((float(x), float(y)))
    return middles


def bow(a: Box, b: Box) -> tuple[Point, ...]:
    """A curve between two boxes, beside the boxes between them, without the points inside of both:
    above a row, left of a column."""
    start, end = (np.array((box.x + box.width / 2, box.y + box.height / 2)) for box in (a, b))
    way = end - start
    aside = np.array((way[1], -way[0])) / np.hypot(*way)
    if aside[0] + aside[1] > 0:  # to the left or up
        aside = -aside
    part = np.linspace(0.0, 1.0, _POINTS)[:, None]
    reach = np.sin(np.pi * part) * (_BOW + (0.0 if way[0] else b.width / 2))
    curve = start + part * way + reach * aside
    points = [(float(x), float(y)) for x, y in curve]
    return tuple(p for p in points if not (_inside(p, a) or _inside(p, b)))


def _inside(point: Point, box: Box) -> bool:
    return box.x < point[0] < box.x + box.width and box.y < point[1] < box.y + box.height
