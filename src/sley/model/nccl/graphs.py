"""NCCL's graphs: the rings and trees that NCCL makes of a machine, and the number of its channels.

Source: NCCL 2.30.7, src/graph/search.cc (speeds, order of the search, duplicated channels),
src/graph/connect.cc (channels of a communicator), src/graph/topo.h (rates of NVLink),
src/graph/paths.cc (channels of sends and receives), src/init.cc (limits). NCCL searches paths
through a machine's links with a rate for each channel. Here a channel needs that rate at every GPU
and at one card of every node. On machines with switches between the GPUs the result is the same: 12
rings of 20 GB/s on 8 A100, 12 of 30 on 8 H100, 6 of 20 on 16 V100, and 8 of 24 on nodes of 8 A100
with 8 cards of 200 Gb/s. From these NCCL makes 24, 24, 12 and 16 channels. On nodes without
switches the rings are those of `sley.topologies.link_rings`: 6 of 20 on DGX-1. For nodes of 8
MI300X, whose 7 rings, or 8 on several nodes, have 48 GB/s, the number of channels is RCCL's
(src/graph/rome_models.cc, models 79 and 81, and src/graph/connect.cc).

A topology does not contain the name of its processors. They are AMD's in machines with A100s (DGX
A100, NDv4), and Intel's in all others (DGX-1, DGX-2, NDv2, DGX H100, NDv5).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np

from sley.ir.fabric import LinkKind
from sley.ir.graph import strong_components
from sley.ir.tables import NONE, IntArray, distinct
from sley.ir.topology import Topology
from sley.topologies import LinkRings, link_rings

MAX_CHANNELS = 64
"""Limit of the channels of a communicator; a search makes half as many at most."""

LEAST_NEXT_SPEED = 0.49
"""A search ends at speeds below this share of the best solution's."""

LEAST_DUPLICATED_GBPS = 25.0
"""A search's channels with a lower rate are not duplicated."""

MAX_NVLS_HEADS = 32
"""The most heads of NVLS; calls other than AllReduce use it only on nodes without more GPUs."""

_P2P_CHANNEL_GBPS = 14
_P2P_BATCH = 8
"""Rate of a channel to the network for sends, and the number of a channel's sends at once."""


_RCCL_CHANNELS = 8
"""RCCL's channels for each ring along the links of 8 MI300X: its table has each link in 4 of 28
rings, which it then duplicates; on several nodes each of 8 rings 8 times."""


_FIRST_AMD, _FIRST_MI300 = 900, 940
"""The least `CostModel.architecture` of AMD's GPUs, and of MI300s."""


class NcclGeneration(IntEnum):
    """A generation of GPUs, as NCCL's tuner has rows for them."""

    VOLTA = 0
    AMPERE = 1
    HOPPER = 2
    BLACKWELL = 3

    @classmethod
    def of(cls, topology: Topology) -> NcclGeneration:
        """The generation of the topology's GPUs; for AMD's, the one of their time."""
        gpu = topology.model.architecture
        if gpu >= _FIRST_AMD:
            return cls.HOPPER if gpu >= _FIRST_MI300 else cls.AMPERE
        return cls(sum(gpu >= first for first in (80, 90, 100)))

    @property
    def link_GBps(self) -> tuple[float, float]:  # noqa: N802 - a unit
        """The nominal rate of an NVLink in each direction, and its rate in NCCL."""
        return ((25.0, 20.0), (25.0, 20.0), (25.0, 20.6), (50.0, 40.1))[self]

    @property
    def speeds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The rates that a search tries for a channel, in GB/s: within one node, over a network."""
        return _SPEEDS[max(self - NcclGeneration.AMPERE, 0)]


_SLOW = (2.4, 1.2, 0.24, 0.12)
_OLD = (18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0)
_NEW = (30.0, 24.0, 22.0, 20.0, 17.5, 15.0, 12.0, 6.0, 3.0, *_SLOW)
_SPEEDS = (
    ((40.0, 30.0, 20.0, *_OLD), (48.0, 30.0, 28.0, 24.0, 20.0, *_OLD, *_SLOW)),
    (
        (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
        (48.0, 45.0, 42.0, 40.0, *_NEW),
    ),
    (
        (90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
        (96.0, 80.0, 48.0, 45.1, 42.0, 40.0, *_NEW),
    ),
)


@dataclass(frozen=True)
class Graph:
    """Rings or trees that NCCL found.

    channels: their number.
    intra_GBps, inter_GBps: the rate of each within a node, and between nodes.
    """

    channels: int
    intra_GBps: float  # noqa: N815 - a unit
    inter_GBps: float  # noqa: N815


@dataclass(frozen=True)
class MachineView:
    """A topology as NCCL sees it.

    ranks, nodes: their numbers.
    generation: of the GPUs.
    nvlink: whether the GPUs of a node are joined by NVLink.
    gpu_GBps: NCCL's rate of a GPU to the others of its node in each direction.
    path_GBps: NCCL's highest rate between a GPU and a neighbour or switch.
    pair_links: the least number of NVLinks between two linked GPUs; 1 without NVLink.
    cards: number of network cards of a node; 0 with one node.
    card_GBps: rate of each in each direction.
    along_links: the rings along the links of nodes without switches between their GPUs.
    switches: whether the GPUs' switches reduce and multicast.
    rccl: whether the GPUs are AMD's MI300 or newer, with RCCL's rules.
    """

    ranks: int
    nodes: int
    generation: NcclGeneration
    nvlink: bool
    gpu_GBps: float  # noqa: N815 - a unit
    path_GBps: float  # noqa: N815
    pair_links: int
    cards: int
    card_GBps: float  # noqa: N815
    along_links: LinkRings
    switches: bool
    rccl: bool

    @classmethod
    def of(cls, topology: Topology) -> MachineView:
        """The view of a topology. Nodes that differ all count as the slowest of them."""
        generation = NcclGeneration.of(topology)
        node = _nodes(topology)
        nodes = int(node[: topology.ranks].max()) + 1
        cards, card = _cards(topology, node, nodes)
        ranks, links = topology.ranks, topology.links
        nominal, reached = generation.link_GBps
        fast = (links.src < ranks) & (links.kind == LinkKind.NVLINK)
        fast &= node[links.src] == node[links.dst]
        numbers = links.nominal_GBps[fast] / nominal
        total = float(np.bincount(links.src[fast], numbers, ranks).min())
        if total > 0:
            gpu, path = total * reached, float(numbers.max()) * reached
            pair = max(int(numbers.min()), 1)
        else:
            gpu = path = _pcie_GBps(topology)
            pair = 1
        return cls(
            ranks,
            nodes,
            generation,
            total > 0,
            gpu,
            path,
            pair,
            cards,
            card,
            link_rings(topology),
            topology.in_network,
            topology.model.architecture >= _FIRST_MI300,
        )

    @property
    def gpus(self) -> int:
        """The number of GPUs of a node."""
        return self.ranks // self.nodes

    @property
    def amd(self) -> bool:
        """Whether the processors are AMD's."""
        return self.generation is NcclGeneration.AMPERE

    @cached_property
    def rings(self) -> Graph:
        """The rings of the search: the fastest set, of equal sets the one with fewer rings; then
        duplicated if each is fast enough. Without switches, those along the links."""
        along = self.along_links
        if len(along.orders):
            return Graph(len(along.orders), along.GBps, along.GBps)
        speeds = self.generation.speeds[self.nodes > 1]
        total = self.gpu_GBps if self.gpus > 1 else self.cards * self.card_GBps
        # Speeds descend, and slower rings may be more: a search goes on until nothing can have a
        # larger sum, all the GPU's links or less than half the best speed (search.cc).
        count, rate = 0, 0.0
        for speed in speeds:
            if count and speed <= LEAST_NEXT_SPEED * rate:
                break
            fits = min(self._fitting(speed), MAX_CHANNELS // 2)
            if fits * speed > count * rate:
                count, rate = fits, speed
            if count * rate >= total:
                break
        if not count:
            return Graph(1, 0.1, 0.1)
        newer = self.generation > NcclGeneration.AMPERE
        if rate >= LEAST_DUPLICATED_GBPS and not (newer and rate < 50 and count > 4):
            twice = min(2 * count, MAX_CHANNELS // 2)
            count, rate = twice, rate / -(-twice // count)
        return Graph(count, rate, rate)

    @cached_property
    def trees(self) -> Graph:
        """The trees of the search: as many as rings. Within a node a tree is a chain, whose last
        GPU forwards nothing; between nodes each tree has its share of a card, and up to twice as
        much within a node."""
        count, speeds = self.rings.channels, self.generation.speeds[self.nodes > 1]
        forwarded = count - count // self.gpus  # at the busiest GPU

        def fits(speed: float) -> bool:
            return forwarded * speed <= self.gpu_GBps + 1e-9

        def reaches(speed: float) -> bool:
            if self.nodes == 1:
                return speed <= self.path_GBps
            return self.cards * int(self.card_GBps / speed + 1e-9) >= count

        inter = next((s for s in speeds if fits(s) and reaches(s)), self.rings.inter_GBps)
        intra = inter
        for speed in reversed(speeds):
            if self.nodes > 1 and intra < speed and intra < 2 * inter and fits(speed):
                intra = speed
        return Graph(count, intra, inter)

    @cached_property
    def nvls(self) -> Graph:
        """The heads of NVLS, on several nodes each with a card. A head's part crosses its own link
        twice in each direction, and the links of the others once. On one node the rate between
        nodes is the first that the search tries."""
        heads = min(self.gpus, MAX_NVLS_HEADS, *[self.cards] * (self.nodes > 1))
        speeds = self.generation.speeds[self.nodes > 1]

        def fits(speed: float) -> bool:
            within = (heads + 1) * speed <= self.gpu_GBps + 1e-9
            return within and (self.nodes == 1 or speed <= self.card_GBps)

        intra = next((s for s in speeds if fits(s)), 0.0)
        return Graph(heads, intra, speeds[0] if self.nodes == 1 else intra)

    @cached_property
    def nvls_channels(self) -> int:
        """The channels of NVLS, each of which has all heads."""
        if self.generation is NcclGeneration.BLACKWELL:
            return 24 if self.nodes == 1 else 32
        return 16

    @cached_property
    def channels(self) -> int:
        """The channels of a communicator: two for each ring of the search, and four on several
        nodes with newer GPUs and few, fast rings. RCCL has eight for each ring along the links."""
        if self.rccl:
            return min(_RCCL_CHANNELS * self.rings.channels, MAX_CHANNELS)
        count = 2 * self.rings.channels
        newer = self.generation > NcclGeneration.AMPERE
        if newer and self.nodes > 1 and self.rings.intra_GBps > 45 and count < 16:
            count *= 2
        return min(count, MAX_CHANNELS)

    @cached_property
    def p2p_channels(self) -> tuple[int, int]:
        """The channels of sends and receives: in all, and at most for one message."""
        total = _power_of_two(self.channels)
        each = []
        if self.gpus > 1:
            each.append(2 * self.pair_links)
        if self.nodes > 1:
            each.append(max(-(-int(self.card_GBps) // _P2P_CHANNEL_GBPS), 1))
        peer = _power_of_two(min(each))
        if self.nodes == 1:
            return total, min(total, peer)
        while peer * -(-self.ranks // _P2P_BATCH) > total and peer > 1:
            peer //= 2
        return total, peer

    def _fitting(self, speed: float) -> int:
        """The number of rings with this rate."""
        fits = int(self.gpu_GBps / speed + 1e-9) if self.gpus > 1 else MAX_CHANNELS
        if self.nodes == 1:
            return fits if speed <= self.path_GBps else 0
        return min(fits, self.cards * int(self.card_GBps / speed + 1e-9))


def _nodes(topology: Topology) -> IntArray:
    """int (vertices,): the node of each vertex as NCCL sees it, or NONE: hosts that NVLink joins
    count as one."""
    links, own = topology.links, topology.vertices.node
    inside = links.kind != LinkKind.NETWORK
    part = strong_components(len(own), links.src[inside], links.dst[inside])
    names = distinct(part[: topology.ranks])
    if len(names) >= topology.nodes:
        return own
    found = np.minimum(np.searchsorted(names, part), len(names) - 1)
    return np.where(names[found] == part, found, NONE).astype(np.int32)


def _cards(topology: Topology, node: IntArray, nodes: int) -> tuple[int, float]:
    """The number of links from a node to the network, and the rate of the slowest."""
    if nodes == 1:
        return 0, 0.0
    links = topology.links
    leaves = (node[links.src] >= 0) & (node[links.src] != node[links.dst])
    count = np.bincount(node[links.src[leaves]], minlength=nodes)
    return max(int(count.min()), 1), float(links.GBps[leaves].min())


def _pcie_GBps(topology: Topology) -> float:  # noqa: N802 - a unit
    """The rate of a ring over PCIe: that of the slowest link on its way through node 0."""
    ranks = np.flatnonzero(topology.node == 0)
    if len(ranks) == 1:
        return float("inf")
    ring = list(pairwise([*ranks.tolist(), int(ranks[0])]))
    rows = topology.paths(*zip(*ring, strict=True)).target
    return float(topology.links.GBps[rows].min())


def _power_of_two(number: int) -> int:
    """The least power of two that is not below `number`."""
    return int(1 << (number - 1).bit_length())
