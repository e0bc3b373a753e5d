"""Packages: a policy as folders of plans, each file for a range of sizes.

`write_package` writes plans for runtimes that read plan files, `write_plan_folder` programs with a
plans.toml for sley's communicators (SLEY_PLAN_DIR).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from sley import files
from sley.compiler import compile
from sley.errors import Place, SleyError, shortened
from sley.errors.formats import F461
from sley.errors.policy import D905
from sley.files import FORMATS
from sley.formats import Target, make_folder, target_named, write_file
from sley.ir.collectives import STANDARD
from sley.ir.program import Program
from sley.policy.policy import Decision, Policy, Range

PLANS_TOML = "plans.toml"

_WriteOne: TypeAlias = Callable[[Path, Range, bool], None]
"""Writes the file of a range, in place or not, to a path."""


def write_package(
    policy: Policy, folder: str | os.PathLike[str], target: str | Target = "executor"
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes the plans of each range for a target (executor, rccl, msccl): one out of place and one
    in place, with the range's sizes.

    folder: an empty or a new one. Returns the files, and remarks on ranges that the target can't
    run. Errors: D905 if no plan remains, F440, F461.
    """
    target = target_named(target)
    needs = FORMATS[target.suffix].needs

    def write_one(path: Path, one: Range, in_place: bool) -> None:
        program = _program(policy, one.decision, in_place=in_place)
        plan = compile(program, one.decision.options.filled(needs))
        least, most = one.begin_bytes, one.end_bytes
        files.save(plan, path, target=target, min_bytes=least, max_bytes=most)

    remarks = _tile_remarks(policy, str(target.name))
    expected = f"a range whose plan {target.name} can run"
    return _write_ranges(policy, folder, target.suffix, write_one, remarks, expected)


def write_plan_folder(
    policy: Policy, folder: str | os.PathLike[str]
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes a folder for SLEY_PLAN_DIR: a program for each range, out of place and in place, and
    plans.toml with its sizes and options.

    folder: an empty or a new one. Each program is compiled and proven before it is written. Returns
    the files, and remarks on ranges that are left out. Errors: D905 if no program remains, F461.
    """
    tables: list[str] = []

    def write_one(path: Path, one: Range, in_place: bool) -> None:
        compile(_program(policy, one.decision, in_place=in_place), one.decision.options)
        write_file(path, _source(policy, one.decision, in_place=in_place))
        tables.append(_table(path.name, one))

    rows = {name: STANDARD[name] for name in policy.ranges}
    calls = replace(policy, ranges={c: r for c, r in policy.ranges.items() if rows[c].call})
    remarks = [
        *(
            f"{one.label(collective)}: left out, no call of a communicator"
            for collective, one in _ranges(policy)
            if not rows[collective].call
        ),
        *_tile_remarks(calls, PLANS_TOML),
        *(
            f"{one.label(collective)}: only for calls with root 0"
            for collective, one in _ranges(calls)
            if "root" in rows[collective].roles
        ),
    ]
    expected = "a range whose program compiles"
    paths, found = _write_ranges(calls, folder, ".py", write_one, remarks, expected)
    toml = Path(folder, PLANS_TOML)
    write_file(toml, "\n".join(tables))
    return [*paths, toml], found


def _write_ranges(
    policy: Policy,
    folder: str | os.PathLike[str],
    suffix: str,
    write_one: _WriteOne,
    remarks: Iterable[str],
    expected: str,
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes two files for each range, out of place and in place; an error leaves the file out.

    Returns the files, and `remarks` with one more for each file that is left out. Errors: D905 with
    `expected` if none remains, F461.
    """
    to, is_new = _empty_folder(folder)
    paths, found = list[Path](), list(remarks)
    for number, (collective, one) in enumerate(_ranges(policy), 1):
        for in_place, end in ((False, ""), (True, "-in-place")):
            path = to / f"{number:02}-{one.decision.algorithm}{end}{suffix}"
            try:
                write_one(path, one, in_place)
            except SleyError as error:
                if error.code == "F461":  # of the disk: it would repeat for every range
                    raise
                place, d = "in place" if in_place else "out of place", error.diagnostics[0]
                reason = f"{d.code}: expected {d.expected}, found {d.found}"
                found.append(f"{one.label(collective)}, {place}: left out, {reason}")
            else:
                paths.append(path)
    if not paths:
        if is_new:
            to.rmdir()
        first = "; ".join(found[:4])
        raise D905.error(expected=expected, found=first or "a policy without ranges")
    return paths, tuple(found)


def _empty_folder(folder: str | os.PathLike[str]) -> tuple[Path, bool]:
    """The folder, and whether it was made, as it didn't exist. One with files is refused: a runtime
    would read those, too. Errors: F461."""
    is_new = not Path(folder).exists()
    path = make_folder(folder)
    found = sorted(entry.name for entry in path.iterdir())
    if found:
        raise F461.error(
            at=Place(str(path)), expected="an empty folder", found=", ".join(shortened(found))
        )
    return path, is_new


def _ranges(policy: Policy) -> Iterator[tuple[str, Range]]:
    """The ranges with their collectives."""
    for collective, ranges in policy.ranges.items():
        for one in ranges:
            yield collective, one


def _program(policy: Policy, decision: Decision, *, in_place: bool) -> Program:
    return decision.program(policy.machine.nodes, policy.machine.gpus, in_place=in_place)


def _tile_remarks(policy: Policy, reader: str) -> list[str]:
    """A remark on each range that has a tile of its own, which the reader doesn't have."""
    return [
        f"{one.label(collective)}: {reader} has no tile, so tile={one.decision.tile:g} is ignored"
        for collective, one in _ranges(policy)
        if one.decision.tile != 1
    ]


def _source(policy: Policy, decision: Decision, *, in_place: bool) -> str:
    """The Python text of a program."""
    m = policy.machine
    grid = f"nodes={m.nodes}, gpus={m.gpus}, in_place={in_place}"
    return (
        f'"""A program of a policy that was trained for {m.ranks} ranks; plans.toml has its '
        'sizes."""\n\n'
        "from sley.algorithms import build\n\n"
        f"program = build({decision.algorithm!r}, {grid})\n"
    )


def _table(name: str, one: Range) -> str:
    """The file's table in plans.toml."""
    lines = [f"[{json.dumps(name)}]", f"min_bytes = {one.begin_bytes}"]
    if one.end_bytes is not None:
        lines.append(f"max_bytes = {one.end_bytes}")
    given = one.decision.options.given().items()
    if given:
        words = [f"{word} = {json.dumps(getattr(value, 'value', value))}" for word, value in given]
        lines.append(f"options = {{ {', '.join(words)} }}")
    return "".join(f"{line}\n" for line in lines)
