"""sley package: writes a directory of proven plans for a runtime."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from sley.cli.options import (
    FILE,
    OWN,
    DType,
    RuntimeName,
    Selection,
    common_options,
    flag,
    same_bits_option,
)
from sley.cli.output import Command, Phases, print_note, print_rows, print_written
from sley.cli.sources import (
    check_same_bits,
    in_order,
    plan_and_file,
    source_of,
    supports_both_places,
)
from sley.communicator.selection.plan_folders import CodeRequest, NamedPlan, write_folder
from sley.compiler import Options
from sley.compiler.deployment import packages, runtime_named
from sley.compiler.deployment.packages import PackageFile
from sley.compiler.deployment.runtimes import Runtime, names
from sley.engine.measure import REDUCE_OPS
from sley.engine.types import USUAL_TYPES, data_type
from sley.errors import recognition
from sley.errors.deployment import F528
from sley.formats import TARGETS, plan_file
from sley.formats.files import FORMATS, verify_file
from sley.formats.format import Format, Target
from sley.formats.mscclpp.targets import SUFFIX as JSON
from sley.ir.one_sided import OneSidedPlan
from sley.ir.orders import SameBits
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
    type=RuntimeName((OWN, *names()), any_version=True),
    help="The runtime that will read DIR. Without VERSION: the installed mscclpp's, or the last "
    "one that reads plans.",
)
@click.option(
    "--arch",
    "archs",
    multiple=True,
    help="sley: compile kernels for GPUs of this architecture, as sm_90. Repeatable.",
)
@click.option(
    "-d",
    "--dtype",
    "dtypes",
    type=DType(),
    multiple=True,
    help="Element type of these kernels. Repeatable. [float32, float16, bfloat16]",
)
@click.option(
    "--op",
    "ops",
    type=click.Choice(list(REDUCE_OPS)),
    multiple=True,
    help="Reduction of these kernels. Repeatable. [sum]",
)
@same_bits_option
@common_options
def package_command(
    folder: Path, table: Path, target: str, same_bits: SameBits, phases: Phases, **code: Any
) -> None:
    """Write a directory of plans, each for a range of sizes, that a runtime chooses from.

    DIR is written only if every plan is proven as the runtime executes it, and `sley doctor` finds
    no problem in DIR.
    """
    rows, remarks = read_table(table).rows, tuple[str, ...]()
    if target == OWN:
        paths = write_folder(_plans(rows, same_bits, phases), folder, _request(**code))
        environment = {"SLEY_PLAN_DIR": str(folder.absolute())}
    else:
        for word, given in code.items():
            if given:
                raise click.UsageError(f"{flag(word.removesuffix('s'))} is for --target {OWN}")
        runtime = runtime_named(target)
        parts = _parts(rows, same_bits, runtime, phases)
        package = packages.write_package(parts, folder, runtime)
        paths, remarks, environment = package.paths, package.remarks, package.environment
    if phases.quiet:
        files = [str(path) for path in paths]
        phases.print_json(files=files, remarks=list(remarks), environment=environment)
        return
    for remark in remarks:
        print_note(remark)
    print_written(*paths)
    print_rows(("read with", f"{word}={text}") for word, text in environment.items())
    phases.report()


def _request(archs: Sequence[str], dtypes: Sequence[str], ops: Sequence[str]) -> CodeRequest:
    types = map(data_type, dtypes or USUAL_TYPES)
    return CodeRequest(
        tuple(dict.fromkeys(archs)), tuple(types), tuple(REDUCE_OPS[op] for op in ops or ["sum"])
    )


def _parts(
    rows: tuple[PlanRow, ...], same_bits: SameBits, runtime: Runtime, phases: Phases
) -> Iterator[PackageFile]:
    """The files of a table for a runtime."""
    form, target = FORMATS[runtime.suffix], TARGETS[runtime.target]
    for name, row, selection in _selections(rows, same_bits, one_place=runtime.one_place):
        with packages.naming(row.entry):
            if form.suffix == JSON and source_of(selection).kind is recognition.MSCCLPP:
                part = packages.copied_part(name, row, Path(row.recipe.name), runtime)
            else:
                make = partial(_plan, row, selection, form, target, phases)
                node = packages.node_of(row)
                part = packages.plan_part(name, str(row), make, runtime, row.sizes, node)
        part = replace(part, entry=row.entry)
        yield replace(part, write=partial(_write, part, runtime, same_bits)) if same_bits else part


def _write(part: PackageFile, runtime: Runtime, same_bits: SameBits, path: Path) -> None:
    """Writes a part whose sums the runtime adds in one order. Errors: N658."""
    part.write(path)
    for proof in verify_file(path, runtime.target).proofs:
        _check_order(proof.plan, part.node, same_bits)


def _check_order(plan: Plan | OneSidedPlan, node: int, same_bits: SameBits) -> None:
    """node: the ranks of a node, 0 if all share one. Errors: N658."""
    ranks = plan.collective.ranks
    check_same_bits(plan, np.arange(ranks) // (node or ranks), same_bits)


def _plans(rows: tuple[PlanRow, ...], same_bits: SameBits, phases: Phases) -> Iterator[NamedPlan]:
    """The plans of a table for communicators."""
    for name, row, selection in _selections(rows, same_bits):
        with packages.naming(row.entry):
            plan, own = _plan(row, selection, plan_file.FORMAT, None, phases)
            _check_order(plan, packages.node_of(row), same_bits)
        yield NamedPlan(name, plan, replace(row, sizes=row.sizes.filled(own)))


def _selections(
    rows: tuple[PlanRow, ...], same_bits: SameBits, *, one_place: bool = False
) -> Iterator[tuple[str, PlanRow, Selection]]:
    """The names of a table's files, with their rows, and the plans' recipes as the command line has
    them. Algorithms and texts without a place have one for each place; for a runtime of one place,
    one in place."""
    for number, row in enumerate(rows, 1):
        with packages.naming(row.entry):
            selection = in_order(_selection(row), same_bits)
            is_either = row.in_place is None and supports_both_places(selection)
        ways = [row.in_place]
        if is_either:
            ways = [True] if one_place else [False, True]
        for in_place in ways:
            end = "-in-place" if in_place else ""
            name = f"{number:02}-{row.recipe.stem}{end}"
            yield name, row, replace(selection, in_place=in_place)


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
    if source_of(selection).is_plan:  # it has its own ranks, which `_plan` compares with the row's
        return replace(selection, nodes=None, gpus=None)
    if {"nodes", "gpus"} <= own.keys():
        return selection
    return replace(selection, ranks=row.ranks)


def _plan(
    row: PlanRow, selection: Selection, form: Format, target: Target | None, phases: Phases
) -> tuple[Plan, SizeRange]:
    """A plan, and the sizes of the file that it is from, or all. Errors: those of `plan_and_file`;
    F528 for a plan of other calls than the row's; wrong usage names the row."""
    try:
        plan, imported = plan_and_file(selection, phases, verify=False, form=form)
    except click.UsageError as error:
        raise click.UsageError(f"{row.entry}: {error.message}", error.ctx) from error
    c = plan.collective
    if row.collective not in ("", c.name) or row.ranks not in (None, c.ranks):
        calls = f"{row.collective or c.name} on {row.ranks or c.ranks} ranks"
        raise F528.error(expected=f"a plan for {calls}", found=str(c))
    if imported is None:
        return plan, ALL_SIZES
    own = SizeRange(imported.min_bytes or 0, imported.max_bytes or None)
    return plan, own if target is None else imported.sizes(target)
