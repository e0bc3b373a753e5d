"""Deferred: the programs of a file that could not be traced. Only who uses one gets its error, so
that the other programs of the file remain usable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from sley.ir.program import Program

_ERRORS: ContextVar[list[Exception] | None] = ContextVar("errors", default=None)


@dataclass(frozen=True)
class WrongProgram:
    """Stands for a program whose function raised an error."""

    error: Exception


@contextmanager
def deferred_errors() -> Iterator[list[Exception]]:
    """In the ``with`` block, a decorated function with an error becomes a `WrongProgram`; the
    errors are added to the list."""
    errors: list[Exception] = []
    token = _ERRORS.set(errors)
    try:
        yield errors
    finally:
        _ERRORS.reset(token)


def traced(trace: Callable[[], Program]) -> Program:
    """The program that `trace` returns; if it raises an error inside of `deferred_errors`, a
    `WrongProgram`."""
    try:
        return trace()
    except Exception as error:
        errors = _ERRORS.get()
        if errors is None:
            raise
        errors.append(error)
        return WrongProgram(error)  # type: ignore[return-value]
