"""Loops: what NumPy can't express, as one plain function that Numba compiles where it pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from types import FunctionType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from sley.ir.tables import Edges, IntArray, LongArray

P = ParamSpec("P")
R = TypeVar("R")

LARGE = 100_000
"""Turns: from here on a loop is compiled. Compiling takes a second or two the first time on a
machine; Numba keeps the result on disk."""


class Loop(Generic[P, R]):
    """A function over arrays and numbers, in two speeds; use it as a decorator.

    The function takes one-dimensional arrays, numbers, and named tuples of these. It indexes the
    arrays element by element, and puts its results into those that may be written. On small inputs
    it runs as it stands, on lists, which Python indexes faster than arrays; on large ones Numba
    compiles it, with the functions of its module that it calls. It may use nothing else but what
    Numba knows. Fields of a named tuple that it reads in every turn are taken out of the tuple
    before the loop, since the plain run pays for each access.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.plain = function
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Callable[P, R]:
        """The function as machine code."""
        return cast("Callable[P, R]", _compiled(cast(FunctionType, self.plain)))

    def __call__(self, work: int, /, *arguments: P.args, **none: P.kwargs) -> R:
        """Runs the function; `work`, about how many turns its loops take, decides the speed."""
        if work >= LARGE:
            return self.compiled(*arguments, **none)
        lists: list[Any] = [_listed(argument) for argument in arguments]
        result = self.plain(*lists)  # type: ignore[call-arg]
        for argument, values in zip(arguments, lists, strict=True):
            _write_back(argument, values)
        return result


class Arcs(NamedTuple):
    """Edges as a loop takes them: those of node i are target[offset[i]] to
    target[offset[i + 1] - 1]."""

    offset: LongArray
    target: IntArray | LongArray

    @classmethod
    def of(cls, edges: Edges) -> Arcs:
        return cls(edges.offset, edges.target)


def _compiled(function: FunctionType) -> Callable[..., Any]:
    """A function as machine code, and with it those of its module that it calls."""
    import numba

    called = {
        name: _compiled(value)
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), FunctionType)
        and value.__module__ == function.__module__
    }
    if called:
        # The names that it calls by stand for machine code in a copy alone.
        known = function.__globals__ | called
        function = FunctionType(function.__code__, known, function.__name__)
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:  # no folder in which to keep the result
        compiled = numba.njit()(function)
    return compiled


def _listed(argument: Any) -> Any:
    """An argument with lists for arrays."""
    if isinstance(argument, np.ndarray):
        return argument.tolist()
    if isinstance(argument, tuple):
        return type(argument)(*map(_listed, argument))
    return argument


def _write_back(argument: Any, values: Any) -> None:
    """Puts what a plain run left in lists into the arrays that may be written."""
    if isinstance(argument, tuple):
        for array, one in zip(argument, values, strict=True):
            _write_back(array, one)
    elif isinstance(argument, np.ndarray) and argument.flags.writeable:
        argument[:] = values
