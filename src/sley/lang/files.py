"""Files: runs Python files; the programs of one, and the functions that return programs."""

from __future__ import annotations

import inspect
import os
import runpy
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.language import L113, L114, L115, L117, L131
from sley.ir.program import Program
from sley.lang.deferred import WrongProgram, deferred_errors

_RUN_NAME = "__sley__"
"""The `__name__` of a file with programs."""


def program_of_file(path: str | os.PathLike[str]) -> Program:
    """The only program of a Python file. Errors: those of `load` and `PythonFile.program`."""
    return load(path).program()


def load(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> PythonFile:
    """Runs a Python file, with its folder importable.

    A program with an error is no error of the file: only who asks for this program gets it.

    arguments: those after the file's name in `sys.argv`. Errors: L114, L117, L131.
    """
    path = Path(path)
    with deferred_errors() as errors:
        try:
            values = run_file(path, arguments, run_name=_RUN_NAME)
        except SleyError as failure:
            # Perhaps the file uses a program with an error.
            before = [d for e in errors for d in _problem(path, arguments, e).diagnostics]
            raise SleyError([*before, *failure.diagnostics]) from failure
    return PythonFile(path, tuple(arguments), values or {})


@dataclass(frozen=True)
class PythonFile:
    """A Python file after its run.

    arguments: those after its name in `sys.argv`. values: its globals.
    """

    path: Path
    arguments: tuple[str, ...]
    values: Mapping[str, object]

    def program(self) -> Program:
        """The only program. Errors: L113, L115, and those of the program."""
        programs = self._programs
        if not programs:
            raise self._without_program()
        if len({id(program) for program in programs.values()}) > 1:
            found = f"{len(programs)} programs: {', '.join(programs)}"
            raise self._which_program("one program", found, f"Select one: {self._select(programs)}")
        return self.proper(next(iter(programs.values())))

    def find(self, name: str) -> Program | ProgramFunction:
        """The program called `name`, or the function with this name. Errors: L113, L115, and those
        of the program."""
        programs = self._programs
        if name in programs:
            return self.proper(programs[name])
        function = _function(self, name)
        if function is not None:
            return function
        if not programs and not self._functions:
            raise self._without_program()
        remedy = did_you_mean(name, [*programs, *self._functions])
        names = ", ".join(programs) or ", ".join(self._functions)
        remedy = remedy or f"Select one: {self._select(programs or self._functions)}"
        raise self._which_program(f"one of {names}", name, remedy)

    @property
    def _programs(self) -> dict[str, Program | WrongProgram]:
        return {
            name: value
            for name, value in self.values.items()
            if isinstance(value, (Program, WrongProgram))
        }

    @property
    def _functions(self) -> dict[str, object]:
        """The functions that the file defines."""
        return {
            name: value
            for name, value in self.values.items()
            if inspect.isfunction(value) and value.__module__ == _RUN_NAME
        }

    def proper(self, program: Program | WrongProgram) -> Program:
        """The program. Errors: that of a program with an error."""
        if isinstance(program, WrongProgram):
            raise _problem(self.path, self.arguments, program.error) from program.error
        return program

    def _select(self, names: Mapping[str, object]) -> str:
        return f"sley compile {self.path}:{next(iter(names))}"

    def _without_program(self) -> SleyError:
        remedy = ""
        if self._functions:
            remedy = (
                "Decorate a function with @sley.program(collective), or name a function that "
                f"returns a program, as in: {self._select(self._functions)}"
            )
        return L113.error(
            at=Place(str(self.path)),
            expected="a function decorated with @sley.program(collective)",
            found="a file without a program",
            remedy=remedy,
        )

    def _which_program(self, expected: str, found: str, remedy: str) -> SleyError:
        return L115.error(at=Place(str(self.path)), expected=expected, found=found, remedy=remedy)


@dataclass(frozen=True)
class ProgramFunction:
    """A function of a Python file that returns a program.

    parameters: the names of its parameters. required: those without a default. takes_any: whether
    it takes arguments of any names (``**options``).
    """

    file: PythonFile
    name: str
    function: Callable[..., object]
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    takes_any: bool

    def program(self, arguments: Mapping[str, Any]) -> Program:
        """The program that it returns. Errors: L113, L114, L131, and L1xx of the program."""
        remedy = "Correct the named line, or the arguments."
        with _running(self.file.path, self.file.arguments, remedy):
            program = self.function(**arguments)
        if isinstance(program, (Program, WrongProgram)):
            return self.file.proper(program)
        code = getattr(self.function, "__code__", None)
        raise L113.error(
            at=Place(code.co_filename, code.co_firstlineno) if code else Place(str(self.file.path)),
            expected=f"a program that {self.name} returns",
            found="None" if program is None else f"a value of type {type(program).__name__}",
            remedy="Return the function that @sley.program(collective) decorates.",
        )


def _function(file: PythonFile, name: str) -> ProgramFunction | None:
    """The function of a file with this name; None if there is none."""
    function = file.values.get(name)
    if not callable(function):
        return None
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C have no signature
        return None
    named = [
        p for p in parameters if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    return ProgramFunction(
        file,
        name,
        function,
        parameters=tuple(p.name for p in named),
        required=tuple(p.name for p in named if p.default is Parameter.empty),
        takes_any=any(p.kind is Parameter.VAR_KEYWORD for p in parameters),
    )


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
    with _running(path, arguments, remedy, may_exit=may_exit):
        try:
            return runpy.run_path(str(path), run_name=run_name)
        except SystemExit as error:
            if may_exit and _is_success(error):
                return None
            raise


@contextmanager
def _running(
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
        raise _problem(path, arguments, error, remedy) from error


def _problem(
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
