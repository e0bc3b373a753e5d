"""Problems: what is wrong with one file or plan, gathered so that it can be said at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sley.errors import Diagnostic, Place, Rule, SleyError

MOST_REPORTED = 20
"""How many problems of one file are reported; the first ones help, the rest mostly follow."""


MOST_OF_A_KIND = 5
"""How many problems with one rule are spelled out."""


class Problems:
    """Diagnostics in the making. `full` tells when there is no use in looking for more."""

    def __init__(self) -> None:
        self._found: list[Diagnostic] = []

    def __len__(self) -> int:
        return len(self._found)

    @property
    def room(self) -> int:
        """How many more problems will be reported."""
        return max(MOST_REPORTED - len(self._found), 0)

    @property
    def full(self) -> bool:
        return self.room == 0

    def add(
        self,
        rule: Rule,
        at: Place | Sequence[Place],
        *,
        expected: str,
        found: str,
        remedy: str = "",
        notes: Sequence[str] = (),
    ) -> None:
        """Note a problem."""
        self._found.append(
            rule.diagnostic(at=at, expected=expected, found=found, remedy=remedy, notes=notes)
        )

    def ordered(self) -> tuple[Diagnostic, ...]:
        """The problems in the order of their places in the text, at most MOST_REPORTED, and of
        one rule at most MOST_OF_A_KIND, the last of which says how many more there are."""
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

    def raise_any(self) -> None:
        """Raise SleyError with what was found, if anything was."""
        if self._found:
            raise SleyError(self.ordered())


def _position(diagnostic: Diagnostic) -> tuple[int, int]:
    place = diagnostic.places[0] if diagnostic.places else Place()
    return place.line, place.column
