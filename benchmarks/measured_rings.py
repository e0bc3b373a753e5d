"""Published times of NCCL's ring AllReduce, and their simulations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf

import sley
from sley import Protocol, Topology, topologies
from sley.ir.words import FIFO_PROTOCOLS
from sley.model.nccl import choice as nccl

CHANNELS = 24
"""Number of NCCL's rings on these machines (MSCCLang 7.1.1: a thread block for each of 24)."""

LARGE = 256 * 2**20
"""The aim is `CLOSE` from this size up, and `ROUGH` below."""

CLOSE, ROUGH = 0.10, 0.30
PEAK_SIZES = ("256M", "8G")
"""The sizes for a peak, which is a bus bandwidth without a size in its source."""


def h100_four_cards(nodes: int) -> Topology:
    """Nodes of 8 H100 with four cards of 400 Gb/s, with the GPUs and cards of the library's
    NDv5."""
    return Topology.cluster(
        nodes,
        8,
        4,
        nvlink_GBps=(450.0, 370.0),
        nic_GBps=(50.0, 48.5),
        name=f"{nodes}x8 H100, 4 NICs",
        model=topologies.ndv5().model,
    )


@dataclass(frozen=True)
class Point:
    """A measured bus bandwidth.

    where: the machines, in words.
    topology: builds the machines' topology.
    nodes, gpus: number of nodes, and of GPUs in each.
    size: size of the buffer.
    busbw_GBps: the measured bus bandwidth.
    peak: whether the source gives no size.
    reason: the probable reason for an error above the aim.
    """

    where: str
    topology: Callable[[], Topology]
    nodes: int
    gpus: int
    size: str
    busbw_GBps: float  # noqa: N815 - a unit
    peak: bool = False
    reason: str = ""

    @property
    def size_bytes(self) -> int:
        """The size as a number."""
        return int(self.size[:-1]) * {"M": 2**20, "G": 2**30}[self.size[-1]]

    @property
    def limit(self) -> float:
        """The largest error of the predicted time that the comparison aims at."""
        return CLOSE if self.size_bytes >= LARGE else ROUGH

    @property
    def time_us(self) -> float:
        """The measured time."""
        ranks = self.nodes * self.gpus
        return self.size_bytes * 2 * (ranks - 1) / ranks / self.busbw_GBps / 1e3

    def tuner_us(self, protocol: Protocol) -> float:
        """The time by the formula of NCCL's tuner."""
        ring = nccl.NcclAlgorithm.RING
        choice = nccl.forced("allreduce", self.topology(), self.size_bytes, ring, protocol)
        return inf if choice is None or choice.predicted_us is None else choice.predicted_us

    @property
    def protocol(self) -> Protocol:
        """The protocol that NCCL's tuner chooses."""
        return min(FIFO_PROTOCOLS, key=self.tuner_us)


def _peaks(
    where: str,
    topology: Callable[[], Topology],
    sizes: tuple[int, int],
    busbw_GBps: float,  # noqa: N803 - a unit
    reason: str = "",
) -> list[Point]:
    return [Point(where, topology, *sizes, size, busbw_GBps, True, reason) for size in PEAK_SIZES]


_CURVE = "1x8 A100 (NDv4)"
_NETWORK = (
    "the measured rings reach {} of their cards, in other rows all of it; the model lacks a "
    "property of these machines (routes, PCIe, memory)"
)
POINTS: tuple[Point, ...] = (
    *(
        Point(_CURVE, topologies.ndv4, 1, 8, size, busbw, reason=reason)
        for size, busbw, reason in (
            (
                "1M",
                36.2,
                "the tuner chooses LL, and its own time is also too short; LL128, simulated, is "
                "within 3 %. Either NCCL used another protocol, or a call costs more than the base "
                "of 6.6 us",
            ),
            ("4M", 71.4, ""),
            (
                "16M",
                109.2,
                "the tuner chooses LL128, and its own time is also too short; Simple, simulated, "
                "is within 13 %, so NCCL may have used Simple",
            ),
            ("64M", 166.6, ""),
            ("256M", 213.9, ""),
            ("1G", 228.1, ""),
            ("8G", 231.6, ""),
        )
    ),
    *_peaks("1x8 A100, of the next row's machines", topologies.ndv4, (1, 8), 232.5),
    *_peaks(
        "2x8 A100, 4 NICs of 200 Gb/s",
        lambda: topologies.cluster(2, 8, 4),
        (2, 8),
        86.0,
        _NETWORK.format("86 of 96 GB/s"),
    ),
    *_peaks("2x8 A100, 1 NIC", lambda: topologies.cluster(2, 8, 1), (2, 8), 24.0),
    *_peaks("3x8 A100, 4 NICs (HDR)", lambda: topologies.cluster(3, 8, 4), (3, 8), 96.0),
    *_peaks("2x8 A100, 8 NICs (DGX A100)", lambda: topologies.dgx_a100(2), (2, 8), 192.0),
    *_peaks(
        "2x4 A100, 4 NICs",
        lambda: topologies.cluster(2, 4, 4),
        (2, 4),
        78.0,
        _NETWORK.format("78 of 96 GB/s"),
    ),
    *_peaks("2x4 A100, 2 NICs", lambda: topologies.cluster(2, 4, 2), (2, 4), 45.0),
    *_peaks(
        "1x8 H100 (NDv5), ring",
        topologies.ndv5,
        (1, 8),
        370.0,
        "the measured peak is the full rate of the links; the time of each part's fence, 3.4 us as "
        "on A100s, is a larger share of a faster block's time",
    ),
    *_peaks(
        "5x8 H100, 4 NICs of 400 Gb/s, ring",
        lambda: h100_four_cards(5),
        (5, 8),
        190.0,
    ),
)
"""The published points; sizes are powers of two."""


@cache
def ring_plan(nodes: int, gpus: int, protocol: Protocol) -> sley.Plan:
    """NCCL's rings as a plan: `CHANNELS` rings in all, in place, as nccl-tests measures them."""
    program = sley.algorithms.multi_ring_allreduce(nodes, gpus, in_place=True)
    return sley.compile(program, instances=CHANNELS // gpus, protocol=protocol)


def predicted(point: Point) -> dict[Protocol, sley.Simulation]:
    """The simulation of a point with each protocol, with the default parameters."""
    topology = point.topology()
    return {
        protocol: sley.simulate(
            ring_plan(point.nodes, point.gpus, protocol), point.size, topology, interpreter=False
        )
        for protocol in FIFO_PROTOCOLS
    }
