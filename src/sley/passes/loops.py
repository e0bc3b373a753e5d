"""Loops: what NumPy can't express, as one plain function that Numba compiles where it pays."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")

LARGE = 100_000
"""Turns: from here on a loop is compiled. Compiling takes a second or two the first time on a
machine; Numba keeps the result on disk."""


class Loop(Generic[P, R]):
    """A function over arrays and numbers, in two speeds; use it as a decorator.

    The function takes one-dimensional arrays and numbers, indexes the arrays element by element,
    and puts its results into those that may be written. On small inputs it runs as it stands, on
    lists, which Python indexes faster than arrays; on large ones Numba compiles it. It may call
    nothing but what Numba knows.
    """

    def __init__(self, function: Callable[P, R]) -> None:
        self.plain = function
        self.__doc__ = function.__doc__

    @cached_property
    def compiled(self) -> Callable[P, R]:
        """The function as machine code."""
        import numba

        try:
            compiled: Callable[P, R] = numba.njit(cache=True)(self.plain)
        except RuntimeError:  # no folder in which to keep the result
            compiled = numba.njit()(self.plain)
        return compiled

    def __call__(self, work: int, /, *arguments: P.args, **none: P.kwargs) -> R:
        """Runs the function; `work`, about how many turns its loops take, decides the speed."""
        if work >= LARGE:
            return self.compiled(*arguments, **none)
        lists: list[Any] = [a.tolist() if isinstance(a, np.ndarray) else a for a in arguments]
        result = self.plain(*lists)  # type: ignore[call-arg]
        for argument, values in zip(arguments, lists, strict=True):
            if isinstance(argument, np.ndarray) and argument.flags.writeable:
                argument[:] = values
        return result
