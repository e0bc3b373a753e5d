"""sley package: writes a directory of proven plans for a runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from sley.cli.options import FILE, RuntimeName, Selection, common_options
from sley.cli.output import Command, Phases, echo, print_json, print_note, print_written
from sley.cli.sources import plan_and_file, source_of, supports_both_places
from sley.compiler import deployment
from sley.compiler.deployment import Part, Runtime, TableRow, copied_part, naming, plan_part
from sley.errors import recognition
from sley.formats import TARGETS
from sley.formats.files import FORMATS
from sley.formats.mscclpp.targets import SUFFIX as JSON
from sley.ir.plan import Plan


@click.command("package", cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--table", required=True, type=FILE, help="The plans and their ranges of sizes (TOML)."
)
@click.option(
    "--target",
    required=True,
    type=RuntimeName(deployment.names(), any_version=True),
    help="The runtime that will read DIR. [the installed mscclpp's version, or the last one that "
    "reads plans]",
)
@common_options
def package_command(folder: Path, table: Path, target: str, as_json: bool, verbose: bool) -> None:
    """Write a directory of plans, each for a range of sizes, that a runtime chooses from.

    DIR is written only if every plan is proven as the runtime executes it, and `sley doctor` finds
    no problem in DIR.
    """
    runtime = deployment.runtime_named(target)
    phases = Phases(verbose, quiet=as_json)
    parts = _parts(deployment.read_table(table), runtime, phases)
    package = deployment.write_package(parts, folder, runtime)
    if as_json:
        print_json(
            {
                "ok": True,
                "files": [str(path) for path in package.paths],
                "remarks": list(package.remarks),
                "environment": package.environment,
                "seconds": phases.seconds,
            }
        )
        return
    for remark in package.remarks:
        print_note(remark)
    for path in package.paths:
        print_written(path)
    for word, text in package.environment.items():
        echo(f"{'read with':<23}{word}={text}")
    phases.report()


def _parts(rows: tuple[TableRow, ...], runtime: Runtime, phases: Phases) -> Iterator[Part]:
    """The files of a table. Algorithms and texts without a place have one for each place; for a
    runtime of one place, one in place."""
    for number, row in enumerate(rows, 1):
        selection = Selection(
            row.what,
            ranks=row.ranks,
            nodes=row.nodes,
            gpus=row.gpus,
            root=row.root,
            arguments={**row.arguments, **({} if row.nics is None else {"nics": row.nics})},
            options=row.options,
        )
        ways = [row.in_place]
        with naming(row.entry):
            is_copied = runtime.suffix == JSON and source_of(selection).kind is recognition.MSCCLPP
            is_either = row.in_place is None and supports_both_places(selection)
        if is_copied:
            yield copied_part(f"{number:02}-{row.stem}", row, Path(row.what), runtime)
            continue
        if is_either:
            ways = [True] if runtime.one_place else [False, True]
        for in_place in ways:
            end = "-in-place" if in_place else ""
            part = plan_part(
                f"{number:02}-{row.stem}{end}",
                str(row),
                partial(_plan, row, replace(selection, in_place=in_place), runtime, phases),
                runtime,
                (row.min_bytes, row.max_bytes),
                0 if row.nodes is None else row.gpus or 0,
            )
            yield replace(part, entry=row.entry)


def _plan(
    row: TableRow, selection: Selection, runtime: Runtime, phases: Phases
) -> tuple[Plan, tuple[int, int | None]]:
    """A plan, and the sizes of the file that it is from, or all. Errors: those of `plan_and_file`;
    wrong usage names the row."""
    form = FORMATS[runtime.suffix]
    try:
        plan, imported = plan_and_file(selection, phases, verify=False, form=form)
    except click.UsageError as error:
        raise click.UsageError(f"{row.entry}: {error.message}", error.ctx) from error
    return plan, (0, None) if imported is None else imported.sizes(TARGETS[runtime.target])
