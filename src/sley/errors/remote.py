"""Remote errors: what one process finds wrong, told to the others that wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sley.errors.catalog import all_rules
from sley.errors.diagnostic import Diagnostic, Place, Rule, SleyError


def diagnostic_from_json(value: Any) -> Diagnostic:
    """The diagnostic that `Diagnostic.to_json` gave in another process.

    A rule of another version of sley, which this one doesn't have, keeps its code and its name.
    Errors: ValueError for any other value.
    """
    try:
        code, name = str(value["code"]), str(value["name"])
        rule = all_rules().get(code) or Rule(code, name, what="", why="", example="", instead="")
        return Diagnostic(
            rule,
            tuple(Place(**place) for place in value["places"]),
            str(value["expected"]),
            str(value["found"]),
            str(value["remedy"]),
            tuple(map(str, value["notes"])),
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"no diagnostic: {str(value)[:40]}") from problem


@contextmanager
def telling(tell: Callable[[SleyError], object]) -> Iterator[None]:
    """Around the work of one process for which others wait: an error is told to them by `tell`, and
    then raised. What fails in telling is left out: this process has an error already."""
    try:
        yield
    except SleyError as error:
        with suppress(SleyError):
            tell(error)
        raise
