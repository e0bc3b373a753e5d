"""Problems: collects the problems of one file or plan, to report them together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sley.errors import Diagnostic, Place, Rule, SleyError
from sley.ir.tables import BoolArray, LongArray

MOST_REPORTED = 20
"""Limit of reported problems; later ones are mostly consequences of the first ones."""

MOST_OF_A_KIND = 5
"""Limit of reported problems of one rule."""


class Problems:
    """The problems so far."""

    def __init__(self) -> None:
        self._found: list[Diagnostic] = []

    def __len__(self) -> int:
        return len(self._found)

    @property
    def room(self) -> int:
        """The number of further problems that will be reported."""
        return max(MOST_REPORTED - len(self._found), 0)

    @property
    def full(self) -> bool:
        """Whether no more will be reported."""
        return self.room == 0

    def add(
        self,
        rule: Rule,
        at: Place | Sequence[Place],
        expected: str,
        found: str,
        remedy: str = "",
    ) -> None:
        """Adds a problem; `remedy` is by default the rule's own."""
        self._found.append(rule.diagnostic(at=at, expected=expected, found=found, remedy=remedy))

    def add_each(
        self,
        rows: BoolArray | LongArray,
        rule: Rule,
        place: Callable[[int], Place],
        expected: str | Callable[[int], str],
        found: Callable[[int], str],
        remedy: str = "",
    ) -> None:
        """Adds a problem for each of some rows, while there is room. rows: a mask, or numbers."""
        numbers = np.flatnonzero(rows) if rows.dtype == np.bool_ else np.unique(rows)
        for row in numbers[: self.room].tolist():
            text = expected if isinstance(expected, str) else expected(row)
            self.add(rule, place(row), text, found(row), remedy)

    def keep_only(self, rule: Rule) -> None:
        """Drops the problems of other rules."""
        self._found = [problem for problem in self._found if problem.rule is rule]

    def ordered(self) -> tuple[Diagnostic, ...]:
        """The problems in the order of their places, at most MOST_REPORTED, and of one rule at most
        MOST_OF_A_KIND, the last of which has the number of the others in its notes."""
        # Sorted before they are cut: checks find problems in an order of their own.
        kept: list[Diagnostic] = []
        number: Counter[str] = Counter()
        for problem in sorted(self._found, key=_position)[:MOST_REPORTED]:
            number[problem.code] += 1
            if number[problem.code] <= MOST_OF_A_KIND:
                kept.append(problem)
        for code, times in number.items():
            if times > MOST_OF_A_KIND:
                last = max(k for k, problem in enumerate(kept) if problem.code == code)
                more = f"and at least {times - MOST_OF_A_KIND} more like this"
                kept[last] = replace(kept[last], notes=(*kept[last].notes, more))
        return tuple(kept)

    def raise_full(self) -> None:
        """Raises SleyError if no more will be reported."""
        if self.full:
            self.raise_any()

    def raise_any(self) -> None:
        """Raises SleyError if there is any problem."""
        if self._found:
            raise SleyError(self.ordered())


def _position(diagnostic: Diagnostic) -> tuple[int, int]:
    place = diagnostic.places[0] if diagnostic.places else Place()
    return place.line, place.column
