"""Formulas: numbers that differ from block to block, written as expressions of the rank."""

from __future__ import annotations

import math
from collections.abc import Callable
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
            for form in (self._rotation, self._mirror, self._exchange, self._number):
                text = form(reduced)
                if text is not None:
                    return _scale(text, scale, base)
        return None

    def _rotation(self, values: Numbers) -> str | None:
        """(rank + k) % size."""
        if (values == self.ranks).all():
            return "rank"
        by = int(values[0] - self.ranks[0]) % self.size
        return self._if(values, lambda r: (r + by) % self.size, f"(rank + {by}) % {self.size}")

    def _mirror(self, values: Numbers) -> str | None:
        """(k - rank) % size, with a k that keeps it from being negative."""
        total = int(values[0] + self.ranks[0]) % self.size + self.size
        return self._if(
            values, lambda r: (total - r) % self.size, f"({total} - rank) % {self.size}"
        )

    def _exchange(self, values: Numbers) -> str | None:
        """rank ^ k."""
        with_ = int(values[0] ^ self.ranks[0])
        return self._if(values, lambda r: r ^ with_, f"rank ^ {with_}")

    def _number(self, values: Numbers) -> str | None:
        """block + k."""
        by = int(values[0] - self.blocks[0])
        if not (values == self.blocks + by).all():
            return None
        return f"block {'+' if by > 0 else '-'} {abs(by)}" if by else "block"

    def _if(self, values: Numbers, form: Callable[[Numbers], Numbers], text: str) -> str | None:
        return text if (values == form(self.ranks)).all() else None


def _scale(text: str, scale: int, base: int) -> str:
    if scale > 1:
        text = f"({text}) * {scale}" if " " in text else f"{text} * {scale}"
    return f"{text} + {base}" if base else text
