"""Network: a topology's links as capacities, and the narrowest cuts between its vertices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.tables import BoolArray, FloatArray, LongArray

_WHOLE = 2**29
"""Flow that stands for the most that can pass. SciPy's maximum flow counts in int32, and what is
left of a link is its capacity and what flows the other way."""

_UNLIMITED = 2**30


class Network:
    """A directed graph with a capacity on each link; parallel links are one.

    vertices: how many.
    src, dst: (links,).
    GBps: float64 (links,), what each carries.
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
        """The same with every link the other way."""
        return Network(self.vertices, self.dst, self.src, self.GBps)

    def leaving_GBps(self, inside: BoolArray) -> float:  # noqa: N802 - a unit
        """The capacity of the links that lead out of a set of vertices, B+(S)."""
        return float(self.GBps[inside[self.src] & ~inside[self.dst]].sum())

    def min_cut(self, sources: LongArray, sinks: LongArray) -> BoolArray:
        """bool (vertices,): a set with all sources and no sink, out of which the least capacity
        leads. Rates are rounded to 2^-29 of all that can pass."""
        out, into = self._sums(sources, sinks)
        most = min(float(out.sum()), float(into.sum()))
        residual = self._residual(sources, np.full(len(sources), np.inf), sinks, most)
        # A source stays in reach even where the flow fills the edge to it.
        residual[0].append(np.full(len(sources), self.vertices))
        residual[1].append(sources)
        return self._reached(*residual)

    def supplied_cut(self, supply_GBps: FloatArray, sink: int) -> BoolArray:  # noqa: N803
        """bool (vertices,): a set without the sink for which supply minus capacity out is
        largest; empty where the supplies of all vertices can flow to the sink.

        supply_GBps: float64 (ranks,), what comes in at each rank's vertex.
        """
        sources = np.flatnonzero(supply_GBps)
        supply = supply_GBps[sources]
        return self._reached(
            *self._residual(sources, supply, np.array([sink]), float(supply.sum()))
        )

    def _sums(self, sources: LongArray, sinks: LongArray) -> tuple[FloatArray, FloatArray]:
        out = np.bincount(self.src, self.GBps, self.vertices)[sources]
        into = np.bincount(self.dst, self.GBps, self.vertices)[sinks]
        return out.astype(np.float64), into.astype(np.float64)

    def _residual(
        self,
        sources: LongArray,
        supply_GBps: FloatArray,  # noqa: N803 - a unit
        sinks: LongArray,
        most_GBps: float,  # noqa: N803 - a unit
    ) -> tuple[list[LongArray], list[LongArray]]:
        """Edges that a maximum flow from a vertex before all sources (number `vertices`) to one
        behind all sinks leaves free; at most most_GBps flows."""
        from scipy.sparse import csr_array  # late: importing it takes longer than most bounds
        from scipy.sparse.csgraph import maximum_flow

        start, end = self.vertices, self.vertices + 1
        rate = np.concatenate([self.GBps, supply_GBps])
        # More than all the flow there is says nothing; not less, since roundings add up.
        capacity = np.minimum(np.rint(rate * (_WHOLE / most_GBps)), _UNLIMITED)
        rows = np.concatenate([self.src, np.full(len(sources), start), sinks])
        columns = np.concatenate([self.dst, sources, np.full(len(sinks), end)])
        data = np.concatenate([capacity, np.full(len(sinks), _UNLIMITED)]).astype(np.int32)
        graph = csr_array((data, (rows, columns)), shape=(end + 1, end + 1))
        free = (graph - maximum_flow(graph, start, end).flow).tocoo()
        left = free.data > 0
        return [free.row[left].astype(np.int64)], [free.col[left].astype(np.int64)]

    def _reached(self, rows: list[LongArray], columns: list[LongArray]) -> BoolArray:
        """bool (vertices,): what edges lead to from the vertex before all sources."""
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import breadth_first_order

        row, column = np.concatenate(rows), np.concatenate(columns)
        n = self.vertices
        residual = csr_array((np.ones(len(row), np.int8), (row, column)), shape=(n + 2, n + 2))
        reached = np.zeros(n + 2, bool)
        reached[breadth_first_order(residual, n, return_predecessors=False)] = True
        return reached[:n]
