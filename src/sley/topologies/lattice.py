"""Lattice: the sides of topologies that are meshes or tori, whatever made them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from sley.ir.fabric import VertexKind
from sley.ir.tables import LongArray
from sley.ir.topology import Topology

MOST_AXES = 3
"""The most dimensions that are looked for."""


def sides_of(topology: Topology) -> tuple[int, ...] | None:
    """The sides of a mesh or torus in two or three dimensions, with ranks row by row: each GPU is
    linked to its neighbours along each axis, maybe the last along an axis to the first, and to
    nothing else. None for other topologies."""
    kind, links = topology.vertices.kind, topology.links
    if (kind != VertexKind.GPU).any():
        return None
    ends = np.sort(np.column_stack((links.src, links.dst)), axis=1)
    pairs = {(a, b) for a, b in ends.tolist()}
    for sides in _sides(topology.ranks, MOST_AXES):
        if _is_lattice(sides, pairs):
            return sides
    return None


def steps(sides: tuple[int, ...], a: int, b: int) -> LongArray:
    """int64 (axes,): the steps along each axis from one rank of a lattice to another."""
    found: LongArray = np.subtract(np.unravel_index(b, sides), np.unravel_index(a, sides))
    return found


def _sides(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """All products of 2 to `most` numbers from 2 on that are `number`."""
    # In every order of the factors, since ranks count along the last side first.
    for side in range(2, number // 2 + 1):
        if number % side:
            continue
        yield (side, number // side)
        if most > 2:
            yield from ((side, *rest) for rest in _sides(number // side, most - 1))


def _is_lattice(sides: tuple[int, ...], pairs: set[tuple[int, int]]) -> bool:
    rank = np.arange(math.prod(sides)).reshape(sides)
    needed: set[tuple[int, int]] = set()
    wraps: set[tuple[int, int]] = set()
    for axis in range(len(sides)):
        along = np.moveaxis(rank, axis, 0)
        needed |= set(zip(along[:-1].ravel().tolist(), along[1:].ravel().tolist(), strict=True))
        wraps |= set(zip(along[0].ravel().tolist(), along[-1].ravel().tolist(), strict=True))
    return needed <= pairs <= needed | wraps
