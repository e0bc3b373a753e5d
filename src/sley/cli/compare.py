"""sley compare: simulates several plans side by side."""

from __future__ import annotations

import shlex

import click

from sley.cli.options import Selection, common_options, plan_options, size_options
from sley.cli.output import Command, Phases, print_json
from sley.cli.simulate import run_sizes, simulation_json
from sley.cli.simulating import Reports, Simulating, report_options, simulation_options
from sley.cli.sources import plan_of, prefer_in_place
from sley.report.simulation import comparison_table


@click.command("selection", add_help_option=False)
@plan_options
def _selection(selection: Selection) -> Selection:
    return selection


@click.command("compare", cls=Command)
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
    as_json: bool,
    verbose: bool,
) -> None:
    """Simulate several plans side by side.

    Each WHAT is quoted together with its own options:

    sley compare "ring-allreduce --instances 24" "hm-allreduce --schedule hpds" --topology ndv4:2
    """
    phases = Phases(verbose, quiet=as_json)
    columns = []
    for text in what:
        simulator = simulating.simulator(
            plan_of(prefer_in_place(_parse(text, topology)), phases, verify=True),
            executions=bool(reports),
        )
        with phases("simulating"):
            columns.append((text, run_sizes(simulator, sizes, quiet=as_json)))
    lines = comparison_table(columns)
    simulations = [s for _, row in columns for s in row]
    names = [name for name, row in columns for _ in row]
    with phases("writing"):
        title = f"{len(columns)} plans on {simulations[0].topology.name}"
        reports.write(simulations, title=title, names=names)
    if as_json:
        rows = [{"what": n, **simulation_json(s)} for n, s in zip(names, simulations, strict=True)]
        print_json({"ok": True, "simulations": rows, "seconds": phases.seconds})
        return
    click.echo("\n".join(lines))
    phases.report()


def _parse(text: str, topology: str | None) -> Selection:
    """The selection of a quoted WHAT with its options."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r}: {error}") from error
    if topology is not None and not any(word.startswith("--topology") for word in words):
        words += ["--topology", topology]
    selection = _selection.main(words, prog_name=f"compare {text!r}", standalone_mode=False)
    if not isinstance(selection, Selection):
        raise click.UsageError(f"{text!r} does not name anything to simulate")
    return selection
