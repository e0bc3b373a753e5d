"""Deferred: the programs of a file that could not be traced. Their errors are raised where they are
used, so that the other programs of the file remain usable."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from sley.ir.program import Program
from sley.lang.recorder import call_stack

_PLACES: ContextVar[frozenset[tuple[str, int]] | None] = ContextVar("places", default=None)
"""The lines, as (file, line), that handle errors themselves in a file whose errors are deferred."""


class WrongProgram(Program):
    """A program whose function raised an error, which every use of the program raises again."""

    error: Exception

    def __init__(self, error: Exception) -> None:
        object.__setattr__(self, "error", error)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # Python asks for many of these
            raise AttributeError(name)
        raise vars(self)["error"]

    def __repr__(self) -> str:
        return "<a program with an error>"


@contextmanager
def deferred_errors(path: Path) -> Iterator[None]:
    """In the ``with`` block, a decorated function with an error becomes a `WrongProgram`, unless
    the file handles the error: in the body of a `try` or a `with`."""
    token = _PLACES.set(frozenset((str(path), line) for line in _handling_lines(path)))
    try:
        yield
    finally:
        _PLACES.reset(token)


def traced(trace: Callable[[], Program]) -> Program:
    """The program that `trace` returns; if it raises an error that is deferred, a
    `WrongProgram`."""
    try:
        return trace()
    except Exception as error:
        places = _PLACES.get()
        if places is None or not places.isdisjoint(call_stack()):
            raise
        return WrongProgram(error)


def _handling_lines(path: Path) -> Iterator[int]:
    """The lines of a file that are in the body of a `try` with handlers, or of a `with`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return  # running the file says why
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Try, ast.TryStar, ast.With, ast.AsyncWith)):
            continue
        if getattr(node, "handlers", True):  # a `try` with `finally` alone has none
            for statement in node.body:
                # A decorated function begins with its decorator, which its own `lineno` leaves out.
                first = min(one.lineno for one in ast.walk(statement) if hasattr(one, "lineno"))
                yield from range(first, (statement.end_lineno or first) + 1)
