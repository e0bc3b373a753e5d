"""Published tables of nccl-tests, and the simulator's predictions of them.

Each point is compared with what NCCL runs by its own tuner's rows (`sley.model.nccl.choice`): the
algorithm, the protocol and the channels; in place, as generated code, with default parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from math import inf
from types import MappingProxyType

import numpy as np

import sley
from sley import CostModel, Topology, topologies
from sley.compiler import nccl_plan
from sley.errors import SleyError
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.ir.topology import Builder
from sley.model import table_fit
from sley.model.nccl import choice as nccl
from sley.model.nccl.runs import NcclRuns

TABLES = ("measured/nccl-tests.jsonl", "measured/turn-3.jsonl")

CALL, HOP = "network_call_us", "network_latency_us"
"""Parameters that were fitted to tables."""


@dataclass(frozen=True)
class SizeClass:
    """A class of sizes.

    name: in words.
    last_bytes: its largest size; it begins after the last size of the class before.
    median, most: the aims for the median and the 90th percentile of the errors.
    """

    name: str
    last_bytes: float
    median: float
    most: float


CLASSES = (
    SizeClass("below 1M", 2**20 - 1, 0.20, 0.45),
    SizeClass("1M to 64M", 2**26, 0.15, 0.30),
    SizeClass("above 64M", inf, 0.06, 0.15),
)


@dataclass(frozen=True)
class Table:
    """A published table.

    machines: the machines, in words.
    machine: builds their topology.
    theirs: what ran by the table's source and the library has no plan for; empty if it is what the
        tuner's rows choose.
    fitted: the parameter of the cost model that was fitted to it, with the tables of others.
    launch_gpus: the GPUs of a thread of nccl-tests (its option -g), by the table's source.
    searched: builds the machines as NCCL searches them, if `machine` counts several cards as one.
    """

    machines: str
    machine: Callable[[], Topology]
    theirs: str = ""
    fitted: str = ""
    launch_gpus: int = 1
    searched: Callable[[], Topology] | None = None

    def topology(self) -> Topology:
        """The machines, with the launch of nccl-tests."""
        found = self.machine()
        return replace(found, model=replace(found.model, launch_gpus=self.launch_gpus))


def _two_of_each() -> Topology:
    """Two GPUs and two cards of each of two DGX H100."""
    return Topology.cluster(
        2,
        2,
        2,
        nvlink_GBps=(450.0, 370.0),
        nic_GBps=(50.0, 48.5),
        name="2x2 H100, 2 NICs",
        model=topologies.dgx_h100().model,
    )


def _with_sixteen_cards() -> Topology:
    """Two BM.GPU4.8 of Oracle: DGX A100 with two cards of 100 Gb/s for each GPU, by the table's
    source, each of which reaches half of what a card of 200 Gb/s does. NCCL gives every channel one
    of them. A rank of a topology has one card, so DGX A100 counts the two as one."""
    builder = Builder("BM.GPU4.8", np.repeat([0, 1], 8))
    switches = builder.add(VertexKind.SWITCH, [0, 1])
    builder.both(np.arange(16), np.repeat(switches, 8), LinkKind.NVLINK, 300.0, 230.0)
    cards = builder.add(VertexKind.NIC, np.repeat([0, 1], 16))
    builder.both(np.repeat(np.arange(16), 2), cards, LinkKind.PCIE, 12.5, 12.0)
    (network,) = builder.add(VertexKind.SWITCH, [NONE])
    builder.both(cards, np.full(32, network), LinkKind.NETWORK, 12.5, 12.0)
    return builder.topology(topologies.dgx_a100().model)


KNOWN: Mapping[str, Table] = MappingProxyType(
    {
        "sb-ar": Table("1x8 A100 (NDv4)", topologies.ndv4, launch_gpus=8),
        "sb-a2a": Table("1x8 A100 (NDv4)", topologies.ndv4, launch_gpus=8),
        "llmb-h100": Table("1x8 H100 (DGX)", topologies.dgx_h100_nvls),
        "mi300x": Table(
            "1x8 MI300X",
            topologies.mi300x,
            "RCCL's own tuner, and perhaps MSCCL's and MSCCL++'s kernels for sizes up to a few MB",
        ),
        "oke-a100": Table(
            "2x8 A100 (OKE)",
            lambda: topologies.dgx_a100(2),
            fitted=CALL,
            searched=_with_sixteen_cards,
        ),
        "p5": Table(
            "2x8 H100 (p5, EFA)",
            lambda: replace(topologies.p5(2), in_network=True),
            fitted=HOP,
        ),
        "h200-ag": Table("2x8 H200 (A3 Ultra)", lambda: topologies.dgx_h100(2), fitted=CALL),
        "dgxh100-2x2": Table("2x2 H100 (of DGX)", _two_of_each, fitted=CALL, launch_gpus=2),
        "v100": Table("1x8 V100 (DGX-1)", topologies.dgx1, launch_gpus=8),
        "az-h200": Table("1x8 H200 (ND H200 v5)", topologies.h200, launch_gpus=8),
        "cw-gb200-1rack": Table("72 GB200 (NVL72)", topologies.gb200_nvl72),
        "cw-b200-2n": Table("2x8 B200", lambda: topologies.b200(2)),
        "ho-mi325x-1n": Table("1x8 MI325X", topologies.mi325x),
        "ho-mi325x-2n": Table("2x8 MI325X", lambda: topologies.mi325x(2)),
        "ho-mi325x-4n": Table("4x8 MI325X", lambda: topologies.mi325x(4)),
        "ho-mi325x-8n": Table("8x8 MI325X", lambda: topologies.mi325x(8)),
        "ho-mi355x-2n": Table("2x8 MI355X", lambda: topologies.mi355x(2), fitted=CALL),
        "zt-a3mega": Table("2x8 H100 (A3 Mega, TCPXO)", lambda: topologies.a3_mega(2), fitted=HOP),
        "nv1801-nvl4x3-ring": Table(
            "3x4 GB200 (three racks)",
            lambda: replace(topologies.nd_gb200(3), in_network=False),
        ),
        "crusoe-a100": Table("2x8 A100 (Crusoe)", lambda: topologies.dgx_a100(2), fitted=CALL),
    }
)
"""The tables whose machines are known."""


@dataclass(frozen=True)
class Point(table_fit.MeasuredTime):
    """A measured time of a table.

    table: its name in `KNOWN`.
    """

    table: str

    @property
    def size_class(self) -> SizeClass:
        """The class of its size."""
        return next(one for one in CLASSES if self.size_bytes <= one.last_bytes)


def read_points(text: str) -> list[Point]:
    """The points of a file with one JSON object on each line."""
    rows = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [Point(r["collective"], r["size_bytes"], r["time_us"], r["table"]) for r in rows]


@dataclass(frozen=True)
class Prediction:
    """A point and what it is compared with.

    choice: what NCCL runs by its tuner's rows.
    simulation: of the library's plan for it; None if it has none that runs on the machines.
    """

    point: Point
    choice: nccl.CollectiveChoice
    simulation: sley.Simulation | None

    @property
    def error(self) -> float | None:
        """The relative error of the time."""
        simulation = self.simulation
        return None if simulation is None else simulation.time_us / self.point.time_us - 1

    @property
    def compared_with(self) -> str:
        """Algorithm, protocol and channels of NCCL's choice, and the library's program."""
        c = self.choice
        words = f"{c.algorithm.value}, {c.protocol.value}, {c.channels}"
        return f"{words}: {c.program}" if self.simulation else f"{words}: no plan"


@cache
def _runs(table: str) -> NcclRuns:
    known = KNOWN[table]
    return NcclRuns(known.topology(), nccl_plan, known.searched and known.searched())


def predict(point: Point) -> Prediction:
    """The prediction of a point."""
    runs, call = _runs(point.table), (point.collective, point.size_bytes)
    try:
        simulation = runs(*call)
    except SleyError:
        simulation = None
    return Prediction(point, runs.choice(*call), simulation)


def fitted(points: Sequence[Point]) -> table_fit.Fit | None:
    """The machine of a table's points, fitted to three of them, as `sley calibrate --from` does;
    None if no plan runs on it."""
    known = KNOWN[points[0].table]
    used = table_fit.chosen_sizes(points)
    try:
        return table_fit.fit(
            known.machine(), points, used, nccl_plan, known.searched and known.searched()
        )
    except SleyError:
        return None


def unseen_errors(points: Sequence[Point]) -> dict[Point, float]:
    """The relative errors of what `sley simulate nccl-...` says, if nothing was fitted to tables of
    the same machines: with network_call_us fitted to the others, and CostModel's latencies."""
    free = {}
    for name, of in groupby(points, key=lambda point: point.table):
        known = KNOWN[name]
        machine = known.machine()
        changed = {HOP: CostModel().network_latency_us} if known.fitted == HOP else {}
        model = replace(machine.model, network_call_us=0.0, **changed)  # type: ignore[arg-type]
        runs = NcclRuns(replace(machine, model=model), nccl_plan)
        for point in of:
            with suppress(SleyError):  # no plan runs there
                free[point] = runs(point.collective, point.size_bytes)
    extra = np.arange(0.0, 60.0, 0.5)
    small = [p for p in free if KNOWN[p.table].fitted == CALL and p.size_class is CLASSES[0]]
    errors = {}
    for point, simulation in free.items():
        others = [p for p in small if KNOWN[p.table].machines != KNOWN[point.table].machines]
        ends = np.array([0, simulation.topology.ranks - 1], np.int32)
        call_us = 0.0
        if others and simulation.topology.crosses_network(ends[:1], ends[1:])[0]:
            off = [abs(np.log((free[p].time_us + extra) / p.time_us)) for p in others]
            call_us = float(extra[np.mean(off, axis=0).argmin()])
        errors[point] = (simulation.time_us + call_us) / point.time_us - 1
    return errors


def spread(predictions: Iterable[Prediction]) -> tuple[int, float, float] | None:
    """The number of predictions, and the median and the 90th percentile of their errors without
    signs; None without any."""
    errors = np.abs([p.error for p in predictions if p.error is not None])
    if not len(errors):
        return None
    return len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9))
