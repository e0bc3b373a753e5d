"""Sizes: the checks of the algorithms' parameters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sley.errors import Place
from sley.errors.language import L101, L102, L121
from sley.ir.words import is_integer


def check_sizes(algorithm: str, **sizes: int) -> None:
    """Refuses sizes that are not positive integers, or whose product is less than two ranks.

    sizes: the parameters whose product is the number of ranks. Errors: L102, L121.
    """
    found = ", ".join(f"{word}={value!r}" for word, value in sizes.items())
    if not all(is_positive(value) for value in sizes.values()):
        raise L102.error(
            at=Place(detail=algorithm), expected="positive integers for sizes", found=found
        )
    if np.prod(list(sizes.values())) < 2:
        raise L121.error(at=Place(detail=algorithm), expected="2 ranks or more", found=found)


def check_power_of_two(algorithm: str, ranks: int) -> None:
    """Refuses a number of ranks that is not a power of two. Errors: L121."""
    if ranks & (ranks - 1):
        lower = 1 << (ranks.bit_length() - 1)
        raise L121.error(
            at=Place(detail=algorithm),
            expected=f"a power of two, such as {lower} or {2 * lower}",
            found=f"ranks={ranks}",
        )


def check_root(algorithm: str, root: int, ranks: int) -> None:
    """Refuses a root that is not a rank. Errors: L101."""
    if not is_integer(root) or not 0 <= root < ranks:
        raise L101.error(
            at=Place(detail=algorithm),
            expected=f"a rank from 0 to {ranks - 1}",
            found=f"root={root!r}",
            remedy="Give one of these ranks as root.",
        )


def channel_numbers(algorithm: str, channels: int | None) -> tuple[int | None, ...]:
    """The channels for the chunks: 0 to channels - 1, or for None the compiler's choice.

    Errors: L102.
    """
    if channels is None:
        return (None,)
    if not is_positive(channels):
        raise L102.error(
            at=Place(detail=algorithm),
            expected="a positive number of channels, or None",
            found=f"channels={channels!r}",
        )
    return tuple(range(channels))


def stage_numbers(
    algorithm: str, channels: Sequence[int] | None, stages: int
) -> Sequence[int | None]:
    """A channel for each stage, or for None the compiler's choice. Errors: L102."""
    if channels is None:
        return (None,) * stages
    has_all = isinstance(channels, (Sequence, np.ndarray)) and len(channels) == stages
    if not has_all or not all(is_integer(c) and c >= 0 for c in channels):
        raise L102.error(
            at=Place(detail=algorithm),
            expected=f"stage_channels with {stages} channels, each at least 0",
            found=repr(channels),
        )
    return channels


def is_positive(value: int) -> bool:
    """Whether `value` is a positive integer."""
    return is_integer(value) and value > 0
