"""Files: runs Python files; the program of one."""

from __future__ import annotations

import os
import runpy
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sley.errors import Place, SleyError
from sley.errors.language import L113, L114, L115, L117, L131
from sley.ir.program import Program


def program_of_file(path: str | os.PathLike[str], name: str = "") -> Program:
    """The only program of a Python file, or the one called `name`. Runs the file, with its folder
    importable.

    Errors: L113, L114, L115, L117, and L1xx of the program.
    """
    path = Path(path)
    values = run_file(path, run_name="__sley__") or {}
    programs = {key: value for key, value in values.items() if isinstance(value, Program)}
    if not programs:
        raise L113.error(
            at=Place(str(path)),
            expected="a function decorated with @sley.program(collective)",
            found="a file without a program",
        )
    if name and name not in programs:
        raise _which_program(path, programs, f"one of {', '.join(programs)}", name)
    if not name and len({id(p) for p in programs.values()}) > 1:
        found = f"{len(programs)} programs: {', '.join(programs)}"
        raise _which_program(path, programs, "one program", found)
    return programs[name] if name else next(iter(programs.values()))


def _which_program(
    path: Path, programs: Mapping[str, Program], expected: str, found: str
) -> SleyError:
    remedy = f"Select one: sley compile {path}:{next(iter(programs))}"
    return L115.error(at=Place(str(path)), expected=expected, found=found, remedy=remedy)


def run_file(
    path: Path, *, run_name: str, remedy: str = "", may_exit: bool = False
) -> dict[str, object] | None:
    """Runs a Python file with its folder importable, and returns its globals.

    run_name: its `__name__`. remedy: that of L114. may_exit: whether it may end by `sys.exit`; then
    the result is None. Errors: L114, L117; L131 if it ends with another exit code than 0.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise L117.error(at=Place(str(path)), expected="a Python file", found=found)
    remedy = remedy or f"Correct the named line; python {path} shows the whole traceback."
    try:
        with _settings_of_interpreter():
            sys.path.insert(0, str(path.resolve().parent))
            return runpy.run_path(str(path), run_name=run_name)
    except (SleyError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SyntaxError as error:
        place = Place(error.filename or str(path), error.lineno or 0, error.offset or 0)
        raise L114.error(
            at=place, expected="Python", found=str(error.msg), remedy=remedy
        ) from error
    except BaseException as error:  # SystemExit, and exceptions that the file defines
        if may_exit and isinstance(error, SystemExit):
            _require_success(path, error)
            return None
        raise L114.error(
            at=_own_line(path, error),
            expected="code that runs to its end",
            found=_words(error),
            remedy=remedy,
        ) from error


_SETTINGS = ("argv", "path", "stdin", "stdout", "stderr")
"""Attributes of `sys` that files may set."""


@contextmanager
def _settings_of_interpreter() -> Iterator[None]:
    """Settings of the interpreter that a file may change, which are as before afterwards: where it
    imports from, its arguments and streams, the recursion limit and the filters of warnings."""
    values = {name: getattr(sys, name) for name in _SETTINGS}
    lists = [(value, list(value)) for value in values.values() if isinstance(value, list)]
    limit = sys.getrecursionlimit()
    try:
        with warnings.catch_warnings():
            yield
    finally:
        vars(sys).update(values)
        for value, content in lists:
            value[:] = content
        sys.setrecursionlimit(limit)


def _require_success(path: Path, error: SystemExit) -> None:
    """Refuses an exit with another code than 0. Python exits with 1 for a code that is no integer,
    0.0 included. Errors: L131."""
    if error.code is not None and not (isinstance(error.code, int) and error.code == 0):
        raise L131.error(
            at=_own_line(path, error), expected="exit code 0", found=f"sys.exit({error.code!r})"
        ) from error


def _words(error: BaseException) -> str:
    """The exception's type and, unless its own `__str__` fails, its message."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:
        return name


def _own_line(path: Path, error: BaseException) -> Place:
    """The innermost line of the user's file that led to the error."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return Place(str(path), frames[-1].lineno or 0) if frames else Place(str(path))
