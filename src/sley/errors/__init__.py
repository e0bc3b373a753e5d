"""Errors: diagnostics, the rules that they cite, and what must end in one whatever the system does.

A rule's first letter identifies the stage: L language, C compiler, V verifier, D policies and
tuning, F formats, schedules and deployment, R runtime, K kernels and devices, N communicator, B
PyTorch's backend, T topologies, S simulation, P pictures and reports. (click handles wrong usage of
the command line, with exit code 2.)

here              Rule, Diagnostic, Place, SleyError; tracebacks without sley's own frames; errors
                  of one process that are passed to the others that wait for it
catalog.py        all rules; each family has a file: language, rescclang, schedules, compiler,
                  verifier, formats, mscclpp, deployment, runtime, devices, communicator, calls,
                  selection, nccl, policy, tuning, torch, topology, simulation, report
successors.py     what replaces the commands, options and names that went
recognition.py    what kind of file a path names, by its content
text_files.py     text and TOML, read within limits
disk_cache.py     compiled files on disk, by their inputs
aside.py          system calls that may never return, in a thread of their own
"""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from types import TracebackType
from typing import Any, ParamSpec, TypeVar


def counted(number: int, word: str) -> str:
    """A number with its noun: "1 slot", "2 slots"."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def span_texts(numbers: Iterable[int]) -> list[str]:
    """Ascending numbers in words: "3", and "0-2" for some that follow one another."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return [str(a) if a == b else f"{a}-{b}" for a, b in spans]


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


_LOADED = sys.modules
"""The modules; a file that sley runs may put something else in their place."""


def known_file(code: str) -> str:
    """The file of a code object by the name under which its user knows it: a notebook's cell as
    "Cell In[14]", which IPython keeps under another."""
    shell = getattr(_LOADED.get("IPython"), "get_ipython", lambda: None)()
    # IPython 7, which hosted notebooks still have, names no cells.
    name_of = getattr(getattr(shell, "compile", None), "format_code_name", None)
    cell = name_of and name_of(code)
    return " ".join(cell) if cell else code


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
            text += self._line
        if self.column:
            text += f":{self.column}"
        return ", ".join(part for part in (text, self.detail) if part)

    @property
    def _line(self) -> str:
        return f", line {self.line}" if self.file.startswith("Cell In[") else f":{self.line}"

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
        return f"{PurePath(self.file).name}{self._line}" if self.file else ""


@dataclass(frozen=True)
class Rule:
    """A rule with a stable code; ``sley explain CODE`` prints it.

    head: its code and its name, as in "N620 rank-ended"; and then, after ", formerly ", the codes
        of former rules that are now cases of it.
    """

    head: str
    what: str
    why: str
    example: str
    instead: str

    @property
    def title(self) -> str:
        """Its code and its name."""
        return self.head.partition(",")[0]

    @property
    def former(self) -> list[str]:
        """The codes of former rules that are now cases of it."""
        return self.head.partition(", formerly ")[2].split()

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

    def _render_traceback_(self) -> list[str]:
        """The lines of its traceback in IPython: without sley's frames, whatever raised it."""
        for error in (self, self.__cause__):
            if error is not None:
                error.__traceback__ = _outer_frames(error.__traceback__)
        shell = sys.modules["IPython"].get_ipython()
        lines = shell.InteractiveTB.structured_traceback(type(self), self, self.__traceback__)
        return list(lines)

    def __reduce__(self) -> tuple[type[SleyError], tuple[Sequence[Diagnostic] | str]]:
        return (type(self), (self.diagnostics or str(self),))


P = ParamSpec("P")
T = TypeVar("T")

_INSIDE = sys.stdlib_module_names | {"sley"}
"""The packages of frames to leave out: sley, and Python's own modules, which it calls."""


def without_inner_frames(function: Callable[P, T]) -> Callable[P, T]:
    """The function, whose SleyErrors have a traceback with the frames of its callers and of
    callbacks, but without those of sley: the message itself says what is wrong, and where. Other
    errors keep all frames."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # for pytest and IPython, which can leave out this frame, too
        try:
            return function(*args, **kwargs)
        except SleyError as error:
            cause = error.__cause__
            if cause is not None:
                cause.__traceback__ = _outer_frames(cause.__traceback__)
            raise error.with_traceback(_outer_frames(error.__traceback__)) from cause

    return call


def _outer_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames that are neither in sley nor in Python's own modules."""
    kept = []
    while frames is not None:
        module = str(frames.tb_frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _INSIDE:
            kept.append(frames)
        frames = frames.tb_next
    outer: TracebackType | None = None
    for one in reversed(kept):
        outer = TracebackType(outer, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return outer


def diagnostic_from_json(value: Any) -> Diagnostic:
    """The diagnostic that `Diagnostic.to_json` wrote in another process.

    A rule of another version of sley that this version doesn't have keeps its code and its name.
    Errors: ValueError for any other value.
    """
    from sley.errors.catalog import all_rules  # late: the rules of all rooms

    try:
        code, name = str(value["code"]), str(value["name"])
        unknown = Rule(f"{code} {name}", what="", why="", example="", instead="")
        return Diagnostic(
            all_rules().get(code, unknown),
            tuple(Place.from_json(place) for place in value["places"]),
            str(value["expected"]),
            str(value["found"]),
            str(value["remedy"]),
            tuple(map(str, value["notes"])),
        )
    except (KeyError, TypeError) as problem:
        raise ValueError(f"no diagnostic: {str(value)[:40]}") from problem


@contextmanager
def telling(tell: Callable[[SleyError], object]) -> Iterator[None]:
    """Surrounds work of one process for which others wait: passes an error to them with `tell`, and
    raises it. Errors of `tell` are ignored, because this process raises an error anyway."""
    try:
        yield
    except SleyError as error:
        with suppress(SleyError):
            tell(error)
        raise
