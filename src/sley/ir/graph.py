"""Graph: levels and cycles of directed graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.extension import load
from sley.ir.tables import Edges, IntArray


def levels(nodes: int, source: NDArray[Any], target: NDArray[Any]) -> IntArray:
    """int32 (nodes,): the longest path from a root to each node, in edges; NONE for nodes on a
    cycle or behind one. Linear in the edges, which may repeat.

    source, target: (edges,), the nodes of each edge. Errors: R512.
    """
    ends = (np.ascontiguousarray(column, np.int32) for column in (source, target))
    found: IntArray = load("sley.ir._graphs").levels(nodes, *ends)
    return found


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
