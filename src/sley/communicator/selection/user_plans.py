"""User plans: verified plans made of a user's Plan, Program or file, or of a table's row.

A folder of such files (SLEY_PLAN_DIR) may have a plans.toml, a table of plans (`ir.plan_table`):
its rows give files sizes and options, and name algorithms of the library. A file without a row is
for all calls that it fits. An invalid file is reported, and doesn't disable the others; an invalid
plans.toml disables all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

from sley.communicator.selection.kinds import kinds_of
from sley.communicator.selection.rules import program_of
from sley.compiler import Options, compile
from sley.errors import Diagnostic, Place, SleyError, counted, did_you_mean, reason_of
from sley.errors.formats import F454
from sley.errors.language import L113, L115
from sley.errors.recognition import (
    MISSING,
    MSCCL_XML,
    PYTHON,
    RESCCLANG,
    SCHEDULES,
    SLEY_PLAN,
    Kind,
    kind_of,
    presumed_kind,
    refuse_kind,
)
from sley.errors.selection import N651, N652, N653, N654, N656
from sley.formats import read
from sley.formats.plan_file import digest
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE, PlanRow, Recipe, read_table
from sley.ir.program import Program
from sley.ir.sizes import ALL_SIZES, SizeRange
from sley.ir.tables import NONE
from sley.lang import rescclang, schedules
from sley.lang.files import program_of_file
from sley.verification import verify

Source: TypeAlias = Plan | Program | str | os.PathLike[str]
"""The source of a user plan."""


@dataclass(frozen=True)
class Capacity:
    """What a plan must fit: the number of ranks, and the slots and channels of connections (None:
    any number)."""

    ranks: int
    slots: int | None = None
    channels: int | None = None


@dataclass(frozen=True, eq=False)
class ReadyPlan:
    """A proven plan that is ready to run, and the row of a table that it is for.

    origin: "compiled", "disk" (from the cache), "registered" by the user or "given" with the call.
    digest: 16 bytes, equal on all ranks that chose the same plan and tile.
    ready_ms: how long compiling or loading took.
    tuned: the row of the tuner's policy, if that chose the plan.
    """

    plan: Plan
    row: PlanRow
    origin: str
    digest: bytes
    ready_ms: float
    tuned: PlanRow | None = None

    @classmethod
    def of(cls, plan: Plan, row: PlanRow, origin: str, started_s: float) -> ReadyPlan:
        """started_s: when the work on it began, by `time.perf_counter`."""
        own = digest(plan)
        return cls(plan, row, origin, own, (time.perf_counter() - started_s) * 1e3)

    def __str__(self) -> str:
        return f"{self.row.recipe.name}, {self.plan.collective}, {self.row.sizes}"

    def __repr__(self) -> str:
        return (
            f"ReadyPlan({self.plan.collective}, {self.row.sizes}: {self.plan.name}, "
            f"{self.plan.protocol.value}, {self.origin}, ready after {self.ready_ms:.1f} ms)"
        )

    def is_for(self, kind: str, *, in_place: bool, root: int) -> bool:
        """Whether it can run such calls, of some size."""
        c = self.plan.collective
        return kind in kinds_of(c) and c.in_place == in_place and c.root in (NONE, root)


def user_plans(source: Source, row: PlanRow, capacity: Capacity) -> list[ReadyPlan]:
    """Proven plans of a source: one; or, if it doesn't define whether it runs in place, one in
    place and one out of place, as far as these are possible.

    source: a plan, a program or a file. row: what the user requests, and the options.
    Errors: F550, N651, N652, N654, N656, F454, and those of the file, the compiler and the proof.
    """
    if isinstance(source, (Plan, Program)):
        named = replace(row, recipe=replace(row.recipe, name=source.name))
        return [_user_plan(source, named, capacity)]
    path, load = _path_and_loader(source)
    named = replace(row, recipe=replace(row.recipe, name=path.name))
    is_either = load not in (_load_python, _load_own)
    return _in_each_place(lambda one: load(path, one), named, capacity, is_either=is_either)


def file_plans(row: PlanRow, capacity: Capacity) -> list[ReadyPlan]:
    """The plans of a row whose recipe is a file, as `user_plans`."""
    return user_plans(row.recipe.name, row, capacity)


def algorithm_plans(row: PlanRow, capacity: Capacity) -> list[ReadyPlan]:
    """The plans of a row whose recipe is an algorithm, as `user_plans`. Errors: as there, and those
    of the algorithm."""

    def build(one: PlanRow) -> tuple[Program, PlanRow]:
        grid = one.recipe.arguments.keys() & {"ranks", "nodes", "gpus"}
        ranks = None if grid else one.ranks or capacity.ranks
        given = one.recipe.given(ranks=ranks, root=one.root, in_place=one.in_place)
        return program_of(given), one

    return _in_each_place(build, row, capacity, is_either=True)


def _in_each_place(
    load: Callable[[PlanRow], Loaded], row: PlanRow, capacity: Capacity, *, is_either: bool
) -> list[ReadyPlan]:
    """The plans for the row's place; if it names none, for both that are possible. is_either:
    whether a source without a place may run in both."""
    places = [True, False] if row.in_place is None and is_either else [row.in_place]
    found: list[ReadyPlan] = []
    problems: list[SleyError] = []
    for in_place in places:
        try:
            loaded, full_row = load(replace(row, in_place=in_place))
            plan = _user_plan(loaded, full_row, capacity)
        except SleyError as problem:
            problems.append(problem)
        else:
            if all(plan.plan.collective != other.plan.collective for other in found):
                found.append(plan)
    if not found:
        raise problems[0]
    return found


Loaded: TypeAlias = tuple[Plan | Program, PlanRow]
"""What a file has, and the row of a request completed by what the file says."""

_Loader: TypeAlias = Callable[[Path, PlanRow], Loaded]


def _path_and_loader(source: object) -> tuple[Path, _Loader]:
    """The path of a file with a plan, a program or a schedule, and what reads it. Errors: F550,
    N654."""
    expected = "a Plan, a Program, or a file with a plan, a program or a schedule"
    if not isinstance(source, (str, os.PathLike)):
        raise N654.error(expected=expected, found=type(source).__name__)
    path, kind = Path(source), kind_of(source)
    load = _LOADERS.get(presumed_kind(path, kind))
    if load is None and kind is MISSING:
        raise N654.error(expected=expected, found=f"{source!r}: no such file")
    if load is None:
        raise refuse_kind(path, kind, "a plan file, MSCCL XML, a program or a schedule")
    return path, load


def _load_plan(path: Path, row: PlanRow) -> Loaded:
    imported = read(path, in_place=row.in_place, root=row.root)
    own = SizeRange(imported.min_bytes or 0, imported.max_bytes or None)
    return imported.message_plan, replace(row, sizes=row.sizes.filled(own))


def _load_own(path: Path, row: PlanRow) -> Loaded:
    return read(path).message_plan, row


def _load_text(path: Path, row: PlanRow) -> Loaded:
    return rescclang.load(path, in_place=bool(row.in_place)), row


def _load_python(path: Path, row: PlanRow) -> Loaded:
    try:
        return program_of_file(path), row
    except SleyError as error:
        if error.code not in (L113.code, L115.code):
            raise
        remedy = "Register the program itself instead of the file: register(function(...))."
        raise SleyError([replace(d, remedy=remedy) for d in error.diagnostics]) from None


def _load_schedule(path: Path, row: PlanRow) -> Loaded:
    schedule = schedules.read(path)
    in_place = bool(row.in_place) and schedule.collective != "alltoall"
    return schedule.program(in_place=in_place), row


_LOADERS: Mapping[Kind, _Loader] = MappingProxyType(
    {
        SLEY_PLAN: _load_own,
        MSCCL_XML: _load_plan,
        RESCCLANG: _load_text,
        PYTHON: _load_python,
        **dict.fromkeys(SCHEDULES, _load_schedule),
    }
)


def _user_plan(loaded: Plan | Program, row: PlanRow, capacity: Capacity) -> ReadyPlan:
    """Compiles or proves a plan, and checks that it fits. Errors: N651, N652, N656, F454, C3xx,
    V2xx."""
    started, c, origin = time.perf_counter(), loaded.collective, row.recipe.name
    if c.varies and row.sizes != ALL_SIZES:
        raise N656.error(
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
    check_input(plan, origin)
    return ReadyPlan.of(plan, row, "registered", started)


def prove(plan: Plan, capacity: Capacity, origin: str, *, is_proven: bool = False) -> None:
    """Proves a plan, unless the caller has, and checks that it fits. Errors: N651, N652, V2xx."""
    if plan.collective.ranks != capacity.ranks:
        raise N651.error(
            at=Place(origin),
            expected=f"a collective on {capacity.ranks} ranks",
            found=str(plan.collective),
        )
    if not is_proven:
        verify(plan)
    check_capacity(plan, capacity, origin)


def check_input(plan: Plan, origin: str) -> None:
    """Refuses a plan out of place that writes to its input. Errors: F454."""
    if plan.input_writes.size and not plan.collective.in_place:
        raise F454.error(
            at=[Place(origin), plan.place(plan.input_writes[0]).labelled("the first write")],
            expected="a plan that leaves its input as it is",
            found=f"{counted(len(plan.input_writes), 'write')} to it",
            remedy="Copy the chunk to the output or to scratch first, and reduce there; or "
            "give the collective in_place=True, for calls in place. `comm.run` accepts the "
            "plan as it is.",
        )


def check_capacity(plan: Plan, capacity: Capacity, origin: str) -> None:
    """Refuses a plan that needs more slots or channels than connections have. Errors: N652."""
    for word, needed, available in (
        ("slots", plan.slots, capacity.slots),
        ("channels", plan.channels, capacity.channels),
    ):
        if available is not None and needed > available:
            raise N652.error(
                at=Place(origin),
                expected=f"at most {available} {word}, as the connections have",
                found=f"{needed} {word}",
            )


_CORRECT = (
    "Correct plans.toml: without it the sizes of the folder's plans are unknown, and none is used."
)


@dataclass(frozen=True)
class PlanFolder:
    """The plans of a folder that fit, its problems, and its plans for other groups, in words."""

    plans: tuple[ReadyPlan, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    others: tuple[str, ...] = ()


def read_folder(folder: str | os.PathLike[str], capacity: Capacity) -> PlanFolder:
    """The user plans of a folder, by the names of their files. Files whose names begin with "_" or
    "." are skipped: they are modules that programs import."""
    try:
        files = _plan_files(folder)
    except (OSError, TypeError, ValueError) as problem:
        wrong = N653.diagnostic(
            at=Place(str(folder)),
            expected="a readable folder",
            found=reason_of(problem),
            remedy="Give the path of a folder, or leave SLEY_PLAN_DIR out.",
        )
        return PlanFolder(problems=(wrong,))
    try:
        rows = list(_rows(Path(folder), files))
    except SleyError as error:
        return PlanFolder(problems=error.diagnostics)
    plans: list[ReadyPlan] = []
    problems: list[Diagnostic] = []
    others: list[str] = []
    for row in rows:
        name = row.recipe.name
        try:
            make = algorithm_plans if Path(name).name == name else file_plans
            plans += make(row, capacity)
        except SleyError as error:
            if error.code == N651.code:
                others.append(f"{Path(name).name}: it is for {error.diagnostics[0].found}")
            else:
                problems += _with_entry(error, row.entry).diagnostics
    return PlanFolder(tuple(plans), tuple(problems), tuple(others))


def _with_entry(error: SleyError, entry: Place) -> SleyError:
    """The error, with the place of a row if it has none of its own."""
    return SleyError([d if d.places else replace(d, places=(entry,)) for d in error.diagnostics])


_SUFFIXES = (".plan", ".xml", ".resccl", ".py")
"""What ends the names of files that shall have a plan or a program, whatever their content is."""


def _plan_files(folder: str | os.PathLike[str]) -> list[Path]:
    """The files with plans in a folder, by name. OSError, TypeError or ValueError for other
    things than the path of a readable folder."""
    if not os.fspath(folder):
        raise ValueError("an empty path")  # Path would take it for the current folder
    return sorted(
        path
        for path in Path(folder).iterdir()
        if path.name[0] not in "._" and (path.suffix.lower() in _SUFFIXES or _is_data(path))
    )


def _is_data(path: Path) -> bool:
    """Whether a file is for a plan without being Python, which would be run: a text with examples
    may look like Python."""
    kind = kind_of(path)
    return kind in _LOADERS and kind is not PYTHON


def _rows(folder: Path, files: list[Path]) -> Iterator[PlanRow]:
    """The rows of plans.toml, and one for each file that it doesn't name, by the files' names.
    Errors: N653 if plans.toml is invalid: without it the plans' sizes are unknown."""
    path = folder / TABLE
    rows: tuple[PlanRow, ...] = ()
    try:
        if os.path.lexists(path):  # a link that leads nowhere is a mistake
            rows = read_table(path, N653).rows
    except SleyError as error:
        (d,) = error.diagnostics
        remedy = f"{d.remedy} {_CORRECT}" if d.remedy != N653.instead else _CORRECT
        raise SleyError([replace(d, remedy=remedy)]) from error
    for row in rows:
        source = Path(row.recipe.name)
        if source.name != row.recipe.name and not source.is_file():
            names = [file.name for file in files]
            raise N653.error(
                at=row.entry,
                expected="algorithms of the library, and files in this folder",
                found=source.name,
                remedy=f"{did_you_mean(source.name, names)} {_CORRECT}".lstrip(),
            )
    named = {Path(row.recipe.name) for row in rows}
    further = [PlanRow(Recipe(str(file))) for file in files if file not in named]
    return iter([*rows, *further])
