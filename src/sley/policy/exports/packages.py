"""Packages: a policy as folders of plans, each file for a range of sizes.

`write_package` writes plans for runtimes that read plan files, `write_plan_folder` programs with a
plans.toml for sley's communicators (SLEY_PLAN_DIR).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import fields
from enum import Enum
from pathlib import Path

from sley import files
from sley.compiler import Options, compile
from sley.errors import Place, SleyError, shortened
from sley.errors.formats import F461
from sley.errors.policy import D905
from sley.files import FORMATS
from sley.formats import Target, target_named, write_file
from sley.ir.collectives import STANDARD
from sley.ir.program import Program
from sley.policy.policy import Decision, Policy, Range

PLANS_TOML = "plans.toml"

_WAYS = (False, True)
"""Out of place and in place: a policy's decision is for both, a plan for one."""


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
    to = _empty_folder(folder)
    paths: list[Path] = []
    remarks: list[str] = []
    for name, collective, one in _numbered(policy):
        remarks += _remarks(collective, one, str(target.name))
        for in_place in _WAYS:
            path = to / f"{name}{'-in-place' if in_place else ''}{target.suffix}"
            try:
                program = _program(policy, one.decision, in_place=in_place)
                plan = compile(program, one.decision.options.filled(needs))
                least, most = one.begin_bytes, one.end_bytes
                files.save(plan, path, target=target, min_bytes=least, max_bytes=most)
            except SleyError as error:
                _raise_if_unwritable(error)
                place = "in place" if in_place else "out of place"
                remarks.append(f"{_where(collective, one)}, {place}: left out, {_reason(error)}")
            else:
                paths.append(path)
    if not paths:
        raise D905.error(
            expected=f"a range whose plan {target.name} can run",
            found="; ".join(remarks[:4]) or "a policy without ranges",
        )
    return paths, tuple(remarks)


def write_plan_folder(
    policy: Policy, folder: str | os.PathLike[str]
) -> tuple[list[Path], tuple[str, ...]]:
    """Writes a folder for SLEY_PLAN_DIR: a program for each range, out of place and in place, and
    plans.toml with its sizes and options.

    folder: an empty or a new one. Each program is compiled and proven before it is written. Returns
    the files, and remarks on ranges that are left out. Errors: D905 if no program remains, F461.
    """
    to = _empty_folder(folder)
    paths: list[Path] = []
    remarks: list[str] = []
    tables: list[str] = []
    for name, collective, one in _numbered(policy):
        if not STANDARD[collective].call:
            remarks.append(f"{_where(collective, one)}: left out, no call of a communicator")
            continue
        remarks += _remarks(collective, one, "plans.toml")
        if "root" in STANDARD[collective].roles:
            remarks.append(f"{_where(collective, one)}: only for calls with root 0")
        for in_place in _WAYS:
            path = to / f"{name}{'-in-place' if in_place else ''}.py"
            try:
                program = _program(policy, one.decision, in_place=in_place)
                compile(program, one.decision.options)
            except SleyError as error:
                place = "in place" if in_place else "out of place"
                remarks.append(f"{_where(collective, one)}, {place}: left out, {_reason(error)}")
                continue
            write_file(path, _source(policy, one.decision, in_place=in_place))
            tables.append(_table(path.name, one))
            paths.append(path)
    if not paths:
        raise D905.error(
            expected="a range whose program compiles",
            found="; ".join(remarks[:4]) or "a policy without ranges",
        )
    write_file(to / PLANS_TOML, "\n".join(tables))
    return [*paths, to / PLANS_TOML], tuple(remarks)


def _empty_folder(folder: str | os.PathLike[str]) -> Path:
    """The folder, made if it doesn't exist. One with files is refused: a runtime would read those,
    too. Errors: F461."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = sorted(entry.name for entry in path.iterdir())
    except (OSError, ValueError) as problem:
        raise F461.error(
            at=Place(str(path)), expected="a folder that can be made", found=str(problem)
        ) from problem
    if found:
        raise F461.error(
            at=Place(str(path)), expected="an empty folder", found=", ".join(shortened(found))
        )
    return path


def _numbered(policy: Policy) -> Iterator[tuple[str, str, Range]]:
    """The ranges with their collectives and the names of their files, without suffixes."""
    number = 0
    for collective, ranges in policy.ranges.items():
        for one in ranges:
            number += 1
            yield f"{number:02}-{one.decision.algorithm}", collective, one


def _program(policy: Policy, decision: Decision, *, in_place: bool) -> Program:
    return decision.program(policy.machine.nodes, policy.machine.gpus, in_place=in_place)


def _remarks(collective: str, one: Range, reader: str) -> list[str]:
    if one.decision.tile == 1:
        return []
    tile = f"{one.decision.tile:g}"
    return [f"{_where(collective, one)}: {reader} has no tile, so tile={tile} is ignored"]


def _raise_if_unwritable(error: SleyError) -> None:
    """Raises an error of the disk, which would repeat for every range."""
    if error.code == "F461":
        raise error


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
    words = _toml_options(one.decision.options)
    if words:
        lines.append(f"options = {{ {', '.join(words)} }}")
    return "".join(f"{line}\n" for line in lines)


def _toml_options(options: Options) -> list[str]:
    """The options as entries of TOML, except costs, which plans.toml doesn't have."""
    values = {f.name: getattr(options, f.name) for f in fields(options) if f.name != "costs"}
    return [
        f"{word} = {json.dumps(value.value if isinstance(value, Enum) else value)}"
        for word, value in values.items()
        if value is not None
    ]


def _where(collective: str, one: Range) -> str:
    return f"{collective}, {one.sizes}"


def _reason(error: SleyError) -> str:
    d = error.diagnostics[0]
    return f"{d.code}: expected {d.expected}, found {d.found}"
