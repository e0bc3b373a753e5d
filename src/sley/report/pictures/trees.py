"""Pictures of trees: how the data of a rank spreads, or comes together, on a topology."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors import counted
from sley.ir.tables import NONE, IntArray
from sley.report.pictures.canvas import (
    MARGIN,
    SMALL_PT,
    Box,
    Color,
    Fill,
    Line,
    Picture,
    Style,
    TextLine,
)
from sley.report.tables import check_rank
from sley.topologies import Forest

_WIDTH, _HEIGHT, _ACROSS, _DOWN = 0.5, 0.24, 0.58, 0.52
"""The size of boxes, and the distances between their middles."""
_GAP = 0.4
"""The distance between trees."""
_MOST_ACROSS = 14.0
"""The width after which trees begin a new row."""

_OWN = Fill.tinted("root's node", Color.GREEN)
_OTHER = Fill.tinted("another node", Color.BLUE)
_INSIDE = Style("within a node", Color.GREEN, width_pt=1.2)
_BETWEEN = Style("between nodes", Color.BLUE, width_pt=1.2)


def tree_picture(forest: Forest, root: int = 0) -> Picture:
    """The trees of one root, each with its chunks above: a box for each rank, below the rank that
    sends to it, or receives from it if data comes up the trees. Ids in an SVG: tree-T-rank-R,
    tree-T-A-B. Errors: L101, P801."""
    check_rank(root, forest.topology.ranks)
    trees = np.flatnonzero(forest.parent[:, root] == NONE).tolist()
    ranks = forest.topology.ranks
    remedy = "Draw trees of fewer ranks, or fewer chunks."
    Picture.check_size("boxes", ranks * len(trees), "lines", ranks * len(trees), remedy)
    entries: list[Fill | Style] = [_OWN, _INSIDE]
    entries += [_OTHER, _BETWEEN] if forest.topology.nodes > 1 else []
    way = "to" if forest.up else "from"
    title = f"{forest.topology.name}: trees {way} GPU {root}"
    head = Picture.heading(title, entries)
    parts = list[Picture]()
    left, top, right, lowest = MARGIN, MARGIN + 0.75, head.width, 0.0
    for tree in trees:
        part = _tree(forest, tree, root, left, top)
        if left > MARGIN and part.width > _MOST_ACROSS:
            left, top = MARGIN, lowest + _GAP
            part = _tree(forest, tree, root, left, top)
        parts.append(part)
        left, right = part.width + _GAP, max(right, part.width)
        lowest = max(lowest, part.height)
    return head.joined(right, lowest, parts)


def _tree(forest: Forest, tree: int, root: int, left: float, top: float) -> Picture:
    """One tree; width and height are its right and lower end."""
    node, parent, depth = forest.topology.node, forest.parent[tree], forest.depth[tree]
    middle = _middles(parent, root)
    places = {
        rank: Box(
            f"tree-{tree}-rank-{rank}",
            left + at * _ACROSS,
            top + int(depth[rank]) * _DOWN,
            _WIDTH,
            _HEIGHT,
            _OWN if node[rank] == node[root] else _OTHER,
            (str(rank),),
        )
        for rank, at in middle.items()
    }
    lines = []
    for rank, above in enumerate(parent.tolist()):
        if above != NONE:
            a, b = places[above], places[rank]
            points = ((a.x + _WIDTH / 2, a.y + _HEIGHT), (b.x + _WIDTH / 2, b.y))
            style = _INSIDE if node[rank] == node[above] else _BETWEEN
            ends = points[::-1] if forest.up else points
            lines.append(Line(f"tree-{tree}-{above}-{rank}", ends, style, curved=False))
    text = TextLine(left, top - 0.14, counted(int(forest.weight[tree]), "chunk"), SMALL_PT)
    text = replace(text, color=Color.GREY)
    right = max(box.x for box in places.values()) + _WIDTH
    lowest = max(box.y for box in places.values()) + _HEIGHT
    return Picture("", right, lowest, tuple(places.values()), tuple(lines), (text,))


def _middles(parent: IntArray, root: int) -> dict[int, float]:
    """The place of each rank across: leaves side by side, other ranks in the middle above their
    first and last child."""
    children = {rank: np.flatnonzero(parent == rank).tolist() for rank in range(len(parent))}
    places = dict[int, float]()
    leaves, stack = 0, [root]
    while stack:  # each rank is visited before and after its children
        rank = stack.pop()
        below = children[rank]
        if not below:
            places[rank] = float(leaves)
            leaves += 1
        elif below[0] in places:
            places[rank] = (places[below[0]] + places[below[-1]]) / 2
        else:
            stack += [rank, *below[::-1]]
    return places
