"""Pictures of meshes and tori: where their GPUs are, and links around the edge as bows."""

from __future__ import annotations

import numpy as np

from sley.report.pictures.canvas import Box, Point

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
