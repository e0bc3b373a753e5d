"""Recorder: collects the transfers of a program and their source lines, checks and broadcasts the
arguments of the languages' functions, and refuses mistakes at the user's own line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from operator import itemgetter
from sysconfig import get_path
from types import FrameType
from typing import Any, NoReturn

import numpy as np
from numpy import ndarray
from numpy.typing import ArrayLike, NDArray

from sley.errors import Place, Rule, SleyError, known_file
from sley.errors.language import L112
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Table
from sley.ir.words import is_integer

_LIBRARY = get_path("stdlib")
"""The folder of Python's library."""


def _is_own(frame: FrameType) -> bool:
    """Whether a frame runs code of the languages, or of the decorator that runs their functions.
    The methods that dataclasses generate have no file, but the module of their class."""
    return _is_own_module(frame.f_globals.get("__name__"))


@cache  # every operation asks for some
def _is_own_module(name: object) -> bool:
    return isinstance(name, str) and name.startswith(("sley.lang.", "sley.errors"))


@cache
def _is_of_library(file: str) -> bool:
    """Whether a file is of Python's library: a decorator, the start of a thread."""
    return file.startswith((_LIBRARY, "<frozen ")) and "site-packages" not in file


_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
"""Names of frames that are parts of a function, without a call that anybody wrote."""

_MOST_LINES = 8
"""The most lines of a stack: a recursive function has long ones."""


def call_stack() -> tuple[tuple[str, int], ...]:
    """File and line of the user's frames, the innermost first: from the one that called a language
    to the program's function, or to the module that calls the languages itself. At least one."""
    frame: FrameType | None = sys._getframe(1)
    # Both loops end: each turn goes to a caller, and the first frame of a thread has none.
    while frame is not None and _is_own(frame):
        frame = frame.f_back
    assert frame is not None  # somebody has called
    innermost = frame.f_code.co_filename, frame.f_lineno
    stack: list[tuple[str, int]] = []
    while frame is not None and len(stack) < _MOST_LINES:
        code = frame.f_code
        if _is_own(frame):
            break
        if not _is_of_library(code.co_filename):
            stack.append((code.co_filename, frame.f_lineno))
        outer = frame.f_back
        # A module; but code that `exec` runs in a module has its caller in the same one.
        if code.co_name == "<module>" and (outer is None or outer.f_globals is not frame.f_globals):
            break
        if code.co_name in _COMPREHENSIONS and frame.f_back is not None:
            frame = frame.f_back
        frame = frame.f_back
    return tuple(stack) or (innermost,)


def caller_place() -> Place:
    """The user's line as a place for a diagnostic, with those that called it."""
    return _place(call_stack())


def _place(stack: Sequence[tuple[str, int]]) -> Place:
    place: Place | None = None
    for file, line in reversed(stack):
        place = Place(known_file(file), line, caller=place)
    assert place is not None
    return place


@dataclass
class Recorder:
    """Rows of a table, in the order of their calls.

    table: the type of the table, whose last column is `source`. rows: (number of rows, values in
    the order of the columns); a value is a scalar or an array. stacks: the user's lines, see
    `call_stack` -> row of the program's `sources`, after the row of their callers. length: the
    number of all rows.
    """

    table: type[Table]
    rows: list[tuple[int, tuple[Any, ...]]] = field(default_factory=list)
    stacks: dict[tuple[tuple[str, int], ...], int] = field(default_factory=dict)
    length: int = 0

    def source(self) -> int:
        """The source row of the user's current line."""
        stack = call_stack()
        row = self.stacks.get(stack)
        return self._add_stack(stack) if row is None else row

    def _add_stack(self, stack: tuple[tuple[str, int], ...]) -> int:
        # Ends: each call has a line less. Callers come first, so that `sources` finds their rows.
        if len(stack) > 1 and stack[1:] not in self.stacks:
            self._add_stack(stack[1:])
        return self.stacks.setdefault(stack, len(self.stacks))

    def __post_init__(self) -> None:
        self._in_order = itemgetter(*self.table.column_names())

    def add(self, size: int, **values: Any) -> int:
        """Appends `size` rows, with a value for each column; returns the first row."""
        first = self.length
        row = self._in_order(values)
        if size == 1:
            row = tuple([v.item() if isinstance(v, ndarray) else v for v in row])
        self.rows.append((size, row))
        self.length += size
        return first

    def columns(self) -> dict[str, NDArray[Any]]:
        """All rows as columns of the table."""
        names = self.table.column_names()
        if not self.rows:
            return {name: np.zeros(0, np.int32) for name in names}
        if all(size == 1 for size, _ in self.rows):
            scalars = np.array([[int(v) for v in values] for _, values in self.rows], np.int32)
            return dict(zip(names, scalars.T, strict=True))
        parts = ([np.broadcast_to(v, size) for v in values] for size, values in self.rows)
        columns = [np.concatenate(part, dtype=np.int32) for part in zip(*parts, strict=True)]
        return dict(zip(names, columns, strict=True))

    def sources(self, whole: Place) -> Sources:
        """The source lines of the rows, of a program that begins at `whole`."""
        lines = [stack[0] for stack in self.stacks]
        files = list(dict.fromkeys(file for file, _ in lines))
        number = {file: i for i, file in enumerate(files)}
        callers = [self.stacks[stack[1:]] if stack[1:] else NONE for stack in self.stacks]
        return Sources(
            file=np.array([number[file] for file, _ in lines], np.int32),
            line=np.array([line for _, line in lines], np.int32),
            position=np.zeros(len(lines), np.int32),
            caller=np.array(callers, np.int32),
            files=tuple(map(known_file, files)),
            whole=whole,
        )

    def place(self, row: int) -> Place:
        """The line of transfer `row`."""
        # A search from the first row on is fast enough: only diagnostics ask.
        for size, values in self.rows:
            if row < size:
                source = int(np.broadcast_to(values[-1], size)[row])
                return _place(list(self.stacks)[source])
            row -= size
        return Place()


def refuse(rule: Rule, expected: str, found: str, remedy: str = "") -> NoReturn:
    """Raises `rule` at the user's own line."""
    raise rule.error(at=caller_place(), expected=expected, found=found, remedy=remedy)


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Puts `place` first in the diagnostics of the ``with`` block that name no line."""
    try:
        yield
    except SleyError as error:
        if any(p.line for d in error.diagnostics for p in d.places[:1]):
            raise
        raise SleyError(
            [replace(d, places=(place, *d.places)) for d in error.diagnostics]
        ) from error


def broadcast(size: int | None, **values: ArrayLike) -> tuple[tuple[Any, ...], int]:
    """The values as integers, or as int64 arrays of one length (`size`, if given); and this length.
    Errors: L112."""
    if all(map(is_integer, values.values())) and size in (None, 1):
        return tuple(int(v) for v in values.values()), 1  # type: ignore[arg-type]
    try:
        arrays = [np.asarray(v) for v in values.values()]
        if any(a.dtype.kind not in "iu" or a.ndim > 1 for a in arrays):
            raise ValueError
        if any(a.dtype.kind == "u" and (a > np.iinfo(np.int64).max).any() for a in arrays):
            raise ValueError
        length = np.broadcast_shapes(*(a.shape for a in arrays), () if size is None else (size,))
        if size is not None and length not in ((size,), ()):
            raise ValueError
    except (ValueError, TypeError):
        expected = "integers, or arrays of integers of one length"
        refuse(L112, expected, ", ".join(f"{word} {value!r}" for word, value in values.items()))
    if length == ():
        length = (1,)
    return tuple(np.broadcast_to(a.astype(np.int64), length) for a in arrays), length[0]


def check_span(rule: Rule, what: str, value: Any, limit: int) -> None:
    """Refuses values outside 0 ... limit - 1; `value` is an integer or an array."""
    bad = (value < 0) | (value >= limit)
    if bad is not False and np.any(bad):
        found = int(np.ravel(value)[int(np.argmax(bad))])
        refuse(rule, f"{what} from 0 to {limit - 1}", str(found))
