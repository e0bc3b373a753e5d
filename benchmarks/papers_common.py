"""Parts of both papers' sections: times over sizes, ratios, verdicts, and the table of claims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from common.tables import table

import sley
from sley.ir.sizes import size_text
from sley.model.simulation import Simulator

KB, MB, GB = 2**10, 2**20, 2**30
NEAR = 0.2
"""The largest relative difference of ratios that agree."""

EVEN = 0.05
"""Ratios that differ from 1 by at most this have no winner."""
POINTS = 10.0
"""The largest difference in points of percentages that agree."""

Times = dict[int, float]


@dataclass(frozen=True)
class Row:
    """One claim of a paper, and the simulation's result.

    where: section, figure or table. claim: the claim. paper, ours: the results. parameters: those
    of the simulation. agrees: "yes", "in part" or "no".
    """

    where: str
    claim: str
    paper: str
    ours: str
    parameters: str
    agrees: str


def nearness(ours: float, paper: float) -> str:
    """The verdict on a ratio of times: "no" if another side wins, "yes" if the ratios are close."""
    if (ours > 1 + EVEN) != (paper > 1 + EVEN):
        return "no"
    return "yes" if abs(ours / paper - 1) <= NEAR else "in part"


def times(
    plan: sley.Plan, over: Iterable[int], topology: sley.Topology | None = None, **settings: Any
) -> Times:
    """The simulated time in us of each size."""
    simulator = Simulator(plan, topology, **settings)
    return {size: simulator(size).time_us for size in over}


def best(runs: Iterable[Times]) -> Times:
    """The shortest time of each size."""
    shortest: Times = {}
    for run in runs:
        for size, time_us in run.items():
            shortest[size] = min(time_us, shortest.get(size, time_us))
    return shortest


def ratios(slow: Mapping[int, float], fast: Mapping[int, float]) -> dict[int, float]:
    """The first time over the second, for each size that both have."""
    return {size: slow[size] / fast[size] for size in slow if size in fast}


def peak(ratio: Mapping[int, float]) -> tuple[float, str]:
    """The largest ratio, and its size."""
    size = max(ratio, key=lambda s: ratio[s])
    return ratio[size], size_text(size)


def span(ratio: Mapping[int, float]) -> str:
    """The range of ratios, and the sizes of its ends."""
    low, high = (f(ratio, key=lambda s: ratio[s]) for f in (min, max))
    return f"{ratio[low]:.2f}x ({size_text(low)}) to {ratio[high]:.2f}x ({size_text(high)})"


def claims(rows: Iterable[Row]) -> str:
    """The table of claims."""
    head = ("where", "the paper's claim", "paper", "sley", "parameters", "agrees")
    return table(
        head, [(r.where, r.claim, r.paper, r.ours, r.parameters, f"**{r.agrees}**") for r in rows]
    )
