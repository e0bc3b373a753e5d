"""Latency bounds: the longest necessary sequence of hops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.ir.fabric import LinkKind
from sley.ir.graph import distances
from sley.ir.tables import NONE, FloatArray, LongArray, distinct
from sley.ir.topology import Topology
from sley.ir.words import Protocol
from sley.model.bounds.cuts import Cuts
from sley.model.bounds.needs import Collect, Everywhere, Exchange, Mixed, Needs, Spread

_BATCH = 256
"""Number of source ranks in one search for shortest paths."""

_WORD = 63
"""Number of ranks that are bits of one int64."""


def latency(cuts: Cuts, needs: Needs) -> tuple[float, str]:
    """The smallest time (us) until every rank can have all its data, and its reason: the launch,
    and the longest of the shortest paths between ranks with data and ranks that need it, over any
    GPUs. Each latency is the smallest of all protocols."""
    topology = cuts.topology
    launch = topology.startup_us
    launch += min(topology.model.launch_us[protocol] for protocol in Protocol)
    src, dst = _pairs(cuts, needs)
    if not len(src):
        return launch, f"{launch:g} us for the launch"
    hops = Hops(topology)
    backwards = len(distinct(dst)) < len(distinct(src))
    far, pair = hops.farthest(dst, src, backwards=True) if backwards else hops.farthest(src, dst)
    path = f"GPU {src[pair]} to GPU {dst[pair]}"
    return launch + far, f"{launch:g} us for the launch, {far:g} us for the path from {path}"


def _pairs(cuts: Cuts, needs: Needs) -> tuple[LongArray, LongArray]:
    """The pairs of ranks (src, dst) where dst needs data of src. If all ranks need data of all
    others, only the pairs from ranks that represent a class of symmetry."""
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
        representative = np.isin(src, cuts.representative)
        return src[representative], dst[representative]
    return src, dst


def _all(src: NDArray[np.int64], dst: NDArray[np.int64]) -> tuple[LongArray, LongArray]:
    a, b = np.repeat(src, len(dst)), np.tile(dst, len(src))
    return a[a != b], b[a != b]


def _mixed_pairs(ranks: int, needs: Mixed) -> tuple[LongArray, LongArray]:
    """All owners of a value with all ranks that need it.

    Many values can have the same owner and be needed by the same rank. So the pairs are never
    listed with repetition: the owners of a value are bits of a word, and the words of all values
    that a rank needs are combined.
    """
    # The rows of `needs` are sorted by rank, and every value has an owner.
    first = np.flatnonzero(np.diff(needs.rank, prepend=NONE))
    src, dst = [], []
    for base in range(0, ranks, _WORD):
        number = needs.owner - base
        inside = (number >= 0) & (number < _WORD)
        bit = np.where(inside, np.int64(1) << np.where(inside, number, 0), 0)
        owners = np.bitwise_or.reduceat(bit, needs.start[:-1])
        owners = np.bitwise_or.reduceat(owners[needs.value], first)
        owner, row = np.nonzero(owners >> np.arange(_WORD)[:, np.newaxis] & 1)
        src.append(base + owner)
        dst.append(needs.rank[first[row]])
    a, b = np.concatenate(src), np.concatenate(dst)
    return a[a != b], b[a != b]


class Hops:
    """The paths of shortest latency between the GPUs of a topology.

    A hop leads from a GPU to another over vertices that are not GPUs. Its latency is the sum of its
    links' latencies if all of them have one, else the model's latency for the slowest kind of link
    on it. So the graph contains each GPU once, and each other vertex once for each of these cases.
    """

    def __init__(self, topology: Topology) -> None:
        links, ranks = topology.links, topology.ranks
        n = len(topology.vertices)
        given = links.latency_us >= 0
        layers = [(given, links.latency_us, links.latency_us)]
        if not given.all():
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
        self._src, self._dst = np.concatenate(rows), np.concatenate(columns)
        self._latency_us = np.concatenate(weights)

    def farthest(
        self, src: LongArray, dst: LongArray, *, backwards: bool = False
    ) -> tuple[float, int]:
        """The longest (us) of the shortest paths from src to dst of each pair, and that pair's
        index; with `backwards`, of the paths from dst to src."""
        edges = (self._dst, self._src) if backwards else (self._src, self._dst)
        longest, pair = -1.0, 0
        origins = distinct(src)
        for batch in np.split(origins, range(_BATCH, len(origins), _BATCH)):
            far = distances(self._size, *edges, self._latency_us, batch)[:, : self._ranks]
            rows = np.flatnonzero(np.isin(src, batch))
            times = far[np.searchsorted(batch, src[rows]), dst[rows]]
            k = int(np.argmax(times))
            if times[k] > longest:
                longest, pair = float(times[k]), int(rows[k])
        return longest, pair
