"""User plans: verified plans made of a user's Plan, Program or file.

A folder of such files (SLEY_PLAN_DIR) may have a plans.toml:

    ["ring.py"]
    min_bytes = "1M"                             # sizes, both included
    max_bytes = "64M"
    options = { protocol = "Direct", instances = 2 }     # of sley.Options

An invalid file is reported, and doesn't disable the others; an invalid plans.toml disables all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

from sley.communicator.selection.kinds import kinds_of
from sley.compiler import Options, compile
from sley.errors import Diagnostic, Place, SleyError, counted, did_you_mean, reason_of
from sley.errors.language import L113, L115
from sley.errors.recognition import (
    MISSING,
    MSCCL_XML,
    PYTHON,
    RESCCLANG,
    SCHEDULES,
    Kind,
    kind_of,
    presumed_kind,
    refuse_kind,
)
from sley.errors.selection import N651, N652, N653, N654, N656, N657
from sley.errors.text_files import checked_words, text_of, toml_tables
from sley.formats import read
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import size_in_bytes, sizes_text
from sley.ir.tables import NONE
from sley.ir.words import is_integer
from sley.lang import rescclang, schedules
from sley.lang.files import program_of_file
from sley.verification import verify

Source: TypeAlias = Plan | Program | str | os.PathLike[str]
"""The source of a user plan."""


@dataclass(frozen=True)
class PlanRequest:
    """What a user requests of a plan; None leaves it to the file.

    min_bytes, max_bytes: its sizes, both included. in_place, root: for files that don't define
    them. options: how a program is compiled.
    """

    min_bytes: int | None = None
    max_bytes: int | None = None
    in_place: bool | None = None
    root: int | None = None
    options: Options | None = None


@dataclass(frozen=True)
class Capacity:
    """What a plan must fit: the number of ranks, and the slots and channels of connections (None:
    any number)."""

    ranks: int
    slots: int | None = None
    channels: int | None = None


@dataclass(frozen=True)
class UserPlan:
    """A proven plan of the user.

    origin: its file, or the plan's name.
    kinds: the kinds of calls that it can run.
    min_bytes, max_bytes: its sizes, both included; None for no end.
    """

    plan: Plan
    origin: str
    kinds: tuple[str, ...]
    min_bytes: int
    max_bytes: int | None

    def __str__(self) -> str:
        return f"{self.origin}, {self.plan.collective}, {self.sizes}"

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        return sizes_text(self.min_bytes, self.max_bytes)

    def is_for(self, kind: str, *, in_place: bool, root: int) -> bool:
        """Whether it can run such calls, of some size."""
        c = self.plan.collective
        return kind in self.kinds and c.in_place == in_place and c.root in (NONE, root)

    def covers(self, size_bytes: int) -> bool:
        """Whether it is for calls of this size."""
        return self.min_bytes <= size_bytes and (
            self.max_bytes is None or size_bytes <= self.max_bytes
        )


def user_plans(source: Source, request: PlanRequest, capacity: Capacity) -> list[UserPlan]:
    """Proven plans of a source: one; or, if a file doesn't define whether it runs in place, one in
    place and one out of place, as far as these are possible.

    Errors: F550, N651, N652, N654, N656, N657, and those of the file, the compiler and the proof.
    """
    if isinstance(source, (Plan, Program)):
        return [_user_plan(source, source.name, request, capacity)]
    path, load = _path_and_loader(source)
    ways = [request.in_place]
    if request.in_place is None and load is not _load_python:
        ways = [True, False]
    found: list[UserPlan] = []
    problems: list[SleyError] = []
    for in_place in ways:
        try:
            loaded, full_request = load(path, replace(request, in_place=in_place))
            plan = _user_plan(loaded, path.name, full_request, capacity)
        except SleyError as problem:
            problems.append(problem)
        else:
            if all(plan.plan.collective != other.plan.collective for other in found):
                found.append(plan)
    if not found:
        raise problems[0]
    return found


_Loader: TypeAlias = Callable[[Path, PlanRequest], tuple[Plan | Program, PlanRequest]]
"""Reads a file, and completes a request by what the file says."""


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
        raise refuse_kind(path, kind, "MSCCL XML, a program or a schedule")
    return path, load


def _load_plan(path: Path, request: PlanRequest) -> tuple[Plan, PlanRequest]:
    imported = read(path, in_place=request.in_place, root=request.root)
    sizes = replace(
        request,
        min_bytes=imported.min_bytes if request.min_bytes is None else request.min_bytes,
        max_bytes=(imported.max_bytes or None) if request.max_bytes is None else request.max_bytes,
    )
    return imported.message_plan, sizes


def _load_text(path: Path, request: PlanRequest) -> tuple[Program, PlanRequest]:
    return rescclang.load(path, in_place=bool(request.in_place)), request


def _load_python(path: Path, request: PlanRequest) -> tuple[Program, PlanRequest]:
    try:
        return program_of_file(path), request
    except SleyError as error:
        if error.code not in (L113.code, L115.code):
            raise
        remedy = "Register the program itself instead of the file: register(function(...))."
        raise SleyError([replace(d, remedy=remedy) for d in error.diagnostics]) from None


def _load_schedule(path: Path, request: PlanRequest) -> tuple[Program, PlanRequest]:
    schedule = schedules.read(path)
    in_place = bool(request.in_place) and schedule.collective != "alltoall"
    return schedules.program(schedule, in_place=in_place), request


_LOADERS: Mapping[Kind, _Loader] = MappingProxyType(
    {
        MSCCL_XML: _load_plan,
        RESCCLANG: _load_text,
        PYTHON: _load_python,
        **dict.fromkeys(SCHEDULES, _load_schedule),
    }
)


def _user_plan(
    loaded: Plan | Program, origin: str, request: PlanRequest, capacity: Capacity
) -> UserPlan:
    """Compiles or proves a plan, and checks that it fits. Errors: N651, N652, N656, N657, C3xx,
    V2xx."""
    least, most = request.min_bytes or 0, request.max_bytes
    if least < 0 or (most is not None and most < least):
        raise N656.error(
            at=Place(origin),
            expected="0 <= min_bytes <= max_bytes",
            found=f"min_bytes={least}, max_bytes={most}",
        )
    c = loaded.collective
    if c.varies and (least, most) != (0, None):
        raise N656.error(
            at=Place(origin),
            expected=f"no sizes for {c}, as no rank knows the size of a call",
            found=f"min_bytes={least}, max_bytes={most}",
            remedy="Leave min_bytes and max_bytes out: the plan is for all calls.",
        )
    kinds = kinds_of(c)
    fits = c.ranks == capacity.ranks and request.in_place in (None, c.in_place)
    if not kinds or not fits or request.root not in (None, c.root):
        where = {None: "", True: ", in place", False: ", out of place"}[request.in_place]
        where += "" if request.root is None else f", root {request.root}"
        raise N651.error(
            at=Place(origin),
            expected=f"a collective of a call, on {capacity.ranks} ranks{where}",
            found=str(c),
        )
    if isinstance(loaded, Program):
        plan = compile(loaded, request.options)
        check_capacity(plan, capacity, origin)
    else:
        plan = loaded
        prove(plan, capacity, origin)
    check_input(plan, origin)
    return UserPlan(plan, origin, kinds, least, most)


def prove(plan: Plan, capacity: Capacity, origin: str) -> None:
    """Proves a plan, and checks that it fits. Errors: N651, N652, V2xx."""
    if plan.collective.ranks != capacity.ranks:
        raise N651.error(
            at=Place(origin),
            expected=f"a collective on {capacity.ranks} ranks",
            found=str(plan.collective),
        )
    verify(plan)
    check_capacity(plan, capacity, origin)


def check_input(plan: Plan, origin: str) -> None:
    """Refuses a plan out of place that writes to its input. Errors: N657."""
    if plan.input_writes.size and not plan.collective.in_place:
        raise N657.error(
            at=[Place(origin), plan.place(plan.input_writes[0]).labelled("the first write")],
            expected="a plan that leaves its input as it is",
            found=f"{counted(len(plan.input_writes), 'write')} to it",
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


def size_of_request(word: str, value: object, at: Place = Place()) -> int | None:
    """Bytes from a number or a text such as "64K"; None for None. Errors: N656."""
    size = 0 if value == 0 and not isinstance(value, bool) else size_in_bytes(value)
    if value is not None and size is None:
        raise N656.error(
            at=at,
            expected=f'{word} as a size from 0 on, such as 65536 or "64K"',
            found=f"{word} = {value!r}",
        )
    return size


_TABLE = "plans.toml"
"""The file with the sizes and options of the other files."""

_CORRECT = (
    "Correct plans.toml: without it the sizes of the folder's plans are unknown, and none is used."
)

_OPTIONS = tuple(f.name for f in fields(Options))


@dataclass(frozen=True)
class PlanFolder:
    """The plans of a folder that fit, its problems, and its plans for other groups, in words."""

    plans: tuple[UserPlan, ...] = ()
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
    place = Path(folder)
    table, problems = _table(place / _TABLE, {path.name for path in files})
    if table is None:
        return PlanFolder(problems=tuple(problems))
    plans: list[UserPlan] = []
    others: list[str] = []
    for path in files:
        try:
            request = _request_of(table.get(path.name, {}), place / _TABLE, path.name)
            plans += user_plans(path, request, capacity)
        except SleyError as error:
            if error.code == N651.code:
                others.append(f"{path.name}: it is for {error.diagnostics[0].found}")
            else:
                problems += error.diagnostics
    return PlanFolder(tuple(plans), tuple(problems), tuple(others))


_SUFFIXES = (".xml", ".resccl", ".py")
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


def _table(path: Path, files: set[str]) -> tuple[dict[str, Any] | None, list[Diagnostic]]:
    """The tables of plans.toml, by file, and its problems. None if plans.toml is invalid: without
    it the plans' sizes are unknown."""
    at = Place(str(path))
    try:
        table = toml_tables(str(path), text_of(path, N653), N653)
    except SleyError as error:
        if isinstance(error.__cause__, FileNotFoundError) and not path.is_symlink():
            return {}, []
        return None, [replace(d, remedy=_CORRECT) for d in error.diagnostics]
    problems = [
        N653.diagnostic(
            at=at,
            expected="tables with the names of files in this folder",
            found=f"[{name!r}]",
            remedy=f"{did_you_mean(name, files)} {_CORRECT}".lstrip(),
        )
        for name in table
        if name not in files
    ]
    return None if problems else table, problems


def _request_of(table: object, path: Path, name: str) -> PlanRequest:
    """The request of a file's table. Errors: N653, N656, C304."""
    at = Place(str(path), detail=name)
    words = tuple(f.name for f in fields(PlanRequest))
    entry = checked_words(table, words, at, N653)
    if not isinstance(entry.get("in_place", False), bool):
        found = f"in_place = {entry['in_place']!r}"
        raise N653.error(at=at, expected="in_place = true or false", found=found)
    if "root" in entry and not is_integer(entry["root"]):
        raise N653.error(at=at, expected="root = a rank", found=f"root = {entry['root']!r}")
    options = checked_words(entry.get("options", {}), _OPTIONS, at, N653)
    return PlanRequest(
        min_bytes=size_of_request("min_bytes", entry.get("min_bytes"), at),
        max_bytes=size_of_request("max_bytes", entry.get("max_bytes"), at),
        in_place=entry.get("in_place"),
        root=entry.get("root"),
        options=_options(options, at),
    )


def _options(given: Mapping[str, Any], at: Place) -> Options | None:
    """Errors: C304."""
    try:
        return Options(**given) if given else None
    except SleyError as error:
        raise SleyError([replace(d, places=(at, *d.places)) for d in error.diagnostics]) from None
