"""Sizes: numbers of bytes, and ranges of them, as values and as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sley.errors import Place, Rule
from sley.errors.simulation import S702
from sley.ir.words import is_integer

MAX_BYTES = 2**60
"""Bound on sizes; no cluster has as much memory."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def size_in_bytes(size: object) -> int | None:
    """The bytes of a number or a text such as "64K", "16 MB" or "1GiB"; K, M and G are powers of
    1024, as in nccl-tests. None for values other than sizes from 1 to MAX_BYTES, and for "64Kb",
    which elsewhere means bits."""
    if isinstance(size, str):
        match = re.fullmatch(r"([0-9]{1,15}) ?([KMGkmg]?)(?:[iI]?B)?", size.strip())
        size = int(match[1]) * _UNITS[match[2].upper()] if match else None
    if not is_integer(size):
        return None
    number = int(size)  # type: ignore[call-overload]
    return number if 0 < number <= MAX_BYTES else None


def text_in_bytes(size: object) -> Any:
    """`size_in_bytes` of a text that is a size; other values as they are."""
    return (size_in_bytes(size) or size) if isinstance(size, str) else size


def checked_size(size: object) -> int:
    """`size_in_bytes`. Errors: S702 instead of None."""
    found = size_in_bytes(size)
    if found is None:
        raise S702.error(expected="a positive number of bytes", found=repr(size))
    return found


def is_one_size(sizes: object) -> bool:
    """Whether an argument for sizes is one size, not a sequence of several."""
    return isinstance(sizes, str) or not isinstance(sizes, Iterable)


def checked_sizes(sizes: int | str | Sequence[int | str], *, zero: bool = False) -> list[int]:
    """`checked_size` of one size, or of each of several, in their order.

    zero: whether 0 bytes are a size. Errors: S702, also for an empty sequence.
    """
    several = [sizes] if is_one_size(sizes) else list(sizes)  # type: ignore[arg-type]
    if not several:
        raise S702.error(expected="at least one size", found="none")
    return [
        0 if zero and is_integer(size) and size == 0 else checked_size(size) for size in several
    ]


def size_text(size_bytes: int) -> str:
    """A short text of a number of bytes: 64K, 16M, 1000. A number that is rounder in bytes than in
    units stays one: 100000000000 is 97656250K."""
    for unit in ("G", "M", "K"):
        if size_bytes and size_bytes % _UNITS[unit] == 0:
            number = str(size_bytes // _UNITS[unit])
            if len(number.rstrip("0")) <= len(str(size_bytes).rstrip("0")):
                return number + unit
    return str(size_bytes)


@dataclass(frozen=True)
class SizeRange:
    """The sizes of calls from `begin_bytes` to `end_bytes`, both included; None: no end."""

    begin_bytes: int = 0
    end_bytes: int | None = None

    @classmethod
    def of(cls, begin: object, end: object, rule: Rule, at: Place = Place()) -> SizeRange:
        """The range between two sizes as a user gives them: numbers from 0, texts such as "64K", or
        None for an open end. Errors: `rule`."""
        ends = {"min_bytes": begin, "max_bytes": end}
        found = {word: 0 if _is_zero(size) else size_in_bytes(size) for word, size in ends.items()}
        for word, size in ends.items():
            if size is not None and found[word] is None:
                expected = f'{word} as a size from 0 on, such as 65536 or "64K"'
                raise rule.error(at=at, expected=expected, found=f"{word} = {size!r}")
        made = cls(found["min_bytes"] or 0, found["max_bytes"])
        if made.is_empty:
            words = f"min_bytes = {made.begin_bytes}, max_bytes = {made.end_bytes}"
            raise rule.error(at=at, expected="0 <= min_bytes <= max_bytes", found=words)
        return made

    @property
    def is_empty(self) -> bool:
        """Whether no size is in the range."""
        return self.end_bytes is not None and self.end_bytes < self.begin_bytes

    def covers(self, size_bytes: int) -> bool:
        """Whether a size is in the range."""
        return self.begin_bytes <= size_bytes and (
            self.end_bytes is None or size_bytes <= self.end_bytes
        )

    def filled(self, own: SizeRange) -> SizeRange:
        """The range; an open end, 0 or None, is the one of `own`."""
        end = own.end_bytes if self.end_bytes is None else self.end_bytes
        return SizeRange(self.begin_bytes or own.begin_bytes, end)

    def __str__(self) -> str:
        if self.end_bytes is None:
            return f"{size_text(self.begin_bytes)} and more" if self.begin_bytes else "all sizes"
        return f"{size_text(self.begin_bytes)} to {size_text(self.end_bytes)}"


ALL_SIZES = SizeRange()
"""The range of all sizes."""


def borders(ranges: Iterable[SizeRange]) -> list[int]:
    """The sizes at which some range begins, or the one before it has ended; ascending."""
    found = set()
    for one in ranges:
        found.add(one.begin_bytes)
        found |= {one.end_bytes + 1} if one.end_bytes is not None else set()
    return sorted(found)


def _is_zero(size: object) -> bool:
    return is_integer(size) and size == 0
