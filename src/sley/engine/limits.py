"""Limits: defaults and valid ranges of the settings that engines share."""

from __future__ import annotations

import numbers
from typing import TypeVar

from sley.engine.native import LARGEST
from sley.engine.program import Loaded
from sley.engine.types import DataType
from sley.errors import Rule
from sley.errors.runtime import R506, R514
from sley.errors.text_files import excerpt
from sley.ir.words import is_integer

T = TypeVar("T")

SLOT_BYTES = 64 * 1024
"""Default bytes of a slot: a message stays in a core's cache while it is combined and sent on."""

TIMEOUT_S = 30.0
"""Default time without progress after which a job fails."""

LONGEST_TIMEOUT_S = 365 * 24 * 3600.0
"""A year. The engine's clock counts nanoseconds in 64 bits."""


def whole(value: object, name: str, least: int, most: int = LARGEST, rule: Rule = R514) -> int:
    """What is named `name` as an int; `rule` unless it is an integer from `least` to `most`."""
    if is_integer(value) and least <= value <= most:  # type: ignore[operator]
        return int(value)  # type: ignore[call-overload,no-any-return]
    end = "2**62" if most == LARGEST else f"{most:,}"
    raise rule.error(
        expected=f"{name} to be an integer from {least} to {end}",
        found=f"{name}={excerpt(value)}",
        remedy=f"Give {name} as such an integer.",
    )


def instance(value: T, kind: type, name: str) -> T:
    """What is named `name`; R514 unless it is of this class."""
    if isinstance(value, kind):
        return value
    expected = f"{name} of class {kind.__name__}"
    raise R514.error(expected=expected, found=f"{name}={excerpt(value)}")


def check_timeout(timeout_s: float) -> None:
    """R514 unless `timeout_s` is a positive number of seconds, at most a year."""
    if not (isinstance(timeout_s, numbers.Real) and 0 < timeout_s <= LONGEST_TIMEOUT_S):
        raise R514.error(
            expected=f"timeout_s above 0 and at most {LONGEST_TIMEOUT_S:.0f}, a year",
            found=f"timeout_s={timeout_s!r}",
            remedy="Give such a number of seconds.",
        )


LENGTH_BYTES = 8
"""Bytes of the length of a chunk in a message, where counts vary."""


def check_slot(loaded: Loaded, dtype: DataType, *, varies: bool = False) -> None:
    """R506 if a slot can't hold one element, or if counts vary the length, of every chunk of the
    longest message."""
    item, what = dtype.size_bytes, dtype.name
    if varies and item < LENGTH_BYTES:
        item, what = LENGTH_BYTES, "counts"
    needed = loaded.max_count * item
    if loaded.wiring.slot_bytes < needed:
        raise R506.error(
            expected=f"slot_bytes >= {needed}: {loaded.max_count} chunks of {what}",
            found=f"slot_bytes={loaded.wiring.slot_bytes}",
        )
