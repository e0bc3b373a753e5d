"""Diagnostics: messages about a wrong program, plan, file or run."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any


def counted(number: int, word: str) -> str:
    """A number with its noun: "1 slot", "2 slots"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def reason_of(error: Exception) -> str:
    """Why the system refused: its words, without its number and without the path, which the
    diagnostic names as its place; for other exceptions, their text."""
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def printable(text: str, kept: str = "\n\t") -> str:
    """A text with an escape for each character that a terminal obeys instead of showing it: control
    characters, ANSI's included, and marks that change the direction of writing. Texts of files and
    other processes may contain them. kept: characters that stay."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


_SHOWN = 60


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """A remedy that names the candidates most similar to a word, upper or lower case; empty if none
    is similar."""
    by_case = {c.lower(): c for c in candidates}
    near = difflib.get_close_matches(word[:_SHOWN].lower(), by_case, n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(by_case[n] for n in near)}?" if near else ""


def check_name(
    rule: Rule, what: str, name: object, known: Iterable[str], at: Place | Sequence[Place] = ()
) -> None:
    """Refuses, by `rule`, a name that isn't known. what: what it names, such as "a collective"."""
    names = tuple(known)
    if name not in names:
        remedy = did_you_mean(str(name), names)
        expected = f"{what} of {', '.join(names)}"
        raise rule.error(at=at, expected=expected, found=repr(name), remedy=remedy)


NOTES = 12
"""The most notes of one kind in a diagnostic."""


def shortened(notes: list[str]) -> list[str]:
    """The first notes, and the number of the others."""
    if len(notes) <= NOTES:
        return notes
    return [*notes[: NOTES - 2], f"... {len(notes) - NOTES + 2} more"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place: a line of a file, a row of a plan, or both.

    ``file`` and ``line`` name text that a person can open; ``detail`` names a part without its own
    line ("rank 0, block 1, step 3"); ``caller`` is the line that called the function of this one.
    """

    file: str = ""
    line: int = 0
    column: int = 0
    detail: str = ""
    caller: Place | None = None

    def __str__(self) -> str:
        text = self.file
        if self.line:
            text += f":{self.line}"
        if self.column:
            text += f":{self.column}"
        return ", ".join(part for part in (text, self.detail) if part)

    @property
    def callers(self) -> Iterator[Place]:
        """The lines that called the function of this one, the innermost first."""
        if self.caller is not None:
            yield self.caller
            yield from self.caller.callers

    def labelled(self, label: str) -> Place:
        """The place with a label before its detail: what a second place of a diagnostic is."""
        return replace(self, detail=", ".join(filter(None, (label, self.detail))))

    def to_json(self) -> dict[str, object]:
        """The place as plain values; `called_from` has the callers."""
        own = {"file": self.file, "line": self.line, "column": self.column, "detail": self.detail}
        return {**own, "called_from": [{"file": c.file, "line": c.line} for c in self.callers]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Place:
        """The place that `to_json` wrote. Errors: KeyError or TypeError for another value."""
        caller = None
        for outer in reversed(value["called_from"]):
            caller = cls(outer["file"], outer["line"], caller=caller)
        return cls(value["file"], value["line"], value["column"], value["detail"], caller)

    @property
    def short(self) -> str:
        """The line without folders: "ring.py:7"; empty without a file."""
        return f"{PurePath(self.file).name}:{self.line}" if self.file else ""


@dataclass(frozen=True)
class Rule:
    """A rule with a stable code; ``sley explain CODE`` prints it.

    title: its code and its name, as in "N620 rank-ended".
    """

    title: str
    what: str
    why: str
    example: str
    instead: str

    @property
    def code(self) -> str:
        return self.title.partition(" ")[0]

    @property
    def name(self) -> str:
        return self.title.partition(" ")[2]

    def diagnostic(
        self,
        *,
        expected: str,
        found: str,
        remedy: str = "",
        at: Place | Sequence[Place] = (),
        notes: Sequence[str] = (),
    ) -> Diagnostic:
        """A diagnostic of this rule; `remedy` is by default the rule's own."""
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
        """An exception with one diagnostic of this rule."""
        return SleyError(
            [self.diagnostic(expected=expected, found=found, remedy=remedy, at=at, notes=notes)]
        )


@dataclass(frozen=True)
class Diagnostic:
    """A broken rule: places (the first has the mistake), expectation, finding, remedy."""

    rule: Rule
    places: tuple[Place, ...]
    expected: str
    found: str
    remedy: str
    notes: tuple[str, ...] = field(default=())

    @property
    def code(self) -> str:
        return self.rule.code

    @property
    def brief(self) -> str:
        """The diagnostic in a line: its place, its rule and what was found."""
        where = f"{self.places[0]}: " if self.places else ""
        return f"{where}{self.rule.title}: {self.found}"

    def __str__(self) -> str:
        lines = [self.rule.title]
        if self.places and str(self.places[0]):
            lines[0] = f"{self.places[0]}: {lines[0]}"
            lines += [f"  called from: {caller}" for caller in self.places[0].callers]
        for place in self.places[1:]:
            calls = "".join(f", called from {caller}" for caller in place.callers)
            lines += [f"  also: {place}{calls}"] * bool(str(place))
        lines.append(f"  expected: {self.expected}")
        lines.append(f"  found:    {self.found}")
        lines += [f"  note:     {note}" for note in self.notes]
        lines.append(f"  remedy:   {self.remedy}")
        lines.append(f"  more:     sley explain {self.code}")
        return printable("\n".join(lines))

    def to_json(self) -> dict[str, object]:
        """The diagnostic as plain values, for ``--json``."""
        return {
            "code": self.code,
            "name": self.rule.name,
            "places": [place.to_json() for place in self.places],
            "expected": self.expected,
            "found": self.found,
            "notes": list(self.notes),
            "remedy": self.remedy,
        }


class SleyError(Exception):
    """The exception for every mistake that sley can name, with one or more diagnostics. If it is
    made from a text, as PyTorch does for errors of other processes, it has only the text."""

    __module__ = "sley"  # the name under which users catch it, in tracebacks

    def __init__(self, diagnostics: Sequence[Diagnostic] | str) -> None:
        is_text = isinstance(diagnostics, str)
        self.diagnostics: tuple[Diagnostic, ...] = () if is_text else tuple(diagnostics)  # type: ignore[arg-type]
        super().__init__(diagnostics if is_text else "\n\n".join(map(str, diagnostics)))

    @property
    def code(self) -> str:
        """The code of the first diagnostic; "" without diagnostics."""
        return self.diagnostics[0].code if self.diagnostics else ""

    def __reduce__(self) -> tuple[type[SleyError], tuple[Sequence[Diagnostic] | str]]:
        return (type(self), (self.diagnostics or str(self),))
