"""Paths: flows, shortest paths and strong components of directed graphs with values on edges.

Vertices are numbers from 0; `src` and `dst`, int64 (edges,), are the ends of the edges. Several
edges may have the same ends. Errors of all functions: R512; ValueError for other numbers than those
that they name.
"""

from __future__ import annotations

from sley.ir.extension import load
from sley.ir.tables import BoolArray, FloatArray, LongArray

_MODULE = "sley.ir._graphs"


def maximum_flow(
    vertices: int, src: LongArray, dst: LongArray, capacity: LongArray, ends: tuple[int, int]
) -> tuple[int, BoolArray]:
    """The value of a maximum flow between two `ends`, the source and the sink; and bool
    (vertices,), the smallest side of a smallest cut that contains the source.

    capacity: int64 (edges,), from 0; those that leave the source add up to less than 2^63.
    """
    value, reached = load(_MODULE).maximum_flow(vertices, src, dst, capacity, *ends)
    return value, reached.astype(bool)


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
