"""Graph: levels, cycles, flows, shortest paths, strong components and spanning trees of directed
graphs.

Vertices are numbers from 0. `src` and `dst`, int64 (edges,), are the ends of the edges; several may
have the same ends. Errors of all functions: R512 without the extension module.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.extension import load
from sley.ir.tables import NONE, BoolArray, Edges, FloatArray, IntArray, LongArray

_MODULE = "sley.ir._graphs"


def levels(nodes: int, source: NDArray[Any], target: NDArray[Any]) -> IntArray:
    """int32 (nodes,): the longest path from a root to each node, in edges; NONE for nodes on a
    cycle or behind one. Linear in the edges, which may repeat.

    source, target: (edges,), the nodes of each edge. Errors: R512.
    """
    ends = (np.ascontiguousarray(column, np.int32) for column in (source, target))
    found: IntArray = load(_MODULE).levels(nodes, *ends)
    return found


def depths(parent: NDArray[Any]) -> IntArray:
    """int32 (trees, nodes): the edges between the root and each node of trees; NONE for nodes on a
    cycle or behind one. parent: (trees, nodes), NONE for a root."""
    depth, above = np.zeros(parent.shape, np.int32), parent
    for _ in range(parent.shape[1]):  # no way to a root is longer
        below = above != NONE
        depth += below
        up = np.take_along_axis(parent, np.maximum(above, 0), axis=1)
        above = np.where(below, up, NONE)
    return np.where(above == NONE, depth, np.int32(NONE))


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


def maximum_flow(
    vertices: int, src: LongArray, dst: LongArray, capacity: LongArray, ends: tuple[int, int]
) -> tuple[int, BoolArray]:
    """The value of a maximum flow between two `ends`, the source and the sink; and bool
    (vertices,), the smallest side of a smallest cut that contains the source.

    capacity: int64 (edges,), from 0; those that leave the source add up to less than 2^63.
    """
    value, reached = load(_MODULE).maximum_flow(vertices, src, dst, capacity, *ends)
    return value, reached.astype(bool)


def flow_values(
    vertices: int,
    src: LongArray,
    dst: LongArray,
    capacity: LongArray,
    source: int,
    sinks: LongArray,
    limit: int,
) -> LongArray:
    """int64 (sinks,): the values of the maximum flows from a source to each of several sinks, each
    `limit` at most. capacity: as for `maximum_flow`."""
    found: LongArray = load(_MODULE).flow_values(vertices, src, dst, capacity, source, sinks, limit)
    return found


def distances(
    vertices: int, src: LongArray, dst: LongArray, length: FloatArray, origins: LongArray
) -> FloatArray:
    """float64 (origins, vertices): the lengths of the shortest paths; infinity where there is none.

    length: float64 (edges,), from 0.
    """
    found: FloatArray = load(_MODULE).distances(vertices, src, dst, length, origins)
    return found


def strong_components(vertices: int, src: LongArray, dst: LongArray) -> LongArray:
    """int64 (vertices,): the number of each vertex's strong component, from 0."""
    found: LongArray = load(_MODULE).strong_components(vertices, src, dst)
    return found


def match_chunks(ranks: int, **columns: NDArray[Any]) -> IntArray:
    """int32 (chunks, ranks): the rank that sends each chunk to each rank; NONE for its root. Of all
    sends, the next one is always the one that arrives first. columns: those of `Spreading`
    (native/graphs/matching.hpp)."""
    found: IntArray = load(_MODULE).match_chunks(ranks, **columns)
    return found
