"""The interpreter: runs the code of users' files, and is afterwards as it was before."""

from __future__ import annotations

import runpy
import shlex
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from sley.errors import Place, SleyError
from sley.errors.language import L114, L117, L131


def run_file(
    path: Path,
    arguments: Sequence[str] = (),
    *,
    run_name: str,
    remedy: str = "",
    may_exit: bool = False,
) -> dict[str, object] | None:
    """Runs a Python file with its folder importable, and returns its globals.

    arguments: those after its name in `sys.argv`. run_name: its `__name__`. remedy: that of L114.
    may_exit: whether it may end by `sys.exit` with code 0; then the result is None. Errors: L114,
    L117; L131 if it ends by `sys.exit` otherwise.
    """
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing there"
        raise L117.error(at=Place(str(path)), expected="a Python file", found=found)
    with running(path, arguments, remedy, may_exit=may_exit):
        try:
            return runpy.run_path(str(path), run_name=run_name)
        except SystemExit as error:
            if may_exit and _is_success(error):
                return None
            raise


@contextmanager
def running(
    path: Path, arguments: Sequence[str], remedy: str = "", *, may_exit: bool = False
) -> Iterator[None]:
    """Runs a file's code in the ``with`` block, as `run_file`."""
    try:
        with _settings_of_interpreter():
            sys.argv = [str(path), *arguments]
            sys.path.insert(0, str(path.resolve().parent))
            yield
    except (SleyError, KeyboardInterrupt, BrokenPipeError):
        raise
    except SystemExit as error:
        raise L131.error(
            at=_own_line(path, error),
            expected="exit code 0" if may_exit else "code that runs to its end",
            found=f"sys.exit({error.code!r})",
        ) from error
    except BaseException as error:  # also exceptions that the file defines
        raise problem(path, arguments, error, remedy) from error


def problem(
    path: Path, arguments: Sequence[str], error: BaseException, remedy: str = ""
) -> SleyError:
    """An exception of a file's code: a SleyError as it is, another one as L114."""
    if isinstance(error, SleyError):
        return error
    command = shlex.join(["python", str(path), *arguments])
    remedy = remedy or f"Correct the named line; {command} shows the whole traceback."
    if isinstance(error, SyntaxError):
        at = Place(error.filename or str(path), error.lineno or 0, error.offset or 0)
        return L114.error(at=at, expected="Python", found=str(error.msg), remedy=remedy)
    return L114.error(
        at=_own_line(path, error),
        expected="code that runs to its end",
        found=_words(error),
        remedy=remedy,
    )


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


def _is_success(error: SystemExit) -> bool:
    """Whether an exit has code 0. Python exits with 1 for a code that is no integer, 0.0
    included."""
    return error.code is None or (isinstance(error.code, int) and error.code == 0)


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
