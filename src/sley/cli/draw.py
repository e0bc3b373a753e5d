"""sley draw: draws programs, plans and topologies."""

from __future__ import annotations

from pathlib import Path

import click

from sley.cli.options import (
    PlanCommand,
    Selection,
    Whole,
    common_options,
    output_option,
    program_options,
)
from sley.cli.output import Phases, print_rows
from sley.cli.sources import plan_of, program_or_lifted, program_or_plan, topology_of
from sley.errors import SleyError
from sley.errors.formats import F404
from sley.errors.language import L120
from sley.ir.topology import Topology
from sley.report.pictures import (
    Picture,
    block_picture,
    chunk_picture,
    instruction_picture,
    topology_picture,
)
from sley.report.pictures.canvas import check_suffix


@click.command("draw", cls=PlanCommand)
@program_options
@click.option(
    "--of",
    "of",
    type=click.Choice(["chunks", "instructions", "blocks", "topology"]),
    default="blocks",
    help="The graph of transfers or of instructions, the thread blocks, or the cluster.",
)
@output_option("Write the picture here: .svg, .png or .pdf.", required=True)
@click.option(
    "--rank",
    "chosen",  # --ranks is one of program_options
    type=Whole(0),
    multiple=True,
    help="Draw only this rank; may be repeated.",
)
@common_options
def draw_command(
    selection: Selection, of: str, output: Path, chosen: tuple[int, ...], phases: Phases
) -> None:
    """Draw WHAT, a small program or plan, or with --of topology a cluster, as SVG or PNG."""
    check_suffix(output)
    picture = _picture(selection, of, chosen, phases)
    with phases("writing"):
        picture.save(output)
    if phases.quiet:
        phases.print_json(of=of, output=str(output))
        return
    print_rows([("drawn", picture.title), ("written", output)])
    phases.report()


def _picture(selection: Selection, of: str, ranks: tuple[int, ...], phases: Phases) -> Picture:
    if of == "topology":
        if ranks:
            raise click.UsageError("--rank is not for --of topology, which shows all ranks")
        cluster = _cluster(selection, phases)
        with phases("drawing"):
            return topology_picture(cluster)
    if of == "chunks":
        program = program_or_lifted(selection, topology_of(selection.topology), phases)
        chosen = _check_ranks(ranks, program.collective.ranks)
        with phases("drawing"):
            return chunk_picture(program, chosen)
    plan = plan_of(selection, phases, verify=True)
    chosen = _check_ranks(ranks, plan.collective.ranks)
    with phases("drawing"):
        return (block_picture if of == "blocks" else instruction_picture)(plan, chosen)


def _check_ranks(ranks: tuple[int, ...], total: int) -> tuple[int, ...] | None:
    """The ranks to draw, None for all. Errors: click's usage error."""
    if any(rank >= total for rank in ranks):
        raise click.UsageError(f"--rank: ranks are 0 to {total - 1}")
    return ranks or None


def _cluster(selection: Selection, phases: Phases) -> Topology:
    """The named topology, the program's own, or what is no program but a topology's name."""
    named = topology_of(selection.topology)
    try:
        cluster = named or program_or_plan(selection, None, phases).topology
    except SleyError as error:
        if error.code not in (F404.code, L120.code):
            raise
        cluster = topology_of(selection.what)
    if cluster is None:
        raise click.UsageError(f"{selection.what} has no topology; name one with --topology")
    return cluster
