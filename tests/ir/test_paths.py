"""Paths: flows, distances and strong components agree with SciPy's on random graphs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra
from scipy.sparse.csgraph import maximum_flow as scipy_maximum_flow

from sley.ir.graph import distances, maximum_flow, strong_components
from sley.ir.tables import LongArray
from support.generators.examples import examples


@dataclass(frozen=True)
class Graph:
    vertices: int
    src: LongArray
    dst: LongArray
    value: LongArray

    def matrix(self, value: LongArray | None = None) -> csr_array:
        """The matrix of values, those of parallel edges added."""
        data = self.value if value is None else value
        shape = (self.vertices, self.vertices)
        return csr_array((data.astype(np.int32), (self.src, self.dst)), shape=shape)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    vertices = draw(st.integers(2, 9))
    vertex, value = st.integers(0, vertices - 1), st.integers(0, 6)
    edges = draw(st.lists(st.tuples(vertex, vertex, value), max_size=30))
    src, dst, values = np.array(edges, np.int64).reshape(-1, 3).T.copy()
    return Graph(vertices, src, dst, values)


@examples(36)
@given(graphs())
def test_a_maximum_flow_is_as_large_as_the_cut_that_it_names(graph: Graph) -> None:
    ends = (0, graph.vertices - 1)
    flow, side = maximum_flow(graph.vertices, graph.src, graph.dst, graph.value, ends)
    assert flow == scipy_maximum_flow(graph.matrix(), *ends).flow_value
    assert side[0]
    assert not side[-1]
    assert flow == graph.value[side[graph.src] & ~side[graph.dst]].sum()


def test_a_flow_over_the_shortest_path_is_taken_back_where_two_longer_ones_carry_more() -> None:
    """The only path of three edges, 0-1-2-3, keeps both of the others from their end."""
    edges = [(0, 1), (1, 2), (2, 3), (0, 4), (4, 5), (5, 2), (1, 6), (6, 7), (7, 3)]
    src, dst = np.array(edges, np.int64).T.copy()
    assert maximum_flow(8, src, dst, np.ones(len(edges), np.int64), (0, 3))[0] == 2


@examples(36)
@given(graphs())
def test_distances_are_those_of_shortest_paths(graph: Graph) -> None:
    origins = np.arange(graph.vertices)
    found = distances(graph.vertices, graph.src, graph.dst, graph.value.astype(np.float64), origins)
    order = np.argsort(-graph.value, kind="stable")
    matrix = np.full((graph.vertices,) * 2, np.nan)  # of parallel edges the shortest
    matrix[graph.src[order], graph.dst[order]] = graph.value[order]
    src, dst = np.nonzero(~np.isnan(matrix))
    sparse = csr_array((matrix[src, dst], (src, dst)), shape=matrix.shape)
    assert np.array_equal(found, dijkstra(sparse))


@examples(36)
@given(graphs())
def test_vertices_that_reach_one_another_have_one_component(graph: Graph) -> None:
    found = strong_components(graph.vertices, graph.src, graph.dst)
    matrix = graph.matrix(np.ones(len(graph.src), np.int64))
    count, expected = connected_components(matrix, directed=True, connection="strong")
    pairs = set(zip(found.tolist(), expected.tolist(), strict=True))
    assert len(pairs) == count == len(set(found.tolist()))


def test_edges_of_vertices_that_do_not_exist_are_refused() -> None:
    one, two = np.array([0]), np.array([5])
    for call in (
        lambda: strong_components(2, one, two),
        lambda: strong_components(2, -two, one),
        lambda: distances(2, one, one, np.ones(1), two),
        lambda: distances(2, one, one, np.ones(2), one),
        lambda: maximum_flow(2, one, one, one, (0, 0)),
    ):
        with pytest.raises(ValueError, match=r"vertex|lengths"):
            call()


def test_flows_that_no_number_can_hold_and_capacities_below_0_are_refused() -> None:
    src, dst = np.zeros(2, np.int64), np.ones(2, np.int64)
    most = np.array([2**62, 2**62 - 1])
    assert maximum_flow(2, src, dst, most, (0, 1))[0] == 2**63 - 1
    with pytest.raises(ValueError, match=r"2\^63 or more"):
        maximum_flow(2, src, dst, np.full(2, 2**62), (0, 1))
    with pytest.raises(ValueError, match="below 0"):
        maximum_flow(2, src, dst, np.array([1, -1]), (0, 1))


@pytest.mark.parametrize("length", [-1.0, float("nan")])
def test_lengths_below_0_and_nan_are_refused(length: float) -> None:
    one = np.ones(1, np.int64)
    with pytest.raises(ValueError, match="below 0, or NaN"):
        distances(2, one - 1, one, np.array([length]), one - 1)
