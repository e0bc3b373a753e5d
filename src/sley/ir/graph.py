"""Graph: levels and cycles of directed graphs."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.tables import NONE, Edges, IntArray, spans

NARROW = 16
"""Nodes; a level of fewer nodes is faster node by node than as arrays."""

FEW = 1024
"""Nodes; a graph of fewer nodes is faster node by node than as arrays."""

PATIENCE = 64
"""Consecutive narrow levels after which `levels` continues node by node."""


def levels(successors: Edges, patience: int = PATIENCE, few: int = FEW) -> IntArray:
    """int32 (nodes,): the longest path from a root to each node, in edges; NONE for nodes on a
    cycle or behind one.

    Kahn's algorithm, a whole level at a time: linear in the edges, up to a sort of each level.
    After `patience` consecutive narrow levels, as in long chains, it continues node by node; graphs
    of fewer than `few` nodes it treats so from the beginning.
    """
    nodes = len(successors.offset) - 1
    waiting = np.bincount(successors.target, minlength=nodes)
    degree = np.diff(successors.offset)
    level = np.full(nodes, NONE, np.int32)
    frontier: NDArray[Any] = np.flatnonzero(waiting == 0)
    if nodes < few:
        level[frontier] = 0
        return _one_by_one(successors, waiting, level, frontier)
    depth = narrow = 0
    while len(frontier):
        level[frontier] = depth
        narrow = narrow + 1 if len(frontier) < NARROW else 0
        if narrow > patience:
            return _one_by_one(successors, waiting, level, frontier)
        _, edges = spans(successors.offset[frontier], degree[frontier])
        reached, times = np.unique(successors.target[edges], return_counts=True)
        waiting[reached] -= times
        frontier = reached[waiting[reached] == 0]
        depth += 1
    return level


def _one_by_one(
    successors: Edges, waiting: NDArray[Any], level: IntArray, frontier: NDArray[Any]
) -> IntArray:
    """The rest of `levels`, from a frontier whose level is known. The queue is in ascending order
    of levels, so the last predecessor of a node is one of the highest level."""
    offset, target = successors.offset.tolist(), successors.target.tolist()
    left, found, queue = waiting.tolist(), level.tolist(), deque(frontier.tolist())
    while queue:
        node = queue.popleft()
        for after in target[offset[node] : offset[node + 1]]:
            left[after] -= 1
            if not left[after]:
                found[after] = found[node] + 1
                queue.append(after)
    return np.array(found, np.int32)


def find_cycle(predecessors: Edges, stuck: NDArray[np.bool_]) -> list[int]:
    """One cycle among the `stuck` nodes (NONE in `levels`), in the order in which each node waits
    for the next one. Every stuck node has a stuck predecessor, so a walk must close."""
    node = int(np.argmax(stuck))
    seen: dict[int, int] = {}
    path: list[int] = []
    while node not in seen:
        seen[node] = len(path)
        path.append(node)
        before = predecessors[node]
        node = int(before[stuck[before]][0])
    return path[seen[node] :]
