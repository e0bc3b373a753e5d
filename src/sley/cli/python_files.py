"""Python files: the programs of those that WHAT names, and the arguments of their functions."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import Any

import click

from sley.cli.options import ARG, PARAMETERS, Selection, flag
from sley.errors import did_you_mean
from sley.ir.program import Program
from sley.lang import files
from sley.lang.files import ProgramFunction

_WITH_OPTION = (*PARAMETERS, "root", "in_place", "channels")
"""The parameters that have an option with their name."""


def file_and_name(what: str) -> tuple[str, str]:
    """The file of FILE.py:NAME and the name in it, "" without one."""
    file, _, name = what.partition(".py:")
    return (f"{file}.py", name) if name else (what, "")


def find(selection: Selection) -> Program | ProgramFunction:
    """The program of FILE.py or FILE.py:NAME, or the function. Runs the file once. Errors: those of
    `files.load` and `PythonFile`."""
    # Standard output is for the command's own output, so the file's goes to standard error.
    path, name = file_and_name(selection.what)
    with redirect_stdout(sys.stderr):
        if path not in selection.loaded:
            selection.loaded[path] = files.load(path, selection.script)
        file = selection.loaded[path]
        return file.find(name) if name else file.program()


def program(selection: Selection) -> Program:
    """The program of FILE.py or FILE.py:NAME; that of a function with the selection's arguments.
    Errors: those of `find` and of the function, click's usage error for arguments that it doesn't
    take, or lacks."""
    found = find(selection)
    if isinstance(found, ProgramFunction):
        arguments = _arguments(selection, found)
        with redirect_stdout(sys.stderr):
            program = found.program(arguments)
        is_fixed = "in_place" not in arguments
    else:
        _refuse_fixed(selection)
        program, is_fixed = found, True
    own = program.collective.in_place
    if is_fixed and selection.in_place not in (None, own):
        place = "in place" if own else "out of place"
        raise click.UsageError(f"{selection.what} has a place of its own: it is {place}")
    return program


def refuse_arguments(selection: Selection) -> None:
    """Refuses arguments for a function and a file of Python if WHAT is something else. Errors:
    click's usage error."""
    given = [ARG] * bool(selection.arguments) + ["--"] * bool(selection.script)
    if given:
        raise click.UsageError(f"{given[0]} is for Python files, and {selection.what} is none")


def _refuse_fixed(selection: Selection) -> None:
    """Refuses values for a program, which is no function. Errors: click's usage error."""
    what = selection.what
    for word in (*PARAMETERS, "root"):
        if getattr(selection, word) is not None:
            raise click.UsageError(f"{flag(word)}: its value is fixed in {what}")
    if selection.arguments:
        raise click.UsageError(
            f"{ARG}: {what} is a program; only a function that returns one takes arguments"
        )


def _arguments(selection: Selection, function: ProgramFunction) -> dict[str, Any]:
    """The arguments of a function: those of --arg, and the options with its parameters' names."""
    options: dict[str, Any] = {w: getattr(selection, w) for w in (*PARAMETERS, "root", "in_place")}
    if "channels" in function.parameters:
        options["channels"] = selection.options.channels
    options = {word: value for word, value in options.items() if value is not None}
    if not function.takes("in_place"):
        options.pop("in_place", None)  # the program may be as the option asks
    for word in selection.arguments:
        if word in options:
            raise click.UsageError(f"{word} is given twice: by {flag(word)} and by {ARG}")
    arguments = {**options, **selection.arguments}
    what = selection.what
    takes = f"It takes {_spelt(function.parameters)}" if function.parameters else ""
    for word in arguments:
        if not function.takes(word):
            by = flag(word) if word in options else f"{ARG} {word}"
            hint = did_you_mean(word, function.parameters)
            raise click.UsageError(" ".join(filter(None, (f"{what} takes no {by}.", hint, takes))))
    missing = [word for word in function.required if word not in arguments]
    if missing:
        sized = ", or --topology" if "ranks" in missing else ""
        raise click.UsageError(f"{what} needs {_spelt(missing, ' and ')}{sized}")
    return arguments


def _spelt(parameters: Iterable[str], between: str = ", ") -> str:
    """Parameters as the options that give them."""
    return between.join(
        flag(word) if word in _WITH_OPTION else f"{ARG} {word}=VALUE" for word in parameters
    )
