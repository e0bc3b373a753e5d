"""Arguments: checks the arguments of the languages' functions and broadcasts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from sley.errors import Place, Rule, SleyError
from sley.errors.language import L112
from sley.ir.words import is_integer
from sley.lang.recorder import caller_place


def refuse(rule: Rule, expected: str, found: str, remedy: str = "") -> NoReturn:
    """Raises `rule` at the user's own line."""
    raise rule.error(at=caller_place(), expected=expected, found=found, remedy=remedy)


@contextmanager
def placed(place: Place) -> Iterator[None]:
    """Puts `place` first in the diagnostics of the ``with`` block that name no line."""
    try:
        yield
    except SleyError as error:
        if any(p.line for d in error.diagnostics for p in d.places[:1]):
            raise
        raise SleyError(
            [replace(d, places=(place, *d.places)) for d in error.diagnostics]
        ) from error


def broadcast(size: int | None, **values: ArrayLike) -> tuple[tuple[Any, ...], int]:
    """The values as integers, or as int64 arrays of one length (`size`, if given); and this length.
    Errors: L112."""
    if all(map(is_integer, values.values())) and size in (None, 1):
        return tuple(int(v) for v in values.values()), 1  # type: ignore[arg-type]
    try:
        arrays = [np.asarray(v) for v in values.values()]
        if any(a.dtype.kind not in "iu" or a.ndim > 1 for a in arrays):
            raise ValueError
        if any(a.dtype.kind == "u" and (a > np.iinfo(np.int64).max).any() for a in arrays):
            raise ValueError
        length = np.broadcast_shapes(*(a.shape for a in arrays), () if size is None else (size,))
        if size is not None and length not in ((size,), ()):
            raise ValueError
    except (ValueError, TypeError):
        expected = "integers, or arrays of integers of one length"
        refuse(L112, expected, ", ".join(f"{word} {value!r}" for word, value in values.items()))
    if length == ():
        length = (1,)
    return tuple(np.broadcast_to(a.astype(np.int64), length) for a in arrays), length[0]


def check_span(rule: Rule, what: str, value: Any, limit: int) -> None:
    """Refuses values outside 0 ... limit - 1; `value` is an integer or an array."""
    bad = (value < 0) | (value >= limit)
    if bad is not False and np.any(bad):
        found = int(np.ravel(value)[int(np.argmax(bad))])
        refuse(rule, f"{what} from 0 to {limit - 1}", str(found))
