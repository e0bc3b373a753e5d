"""sley choose: which algorithm and options are fastest for which sizes."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import click

from sley import formats
from sley.cli.model import Settings, simulation_options
from sley.cli.options import COMPILER_OPTIONS, F, Selection, common_options, compiler_option
from sley.cli.output import Command, Phases, print_json, progress_bar
from sley.cli.sizes import size_options
from sley.cli.sources import fitted, in_place_by_default, is_plan, plan_of, program_of, topology_of
from sley.compiler import Choice, Choices, Options, choose
from sley.errors import counted
from sley.formats import check_folder
from sley.ir.program import Program
from sley.ir.sizes import size_text
from sley.ir.topology import Topology
from sley.passes.lift import lift

_HEAD = (
    "from",
    "to",
    "algorithm",
    "protocol",
    "schedule",
    "allocate",
    "channels",
    "instances",
    "blocks",
    "us at from",
    "us at to",
    "GB/s at to",
    "of bound",
)
_LEFT = range(2, 6)
"""Columns with words, which stand at the left."""


def _options(command: F) -> F:
    """The options of the compiler, of which several values are tried."""
    for word in reversed(COMPILER_OPTIONS):
        command = compiler_option(word, several=True)(command)
    return command


@click.command("choose", cls=Command)
@click.argument("what", nargs=-1, required=True)
@click.option("--topology", required=True, help="NAME[:NODES], NODESxGPUS[:NICS] or a file.")
@size_options("1K", "1G")
@click.option(
    "--in-place/--out-of-place", "in_place", default=None, help="Alias input and output or not."
)
@_options
@simulation_options
@click.option(
    "--target",
    type=click.Choice(list(formats.TARGETS)),
    help="Only plans that this runtime can run. [executor with -o]",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the plan of each range into this folder.",
)
@common_options
def choose_command(  # as many parameters as options: click passes each by its name
    what: tuple[str, ...],
    topology: str,
    sizes: list[int],
    in_place: bool | None,
    settings: Settings,
    target: str | None,
    output: Path | None,
    as_json: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Find what is fastest for which sizes on a cluster: one or several WHAT for the same
    collective, each with many options, by simulation.

    Options of the compiler take several values, divided by commas, of which each is tried. Without
    them those of protocol, schedule, allocation, channels and instances are tried that fit.
    """
    if output is not None:
        check_folder(output)
    phases = Phases(quiet=as_json)
    # The ranges go on to the last size, even where the factor steps over it.
    last = click.get_current_context().params["end"]
    cluster = topology_of(topology)
    programs = [_program(one, cluster, in_place, phases) for one in what]
    if output is not None:
        target = target or "executor"
    with progress_bar(quiet=as_json) as bar, phases("choosing"):
        task = bar.add_task("choosing", total=None)
        choices = choose(
            programs,
            [*sizes, last],
            cluster,
            interpreter=settings.interpreter,
            model=settings.model(cluster),
            target=target,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
            **options,
        )
    paths: list[Path] = []
    if output is not None:
        with phases("writing"):
            paths = choices.save(output, target=target or "executor")
    if as_json:
        print_json(_json(choices, paths) | {"seconds": phases.seconds})
        return
    click.echo("\n".join(_table(choices)))
    for path in paths:
        click.echo(f"{'written':<23}{path} for {target}")
    if verbose:
        phases.report()


def _program(what: str, cluster: Topology | None, in_place: bool | None, phases: Phases) -> Program:
    """The program of a WHAT, of the topology's size if it is an algorithm of the library."""
    selection = in_place_by_default(Selection(what, in_place=in_place))
    if not is_plan(selection):
        with phases("tracing"):
            return program_of(fitted(selection, cluster))
    plan = plan_of(selection, phases, verify=True)
    with phases("lifting"):
        return lift(replace(plan, topology=cluster))


def _table(choices: Choices) -> list[str]:
    """The ranges, a line each."""
    rows = [_HEAD, *(_cells(choices, place) for place in range(len(choices.ranges)))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            f"{cell:<{width}}" if k in _LEFT else f"{cell:>{width}}"
            for k, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    runs = "an interpreter" if choices.interpreter else "code made for each plan"
    title = f"{choices.ranges[0].plan.collective.name} on {choices.topology.name}, {runs}"
    searched = (
        f"{counted(choices.candidates, 'plan')}, {counted(choices.simulations, 'simulation')}"
    )
    return [f"# {title}", f"# {searched}; what was chosen is proven right", *lines]


def _cells(choices: Choices, place: int) -> tuple[str, ...]:
    """A range as the table shows it; a range ends below the first size of the next."""
    choice, o = choices.ranges[place], choices.ranges[place].options
    following = choices.ranges[place + 1 : place + 2]
    end = f"<{size_text(following[0].begin_bytes)}" if following else size_text(choice.end_bytes)
    return (
        size_text(choice.begin_bytes),
        end,
        choice.algorithm,
        choice.plan.protocol.value,
        *(str(_word(value)) for value in (o.schedule, o.allocate, o.channels, o.instances)),
        str(choice.blocks_per_rank),
        f"{choice.begin.time_us:.1f}",
        f"{choice.end.time_us:.1f}",
        f"{choice.end.algbw_GBps:.2f}",
        f"{choice.end.of_bound:.1%}",
    )


def _json(choices: Choices, paths: list[Path]) -> dict[str, Any]:
    """A table as plain values."""
    ranges = [_range_json(choice) for choice in choices.ranges]
    for row, path in zip(ranges, paths, strict=False):
        row["file"] = str(path)
    return {
        "ok": True,
        "topology": choices.topology.name,
        "interpreter": choices.interpreter,
        "candidates": choices.candidates,
        "simulations": choices.simulations,
        "ranges": ranges,
    }


def _range_json(choice: Choice) -> dict[str, Any]:
    ends = {
        word: {
            "size_bytes": p.size_bytes,
            "time_us": p.time_us,
            "algbw_GBps": p.algbw_GBps,
            "bound_us": p.bound.time_us,
            "of_bound": p.of_bound,
        }
        for word, p in (("begin", choice.begin), ("end", choice.end))
    }
    other = choice.runner_up
    return {
        **ends,
        "algorithm": choice.algorithm,
        "options": _options_json(choice.options),
        "blocks_per_rank": choice.blocks_per_rank,
        "runner_up": other
        and {
            "algorithm": other.algorithm,
            "options": _options_json(other.options),
            "size_bytes": other.size_bytes,
            "slower": other.slower,
        },
    }


def _options_json(options: Options) -> dict[str, Any]:
    """The options that `sley compile` takes, as it takes them."""
    return {word: _word(getattr(options, word)) for word in COMPILER_OPTIONS}


def _word(value: object) -> object:
    """A value of an option as the command line spells it."""
    return value.value if isinstance(value, Enum) else value
