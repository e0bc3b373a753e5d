"""Files: the programs of a Python file, and its functions that return programs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Any

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.language import L113, L115
from sley.ir.program import Program
from sley.lang.deferred import WrongProgram, deferred_errors
from sley.lang.interpreter import problem, run_file, running

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
            before = [d for e in errors for d in problem(path, arguments, e).diagnostics]
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
            raise problem(self.path, self.arguments, program.error) from program.error
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
        with running(self.file.path, self.file.arguments, remedy):
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
