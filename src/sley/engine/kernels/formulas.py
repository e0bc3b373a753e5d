"""Formulas: numbers that differ from block to block, written as expressions of the rank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]


@dataclass
class Formulas:
    """Writes the numbers of the blocks of one kind.

    ranks: int64 (members,), the rank of each member. blocks: int64 (members,), its number within
    the rank. size: the number of ranks. tables: the distinct columns that no formula fits; in the
    text each is named `prefix` and its number.
    """

    ranks: Numbers
    blocks: Numbers
    size: int
    prefix: str
    tables: list[Numbers] = field(default_factory=list)
    _rows: dict[bytes, int] = field(default_factory=dict)

    def __call__(self, values: Numbers) -> str:
        """`values`, int64 (members,), as C++: a number, a formula, or an entry of a table."""
        text = self.formula(values)
        if text is not None:
            return text
        key = values.tobytes()
        if key not in self._rows:
            self._rows[key] = len(self.tables)
            self.tables.append(values)
        return f"{self.prefix}{self._rows[key]}[member]"

    def formula(self, values: Numbers) -> str | None:
        """`values` as a number or as a formula of `rank` or `block`; None if none fits."""
        if (values == values[0]).all():
            return str(values[0])
        # With several instances, chunks are multiples of their number plus the instance.
        step = int(np.gcd.reduce(values - values[0]))
        apart = int(np.gcd.reduce(self.ranks - self.ranks[0]))
        for scale in dict.fromkeys((1, step // math.gcd(step, apart), step)):
            base = int(values[0]) % scale
            reduced = (values - base) // scale
            for found, text in self._forms(reduced):
                if (reduced == found).all():
                    return _scale(text, scale, base)
        return None

    def _forms(self, values: Numbers) -> Iterator[tuple[Numbers, str]]:
        """The forms with constants that fit the first of `values`: their numbers, and text."""
        first, rank, size = int(values[0]), int(self.ranks[0]), self.size
        yield self.ranks, "rank"
        by = (first - rank) % size
        yield (self.ranks + by) % size, f"(rank + {by}) % {size}"
        total = (first + rank) % size + size  # so that the difference isn't negative
        yield (total - self.ranks) % size, f"({total} - rank) % {size}"
        yield self.ranks ^ (first ^ rank), f"rank ^ {first ^ rank}"
        by = first - int(self.blocks[0])
        yield self.blocks + by, f"block {'+' if by > 0 else '-'} {abs(by)}" if by else "block"


def _scale(text: str, scale: int, base: int) -> str:
    if scale > 1:
        text = f"({text}) * {scale}" if " " in text else f"{text} * {scale}"
    return f"{text} + {base}" if base else text
