"""A folder of own plans (SLEY_PLAN_DIR): files with plans and programs, and plans.toml.

    ["ring.py"]
    min_bytes = "1M"                             # sizes, both included
    max_bytes = "64M"
    options = { protocol = "Direct", instances = 2 }     # of sley.Options

A file that can't be used is reported, and doesn't disable the others, but for plans.toml.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sley.compiler import Options
from sley.errors import Diagnostic, Place, SleyError, did_you_mean
from sley.errors.selection import N651, N653
from sley.ir.words import is_integer
from sley.selection.user_plans import (
    SUFFIXES,
    OwnPlan,
    Room,
    Wanted,
    own_plans,
    size_wanted,
)

TABLE = "plans.toml"
"""The file that says more about the others."""

_UNTIL_THEN = "Until this is mended no plan of the folder is used: they may not be for all sizes."

_OPTIONS = tuple(f.name for f in fields(Options) if f.name != "costs")


@dataclass(frozen=True)
class Found:
    """What a folder holds: plans that fit, what is wrong, and plans that are for other groups."""

    plans: tuple[OwnPlan, ...] = ()
    problems: tuple[Diagnostic, ...] = ()
    others: tuple[str, ...] = ()


def read_folder(folder: str | os.PathLike[str], room: Room) -> Found:
    """The own plans of a folder, in the order of the files' names. Names that begin with "_" or "."
    are left alone: modules that programs import."""
    place = Path(folder)
    try:
        files = sorted(
            path
            for path in place.iterdir()
            if path.suffix.lower() in SUFFIXES and path.name[0] not in "._"
        )
    except OSError as problem:
        wrong = N653.diagnostic(
            at=Place(str(place)),
            expected="a folder that can be read",
            found=problem.strerror or str(problem),
            remedy="Give the path of a folder, or leave SLEY_PLAN_DIR out.",
        )
        return Found(problems=(wrong,))
    table, problems = _table(place / TABLE, {path.name for path in files})
    if table is None:
        return Found(problems=tuple(problems))
    plans: list[OwnPlan] = []
    others: list[str] = []
    for path in files:
        try:
            wanted = _wanted(table.get(path.name, {}), place / TABLE, path.name)
            plans += own_plans(path, wanted, room)
        except SleyError as error:
            if error.code == N651.code:
                others.append(f"{path.name}: it is for {error.diagnostics[0].found}")
            else:
                problems += error.diagnostics
    return Found(tuple(plans), tuple(problems), tuple(others))


def _table(path: Path, files: set[str]) -> tuple[dict[str, Any] | None, list[Diagnostic]]:
    """What plans.toml says of each file, and what is wrong with it as a whole. None if anything is:
    then nobody knows what the files are for."""
    at = Place(str(path))
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:  # bad TOML, UTF-8: ValueErrors
        if isinstance(problem, FileNotFoundError) and not path.is_symlink():
            return {}, []
        unread = N653.diagnostic(
            at=at,
            expected="a file in TOML",
            found=str(problem),
            remedy=_UNTIL_THEN,
        )
        return None, [unread]
    problems = [
        N653.diagnostic(
            at=at,
            expected="tables with the names of files in this folder",
            found=f"[{name!r}]",
            remedy=f"{did_you_mean(name, files)} {_UNTIL_THEN}".lstrip(),
        )
        for name in table
        if name not in files
    ]
    return None if problems else table, problems


def _wanted(said: object, path: Path, name: str) -> Wanted:
    """What a table says of a file. Errors: N653, N656, C304."""
    at = Place(str(path), detail=name)
    words = tuple(f.name for f in fields(Wanted))
    entry = _checked(said, words, at)
    if not isinstance(entry.get("in_place", False), bool):
        found = f"in_place = {entry['in_place']!r}"
        raise N653.error(at=at, expected="in_place = true or false", found=found)
    if "root" in entry and not is_integer(entry["root"]):
        raise N653.error(at=at, expected="root = a rank", found=f"root = {entry['root']!r}")
    options = _checked(entry.get("options", {}), _OPTIONS, at)
    return Wanted(
        min_bytes=size_wanted("min_bytes", entry.get("min_bytes"), at),
        max_bytes=size_wanted("max_bytes", entry.get("max_bytes"), at),
        in_place=entry.get("in_place"),
        root=entry.get("root"),
        options=_options(options, at),
    )


def _options(said: Mapping[str, Any], at: Place) -> Options | None:
    """Errors: C304."""
    try:
        return Options(**said) if said else None
    except SleyError as error:
        raise SleyError([replace(d, places=(at, *d.places)) for d in error.diagnostics]) from None


def _checked(said: object, words: tuple[str, ...], at: Place) -> Mapping[str, Any]:
    """A table with no other words. Errors: N653."""
    if not isinstance(said, dict):
        raise N653.error(at=at, expected=f"a table with {', '.join(words)}", found=repr(said))
    for word in said:
        if word not in words:
            raise N653.error(
                at=at,
                expected=f"one of {', '.join(words)}",
                found=repr(word),
                remedy=did_you_mean(word, words),
            )
    return said
