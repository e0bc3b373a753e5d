"""Remote: errors of one process that are passed to the others that wait for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sley.errors import Diagnostic, Place, Rule, SleyError


def diagnostic_from_json(value: Any) -> Diagnostic:
    """The diagnostic that `Diagnostic.to_json` wrote in another process.

    A rule of another version of sley that this version doesn't have keeps its code and its name.
    Errors: ValueError for any other value.
    """
    from sley.errors.catalog import all_rules  # late: the rules of all rooms

    try:
        code, name = str(value["code"]), str(value["name"])
        unknown = Rule(f"{code} {name}", what="", why="", example="", instead="")
        return Diagnostic(
            all_rules().get(code, unknown),
            tuple(Place.from_json(place) for place in value["places"]),
            str(value["expected"]),
            str(value["found"]),
            str(value["remedy"]),
            tuple(map(str, value["notes"])),
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"no diagnostic: {str(value)[:40]}") from problem


@contextmanager
def telling(tell: Callable[[SleyError], object]) -> Iterator[None]:
    """Surrounds work of one process for which others wait: passes an error to them with `tell`, and
    raises it. Errors of `tell` are ignored, because this process raises an error anyway."""
    try:
        yield
    except SleyError as error:
        with suppress(SleyError):
            tell(error)
        raise
