"""sley import: turns a synthesiser's schedule into a program."""

from __future__ import annotations

from pathlib import Path

import click

from sley import schedules
from sley.cli.options import common_options, output_option
from sley.cli.output import Command, Phases, print_json
from sley.cli.sources import program_facts
from sley.compiler import compile
from sley.formats import by_suffix, program_source, write_file


@click.command("import", cls=Command)
@click.argument("file", type=click.Path())
@output_option("Write the program here, as Python.")
@click.option(
    "--collective",
    type=click.Choice(schedules.COLLECTIVES),
    help="For ForestColl's trees: the collective that they are to serve, not alltoall; for other "
    "schedules their own. [allgather, or the schedule's]",
)
@click.option(
    "--in-place/--out-of-place", "in_place", default=False, help="Alias input and output or not."
)
@click.option(
    "--allow",
    type=click.Choice(schedules.ALLOWED),
    multiple=True,
    help="For TE-CCL's schedules: import one although switches copy (multicast: each copy is a "
    "message) or GPUs are left out (incomplete: the program has fewer ranks). May be repeated.",
)
@common_options
def import_command(
    file: str,
    output: Path | None,
    collective: str | None,
    in_place: bool,
    allow: tuple[str, ...],
    as_json: bool,
    verbose: bool,
) -> None:
    """Import FILE, a synthesiser's schedule, as a program.

    FILE is a schedule of TE-CCL or TACCL, or trees of ForestColl. It is followed send by send and
    compared with its own claims; the program is proven by compiling it.
    """
    if output is not None:
        by_suffix(str(output), {".py": None})
    phases = Phases(verbose, quiet=as_json)
    with phases("reading"):
        schedule = schedules.read(file)
    facts = [("file", schedule.kind.text), *schedule.facts()]
    if not as_json:
        _print(facts)
    with phases("replay"):
        found = schedule.check()
    if not as_json:
        _print(found)
    with phases("proof of the program"):
        program = schedules.program(schedule, collective, in_place=in_place, allow=allow)
        compile(program)
    if output is not None:
        with phases("writing"):
            write_file(output, program_source.write(program))
    summary = program_facts(program)
    if as_json:
        where = {"output": None if output is None else str(output)}
        said = {"schedule": dict(facts), "replay": dict(found), "program": summary, **where}
        print_json({"ok": True, **said, "seconds": phases.seconds})
        return
    rows = [("program", summary["name"]), ("transfers", summary["transfers"])]
    _print([(word, str(value)) for word, value in rows])
    _print([("proven", "compiled: right values, no races, no hangs")])
    if output is not None:
        _print([("written", str(output))])
    phases.report()


def _print(rows: list[tuple[str, str]]) -> None:
    for word, text in rows:
        click.echo(f"{word:<23}{text}")
