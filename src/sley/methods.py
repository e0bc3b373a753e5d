"""Methods: what sley does with a value, as methods of the value.

Each method is a function whose first argument is the value, most of them functions of sley. The
values are defined in `sley.ir`, which knows none of the packages that the methods need, so `attach`
adds them when a name of `sley`, or a method, is used for the first time.
"""

from __future__ import annotations

import os
from typing import Literal

from sley.communicator.running import execute as execute_plan
from sley.communicator.running import run as run_plan
from sley.compiler import choose as choose_options
from sley.compiler import compile as compile_program
from sley.compiler.passes.lift import lift as lift_plan
from sley.errors.report import P815
from sley.formats import write_file
from sley.formats.files import save as save_plan
from sley.ir import methods
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.model.simulation import Simulation
from sley.model.simulation import simulate as simulate_plan
from sley.report import notebook
from sley.report.html import html_report
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
from sley.topologies import save as save_topology
from sley.verification import verify as verify_plan


def show_plan(plan: Plan, rank: int | None = None) -> Text:
    """The thread blocks of a rank as a text, a line for each instruction; by default those of all
    ranks. Errors: L101."""
    ranks = range(plan.ranks) if rank is None else [rank]
    return Text("\n".join(line for one in ranks for line in plan_table(plan, one)))


def show_pipelines(plan: Plan) -> Text:
    """The sub-pipelines (ResCCL 4.3) as a text, a line for each transfer; empty without any."""
    return Text("\n".join(pipeline_table(plan)))


def draw_plan(
    plan: Plan, of: Literal["blocks", "instructions"] = "blocks", rank: int | None = None
) -> Picture:
    """A picture of the thread blocks, or of the graph of instructions; of one rank, or of all.
    Errors: P801 for plans that are too large, V201, L101, P815."""
    pictures = {"blocks": block_picture, "instructions": instruction_picture}
    if of not in pictures:
        raise P815.error(expected=" or ".join(pictures), found=repr(of)[:60])
    return pictures[of](plan, None if rank is None else [rank])


def show_program(program: Program) -> Text:
    """The transfers as a text, a line for each."""
    return Text("\n".join(stage_table(program)))


def draw_program(program: Program, rank: int | None = None) -> Picture:
    """A picture of the transfers between chunks; of one rank, or of all. Errors: P801 for programs
    that are too large, L101."""
    return chunk_picture(program, None if rank is None else [rank])


def draw_topology(topology: Topology) -> Picture:
    """A picture of the GPUs, switches, cards and links. Errors: P801 for topologies that are too
    large."""
    return topology_picture(topology)


def show_simulation(simulation: Simulation) -> Text:
    """The simulation in full as a text, as `sley simulate` prints it: time, bandwidth and bound,
    what limits it, links, thread blocks, the critical path, and all parameters."""
    return Text("\n".join(simulation_lines(simulation)))


def save_simulation(simulation: Simulation, path: str | os.PathLike[str]) -> None:
    """Writes the page of `sley simulate --html`, which loads nothing from a network. Errors:
    F461."""
    write_file(path, html_report([simulation], title=simulation.plan.name))


class BlockPlanMethods:
    """Methods of plans of all kinds."""

    verify = verify_plan


class PlanMethods:
    """Methods of a Plan."""

    simulate = simulate_plan
    run = run_plan
    execute = execute_plan
    save = save_plan
    lift = lift_plan
    show = show_plan
    show_pipelines = show_pipelines
    draw = draw_plan
    _repr_html_ = notebook.plan_html


class ProgramMethods:
    """Methods of a Program."""

    compile = compile_program
    choose = choose_options
    show = show_program
    draw = draw_program
    _repr_html_ = notebook.program_html


class TopologyMethods:
    """Methods of a Topology."""

    save = save_topology
    draw = draw_topology
    _repr_html_ = notebook.topology_html


class SimulationMethods:
    """Methods of a Simulation."""

    show = show_simulation
    save = save_simulation
    _repr_html_ = notebook.simulation_html


def attach() -> None:
    """Adds the methods to the bases of the values."""
    for own in (
        BlockPlanMethods,
        PlanMethods,
        ProgramMethods,
        TopologyMethods,
        SimulationMethods,
    ):
        for name, method in vars(own).items():
            if callable(method):
                setattr(getattr(methods, own.__name__), name, method)
