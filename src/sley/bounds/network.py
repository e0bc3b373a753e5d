"""Network: a topology's links as capacities, and the narrowest cuts between its vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.tables import BoolArray, FloatArray, LongArray

_WHOLE = 2**29
"""The integer that represents the largest possible flow. SciPy's maximum flow computes in int32,
and the residual of a link adds the flow in the other direction to its capacity."""

_UNLIMITED = 2**30


class Network:
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

    def reversed(self) -> Network:
        """The network with the direction of every link reversed."""
        return Network(self.vertices, self.dst, self.src, self.GBps)

    def leaving_GBps(self, inside: BoolArray) -> float:  # noqa: N802 - a unit
        """The capacity of the links out of a set of vertices, B+(S)."""
        return float(self.GBps[inside[self.src] & ~inside[self.dst]].sum())

    def min_cut(self, sources: LongArray, sinks: LongArray) -> BoolArray:
        """bool (vertices,): the set with all sources and no sink whose outward capacity is
        smallest. Rates are rounded to 2^-29 of the largest possible flow."""
        out = np.bincount(self.src, self.GBps, self.vertices)[sources].sum()
        into = np.bincount(self.dst, self.GBps, self.vertices)[sinks].sum()
        most = float(min(out, into))
        rows, columns = self._residual(sources, np.full(len(sources), np.inf), sinks, most)
        # Sources stay reachable even if the flow saturates the edges to them.
        start = np.full(len(sources), self.vertices)
        return self._reachable(np.append(rows, start), np.append(columns, sources))

    def supplied_cut(self, supply_GBps: FloatArray, sink: int) -> BoolArray:  # noqa: N803
        """bool (vertices,): a set without the sink whose supply exceeds its outward capacity most;
        empty if all supplies can flow to the sink.

        supply_GBps: float64 (ranks,), the supply at each rank's vertex.
        """
        sources = np.flatnonzero(supply_GBps)
        supply = supply_GBps[sources]
        return self._reachable(
            *self._residual(sources, supply, np.array([sink]), float(supply.sum()))
        )

    def _residual(
        self,
        sources: LongArray,
        supply_GBps: FloatArray,  # noqa: N803 - a unit
        sinks: LongArray,
        most_GBps: float,  # noqa: N803 - a unit
    ) -> tuple[LongArray, LongArray]:
        """The edges with residual capacity after a maximum flow from a vertex before all sources
        (number `vertices`) to a vertex behind all sinks; the flow is at most most_GBps."""
        from scipy.sparse import csr_array  # late: importing it takes longer than most bounds
        from scipy.sparse.csgraph import maximum_flow

        start, end = self.vertices, self.vertices + 1
        rate = np.concatenate([self.GBps, supply_GBps])
        # Twice the largest flow is as good as unlimited, and leaves room for rounding errors.
        capacity = np.minimum(np.rint(rate * (_WHOLE / most_GBps)), _UNLIMITED)
        rows = np.concatenate([self.src, np.full(len(sources), start), sinks])
        columns = np.concatenate([self.dst, sources, np.full(len(sinks), end)])
        data = np.concatenate([capacity, np.full(len(sinks), _UNLIMITED)]).astype(np.int32)
        graph = csr_array((data, (rows, columns)), shape=(end + 1, end + 1))
        free = (graph - maximum_flow(graph, start, end).flow).tocoo()
        left = free.data > 0
        return free.row[left].astype(np.int64), free.col[left].astype(np.int64)

    def _reachable(self, rows: LongArray, columns: LongArray) -> BoolArray:
        """bool (vertices,): the vertices that edges connect to the vertex before all sources."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        n = self.vertices
        residual = csr_array((np.ones(len(rows), np.int8), (rows, columns)), shape=(n + 2, n + 2))
        reached = np.zeros(n + 2, bool)
        reached[breadth_first_order(residual, n, return_predecessors=False)] = True
        return reached[:n]
