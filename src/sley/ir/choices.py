"""Choices: the member of an enumeration that a word names."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

from sley.errors import Place, Rule

E = TypeVar("E", bound=Enum)


def member(
    kind: type[E], value: object, name: str, rule: Rule, *, at: Place | Sequence[Place] = ()
) -> E:
    """The member of `kind` that `value` is, or names by the member's value, in upper or lower case.

    name: the setting's name, for the message. Errors: `rule`, at the place `at`.
    """
    word = value.lower() if isinstance(value, str) else None
    for one in kind:
        if value is one or word == one.value.lower():
            return one
    raise rule.error(
        at=at,
        expected=f"{name} to be one of {', '.join(repr(one.value) for one in kind)}",
        found=f"{name}={value!r}",
        remedy="Give one of these words, or leave it out.",
    )
