"""Measurements in other projects' files: AllGather on MI250X, and MSCCL++'s kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

import sley
from sley import Protocol, Topology, topologies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.words import FIFO_PROTOCOLS
from sley.model.bounds import Bound, Bounds
from sley.model.simulation import Simulator

AMD_XML, AMD_TIMES = "msccl-xml/amd_32.xml", "msccl-xml/amd_32.txt"
MSCCLPP = {"NDv4": "measured/perf_ndmv4.jsonl", "NDv5": "measured/perf_ndmv5.jsonl"}

FITTED_FROM = 2**20
"""The smallest size for the fit of rates."""

GRID = (0.15, 0.25, 0.4, 0.6, 1.0)
"""Factors of two rates at which the search may start."""

BLOCK_RATES = (
    "nvlink_block_GBps",
    "pcie_block_GBps",
    "network_block_GBps",
    "local_block_GBps",
)

_ROW = re.compile(r"\s(\d+)\s+\d+\s+float\s+none\s+-1((?:\s+[\d.]+){8})\s*$")


@dataclass(frozen=True)
class AmdRow:
    """A size of AllGather on 2x16 MI250X, with the measured times of the XML and of RCCL's own
    algorithm."""

    size_bytes: int
    xml_us: float
    rccl_us: float


def read_nccl_tests(text: str) -> list[AmdRow]:
    """The rows of nccl-tests' output: the XML in place, RCCL's own algorithm out of place. Rows
    without data, or with a log message in them, are skipped."""
    found = [match for line in text.splitlines() if (match := _ROW.search(line))]
    rows = [(int(m[1]), [float(word) for word in m[2].split()]) for m in found]
    return [AmdRow(size, times[4], times[0]) for size, times in rows if size]


class Rate(Enum):
    """A rate that can be fitted. BLOCKS: the rate of a thread block for all destinations. XGMI:
    links between GPUs. PCIE: links of the PCIe tree except those to cards. CARDS: network cards."""

    BLOCKS = "thread blocks"
    CARDS = "cards"
    XGMI = "xGMI links"
    PCIE = "PCIe links"


CHOSEN = (Rate.BLOCKS, Rate.CARDS)
"""The two rates of the page's main fit; other pairs are fitted for comparison."""


@dataclass(frozen=True)
class Fit:
    """Two rates fitted to measured times.

    rates: the two rates.
    factors: the factors of their default values.
    """

    rates: tuple[Rate, Rate]
    factors: tuple[float, float]

    def topology(self, base: Topology) -> Topology:
        """The machine with these rates."""
        kind, links = base.vertices.kind, base.links
        card = (kind[links.src] == VertexKind.NIC) | (kind[links.dst] == VertexKind.NIC)
        rows = {
            Rate.CARDS: card,
            Rate.XGMI: links.kind == LinkKind.NVLINK,
            Rate.PCIE: (links.kind == LinkKind.PCIE) & ~card,
        }
        rate, model = links.GBps.copy(), base.model
        for which, factor in zip(self.rates, self.factors, strict=True):
            if which is Rate.BLOCKS:
                scaled = {name: getattr(model, name) * factor for name in BLOCK_RATES}
                model = replace(model, **scaled)
            else:
                rate[rows[which]] *= factor
        return replace(base, links=replace(links, GBps=rate), model=model)


def simulated(plan: sley.Plan, topology: Topology, sizes: list[int]) -> list[float]:
    """The times in us, with an interpreter, as RCCL runs MSCCL's XML."""
    simulator = Simulator(plan, topology, interpreter=True)
    return [simulator(size).time_us for size in sizes]


def fit(
    plan: sley.Plan, topology: Topology, rows: list[AmdRow], rates: tuple[Rate, Rate] = CHOSEN
) -> Fit:
    """The least squares of the logarithms of times, over the rows from `FITTED_FROM` up. The search
    starts at the best point of a grid, because there is more than one minimum."""
    used = [row for row in rows if row.size_bytes >= FITTED_FROM]
    sizes, measured = [r.size_bytes for r in used], np.log([r.xml_us for r in used])

    def cost(logs: NDArray[np.float64]) -> float:
        first, second = np.exp(logs).tolist()
        times = simulated(plan, Fit(rates, (first, second)).topology(topology), sizes)
        return float(((np.log(times) - measured) ** 2).sum())

    start = min((np.log(point) for point in product(GRID, repeat=2)), key=cost)
    options = {"xatol": 1e-3, "fatol": 1e-6, "maxfev": 100}
    first, second = np.exp(minimize(cost, start, method="Nelder-Mead", options=options).x).tolist()
    return Fit(rates, (first, second))


@dataclass(frozen=True)
class Kernel:
    """A measured kernel of MSCCL++."""

    machine: str
    collective: str
    number: int
    nodes: int
    size_bytes: int
    time_us: float

    @property
    def topology(self) -> Topology:
        """The machines of the measurement."""
        build: Callable[[int], Topology] = getattr(topologies, self.machine.lower())
        return build(self.nodes)


def read_kernels(machine: str, text: str) -> list[Kernel]:
    """The rows of one of MSCCL++'s files, one JSON object on each line."""
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [
        Kernel(
            machine,
            row["name"],
            row["kernel"],
            row["ranks"] // row["ranksPerNode"],
            row["size"],
            row["time"],
        )
        for row in rows
    ]


def bound_of(kernel: Kernel, *, nominal: bool) -> Bound:
    """The bound for a kernel's collective, at nominal rates or at reached rates."""
    collective = _nearest(kernel.collective, kernel.nodes, Protocol.LL).collective
    return Bounds.of(collective, kernel.topology, nominal=nominal).at(kernel.size_bytes)


INSTANCES = 4
NEAREST = {
    ("allgather", 1): "all-pairs-allgather",
    ("allgather", 2): "hm-allgather",
    ("allreduce", 1): "all-pairs-allreduce",
    ("allreduce", 2): "hm-allreduce",
    ("alltoall", 1): "all-pairs-alltoall",
    ("alltoall", 2): "all-pairs-alltoall",
}
"""The library's algorithm that is closest to MSCCL++'s kernels, by collective and nodes."""


@cache
def _nearest(collective: str, nodes: int, protocol: Protocol) -> sley.Plan:
    name = NEAREST[collective, nodes]
    in_place = collective != "alltoall"
    program = sley.algorithms.build(name, nodes=nodes, gpus=8, in_place=in_place)
    return sley.compile(program, instances=INSTANCES, protocol=protocol)


def nearest_us(kernel: Kernel) -> tuple[Protocol, float]:
    """The fastest protocol of the closest algorithm, and its simulated time."""
    times = {
        protocol: sley.simulate(
            _nearest(kernel.collective, kernel.nodes, protocol), kernel.size_bytes, kernel.topology
        ).time_us
        for protocol in FIFO_PROTOCOLS
    }
    best = min(times, key=lambda protocol: times[protocol])
    return best, times[best]
