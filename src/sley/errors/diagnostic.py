"""Diagnostics: what sley says when a program, a plan, a file or a run is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


def counted(number: int, word: str) -> str:
    """A number with its word: "1 slot", "2 slots"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


_SHOWN = 60


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A remedy that names the candidates most like a word, in any case; empty where none is."""
    by_case = {c.lower(): c for c in candidates}
    near = difflib.get_close_matches(word[:_SHOWN].lower(), by_case, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(by_case[n] for n in near)}?" if near else ""


NOTES = 12
"""How many notes of one kind a diagnostic shows."""


def shortened(notes: list[str]) -> list[str]:
    """The first notes, and how many more there are."""
    if len(notes) <= NOTES:
        return notes
    return [*notes[: NOTES - 2], f"... {len(notes) - NOTES + 2} more"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is: a line of a file, a row of a plan, or both.

    ``file`` and ``line`` name text that a person can open; ``detail`` names what has no line of
    its own ("rank 0, block 1, step 3").
    """

    file: str = ""
    line: int = 0
    column: int = 0
    detail: str = ""

    def __str__(self) -> str:
        text = self.file
        if self.line:
            text += f":{self.line}"
        if self.column:
            text += f":{self.column}"
        return ", ".join(part for part in (text, self.detail) if part)


@dataclass(frozen=True)
class Rule:
    """One thing that must hold, with a stable code; ``sley explain CODE`` prints it."""

    code: str
    name: str
    what: str
    why: str
    example: str
    instead: str

    def diagnostic(
        self,
        *,
        expected: str,
        found: str,
        remedy: str = "",
        at: Place | Sequence[Place] = (),
        notes: Sequence[str] = (),
    ) -> Diagnostic:
        """A diagnostic of this rule; `remedy` defaults to the rule's own advice."""
        places = (at,) if isinstance(at, Place) else tuple(at)
        return Diagnostic(self, places, expected, found, remedy or self.instead, tuple(notes))

    def error(
        self,
        *,
        expected: str,
        found: str,
        remedy: str = "",
        at: Place | Sequence[Place] = (),
        notes: Sequence[str] = (),
    ) -> SleyError:
        """An exception that carries one diagnostic of this rule."""
        return SleyError(
            [self.diagnostic(expected=expected, found=found, remedy=remedy, at=at, notes=notes)]
        )


@dataclass(frozen=True)
class Diagnostic:
    """A broken rule: places (the first is where to look), expectation, finding, remedy."""

    rule: Rule
    places: tuple[Place, ...]
    expected: str
    found: str
    remedy: str
    notes: tuple[str, ...] = field(default=())

    @property
    def code(self) -> str:
        return self.rule.code

    def __str__(self) -> str:
        lines = [f"{self.code} {self.rule.name}"]
        if self.places and str(self.places[0]):
            lines[0] = f"{self.places[0]}: {lines[0]}"
        lines += [f"  also: {place}" for place in self.places[1:] if str(place)]
        lines.append(f"  expected: {self.expected}")
        lines.append(f"  found:    {self.found}")
        lines += [f"  note:     {note}" for note in self.notes]
        lines.append(f"  remedy:   {self.remedy}")
        lines.append(f"  more:     sley explain {self.code}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The diagnostic as plain values, for ``--json``."""
        return {
            "code": self.code,
            "name": self.rule.name,
            "places": [
                {"file": p.file, "line": p.line, "column": p.column, "detail": p.detail}
                for p in self.places
            ],
            "expected": self.expected,
            "found": self.found,
            "notes": list(self.notes),
            "remedy": self.remedy,
        }


class SleyError(Exception):
    """What sley raises for every mistake it can name; carries one or more diagnostics. One that was
    made of a text, as PyTorch makes those of other processes anew, has the text alone."""

    def __init__(self, diagnostics: Sequence[Diagnostic] | str) -> None:
        is_text = isinstance(diagnostics, str)
        self.diagnostics: tuple[Diagnostic, ...] = () if is_text else tuple(diagnostics)  # type: ignore[arg-type]
        super().__init__(diagnostics if is_text else "\n\n".join(map(str, diagnostics)))

    @property
    def code(self) -> str:
        """The code of the first diagnostic; "" without one."""
        return self.diagnostics[0].code if self.diagnostics else ""

    def __reduce__(self) -> tuple[type[SleyError], tuple[Sequence[Diagnostic] | str]]:
        return (type(self), (self.diagnostics or str(self),))
