"""Sizes: numbers of bytes as text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from sley.errors.simulation import S702
from sley.ir.words import is_integer

MAX_BYTES = 2**60
"""Bound on sizes; no cluster has as much memory."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}


def size_in_bytes(size: object) -> int | None:
    """The bytes of a number or a text such as "64K", "16 MB" or "1GiB"; K, M and G are powers of
    1024, as in nccl-tests. None for values other than sizes from 1 to MAX_BYTES."""
    if isinstance(size, str):
        match = re.fullmatch(r"([0-9]{1,15}) ?([KMG]?)(?:I?B)?", size.strip().upper())
        size = int(match[1]) * _UNITS[match[2]] if match else None
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


def sizes_text(begin_bytes: int, end_bytes: int | None) -> str:
    """A short text of a range of sizes, both ends included; without an end if that is None."""
    if end_bytes is None:
        return f"{size_text(begin_bytes)} and more" if begin_bytes else "all sizes"
    return f"{size_text(begin_bytes)} to {size_text(end_bytes)}"
