"""Simulating: how plans are simulated and reported, as options of commands that simulate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from sley.cli.options import FILE, gather_options, named_values, option
from sley.cli.output import print_note
from sley.compiler.tree_search import Fastest
from sley.errors import counted, did_you_mean
from sley.formats import check_folder, write_file
from sley.ir.cost_model import ByProtocol, CostModel
from sley.ir.plan import Plan
from sley.ir.sizes import size_in_bytes, size_text
from sley.ir.topology import Topology
from sley.model.simulation import Simulation, Simulator
from sley.report.html import html_report
from sley.report.limit import WhatIf, blocks_text
from sley.report.plots import plot


@dataclass(frozen=True)
class Simulating:
    """The values of `simulation_options`.

    values: parameters of the cost model that replace the topology's, as NAME=VALUE.
    interpreter: whether an interpreter runs the plans; None if the user chose neither.
    """

    values: tuple[str, ...] = option(
        "--set",
        multiple=True,
        metavar="NAME=VALUE",
        help="A parameter of the cost model: --set contention=0.1, "
        "--set nvlink_latency_us=0.6,1.9,3.4 (LL, LL128, Simple).",
    )
    interpreter: bool | None = option(
        "--interpreter/--generated",
        default=None,
        help="Simulate an interpreter (MSCCL), or code generated for the plan.  [generated]",
    )

    def model(self, topology: Topology | None) -> CostModel | None:
        """The cost model that replaces the topology's; None without changes. Errors: T602, click's
        for unknown parameters."""
        if topology is None or not self.values:
            return None
        return _change_model(topology.model, self.values)

    def simulator(self, plan: Plan, *, executions: bool = False) -> Simulator:
        """The simulator of a plan on the topology that it was compiled for. Errors: those of
        `Simulator` and `model`, click's without a topology."""
        if plan.topology is None:
            raise click.UsageError(f"{plan.name} needs --topology, such as --topology ndv4:2")
        ranks, gpus = plan.collective.ranks, plan.topology.ranks
        if ranks < gpus:
            used, nodes = len(np.unique(plan.topology.vertices.node[:ranks])), plan.topology.nodes
            on = f", on {used} of {nodes} nodes" if used < nodes else ""
            note = f"{plan.name}: its {ranks} ranks are the first {ranks} of {gpus} GPUs{on}"
            print_note(f"{note}; give NODESxGPUS, such as 2x4, for a cluster of its size")
        made = Simulator(
            plan,
            model=self.model(plan.topology),
            interpreter=bool(self.interpreter),
            executions=executions,
        )
        note_blocks(plan.name, plan.blocks_per_rank, made.topology.model)
        return made


def note_blocks(name: str, blocks: int, model: CostModel) -> None:
    """Notes that a plan has so many thread blocks on a rank, if a GPU holds fewer."""
    if blocks > model.most_blocks:
        print_note(f"{name}: {blocks} blocks on a rank, {blocks_text(blocks, model)}")


def note_left(combinations: int) -> None:
    """Notes that a limit of time left out combinations of options."""
    if combinations:
        print_note(f"the time was over: {counted(combinations, 'combination')} not compared")


simulation_options = gather_options(Simulating, "simulating")
"""Adds --set and --interpreter; the command gets them as `simulating`."""


@dataclass(frozen=True)
class Reports:
    """The values of `report_options`: the files of a page and of a plot, None for no file. Errors:
    F461 for folders that don't exist."""

    html: Path | None = option("--html", type=FILE, help="Write a page with pictures and tables.")
    plot: Path | None = option("--plot", type=FILE, help="Write a picture: .svg, .png or .pdf.")

    def __post_init__(self) -> None:
        for file in filter(None, (self.html, self.plot)):
            check_folder(file)

    def __bool__(self) -> bool:
        return bool(self.html or self.plot)

    def write(
        self,
        simulations: Sequence[Simulation],
        *,
        title: str,
        names: Sequence[str] | None = None,
        changes: Sequence[Sequence[WhatIf]] = (),
    ) -> None:
        """Writes the files. names: the plan's name for each simulation; changes: those of
        `what_if` for each. Errors: F461, P8xx."""
        if self.html is not None:
            page = html_report(simulations, title=title, names=names, changes=changes)
            write_file(self.html, page)
        if self.plot is not None:
            plot(simulations, self.plot, names=names)


report_options = gather_options(Reports, "reports")
"""Adds --html and --plot; the command gets them as `reports`."""


def _change_model(model: CostModel, values: tuple[str, ...]) -> CostModel:
    names = [f.name for f in fields(CostModel)]
    changes: dict[str, Any] = {}
    for name, text in named_values(values, "--set").items():
        if name not in names:
            hint = did_you_mean(name, names) or f"There are {', '.join(names)}."
            raise click.BadParameter(f"{name!r} is not a parameter. {hint}", param_hint="--set")
        numbers = [_number(name, part) for part in text.split(",")]
        split = isinstance(getattr(model, name), ByProtocol)
        if len(numbers) not in ((1, 3) if split else (1,)):
            wanted = "one number, or three" if split else "one number"
            raise click.BadParameter(f"{name} takes {wanted}", param_hint="--set")
        changes[name] = ByProtocol(*(numbers * 3)[:3]) if split else numbers[0]
    return replace(model, **changes)


def _number(name: str, text: str) -> float:
    size = size_in_bytes(text) if name.endswith("_bytes") else None
    if size is None and not re.fullmatch(r"[+-]?[0-9]*\.?[0-9]+([eE][+-]?[0-9]+)?", text.strip()):
        raise click.BadParameter(f"{name}: {text[:40]!r} is not a number", param_hint="--set")
    return float(text) if size is None else float(size)


def tiles_rows(found: Fastest) -> list[tuple[str, object]]:
    """A line about the size of a plan's tiles, and how it is set; none for the topology's size."""
    if found.tile == 1:
        return []
    whole = found.synthesis.topology.model.tile_bytes[found.choice.plan.protocol]
    least, share = int(whole * found.tile), f"{found.tile:g} of the topology's"
    text = f"at most {size_text(least)}, {share}: sley simulate --set tile_bytes={least}"
    return [("tiles", text)]
