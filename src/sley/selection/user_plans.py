"""Own plans: from plans, programs and files of the user's to plans that may run for a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from sley.compiler import Options, compile
from sley.errors import Place, SleyError
from sley.errors.selection import N651, N652, N654, N656
from sley.formats import load_with_notes
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import size_in_bytes, size_text
from sley.ir.tables import NONE
from sley.lang import rescclang
from sley.lang.files import program_of_file
from sley.selection.kinds import kinds_of
from sley.verify import verify

Source: TypeAlias = Plan | Program | str | os.PathLike[str]
"""What an own plan may come from."""


@dataclass(frozen=True)
class Wanted:
    """What is said about a plan beside itself; None leaves it to the file.

    min_bytes, max_bytes: the sizes that it is for, both included. in_place, root: what the file
    leaves open. options: how a program is compiled.
    """

    min_bytes: int | None = None
    max_bytes: int | None = None
    in_place: bool | None = None
    root: int | None = None
    options: Options | None = None


@dataclass(frozen=True)
class Room:
    """What a plan must fit: the number of ranks, and the slots and channels of connections, None
    for any number."""

    ranks: int
    slots: int | None = None
    channels: int | None = None


@dataclass(frozen=True)
class OwnPlan:
    """A proven plan of the user's.

    origin: the file that it comes from, or the plan's name.
    kinds: the kinds of calls that it may run for.
    min_bytes, max_bytes: the sizes that it is for, both included; None for no end.
    """

    plan: Plan
    origin: str
    kinds: tuple[str, ...]
    min_bytes: int
    max_bytes: int | None

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{self.origin}, {self.plan.collective}, {self.sizes}"

    @property
    def sizes(self) -> str:
        """The sizes in words."""
        if self.max_bytes is None:
            return f"{size_text(self.min_bytes)} and more" if self.min_bytes else "all sizes"
        return f"{size_text(self.min_bytes)} to {size_text(self.max_bytes)}"

    def is_for(self, kind: str, *, in_place: bool, root: int) -> bool:
        """Whether it may run for such calls of some size."""
        c = self.plan.collective
        return kind in self.kinds and c.in_place == in_place and c.root in (NONE, root)

    def covers(self, size_bytes: int) -> bool:
        """Whether it is for calls of this size."""
        return self.min_bytes <= size_bytes and (
            self.max_bytes is None or size_bytes <= self.max_bytes
        )


def own_plans(source: Source, wanted: Wanted, room: Room) -> list[OwnPlan]:
    """The proven plans of a source that fit: one, or where a file leaves open whether it runs in
    place, one for each way that it can.

    Errors: N651, N652, N654, N656, and whatever the file, the compiler or the proof say.
    """
    if isinstance(source, (Plan, Program)):
        return [_own(source, source.name, wanted, room)]
    path = _path(source)
    load = _LOADERS[path.suffix.lower()]
    ways = [wanted.in_place]
    if wanted.in_place is None and load is not _python:
        ways = [True, False]
    found: list[OwnPlan] = []
    problems: list[SleyError] = []
    for in_place in ways:
        try:
            loaded, said = load(path, replace(wanted, in_place=in_place))
            own = _own(loaded, path.name, said, room)
        except SleyError as problem:
            problems.append(problem)
        else:
            if all(own.plan.collective != other.plan.collective for other in found):
                found.append(own)
    if not found:
        raise problems[0]
    return found


def _path(source: object) -> Path:
    """The path of a file with a plan or a program. Errors: N654."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if path.suffix.lower() in _LOADERS:
            return path
    raise N654.error(
        expected=f"a Plan, a Program, or a file that ends in {', '.join(_LOADERS)}",
        found=repr(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__,
    )


def _xml(path: Path, wanted: Wanted) -> tuple[Plan, Wanted]:
    read = load_with_notes(path, in_place=wanted.in_place, root=wanted.root)
    sizes = replace(
        wanted,
        min_bytes=read.min_bytes if wanted.min_bytes is None else wanted.min_bytes,
        max_bytes=(read.max_bytes or None) if wanted.max_bytes is None else wanted.max_bytes,
    )
    return read.plan, sizes


def _text(path: Path, wanted: Wanted) -> tuple[Program, Wanted]:
    return rescclang.load(path, in_place=bool(wanted.in_place)), wanted


def _python(path: Path, wanted: Wanted) -> tuple[Program, Wanted]:
    return program_of_file(path), wanted


_LOADERS: dict[str, Callable[[Path, Wanted], tuple[Plan | Program, Wanted]]] = {
    ".xml": _xml,
    ".resccl": _text,
    ".py": _python,
}
SUFFIXES = tuple(_LOADERS)
"""The ends of names of files with plans and programs."""


def _own(loaded: Plan | Program, origin: str, wanted: Wanted, room: Room) -> OwnPlan:
    """A plan that was proven and fits. Errors: N651, N652, N656, C3xx, V2xx."""
    least, most = wanted.min_bytes or 0, wanted.max_bytes
    if least < 0 or (most is not None and most < least):
        raise N656.error(
            at=Place(origin),
            expected="0 <= min_bytes <= max_bytes",
            found=f"min_bytes={least}, max_bytes={most}",
        )
    c = loaded.collective
    kinds = kinds_of(c)
    fits = c.ranks == room.ranks and wanted.in_place in (None, c.in_place)
    if not kinds or not fits or wanted.root not in (None, c.root):
        place = {None: "", True: ", in place", False: ", out of place"}[wanted.in_place]
        root = "" if wanted.root is None else f", root {wanted.root}"
        raise N651.error(
            at=Place(origin),
            expected=f"a collective that a call can ask for, on {room.ranks} ranks{place}{root}",
            found=str(c),
        )
    if isinstance(loaded, Program):
        options = wanted.options or Options(protocol=loaded.protocol)
        plan = compile(loaded, **options.arguments())
        check_room(plan, room, origin)
    else:
        plan = loaded
        check(plan, room, origin)
    return OwnPlan(plan, origin, kinds, least, most)


def check(plan: Plan, room: Room, origin: str) -> None:
    """Proves a plan, and refuses it where it doesn't fit. Errors: N651, N652, V2xx."""
    if plan.collective.ranks != room.ranks:
        raise N651.error(
            at=Place(origin),
            expected=f"a collective on {room.ranks} ranks",
            found=str(plan.collective),
        )
    verify(plan)
    check_room(plan, room, origin)


def check_room(plan: Plan, room: Room, origin: str) -> None:
    """Refuses a plan that needs more than connections have. Errors: N652."""
    for word, needed, there in (
        ("slots", plan.slots, room.slots),
        ("channels", plan.channels, room.channels),
    ):
        if there is not None and needed > there:
            raise N652.error(
                at=Place(origin),
                expected=f"at most {there} {word}, which the connections have",
                found=f"{needed} {word}",
            )


def size_wanted(word: str, value: object, at: Place = Place()) -> int | None:
    """Bytes from a number or a text such as "64K"; None for None. Errors: N656."""
    size = 0 if value == 0 and not isinstance(value, bool) else size_in_bytes(value)
    if value is not None and size is None:
        raise N656.error(
            at=at,
            expected=f'{word} as a size from 0 on, such as 65536 or "64K"',
            found=f"{word} = {value!r}",
        )
    return size
