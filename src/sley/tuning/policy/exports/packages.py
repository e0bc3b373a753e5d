"""Packages: a policy as folders of plans, each file for a range of sizes.

`write_package` writes plans for runtimes that read plan files, `write_plan_folder` a plans.toml for
sley's communicators (SLEY_PLAN_DIR) and `sley package`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from sley.communicator.selection.policy import Policy, label, program_of
from sley.compiler import Options, compile
from sley.compiler.deployment import packages
from sley.compiler.deployment.runtimes import runtime_of
from sley.errors import SleyError
from sley.errors.policy import D905
from sley.formats import Target, new_folder, target_named, write_file
from sley.formats.files import FORMATS
from sley.ir.collectives import SIZED
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE, PlanRow, PlanTable
from sley.ir.sizes import ALL_SIZES, SizeRange


def write_package(
    policy: Policy, folder: str | os.PathLike[str], target: str | Target = "executor"
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the plans of each row for a target (executor, rccl, msccl, mscclpp or a version of
    it): one out of place and one in place, with the row's sizes; for mscclpp only those in place.

    folder: an empty or a new one. Returns the files, and remarks on rows that the target can't run,
    and on the folder as the target's runtime reads it. Errors: D905 if no plan remains, F440, F461.
    """
    target = target_named(target)
    runtime, needs = runtime_of(target), FORMATS[target.suffix].needs

    def make(row: PlanRow) -> tuple[Plan, SizeRange]:
        options = Options.of(None, row.recipe.options).filled(needs)
        return _compiled(policy, row, options), ALL_SIZES

    parts = [
        packages.plan_part(
            f"{number:02}-{row.recipe.name}{'-in-place' if row.in_place else ''}",
            _words(row),
            partial(make, row),
            runtime,
            row.sizes,
            policy.machine.gpus,
        )
        for number, row in _in_both_places(policy)
        if row.in_place or not runtime.one_place
    ]
    written = packages.write_package(parts, folder, runtime, lenient=True)
    remarks = (*_tile_remarks(policy, str(target)), *written.remarks)
    if not written.paths:
        raise _nothing(remarks, f"a range whose plan {target} can run")
    return list(written.paths), remarks


def write_plan_folder(
    policy: Policy, folder: str | os.PathLike[str]
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes a folder for SLEY_PLAN_DIR: plans.toml with two rows for each one, out of place and in
    place.

    folder: an empty or a new one. Each row is compiled and proven before it is written. Returns the
    file, and remarks on rows that are left out. Errors: D905 if no row remains, F461.
    """
    calls = replace(policy, rows=tuple(r for r in policy.rows if SIZED[r.collective].call))
    remarks = [
        f"{label(row)}: left out, no call of a communicator"
        for row in policy.rows
        if row not in calls.rows
    ]
    remarks += _tile_remarks(calls, TABLE)
    remarks += [
        f"{label(row)}: only for calls with root 0"
        for row in calls.rows
        if "root" in SIZED[row.collective].roles
    ]
    machine, kept = policy.machine, list[PlanRow]()
    for _, row in _in_both_places(calls):
        try:
            _compiled(policy, row, Options.of(None, row.recipe.options))
        except SleyError as error:
            remarks.append(f"{_words(row)}: {packages.left_out(error)}")
            continue
        # The folder's other readers have no tile, no clock and no machine but these ranks.
        recipe = replace(row.recipe, tile=1.0).given(nodes=machine.nodes, gpus=machine.gpus)
        full = replace(row, recipe=recipe, ranks=machine.ranks, note=row.reason)
        kept.append(replace(full, measured=(), alternatives=()))
    if not kept:
        raise _nothing(remarks, "a range whose program compiles")
    with new_folder(folder) as temporary:
        write_file(temporary / TABLE, PlanTable(tuple(kept)).text())
    return [Path(folder, TABLE)], tuple(remarks)


def _nothing(remarks: Sequence[str], expected: str) -> SleyError:
    """The error of a policy of which nothing remains."""
    first = "; ".join(remarks[:4])
    return D905.error(expected=expected, found=first or "a policy without ranges")


def _in_both_places(policy: Policy) -> Iterator[tuple[int, PlanRow]]:
    """Two rows for each one, out of place and in place, with its number."""
    for number, row in enumerate(policy.rows, 1):
        for in_place in (False, True):
            yield number, replace(row, in_place=in_place)


def _words(row: PlanRow) -> str:
    return f"{label(row)}, {'in place' if row.in_place else 'out of place'}"


def _compiled(policy: Policy, row: PlanRow, options: Options) -> Plan:
    nodes, gpus = policy.machine.nodes, policy.machine.gpus
    return compile(program_of(row.recipe, nodes, gpus, in_place=bool(row.in_place)), options)


def _tile_remarks(policy: Policy, reader: str) -> list[str]:
    """A remark on each row that has a tile of its own, which the reader doesn't have."""
    return [
        f"{label(row)}: {reader} has no tile, so tile={row.recipe.tile:g} is ignored"
        for row in policy.rows
        if row.recipe.tile != 1
    ]
