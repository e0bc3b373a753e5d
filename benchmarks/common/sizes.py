"""Sizes: numbers of bytes on the command line."""

from __future__ import annotations

import argparse

from sley.ir.sizes import size_in_bytes


def read_sizes(text: str) -> list[int]:
    """Sizes from "1K,1M", or from "1K:256M:4": first, last, factor."""
    first, *rest = text.split(":")
    if not rest:
        return [_size(part) for part in text.split(",")]
    if len(rest) != 2 or not rest[1].isdecimal() or int(rest[1]) < 2:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range of sizes such as 1K:256M:4")
    return powers(_size(first), _size(rest[0]), int(rest[1]))


def powers(first: int, last: int, factor: int = 2) -> list[int]:
    """Sizes from first to last, each a factor larger."""
    found = [first]
    while found[-1] * factor <= last:
        found.append(found[-1] * factor)
    return found


def _size(text: str) -> int:
    size = size_in_bytes(text)
    if size is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 64K")
    return size
