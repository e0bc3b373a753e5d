"""User plans: verified plans made of a user's Plan, Program or file, or of a table's row.

A folder of such files (SLEY_PLAN_DIR) may have a plans.toml, a table of plans (`ir.plan_table`):
its rows give files sizes and options, and name algorithms of the library. A file without a row is
for all calls that it fits. An invalid file is reported, and doesn't disable the others; an invalid
plans.toml disables all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from sley.communicator.selection.kinds import kinds_of
from sley.communicator.selection.ready_plans import (
    Capacity,
    PlanFolder,
    ReadyPlan,
    check_capacity,
    check_input,
    check_order,
    prove,
)
from sley.compiler import Options, compile
from sley.compiler.opening import READABLE, Maker, Source
from sley.errors import Diagnostic, Place, SleyError, did_you_mean, reason_of
from sley.errors.recognition import EXECUTED, MSCCLPP, kind_of
from sley.errors.selection import N651, N653, N654
from sley.errors.simulation import S702
from sley.formats import read
from sley.ir.collectives import STANDARD
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE, PlanRow, Recipe, file_and_name, read_table
from sley.ir.program import Program
from sley.ir.sizes import ALL_SIZES, SizeRange

UserSource: TypeAlias = Plan | Program | str | os.PathLike[str]
"""The source of a user plan."""


def user_plans(source: UserSource, row: PlanRow, capacity: Capacity) -> list[ReadyPlan]:
    """Proven plans of a source: one; or, if it doesn't define whether it runs in place, one in
    place and one out of place, as far as these are possible.

    source: a plan, a program, or what `sley.load` opens: an algorithm gets the number of ranks.
    row: what the user requests, and the arguments and options.
    Errors: F404, F550, N651, N652, N654, N658, S702, F454, and those of the source, the compiler
    and the proof.
    """
    if isinstance(source, (Plan, Program)):
        named = replace(row, recipe=replace(row.recipe, name=source.name))
        return [_user_plan(source, named, capacity)]
    if not isinstance(source, (str, os.PathLike)):
        expected = "a Plan, a Program, or a file with a plan, a program or a schedule"
        raise N654.error(expected=expected, found=type(source).__name__)
    opened = Source.of(source)
    named = replace(row, recipe=replace(row.recipe, name=Path(opened.what).name))
    if opened.is_plan:
        return _in_each_place(
            partial(_read, opened), named, capacity, is_either=opened.is_of_runtime
        )
    maker = opened.maker
    load = partial(_make, maker, ranks=capacity.ranks if opened.kind is None else None)
    return _in_each_place(load, named, capacity, is_either=maker.has_both_places)


_Loaded: TypeAlias = tuple[Plan | Program, PlanRow]
"""What a source has, and the row of a request completed by what the source says."""


def _in_each_place(
    load: Callable[[PlanRow], _Loaded], row: PlanRow, capacity: Capacity, *, is_either: bool
) -> list[ReadyPlan]:
    """The plans for the row's place; if it names none, for both that are possible. is_either:
    whether a source without a place may run in both."""
    places = [True, False] if row.in_place is None and is_either else [row.in_place]
    found: list[ReadyPlan] = []
    problems: list[SleyError] = []
    # One place suffices: many programs are right in one only. In place comes first, as calls of
    # torch.distributed are, so its problem is the one that is told if neither is possible.
    for in_place in places:
        try:
            loaded, full_row = load(replace(row, in_place=in_place))
            plan = _user_plan(loaded, full_row, capacity)
        except SleyError as problem:
            problems.append(problem)
        else:
            # A collective whose input is its output has one place, whatever was asked for.
            if all(plan.plan.collective != other.plan.collective for other in found):
                found.append(plan)
    if not found:
        raise problems[0]
    return found


def _read(source: Source, row: PlanRow) -> _Loaded:
    """The plan of a file; a runtime's file leaves its place and root open, and may have sizes."""
    settings = {"in_place": row.in_place, "root": row.root} if source.is_of_runtime else {}
    imported = read(source.file, **settings)
    own = SizeRange(imported.min_bytes or 0, imported.max_bytes or None)
    return imported.message_plan, replace(row, sizes=row.sizes.filled(own))


def _make(maker: Maker, row: PlanRow, *, ranks: int | None) -> _Loaded:
    """The program of a maker. ranks: for an algorithm whose row has no numbers."""
    arguments: dict[str, Any] = {"in_place": row.in_place} if maker.takes_place else {}
    arguments |= {"root": row.root} if maker.takes("root") else {}
    if ranks is not None and not row.recipe.arguments.keys() & {"ranks", "nodes", "gpus"}:
        arguments["ranks"] = row.ranks or ranks
    recipe = row.recipe.given(**arguments)
    program = maker.make(recipe.arguments)
    if maker.fusion is not None:  # a script's own
        recipe = replace(recipe, options={"fusion": maker.fusion, **recipe.options})
    return program, replace(row, recipe=recipe)


def _user_plan(loaded: Plan | Program, row: PlanRow, capacity: Capacity) -> ReadyPlan:
    """Compiles or proves a plan, and checks that it fits. Errors: N651, N652, N658, S702, F454,
    C3xx, V2xx."""
    started, c, origin = time.perf_counter(), loaded.collective, row.recipe.name
    if c.varies and row.sizes != ALL_SIZES:
        raise S702.error(
            at=Place(origin),
            expected=f"no sizes for {c}, as no rank knows the size of a call",
            found=str(row.sizes),
            remedy="Leave min_bytes and max_bytes out: the plan is for all calls.",
        )
    asked = {
        "in place" if row.in_place else "out of place": row.in_place in (None, c.in_place),
        f"root {row.root}": row.root in (None, c.root),
        row.collective: row.collective in ("", c.name),
        f"{row.ranks} ranks": row.ranks in (None, c.ranks),
    }
    if not kinds_of(c) or c.ranks != capacity.ranks or not all(asked.values()):
        words = [word for word, is_so in asked.items() if not is_so]
        raise N651.error(
            at=Place(origin),
            expected=", ".join([f"a collective of a call, on {capacity.ranks} ranks", *words]),
            found=str(c),
        )
    if isinstance(loaded, Program):
        plan = compile(loaded, Options.of(None, row.recipe.options))
        check_capacity(plan, capacity, origin)
    else:
        plan = loaded
        prove(plan, capacity, origin)
    check_order(plan, capacity, origin)
    check_input(plan, origin)
    return ReadyPlan.of(plan, row, "registered", started)


_CORRECT = (
    "Correct plans.toml: without it the sizes of the folder's plans are unknown, and none is used."
)


_SUFFIXES = (".plan", ".xml", ".resccl", ".py")
"""What ends the names of files that shall have a plan or a program, whatever their content is."""

_DATA = {*READABLE} - {MSCCLPP, *EXECUTED}
"""What other files may have: not Python, which would be run, as a text with examples may look like
it; nor plans that communicators can't run."""


def read_folder(folder: str | os.PathLike[str], capacity: Capacity) -> PlanFolder:
    """The user plans of a folder, by the names of their files. Files whose names begin with "_" or
    "." are skipped: they are modules that programs import."""
    try:
        rows = _rows(folder)
    except SleyError as error:
        return PlanFolder(problems=error.diagnostics)
    plans: list[ReadyPlan] = []
    problems: list[Diagnostic] = []
    others: list[str] = []
    # Every row is tried: one wrong file must not take the others away. One for other ranks is no
    # mistake, since a folder may serve groups of several sizes.
    for row in rows:
        name = row.recipe.name
        try:
            source = Source.of(name)
            if source.kind in EXECUTED and Path(source.file).suffix.lower() != ".py":
                expected = "Python only in files with names that end in .py"
                raise N653.error(at=Place(name), expected=expected, found=source.kind.text)
            plans += user_plans(name, row, capacity)
        except SleyError as error:
            if error.code == N651.code:
                others.append(f"{Path(name).name}: it is for {error.diagnostics[0].found}")
                continue
            # What has no place of its own is at the row.
            problems += [
                d if d.places else replace(d, places=(row.entry,)) for d in error.diagnostics
            ]
    return PlanFolder(tuple(plans), tuple(problems), tuple(others))


def _rows(folder: str | os.PathLike[str]) -> list[PlanRow]:
    """The rows of plans.toml, and one for each file that it doesn't name, by the files' names.
    Errors: N653 if plans.toml is invalid: without it the plans' sizes are unknown."""
    try:
        if not os.fspath(folder):
            raise ValueError("an empty path")  # Path would take it for the current folder
        files = sorted(
            path
            for path in Path(folder).iterdir()
            if path.name[0] not in "._"
            and (path.suffix.lower() in _SUFFIXES or kind_of(path) in _DATA)
        )
    except (OSError, TypeError, ValueError) as problem:
        raise N653.error(
            at=Place(str(folder)),
            expected="a readable folder",
            found=reason_of(problem),
            remedy="Give the path of a folder, or leave SLEY_PLAN_DIR out.",
        ) from problem
    path = Path(folder, TABLE)
    rows: tuple[PlanRow, ...] = ()
    try:
        if os.path.lexists(path):  # a link that leads nowhere is a mistake
            rows = read_table(path, N653).rows
    except SleyError as error:
        (d,) = error.diagnostics
        remedy = f"{d.remedy} {_CORRECT}" if d.remedy != N653.instead else _CORRECT
        raise SleyError([replace(d, remedy=remedy)]) from error
    for row in rows:
        _check_row(row, path.parent, files)
    named = {Path(file_and_name(row.recipe.name)[0]) for row in rows}
    found = [*rows, *(PlanRow(Recipe(str(file))) for file in files if file not in named)]
    if not found:
        raise N653.error(
            at=Place(str(folder)),
            expected="a folder with plans or programs, or a plans.toml that names some",
            found="none of them",
            remedy="Give the path of such a folder, or leave SLEY_PLAN_DIR out.",
        )
    return found


def _check_row(row: PlanRow, folder: Path, files: Sequence[Path]) -> None:
    """Refuses files elsewhere, which nobody expects to run, and what would have no effect. Errors:
    N653."""
    file, near = Path(file_and_name(row.recipe.name)[0]), ""
    if str(file) != file.name and not (file.parent == folder and file.is_file()):
        expected = "algorithms of the library, and files in this folder"
        found = file.name if file.parent == folder else str(file)
        near = did_you_mean(file.name, [one.name for one in files])
    elif row.recipe.tile != 1:
        expected, found = "no tile: only a tuner's policy has some", f"tile = {row.recipe.tile:g}"
    elif "in_place" in row.recipe.arguments:
        expected, found = "in_place as an entry of the row", "in_place in its arguments"
    elif row.collective not in ("", *STANDARD):
        expected, found = f"a collective of {', '.join(STANDARD)}", repr(row.collective)
        near = did_you_mean(row.collective, STANDARD)
    else:
        return
    remedy = f"{near} {_CORRECT}".lstrip()
    raise N653.error(at=row.entry, expected=expected, found=found, remedy=remedy)
