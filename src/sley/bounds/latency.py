"""Latency bounds: the hops that data must make one after the other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.bounds.cuts import Cuts
from sley.bounds.needs import Collect, Everywhere, Exchange, Mixed, Needs, Spread
from sley.ir.fabric import LinkKind
from sley.ir.tables import FloatArray, LongArray, distinct
from sley.ir.topology import Topology
from sley.ir.words import Protocol

_BATCH = 256
"""Ranks from which ways are sought at a time."""


def latency(cuts: Cuts, needs: Needs) -> tuple[float, str]:
    """The least time (us) from the call until the rank that is farthest from some of its data can
    have it, and why: launch, and the hops of the shortest way, over other GPUs too. Each is the
    smallest over the protocols."""
    topology = cuts.topology
    launch = min(topology.model.launch_us[protocol] for protocol in Protocol)
    src, dst = _pairs(cuts, needs)
    if not len(src):
        return launch, f"{launch:g} us for the launch"
    hops = Hops(topology)
    turned = len(np.unique(dst)) < len(np.unique(src))
    far, pair = hops.farthest(dst, src, turned=True) if turned else hops.farthest(src, dst)
    way = f"GPU {src[pair]} to GPU {dst[pair]}"
    return launch + far, f"{launch:g} us for the launch, {far:g} us for the way from {way}"


def _pairs(cuts: Cuts, needs: Needs) -> tuple[LongArray, LongArray]:
    """From which ranks data must come to which; where every rank needs data of every other, only
    those from ranks that stand for others."""
    ranks = np.arange(cuts.ranks, dtype=np.int64)
    match needs:
        case Mixed():
            src, dst = _mixed_pairs(cuts.ranks, needs)
        case Exchange():
            src, dst = needs.src, needs.dst
        case Everywhere():
            src, dst = _all(ranks, ranks)
        case Spread():
            src, dst = _all(np.flatnonzero(needs.chunks), ranks)
        case Collect():
            src, dst = _all(ranks, np.flatnonzero(needs.chunks))
    if len(src) == cuts.ranks * (cuts.ranks - 1):
        standing = np.isin(src, cuts.standing)
        return src[standing], dst[standing]
    return src, dst


def _all(src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[LongArray, LongArray]:
    a, b = np.repeat(src, len(dst)), np.tile(dst, len(src))
    return a[a != b], b[a != b]


def _mixed_pairs(ranks: int, needs: Mixed) -> tuple[LongArray, LongArray]:
    from scipy.sparse import csr_array

    values = len(needs.start) - 1
    value = np.repeat(np.arange(values), np.diff(needs.start))
    has = csr_array((np.ones(len(value)), (needs.owner, value)), shape=(ranks, values))
    wants = csr_array((np.ones(len(needs.value)), (needs.value, needs.rank)), shape=(values, ranks))
    src, dst = (has @ wants).nonzero()
    src, dst = src.astype(np.int64), dst.astype(np.int64)
    return src[src != dst], dst[src != dst]


class Hops:
    """The shortest ways between the GPUs of a topology, in time.

    A hop goes from a GPU to another over vertices that are none. It takes what its links say
    together where all of them do, else what the model says for the slowest kind among them. So the
    graph has a GPU once, and the other vertices once for each of these cases.
    """

    def __init__(self, topology: Topology) -> None:
        from scipy.sparse import csr_array

        links, ranks = topology.links, topology.ranks
        n = len(topology.vertices)
        said = links.latency_us >= 0
        layers = [(said, links.latency_us, links.latency_us)]
        if not said.all():
            for kind in LinkKind:
                latency_us = topology.model.latency_us(kind)
                start = np.full(len(links), min(latency_us[protocol] for protocol in Protocol))
                layers.append((links.kind <= kind, start, np.zeros(len(links))))
        rows: list[LongArray] = []
        columns: list[LongArray] = []
        weights: list[FloatArray] = []
        for number, (used, start, later) in enumerate(layers):
            src, dst = links.src[used].astype(np.int64), links.dst[used].astype(np.int64)
            rows.append(np.where(src < ranks, src, src + number * n))
            columns.append(np.where(dst < ranks, dst, dst + number * n))
            weights.append(np.where(src < ranks, start[used], later[used]))
        self._size = len(layers) * n
        self._ranks = ranks
        row, column = np.concatenate(rows), np.concatenate(columns)
        weight = np.concatenate(weights)
        # Of parallel links the fastest counts; a matrix would add them up.
        order = np.lexsort((weight, row * self._size + column))
        key = (row * self._size + column)[order]
        fastest = order[np.append(True, key[1:] != key[:-1])]
        self._graph = csr_array(
            (weight[fastest], (row[fastest], column[fastest])), shape=(self._size,) * 2
        )

    def farthest(
        self, src: LongArray, dst: LongArray, *, turned: bool = False
    ) -> tuple[float, int]:
        """The longest of the shortest ways (us) from src to dst of some pairs, and which pair has
        it; `turned`: from dst to src."""
        from scipy.sparse.csgraph import dijkstra

        graph = self._graph.T.tocsr() if turned else self._graph
        longest, pair = -1.0, 0
        origins = distinct(src)
        for batch in np.split(origins, range(_BATCH, len(origins), _BATCH)):
            far = dijkstra(graph, indices=batch)[:, : self._ranks]
            rows = np.flatnonzero(np.isin(src, batch))
            times = far[np.searchsorted(batch, src[rows]), dst[rows]]
            k = int(np.argmax(times))
            if times[k] > longest:
                longest, pair = float(times[k]), int(rows[k])
        return longest, pair
