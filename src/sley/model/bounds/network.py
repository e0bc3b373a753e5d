"""Network: a topology's links as capacities, and the narrowest cuts between its vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.graph import maximum_flow
from sley.ir.tables import BoolArray, FloatArray, LongArray

_WHOLE = 2**40
"""The integer that represents the largest possible flow."""


class CapacityGraph:
    """A directed graph with a capacity on each link; parallel links become one.

    vertices: number of vertices.
    src, dst: (links,).
    GBps: float64 (links,), the capacities.
    """

    def __init__(
        self,
        vertices: int,
        src: NDArray[Any],
        dst: NDArray[Any],
        GBps: FloatArray,  # noqa: N803 - a unit
    ) -> None:
        key, number = np.unique(src.astype(np.int64) * vertices + dst, return_inverse=True)
        self.vertices = vertices
        self.src: LongArray = key // vertices
        self.dst: LongArray = key % vertices
        self.GBps: FloatArray = np.bincount(number, GBps, len(key)).astype(np.float64)

    def reversed(self) -> CapacityGraph:
        """The network with the direction of every link reversed."""
        return CapacityGraph(self.vertices, self.dst, self.src, self.GBps)

    def leaving_GBps(self, inside: BoolArray) -> float:  # noqa: N802 - a unit
        """The capacity of the links out of a set of vertices, B+(S)."""
        return float(self.GBps[inside[self.src] & ~inside[self.dst]].sum())

    def min_cut(self, sources: LongArray, sinks: LongArray) -> BoolArray:
        """bool (vertices,): the set with all sources and no sink whose outward capacity is
        smallest. Rates are rounded to 2^-40 of the largest possible flow."""
        out = np.bincount(self.src, self.GBps, self.vertices)[sources].sum()
        into = np.bincount(self.dst, self.GBps, self.vertices)[sinks].sum()
        most = float(min(out, into))
        found = self._smallest_side(sources, np.full(len(sources), np.inf), sinks, most)
        found[sources] = True  # even if the flow saturates the edges to them
        return found

    def supplied_cut(self, supply_GBps: FloatArray, sink: int) -> BoolArray:  # noqa: N803
        """bool (vertices,): a set without the sink whose supply exceeds its outward capacity most;
        empty if all supplies can flow to the sink.

        supply_GBps: float64 (ranks,), the supply at each rank's vertex.
        """
        sources = np.flatnonzero(supply_GBps)
        supply = supply_GBps[sources]
        return self._smallest_side(sources, supply, np.array([sink]), float(supply.sum()))

    def _smallest_side(
        self,
        sources: LongArray,
        supply_GBps: FloatArray,  # noqa: N803 - a unit
        sinks: LongArray,
        most_GBps: float,  # noqa: N803 - a unit
    ) -> BoolArray:
        """bool (vertices,): the source side of a minimum cut.

        A further vertex feeds each source with its supply, and another one drains all sinks. The
        set has the vertices that the first one can still reach after a maximum flow to the second.
        most_GBps: an upper bound of the flow.
        """
        start, end = self.vertices, self.vertices + 1
        rate = np.concatenate([self.GBps, supply_GBps, np.full(len(sinks), np.inf)])
        # Twice the largest flow is as good as unlimited, and leaves room for rounding errors.
        capacity = np.minimum(np.rint(rate * (_WHOLE / most_GBps)), 2 * _WHOLE).astype(np.int64)
        src = np.concatenate([self.src, np.full(len(sources), start), sinks])
        dst = np.concatenate([self.dst, sources, np.full(len(sinks), end)])
        return maximum_flow(self.vertices + 2, src, dst, capacity, (start, end))[1][:start]
