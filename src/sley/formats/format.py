"""Format: a kind of files with plans, and the runtimes that read them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from sley.errors import Diagnostic, Place
from sley.errors.formats import F440, F460
from sley.ir.plan import Plan


@dataclass(frozen=True)
class Target:
    """A runtime that reads files of one format; formats add what it can run and how it wants that
    spelt.

    name: what it is called. suffix: how the names of its files end, see `Format`.
    """

    name: str
    suffix: str

    def __repr__(self) -> str:
        return f"Target({self.name})"


T = TypeVar("T", bound=Target)
V = TypeVar("V")


@dataclass(frozen=True)
class Imported:
    """A plan that was read, and what its file says beside it.

    notes: remarks (F430 to F435), each with the place where it is true first.
    min_bytes, max_bytes: the attributes as they stand, None where absent; what max_bytes means
        depends on the target.
    """

    plan: Plan
    notes: tuple[Diagnostic, ...]
    min_bytes: int | None
    max_bytes: int | None


@dataclass(frozen=True)
class Format:
    """A kind of files with plans.

    name: what messages call it. suffix: how the names of its files end.
    write: the text of a plan. It takes the plan, the target as `target` where there are targets,
        and its settings as keywords.
    read: the plan of a file (a path or a text), None where files are only written. It takes what a
        file may leave open as keywords: collective, in_place, root, slots.
    check: refuses a plan that can't be written for a target, for the same reasons as `write`.
    targets: the runtimes that read its files; the first one is meant where none is named.
    needs: the options (of `sley.Options`) that a plan must be compiled with.
    runs_with_own_slots: whether the runtimes decide how a message travels: a connection holds as
        many as the protocol says, and every chunk takes a slot. Otherwise it is as the plan says.
    """

    name: str
    suffix: str
    write: Callable[..., str]
    read: Callable[..., Imported] | None = None
    check: Callable[[Plan, Target], None] | None = None
    targets: tuple[Target, ...] = ()
    needs: Mapping[str, object] = field(default_factory=dict)
    runs_with_own_slots: bool = False

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that `write` takes."""
        parameters = inspect.signature(self.write).parameters.values()
        return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def by_suffix(path: str | os.PathLike[str], table: Mapping[str, V]) -> V:
    """The entry of a table of suffixes for the end of a file's name. Errors: F460."""
    suffix = Path(path).suffix.lower()
    if suffix not in table:
        *others, last = table
        ends = f"{', '.join(others)} or {last}" if others else last
        raise F460.error(
            at=Place(str(path)),
            expected=f"a name that ends in {ends}",
            found=repr(suffix) if suffix else "none",
            remedy=f"Give the file a name that ends in {ends}.",
        )
    return table[suffix]


def target_among(targets: Mapping[str, T], target: str | Target, kind: type[T]) -> T:
    """The target of that name; one of the right kind passes through. Errors: F440."""
    if isinstance(target, kind):
        return target
    found = targets.get(target) if isinstance(target, str) else None
    if found is None:
        raise F440.error(
            at=Place(detail="target"), expected=" or ".join(targets), found=repr(target)
        )
    return found
