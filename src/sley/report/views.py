"""Views: the text and the picture of a value, as `sley.show` and `sley.draw` make them."""

from __future__ import annotations

from typing import Literal

from sley.errors import without_inner_frames
from sley.errors.report import P815
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.model.simulation.result import Simulation
from sley.report.html import Page, html_report
from sley.report.pictures import (
    Picture,
    block_picture,
    chunk_picture,
    instruction_picture,
    topology_picture,
)
from sley.report.simulation import simulation_lines
from sley.report.stages import stage_table
from sley.report.tables import Text, pipeline_table, plan_table


@without_inner_frames
def show(
    value: Plan | Program | Simulation,
    rank: int | None = None,
    *,
    of: Literal["blocks", "pipelines"] = "blocks",
) -> Text:
    """A value as a text.

    Plan: its thread blocks, a line for each instruction, of a rank or by default of all ranks; with
        of="pipelines" its sub-pipelines (ResCCL 4.3), a line for each transfer, if it has any.
    Program: its transfers, a line for each. Simulation: as `sley simulate` prints it: time,
        bandwidth and bound, what limits it, links, thread blocks, the critical path, parameters.
    Errors: L101 for a rank that the plan lacks; P815.
    """
    if isinstance(value, Program):
        lines = stage_table(value)
    elif isinstance(value, Simulation):
        lines = simulation_lines(value)
    elif isinstance(value, Plan) and of == "pipelines":
        lines = pipeline_table(value)
    elif isinstance(value, Plan) and of == "blocks":
        ranks = range(value.ranks) if rank is None else [rank]
        lines = [line for one in ranks for line in plan_table(value, one)]
    elif isinstance(value, Plan):
        raise P815.error(expected="blocks or pipelines", found=repr(of)[:60])
    else:
        raise P815.error(expected="a program, plan or simulation", found=repr(value)[:60])
    return Text("\n".join(lines))


@without_inner_frames
def draw(
    value: Plan | Program | Topology | Simulation,
    rank: int | None = None,
    *,
    of: Literal["blocks", "instructions"] = "blocks",
) -> Picture | Page:
    """A value as a picture, with a method `save`; notebooks show it.

    Plan: its thread blocks, or with of="instructions" the graph of its instructions; of one rank or
        of all. Program: its transfers between chunks, of one rank or of all. Topology: its GPUs,
        switches, cards and links. Simulation: the page of `sley simulate --html`, which loads
        nothing from a network.
    Errors: P801 for values that are too large to draw, V201, L101, P815.
    """
    ranks = None if rank is None else [rank]
    if isinstance(value, Program):
        return chunk_picture(value, ranks)
    if isinstance(value, Topology):
        return topology_picture(value)
    if isinstance(value, Simulation):
        return Page(html_report([value], title=value.plan.name))
    if not isinstance(value, Plan):
        found = repr(value)[:60]
        raise P815.error(expected="a program, plan, topology or simulation", found=found)
    pictures = {"blocks": block_picture, "instructions": instruction_picture}
    if of not in pictures:
        raise P815.error(expected=" or ".join(pictures), found=repr(of)[:60])
    return pictures[of](value, ranks)
