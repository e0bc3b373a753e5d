"""Sizes on the command line, as nccl-tests has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sley.cli.options import SizeType, standing_for

MAX_SIZES = 10_000

F = TypeVar("F", bound=Callable[..., Any])


def sizes_between(begin: int, end: int, factor: int, step: int | None) -> list[int]:
    """Sizes from begin to end, each `factor` times the one before, or `step` bytes more."""
    count = (end - begin) // step if step else 0
    if count > MAX_SIZES:
        raise click.UsageError(f"--step {step} makes {count} sizes; {MAX_SIZES} are enough")
    sizes = [begin]
    while (size := sizes[-1] + step if step else sizes[-1] * factor) <= end:
        sizes.append(size)
    return sizes


def size_options(first: str, last: str | None = None) -> Callable[[F], F]:
    """Adds -b, -e, -f and -i; the command gets the sizes that they mean as `sizes`.

    first, last: the first and the last size by default; without `last`, the first alone.
    """
    end_text = "Last size." if last else "Last size; default: the first."

    def decorate(command: F) -> F:
        @click.option(
            "-b", "--begin", type=SizeType(), default=first, show_default=True, help="First size."
        )
        @click.option(
            "-e", "--end", type=SizeType(), default=last, show_default=bool(last), help=end_text
        )
        @click.option(
            "-f",
            "--factor",
            type=click.IntRange(min=2),
            default=2,
            show_default=True,
            help="Next size.",
        )
        @click.option(
            "-i", "--step", type=SizeType(), help="Add so many bytes instead of a factor."
        )
        def wrapper(
            *args: Any, begin: int, end: int | None, factor: int, step: int | None, **values: Any
        ) -> object:
            if end is not None and end < begin:
                raise click.UsageError(f"--end {end} is less than --begin {begin}")
            sizes = sizes_between(begin, end or begin, factor, step)
            return command(*args, sizes=sizes, **values)

        return standing_for(command, wrapper)

    return decorate
