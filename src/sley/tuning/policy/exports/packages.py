"""Packages: a policy as folders of plans, each file for a range of sizes.

`write_package` writes plans for runtimes that read plan files, `write_plan_folder` a plans.toml for
sley's communicators (SLEY_PLAN_DIR) and `sley package`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sley.compiler import compile, deployment
from sley.compiler.deployment import PackageFile, left_out, plan_part, runtime_of
from sley.errors import SleyError
from sley.errors.policy import D905
from sley.formats import Target, new_folder, target_named, write_file
from sley.formats.files import FORMATS
from sley.ir.collectives import SIZED
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE, Machine, PlanRow, PlanTable
from sley.ir.program import Program
from sley.ir.sizes import ALL_SIZES, SizeRange
from sley.tuning.policy.policy import Policy, Range


def write_package(
    policy: Policy, folder: str | os.PathLike[str], target: str | Target = "executor"
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the plans of each range for a target (executor, rccl, msccl, mscclpp or a version of
    it): one out of place and one in place, with the range's sizes; for mscclpp only those in place.

    folder: an empty or a new one. Returns the files, and remarks on ranges that the target can't
    run, and on the folder as the target's runtime reads it. Errors: D905 if no plan remains, F440,
    F461.
    """
    target = target_named(target)
    runtime, needs = runtime_of(target), FORMATS[target.suffix].needs

    def part(row: _Row) -> PackageFile:
        decision = row.range.decision

        def make() -> tuple[Plan, SizeRange]:
            return compile(_program(policy, row), decision.options.filled(needs)), ALL_SIZES

        return plan_part(row.stem, row.label, make, runtime, row.range.sizes, policy.machine.gpus)

    rows = [row for row in _rows(policy) if row.in_place or not runtime.one_place]
    written = deployment.write_package(map(part, rows), folder, runtime, lenient=True)
    remarks = (*_tile_remarks(policy, str(target)), *written.remarks)
    if not written.paths:
        raise _nothing(remarks, f"a range whose plan {target} can run")
    return list(written.paths), remarks


def write_plan_folder(
    policy: Policy, folder: str | os.PathLike[str]
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes a folder for SLEY_PLAN_DIR: plans.toml with a row for each range.

    folder: an empty or a new one. Each row is compiled and proven before it is written. Returns the
    file, and remarks on ranges that are left out. Errors: D905 if no row remains, F461.
    """
    rows = {name: SIZED[name] for name in policy.ranges}
    calls = replace(policy, ranges={c: r for c, r in policy.ranges.items() if rows[c].call})
    remarks = [
        *(
            f"{one.label(collective)}: left out, no call of a communicator"
            for collective, one in _ranges(policy)
            if not rows[collective].call
        ),
        *_tile_remarks(calls, TABLE),
        *(
            f"{one.label(collective)}: only for calls with root 0"
            for collective, one in _ranges(calls)
            if "root" in rows[collective].roles
        ),
    ]
    kept: list[PlanRow] = []
    for row in _rows(calls):
        try:
            compile(_program(policy, row), row.range.decision.options)
        except SleyError as error:
            remarks.append(f"{row.label}: {left_out(error)}")
        else:
            kept.append(row.full(policy.machine))
    if not kept:
        raise _nothing(remarks, "a range whose program compiles")
    with new_folder(folder) as temporary:
        write_file(temporary / TABLE, PlanTable(tuple(kept)).text())
    return [Path(folder, TABLE)], tuple(remarks)


def _nothing(remarks: Sequence[str], expected: str) -> SleyError:
    """The error of a policy of which nothing remains."""
    first = "; ".join(remarks[:4])
    return D905.error(expected=expected, found=first or "a policy without ranges")


@dataclass(frozen=True)
class _Row:
    """A file of a folder: the number and the collective of its range, and its place."""

    number: int
    collective: str
    range: Range
    in_place: bool

    @property
    def stem(self) -> str:
        """The file's name without its suffix."""
        end = "-in-place" if self.in_place else ""
        return f"{self.number:02}-{self.range.decision.algorithm}{end}"

    def full(self, machine: Machine) -> PlanRow:
        """The row of a table, with the ranks."""
        row = self.range.row(self.collective)
        given = row.recipe.given(nodes=machine.nodes, gpus=machine.gpus)
        recipe = replace(given, tile=1.0)
        row = replace(row, recipe=recipe, ranks=machine.ranks, in_place=self.in_place)
        return replace(row, measured=(), alternatives=())

    @property
    def label(self) -> str:
        """The file in words."""
        place = "in place" if self.in_place else "out of place"
        return f"{self.range.label(self.collective)}, {place}"


def _rows(policy: Policy) -> Iterator[_Row]:
    """Two files for each range, out of place and in place."""
    for number, (collective, one) in enumerate(_ranges(policy), 1):
        for in_place in (False, True):
            yield _Row(number, collective, one, in_place)


def _ranges(policy: Policy) -> Iterator[tuple[str, Range]]:
    """The ranges with their collectives."""
    for collective, ranges in policy.ranges.items():
        for one in ranges:
            yield collective, one


def _program(policy: Policy, row: _Row) -> Program:
    machine = policy.machine
    return row.range.decision.program(machine.nodes, machine.gpus, in_place=row.in_place)


def _tile_remarks(policy: Policy, reader: str) -> list[str]:
    """A remark on each range that has a tile of its own, which the reader doesn't have."""
    return [
        f"{one.label(collective)}: {reader} has no tile, so tile={one.decision.tile:g} is ignored"
        for collective, one in _ranges(policy)
        if one.decision.tile != 1
    ]
