"""sley package: writes a directory of proven plans for a runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import click

from sley.cli.options import FILE, RuntimeName, Selection, common_options
from sley.cli.output import Command, Phases, print_note, print_rows, print_written
from sley.cli.sources import plan_and_file, source_of, supports_both_places
from sley.compiler import Options
from sley.compiler.deployment import packages, runtime_named
from sley.compiler.deployment.packages import PackageFile
from sley.compiler.deployment.runtimes import Runtime, names
from sley.errors import recognition
from sley.errors.deployment import F528
from sley.formats import TARGETS
from sley.formats.files import FORMATS
from sley.formats.mscclpp.targets import SUFFIX as JSON
from sley.ir.plan import Plan
from sley.ir.plan_table import PlanRow, read_table
from sley.ir.sizes import ALL_SIZES, SizeRange


@click.command("package", cls=Command)
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--table", required=True, type=FILE, help="The plans and their ranges of sizes (TOML)."
)
@click.option(
    "--target",
    required=True,
    type=RuntimeName(names(), any_version=True),
    help="The runtime that will read DIR. [the installed mscclpp's version, or the last one that "
    "reads plans]",
)
@common_options
def package_command(folder: Path, table: Path, target: str, phases: Phases) -> None:
    """Write a directory of plans, each for a range of sizes, that a runtime chooses from.

    DIR is written only if every plan is proven as the runtime executes it, and `sley doctor` finds
    no problem in DIR.
    """
    runtime = runtime_named(target)
    parts = _parts(read_table(table).rows, runtime, phases)
    package = packages.write_package(parts, folder, runtime)
    if phases.quiet:
        files, remarks = [str(path) for path in package.paths], list(package.remarks)
        phases.print_json(files=files, remarks=remarks, environment=package.environment)
        return
    for remark in package.remarks:
        print_note(remark)
    print_written(*package.paths)
    print_rows(("read with", f"{word}={text}") for word, text in package.environment.items())
    phases.report()


def _parts(rows: tuple[PlanRow, ...], runtime: Runtime, phases: Phases) -> Iterator[PackageFile]:
    """The files of a table. Algorithms and texts without a place have one for each place; for a
    runtime of one place, one in place."""
    for number, row in enumerate(rows, 1):
        stem = row.recipe.stem
        with packages.naming(row.entry):
            selection = _selection(row)
            is_copied = runtime.suffix == JSON and source_of(selection).kind is recognition.MSCCLPP
            is_either = row.in_place is None and supports_both_places(selection)
        if is_copied:
            yield packages.copied_part(f"{number:02}-{stem}", row, Path(row.recipe.name), runtime)
            continue
        ways = [row.in_place]
        if is_either:
            ways = [True] if runtime.one_place else [False, True]
        for in_place in ways:
            end = "-in-place" if in_place else ""
            part = packages.plan_part(
                f"{number:02}-{stem}{end}",
                str(row),
                partial(_plan, row, replace(selection, in_place=in_place), runtime, phases),
                runtime,
                row.sizes,
                packages.node_of(row),
            )
            yield replace(part, entry=row.entry)


def _selection(row: PlanRow) -> Selection:
    """The row's recipe as the command line has it. Errors: C304."""
    arguments = dict(row.recipe.arguments)
    own = {word: arguments.pop(word) for word in ("nodes", "gpus") if word in arguments}
    selection = Selection(
        row.recipe.name,
        root=row.root,
        arguments=arguments,
        options=Options.of(None, row.recipe.options),
        **own,
    )
    if source_of(selection).is_plan or {"nodes", "gpus"} <= own.keys():
        return selection  # it has its own ranks, which `_plan` compares with the row's
    return replace(selection, ranks=row.ranks)


def _plan(
    row: PlanRow, selection: Selection, runtime: Runtime, phases: Phases
) -> tuple[Plan, SizeRange]:
    """A plan, and the sizes of the file that it is from, or all. Errors: those of `plan_and_file`;
    F528 for a plan of other calls than the row's; wrong usage names the row."""
    form = FORMATS[runtime.suffix]
    try:
        plan, imported = plan_and_file(selection, phases, verify=False, form=form)
    except click.UsageError as error:
        raise click.UsageError(f"{row.entry}: {error.message}", error.ctx) from error
    c = plan.collective
    if row.collective not in ("", c.name) or row.ranks not in (None, c.ranks):
        calls = f"{row.collective or c.name} on {row.ranks or c.ranks} ranks"
        raise F528.error(expected=f"a plan for {calls}", found=str(c))
    return plan, ALL_SIZES if imported is None else imported.sizes(TARGETS[runtime.target])
