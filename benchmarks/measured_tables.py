"""Published tables of nccl-tests, and the simulator's predictions of them.

Each point is compared with what NCCL runs by its own tuner's rows (`sley.model.nccl.choice`): the
algorithm, the protocol and the channels; in place, as generated code, with default parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from types import MappingProxyType

import numpy as np

import sley
from sley import Topology, topologies
from sley.compiler import nccl_plan
from sley.errors import SleyError
from sley.model import table_fit
from sley.model.nccl import choice as nccl
from sley.model.nccl.runs import NcclRuns
from sley.topologies.machine import machine_from

TABLES = "measured/nccl-tests.jsonl"


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
    launch_gpus: the GPUs of a thread of nccl-tests (its option -g), by the table's source.
    searched: builds the machines as NCCL searches them, if `machine` counts several cards as one.
    """

    machines: str
    machine: Callable[[], Topology]
    theirs: str = ""
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
    near = [[gpu] for gpu in range(8) for _ in range(2)]
    cards = {"count": 16, "nominal_GBps": 12.5, "GBps": 12.0, "gpus": near}
    tables = {"name": "BM.GPU4.8", "like": "dgx-a100", "cards": cards}
    return machine_from("BM.GPU4.8", tables).topology(2)


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
            "2x8 A100 (OKE)", lambda: topologies.dgx_a100(2), searched=_with_sixteen_cards
        ),
        "p5": Table(
            "2x8 H100 (p5, EFA)",
            lambda: replace(topologies.p5(2), in_network=True),
            "the latency of p5's network was assumed with this table in sight",
        ),
        "h200-ag": Table("2x8 H200 (A3 Ultra)", lambda: topologies.dgx_h100(2)),
        "dgxh100-2x2": Table("2x2 H100 (of DGX)", _two_of_each, launch_gpus=2),
        "v100": Table("1x8 V100 (DGX-1)", topologies.dgx1, launch_gpus=8),
        "az-h200": Table("1x8 H200 (ND H200 v5)", topologies.h200, launch_gpus=8),
        "cw-gb200-1rack": Table("72 GB200 (NVL72)", topologies.gb200_nvl72),
        "cw-b200-2n": Table("2x8 B200", lambda: topologies.b200(2)),
        "ho-mi325x-1n": Table("1x8 MI325X", topologies.mi325x),
        "ho-mi325x-2n": Table("2x8 MI325X", lambda: topologies.mi325x(2)),
        "ho-mi325x-4n": Table("4x8 MI325X", lambda: topologies.mi325x(4)),
        "ho-mi325x-8n": Table("8x8 MI325X", lambda: topologies.mi325x(8)),
        "ho-mi355x-2n": Table("2x8 MI355X", lambda: topologies.mi355x(2)),
        "zt-a3mega": Table("2x8 H100 (A3 Mega, TCPXO)", lambda: topologies.a3_mega(2)),
        "nv1801-nvl4x3-ring": Table(
            "3x4 GB200 (three racks)",
            lambda: replace(topologies.nd_gb200(3), in_network=False),
        ),
        "crusoe-a100": Table("2x8 A100 (Crusoe)", lambda: topologies.dgx_a100(2)),
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


def spread(predictions: Iterable[Prediction]) -> tuple[int, float, float] | None:
    """The number of predictions, and the median and the 90th percentile of their errors without
    signs; None without any."""
    errors = np.abs([p.error for p in predictions if p.error is not None])
    if not len(errors):
        return None
    return len(errors), float(np.median(errors)), float(np.quantile(errors, 0.9))
