"""Problems: what is wrong with one file or plan, gathered so that it can be said at once."""

from __future__ import annotations

from collections.abc import Sequence

from sley.errors import Diagnostic, Place, Rule, SleyError

MOST_REPORTED = 20
"""How many problems of one file are reported; the first ones help, the rest mostly follow."""


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
        """The problems in the order of their places in the text, at most MOST_REPORTED."""
        return tuple(sorted(self._found, key=_position)[:MOST_REPORTED])

    def raise_any(self) -> None:
        """Raise SleyError with what was found, if anything was."""
        if self._found:
            raise SleyError(self.ordered())


def _position(diagnostic: Diagnostic) -> tuple[int, int]:
    place = diagnostic.places[0] if diagnostic.places else Place()
    return place.line, place.column
