"""Files: the programs of a Python file, and its functions that return programs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from types import CodeType
from typing import Any

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.language import L115
from sley.ir.program import Program
from sley.lang.chunks import name_of
from sley.lang.deferred import WrongProgram, deferred_errors
from sley.lang.interpreter import UserFile

_RUN_NAME = "__sley__"
"""The `__name__` of a file with programs."""


def load(path: str | os.PathLike[str], arguments: Sequence[str] = ()) -> PythonFile:
    """Runs a Python file, with its folder importable.

    A program with an error is no error of the file, unless the file uses it: whoever asks for this
    program gets the error.

    arguments: those after the file's name in `sys.argv`. Errors: L114, F404.
    """
    file = PythonFile(path, arguments, run_name=_RUN_NAME)
    with deferred_errors(file.path):
        file.run(may_exit=True)
    return file


class PythonFile(UserFile):
    """A Python file that was run."""

    def program(self) -> Program:
        """The only program. Errors: L115, L115, and those of the program."""
        programs = self._programs
        if not programs:
            raise self._without_program()
        if len({id(program) for program in programs.values()}) > 1:
            found = f"{len(programs)} programs: {', '.join(programs)}"
            raise self._which_program("one program", found, self._selection(programs))
        return self.without_error(next(iter(programs.values())))

    def find(self, name: str) -> Program | ProgramFunction:
        """The program called `name`, or the function with this name. Errors: L115, L115, and those
        of the program."""
        programs, functions = self._programs, self._functions
        if name in programs:
            return self.without_error(programs[name])
        function = ProgramFunction.of(self, name)
        if function is not None:
            return function
        if not programs and not functions:
            raise self._without_program()
        names = programs or functions
        remedy = did_you_mean(name, [*programs, *functions]) or self._selection(names)
        raise self._which_program(f"one of {', '.join(names)}", name, remedy)

    @property
    def _programs(self) -> dict[str, Program]:
        return {n: value for n, value in self.values.items() if isinstance(value, Program)}

    @property
    def _functions(self) -> dict[str, object]:
        """The functions that the file defines; only those with a function inside, which may be a
        program, if there are any."""
        own: dict[str, object] = {
            name: value
            for name, value in self.values.items()
            if inspect.isfunction(value) and value.__module__ == _RUN_NAME
        }
        return {name: value for name, value in own.items() if _inner_names(value)} or own

    def without_error(self, program: Program) -> Program:
        """The program. Errors: that of a program with an error."""
        if isinstance(program, WrongProgram):
            raise self.problem(program.error) from program.error
        return program

    def _selection(self, names: Mapping[str, object]) -> str:
        return f"Select one, as in {self.path}:{next(iter(names))}."

    def _without_program(self) -> SleyError:
        remedy = ""
        if functions := self._functions:
            remedy = (
                "Decorate a function with @sley.program(collective), or name a function that "
                f"returns a program: {', '.join(f'{self.path}:{name}' for name in functions)}"
            )
        return L115.error(
            at=Place(str(self.path)),
            expected="a function decorated with @sley.program(collective)",
            found="a file without a program",
            remedy=remedy,
        )

    def _which_program(self, expected: str, found: str, remedy: str) -> SleyError:
        at = Place(str(self.path))
        return L115.error(at=at, expected=expected, found=found, remedy=remedy)


def _inner_names(function: object) -> list[str]:
    """The names of the functions that a function defines."""
    code = getattr(function, "__code__", None)
    constants = code.co_consts if code else ()
    return [one.co_name for one in constants if isinstance(one, CodeType)]


@dataclass(frozen=True)
class ProgramFunction:
    """A function of a Python file that returns a program.

    parameters: those with names. takes_any: whether it takes arguments of any names
    (``**options``).
    """

    file: PythonFile
    name: str
    function: Callable[..., object]
    parameters: Mapping[str, Parameter]
    takes_any: bool

    @classmethod
    def of(cls, file: PythonFile, name: str) -> ProgramFunction | None:
        """The function of a file with this name; None if there is none."""
        function = file.values.get(name)
        if not callable(function):
            return None
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # some functions in C have no signature
            return None
        further = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return cls(
            file,
            name,
            function,
            {word: p for word, p in parameters.items() if p.kind not in further},
            any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values()),
        )

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the parameters without a default."""
        return tuple(w for w, p in self.parameters.items() if p.default is Parameter.empty)

    def takes(self, name: str) -> bool:
        """Whether it takes an argument with this name."""
        return self.takes_any or name in self.parameters

    def program(self, arguments: Mapping[str, Any]) -> Program:
        """The program that it returns. Errors: L115, L114, and L1xx of the program."""
        named = dict(arguments)
        first = [
            named.pop(word, p.default)
            for word, p in self.parameters.items()
            if p.kind is Parameter.POSITIONAL_ONLY
        ]
        with self.file.running("Correct the named line, or the arguments."):
            program = self.function(*first, **named)
        if isinstance(program, Program):
            right = self.file.without_error(program)
            # The name of the inner function tells less than that of this one.
            is_inner = right.name in map(name_of, _inner_names(self.function))
            return replace(right, name=name_of(self.name)) if is_inner else right
        code = getattr(self.function, "__code__", None)
        path = str(self.file.path)
        raise L115.error(
            at=Place(code.co_filename, code.co_firstlineno) if code else Place(path),
            expected=f"a program that {self.name} returns",
            found="None" if program is None else f"a value of type {type(program).__name__}",
            remedy="Return the function that @sley.program(collective) decorates.",
        )
