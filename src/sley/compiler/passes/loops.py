"""Loops: plain functions over arrays, which Numba compiles for large inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, cached_property
from types import FunctionType
from typing import Any, Generic, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from sley.ir.tables import Edges, IntArray, LongArray

P = ParamSpec("P")
R = TypeVar("R")

LARGE = 100_000
"""Iterations from which on a loop is compiled, if Numba is installed. Compiling takes a second or
two the first time on a machine; Numba keeps the result on disk."""

MANY = 10 * LARGE
"""Iterations of all calls of a process from which on a loop is compiled for small inputs, too: a
search has hundreds of them."""

TOLD = 10 * MANY
"""Iterations of all calls of a process from which on the lack of Numba is told: they take seconds
in plain Python."""

_MISSING = (
    "Numba is not installed, so large plans take about 7 times as long to compile: "
    'pip install "sley[large]"'
)


class Loop(Generic[P, R]):
    """A decorator of functions over arrays and numbers: plain Python or machine code.

    The function takes one-dimensional arrays, numbers, and named tuples of these. It indexes the
    arrays element by element, and writes its results into those that are writeable. On small inputs
    it runs unchanged, on lists, which Python indexes faster than arrays; for large inputs Numba,
    if it is installed, compiles it and the functions of its module that it calls. So it may use
    only what Numba supports. It should read the fields of a named tuple before a loop, not in each
    iteration, since plain Python pays for each access.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.plain = function
        self._iterations = 0
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Callable[P, R]:
        """The function as machine code."""
        return cast("Callable[P, R]", _compile(cast(FunctionType, self.plain)))

    def __call__(self, work: int, /, *arguments: P.args, **none: P.kwargs) -> R:
        """Runs the function, compiled if `work`, its approximate iterations, reaches `LARGE`, or
        with earlier calls `MANY`."""
        self._iterations += work
        if work >= LARGE or self._iterations >= MANY:
            if _has_numba():
                return self.compiled(*arguments, **none)
            if self._iterations >= TOLD:
                _tell_once()
        lists: list[Any] = [_to_lists(argument) for argument in arguments]
        result = self.plain(*lists)  # type: ignore[call-arg]
        for argument, values in zip(arguments, lists, strict=True):
            _write_back(argument, values)
        return result


class Arcs(NamedTuple):
    """`Edges` as an argument of a loop."""

    offset: LongArray
    target: IntArray | LongArray

    @classmethod
    def of(cls, edges: Edges) -> Arcs:
        return cls(edges.offset, edges.target)


@cache
def _has_numba() -> bool:
    """Whether Numba is installed."""
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


@cache
def _tell_once() -> None:
    """Warns at the first call that Numba is not installed."""
    warnings.warn(_MISSING, stacklevel=3)


def _compile(function: FunctionType) -> Callable[..., Any]:
    """Compiles a function and the functions of its module that it calls."""
    import numba

    called = {
        name: _compile(value)
        for name in function.__code__.co_names
        if isinstance(value := function.__globals__.get(name), FunctionType)
        and value.__module__ == function.__module__
    }
    if called:
        # Only this copy of the function calls machine code.
        known = function.__globals__ | called
        function = FunctionType(function.__code__, known, function.__name__)
    try:
        compiled: Callable[..., Any] = numba.njit(cache=True)(function)
    except RuntimeError:  # no folder in which to keep the result
        compiled = numba.njit()(function)
    return compiled


def _to_lists(argument: Any) -> Any:
    """An argument with lists instead of arrays."""
    if isinstance(argument, np.ndarray):
        return argument.tolist()
    if isinstance(argument, tuple):
        return type(argument)(*map(_to_lists, argument))
    return argument


def _write_back(argument: Any, values: Any) -> None:
    """Copies the lists of a plain run into the arrays that are writeable."""
    if isinstance(argument, tuple):
        for array, one in zip(argument, values, strict=True):
            _write_back(array, one)
    elif isinstance(argument, np.ndarray) and argument.flags.writeable:
        argument[:] = values
