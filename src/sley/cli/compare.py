"""sley compare: simulates several plans side by side."""

from __future__ import annotations

import shlex
import sys

import click

from sley.cli.nccl import by_name, is_nccl, simulate_nccl
from sley.cli.options import ARG, PlanCommand, Selection, common_options, plan_options, size_options
from sley.cli.output import (
    Command,
    Phases,
    diagnostics_json,
    echo,
    options_of,
    print_written,
    report_error,
)
from sley.cli.simulate import run_sizes, simulation_json
from sley.cli.simulating import Reports, Simulating, report_options, simulation_options
from sley.cli.sources import choosing_for, fitting, plan_of, prefer_in_place
from sley.errors import SleyError
from sley.model.simulation import Simulation, Simulator
from sley.report.simulation import check_comparable, comparison_table
from sley.topologies import find


@click.command("selection", cls=PlanCommand, add_help_option=False)
@plan_options
def _selection(selection: Selection) -> Selection:
    return selection


class _Comparison(Command):
    """The command, which says where an option of a WHAT belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        of_what = options_of(_selection) - options_of(self)
        for word in args:
            if word.partition("=")[0] in of_what:
                raise click.UsageError(f"quote {word} with its WHAT: 'WHAT {word} ...'", ctx)
        return super().parse_args(ctx, args)


@click.command("compare", cls=_Comparison)
@click.argument("what", nargs=-1, required=True)
@click.option("--topology", help="For each WHAT without one: NAME[:NODES], NODESxGPUS, or a file.")
@size_options("64M")
@simulation_options
@report_options
@common_options
def compare_command(
    what: tuple[str, ...],
    topology: str | None,
    sizes: list[int],
    simulating: Simulating,
    reports: Reports,
    phases: Phases,
) -> None:
    """Simulate several plans side by side, without those that have errors.

    Quote each WHAT together with its own options. A collective (allreduce, ...) stands for all of
    its algorithms that fit the topology.

    nccl-allreduce (nccl-allgather, ...) stands for NCCL's choice at each size.
    """
    if topology is not None:
        find(topology)  # an unknown one is told once, not for each WHAT
    made: list[tuple[str, Selection, list[tuple[str, Simulator]]]] = []
    columns: list[tuple[str, list[Simulation]]] = []
    refused: list[tuple[str, SleyError]] = []

    def simulator_of(selection: Selection) -> tuple[Selection, Simulator]:
        plan = plan_of(prefer_in_place(selection), phases, verify=True)
        return selection, simulating.simulator(plan, executions=bool(reports))

    for text in what:
        try:
            selection, found = _parse(text, topology), list[tuple[Selection, Simulator]]()
            if not is_nccl(selection):
                cluster = None if selection.topology is None else find(selection.topology)
                found = fitting(choosing_for(selection, sizes), cluster, simulator_of)
            made.append((text, selection, [(_named(text, selection, one), s) for one, s in found]))
        except SleyError as error:
            refused.append((text, error))
    check_comparable((name, s.plan) for *_, row in made for name, s in row)
    for text, selection, row in made:
        try:
            with phases("simulating"):
                if is_nccl(selection):
                    columns += by_name(
                        simulate_nccl(selection, simulating, sizes, executions=bool(reports))
                    )
                known = {name for name, _ in columns}
                columns += [
                    (name, run_sizes(s, sizes, quiet=phases.quiet))
                    for name, s in row
                    if name not in known
                ]
        except SleyError as error:
            refused.append((text, error))
    _print(what, columns, refused, reports, phases)
    if refused:
        sys.exit(1)


def _print(
    what: tuple[str, ...],
    columns: list[tuple[str, list[Simulation]]],
    refused: list[tuple[str, SleyError]],
    reports: Reports,
    phases: Phases,
) -> None:
    """Prints what was simulated, by name, and what was refused; writes the reports."""
    labels = _labels(what)
    shown = [(labels.get(name, name), row) for name, row in columns]
    lines = comparison_table(shown) if columns else []
    simulations = [s for _, row in columns for s in row]
    if columns:
        with phases("writing"):
            title = f"{len(what)} plans on {simulations[0].topology.name}"
            names = [name for name, row in shown for _ in row]
            reports.write(simulations, title=title, names=names)
    if phases.quiet:
        rows = [{"what": name, **simulation_json(s)} for name, row in columns for s in row]
        errors = [{"what": text, "diagnostics": diagnostics_json(e)} for text, e in refused]
        phases.print_json(not refused, simulations=rows, refused=errors)
    else:
        for text, mistake in refused:
            echo(f"not compared: {text}", err=True)
            report_error(mistake, as_json=False)
        echo("\n".join(lines))
        if columns:
            print_written(reports.html, reports.plot)
        phases.report()


def _named(text: str, given: Selection, one: Selection) -> str:
    """A WHAT in words, of one that it stands for."""
    further = one.arguments.keys() - given.arguments.keys()
    words = [f"{ARG} {word}={one.arguments[word]}" for word in sorted(further)]
    return " ".join([text.replace(given.what, one.what, 1), *words])


def _labels(what: tuple[str, ...]) -> dict[str, str]:
    """A short name for each WHAT: files without their folders, if all names still differ."""
    short = {text: " ".join(word.rsplit("/", 1)[-1] for word in text.split(" ")) for text in what}
    return short if len(set(short.values())) == len(short) else {}


def _parse(text: str, topology: str | None) -> Selection:
    """The selection of a quoted WHAT with its options."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r}: {error}") from error
    own = words[: words.index("--")] if "--" in words else words
    if topology is not None and not any(word.startswith("--topology") for word in own):
        words = ["--topology", topology, *words]
    try:
        selection = _selection.main(words, prog_name="sley compare", standalone_mode=False)
    except click.UsageError as error:
        raise click.UsageError(f"{text!r}: {error.format_message()}") from None
    if not isinstance(selection, Selection):
        raise click.UsageError(f"{text!r} does not name anything to simulate")
    return selection
