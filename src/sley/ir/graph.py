"""Graph helpers that passes and verifier share: levels of a directed graph, level by level."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.tables import NONE, Edges, IntArray, spans


def levels(successors: Edges) -> IntArray:
    """int32 (nodes,): the longest path from a root to each node, in edges; NONE for nodes on a
    cycle or behind one.

    Kahn's algorithm, a whole level at a time: linear in the edges, up to a sort of each level.
    """
    nodes = len(successors.offset) - 1
    waiting = np.bincount(successors.target, minlength=nodes)
    degree = np.diff(successors.offset)
    level = np.full(nodes, NONE, np.int32)
    frontier: NDArray[Any] = np.flatnonzero(waiting == 0)
    depth = 0
    while len(frontier):
        level[frontier] = depth
        _, edges = spans(successors.offset[frontier], degree[frontier])
        reached, times = np.unique(successors.target[edges], return_counts=True)
        waiting[reached] -= times
        frontier = reached[waiting[reached] == 0]
        depth += 1
    return level


def find_cycle(predecessors: Edges, stuck: NDArray[np.bool_]) -> list[int]:
    """One cycle among the `stuck` nodes (those that `levels` left at NONE), in the order in which
    each node waits for the next. Every stuck node has a stuck predecessor, so a walk must close.
    """
    node = int(np.argmax(stuck))
    seen: dict[int, int] = {}
    path: list[int] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        before = predecessors[node]
        node = int(before[stuck[before]][0])
    return path[seen[node] :]
