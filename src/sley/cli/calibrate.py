"""sley calibrate: measures a topology of this machine."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import click

from sley import topologies
from sley.calibrating import MAX_PROCESSES, calibrate
from sley.cli.options import common_options, output_option
from sley.cli.output import Command, Phases, print_json
from sley.formats import check_folder


@click.command("calibrate", cls=Command)
@click.option(
    "--ranks",
    type=click.IntRange(2, MAX_PROCESSES),
    default=lambda: min(max(2, os.cpu_count() or 2), MAX_PROCESSES),
    help="Processes.  [one for each core]",
)
@click.option(
    "-n",
    "--repeats",
    type=click.IntRange(1, 1000),
    default=5,
    show_default=True,
    help="Measurements.",
)
@output_option("Write the topology here, .toml.", required=True)
@common_options
def calibrate_command(ranks: int, repeats: int, output: Path, as_json: bool, verbose: bool) -> None:
    """Measure the CPU runtime on this machine, and write a topology for `sley simulate`.

    Simulate plans with the same number of ranks, because ranks share the machine's cores.
    """
    check_folder(output)
    phases = Phases(verbose, quiet=as_json)
    with phases("measuring"):
        found = calibrate(ranks, repeats=repeats)
    topologies.save(found.topology, output)
    figures = {
        f.name: getattr(found, f.name) for f in fields(found) if f.name not in ("ranks", "topology")
    }
    if as_json:
        print_json({"ok": True, "ranks": ranks, **figures, "output": str(output)})
        return
    for name, value in figures.items():
        click.echo(f"{name:<12}{value:>12.3f}")
    click.echo(f"{'written':<12}{output}")
    phases.report()
