"""Levels, flows, shortest paths and components of directed graphs."""

from typing import Annotated, Any

import numpy
from numpy.typing import NDArray


def maximum_flow(vertices: int, src: NDArray[numpy.int64], dst: NDArray[numpy.int64], capacity: NDArray[numpy.int64], source: int, sink: int) -> tuple[int, NDArray[numpy.uint8]]:
    """
    The value of a maximum flow, and (vertices,) whether each vertex can be reached from the source over edges with capacity left. capacity: of each edge, from 0.
    """

def flow_values(vertices: int, src: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], capacity: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], source: int, sinks: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], limit: int) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """
    (sinks,), the values of the maximum flows from the source to each sink, `limit` at most. capacity: of each edge, from 0.
    """

def distances(vertices: int, src: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], length: Annotated[NDArray[numpy.float64], dict(shape=(None,), order='C', device='cpu', writable=False)], origins: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.float64], dict(shape=(None, None))]:
    """
    (origins, vertices), the length of the shortest path from each origin to each vertex; infinity where there is none. length: of each edge, from 0.
    """

def strong_components(vertices: int, src: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]:
    """(vertices,), the number of each vertex's strong component, from 0."""

def levels(vertices: int, src: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], dst: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
    """
    (vertices,), the number of edges of the longest path from a root to each vertex; -1 for vertices on a cycle or behind one. Linear in the edges, which may repeat.
    """

def match_chunks(ranks: int, **columns: NDArray[Any]) -> NDArray[numpy.int32]:
    """
    (chunks, ranks), the rank that sends each chunk to each rank, -1 for the root; the columns are those of `Spreading` (native/graphs/matching.hpp).
    """

def conflicts(cells: int, *, unordered: bool, **columns: NDArray[Any]) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32], NDArray[numpy.int64], NDArray[numpy.uint8]]:
    """
    The columns of `sley.ir.happens_before.Hazards`; those given are named as in native/graphs/hazards.hpp.
    """

def order_instructions(slots: int, **columns: NDArray[Any]) -> tuple[NDArray[numpy.int32], NDArray[numpy.int32]]:
    """
    The transfers that each instruction receives and sends, in order; the columns are those of `OrderInputs` (native/graphs/order.hpp).
    """

def needed_waits(search: int, **columns: NDArray[Any]) -> NDArray[numpy.uint8]:
    """
    (waits,), whether each is needed; the columns are those of `PossibleWaits` (native/graphs/waits.hpp).
    """
