"""Format: a file format for plans, and the runtimes that read it."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np

from sley.errors import Diagnostic, Place, Rule, SleyError, reason_of
from sley.errors.compiler import C309
from sley.errors.formats import F404, F437, F440, F460
from sley.errors.mscclpp import F499
from sley.errors.text_files import open_file
from sley.ir.collective import Collective
from sley.ir.conditions import Choice, Condition
from sley.ir.one_sided import OneSidedPlan
from sley.ir.plan import Plan
from sley.ir.sizes import ALL_SIZES, SizeRange
from sley.ir.tables import NONE, BoolArray, LongArray

MOST_REPORTED = 20
"""Limit of reported problems; later ones are mostly consequences of the first ones."""

MOST_OF_A_KIND = 5
"""Limit of reported problems of one rule."""


class Problems:
    """The problems of one file or plan, which are reported together."""

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
        self, rule: Rule, at: Place | Sequence[Place], expected: str, found: str, remedy: str = ""
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


Content: TypeAlias = str | bytes | list[Any]
"""The content of a file: a text, bytes, or parts of it one after another."""

NO_LIMIT = 1 << 40
"""A size in bytes that no call has."""


@dataclass(frozen=True)
class Target:
    """A runtime that reads files of one format; formats add its limits and names.

    name: its name. suffix: the suffix of its files, see `Format`. version: one of the versions of
    the runtime that execute files differently; "" if only one is known.
    """

    name: str
    suffix: str
    version: str = field(default="", kw_only=True)

    def __repr__(self) -> str:
        return f"Target({self})"

    def __str__(self) -> str:
        return f"{self.name}@{self.version}" if self.version else self.name

    def last_size(self, max_bytes: int | None) -> int | None:
        """The last size of calls for which it chooses a file with this limit; None for no limit.
        max_bytes: None for a file without a limit."""
        return None if max_bytes is None or max_bytes >= NO_LIMIT else max_bytes

    def simulated(self, plan: Plan) -> Plan:
        """The plan whose times are those of the runtime: with the operations that it has, for one
        that the simulator knows."""
        return plan


T = TypeVar("T", bound=Target)
V = TypeVar("V")


@dataclass(frozen=True)
class Imported:
    """A plan from a file, and further content of the file.

    notes: remarks (F430 to F434), each with its first place.
    min_bytes, max_bytes: the attributes of the file, or None; the meaning of max_bytes depends on
        the target.
    recipe: what a .plan file was made from, in words.
    """

    plan: Plan | OneSidedPlan
    notes: tuple[Diagnostic, ...]
    min_bytes: int | None
    max_bytes: int | None
    recipe: Mapping[str, str] = field(default_factory=dict)

    def sizes(self, target: Target) -> SizeRange:
        """The sizes of calls for which a target would choose the file. A maxBytes of 0 is no limit
        for any target."""
        last = None if self.max_bytes == 0 else target.last_size(self.max_bytes)
        return SizeRange(self.min_bytes or 0, last)

    @property
    def message_plan(self) -> Plan:
        """The plan, if its blocks exchange messages. Errors: F499 for a one-sided plan."""
        return _with_messages(self.plan)


def _with_messages(plan: Plan | OneSidedPlan) -> Plan:
    if isinstance(plan, OneSidedPlan):
        raise F499.error(
            at=plan.places(()),
            expected="a plan with messages, which this command needs",
            found=f"an execution plan of MSCCL++, of {plan.collective}",
        )
    return plan


@dataclass(frozen=True)
class Execution:
    """One way in which a runtime executes a file.

    plan: what it executes.
    slots: the number of slots of its connections. per_chunk: whether every chunk of a message takes
        a slot, or every message one slot. None for a one-sided plan.
    conditions: when the runtime executes the file in this way, beyond what the plan itself says.
    one_slot_bytes: if every chunk takes a slot, the largest call in which every message would take
        only one.
    sizes: of calls for which the runtime chooses the file.
    """

    plan: Plan | OneSidedPlan
    slots: int | None = None
    per_chunk: bool | None = None
    conditions: tuple[Condition, ...] = ()
    one_slot_bytes: int | None = None
    sizes: SizeRange = ALL_SIZES

    @property
    def message_plan(self) -> Plan:
        """The plan with the runtime's slots. Errors: F499 for a one-sided plan."""
        plan = _with_messages(self.plan)
        slots, per_chunk = self.slots or plan.slots, bool(self.per_chunk)
        return replace(plan, slots=slots, per_chunk=per_chunk)


def root_conditions(collective: Collective, target: Target) -> tuple[Condition, ...]:
    """What a target's calls must obey if a plan has a root, which no file and no target compares
    with that of the call."""
    if collective.root == NONE:
        return ()
    text = f"no call with another root, which {target.name} does not check"
    return (Condition("calls", text, Choice.one_of("root", collective.root)),)


@dataclass(frozen=True)
class Executions:
    """All ways in which a runtime executes a file, at least one; and remarks on the file."""

    executions: tuple[Execution, ...]
    notes: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True)
class Format:
    """A file format that plans are written in.

    name: its name in messages. suffix: the suffix of its files.
    make: returns the text of a plan, or a model of the file, of which `text` makes the text. It
        takes the plan, the target as `target` if there are targets, and its settings as keywords.
    per_rank: whether `make` returns the content of a file for each rank instead; the name
        "a.suffix" then stands for "a.0.suffix", "a.1.suffix" and so on.
    is_own: whether it is sley's own, for every plan. Such a file isn't proven when it is written,
        since no reader believes that it was.
    targets: the runtimes that read its files; the first one is the default.
    needs: the options (of `sley.Options`) that a plan must be compiled with.
    runs_with_own_slots: whether the runtimes ignore the plan's slots: a connection has the
        protocol's number of slots, and each chunk takes one.
    """

    name: str
    suffix: str
    make: Callable[..., Any]
    targets: tuple[Target, ...] = ()
    needs: Mapping[str, object] = field(default_factory=dict)
    runs_with_own_slots: bool = False
    per_rank: bool = False
    is_own: bool = False
    text: Callable[[Any], Any] = lambda made: made

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that `make` takes."""
        return keywords(self.make)

    def write(self, *given: Any, **settings: Any) -> Any:
        """The content of a plan's file, or files. It takes what `make` takes."""
        return self.text(self.make(*given, **settings))

    def contents(self, path: str | os.PathLike[str], written: Any) -> dict[Path, Content]:
        """The files for the name `path`, with their content, which `write` returns."""
        whole = Path(path)
        if not self.per_rank:
            return {whole: written}
        name = whole.with_suffix
        return {name(f".{rank}{whole.suffix}"): part for rank, part in enumerate(written)}

    def settings_of(
        self, path: str | os.PathLike[str], known: Sequence[str], settings: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The settings that are not None. Errors: C309 for one that is not among `known`."""
        given = {word: value for word, value in settings.items() if value is not None}
        for word, value in given.items():
            if word not in known:
                raise C309.error(
                    at=Place(str(path)),
                    expected=f"no {word}, which {self.name} does not have",
                    found=f"{word}={value!r}",
                    remedy=f"Leave {word} out, or use another suffix.",
                )
        return given


@dataclass(frozen=True, kw_only=True)
class RuntimeFormat(Format):
    """A file format that runtimes read.

    read: returns the plan of a file (a path or a text), with the keywords collective, in_place,
        root and, if its plans have messages, slots.
    check: refuses a plan that can't be written for a target, with the errors of `write`.
    executions: returns what a target makes of a file (a path, a text or what `make` returns) by the
        target's own rules, and refuses a file that it doesn't load. It takes the target, and as
        keywords at least those of `read`.
    one_sided: whether its plans are one-sided.
    """

    read: Callable[..., Imported]
    check: Callable[[Plan, Target], None]
    executions: Callable[..., Executions]
    one_sided: bool = False

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of its targets, without versions."""
        return tuple(dict.fromkeys(one.name for one in self.targets))


def keywords(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of a function's keyword-only parameters."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)


def refuse_varying_counts(collective: Collective) -> None:
    """Refuses a collective whose counts vary, which no file can have. Errors: F437."""
    if collective.varies:
        raise F437.error(
            at=Place(detail=collective.name),
            expected="counts that are the same for all parts, and known before the call",
            found=str(collective),
        )


def content_of(path: str | os.PathLike[str], file: str, most: int) -> bytes:
    """The content of a file; of more than `most` bytes the first ones, and one more. file: its name
    in messages. Errors: F404."""
    try:
        with open_file(Path(path)) as stream:
            return stream.read(most + 1)
    except (OSError, ValueError) as problem:
        raise F404.error(
            at=Place(file), expected="a file that can be read", found=reason_of(problem)
        ) from problem


def by_suffix(path: str | os.PathLike[str], table: Mapping[str, V]) -> V:
    """The entry of a table for the suffix of a path. Errors: F460."""
    suffix = Path(path).suffix.lower()
    if suffix not in table:
        *others, last = table
        ends = f"{', '.join(others)} or {last}" if others else last
        raise F460.error(
            at=Place(str(path)),
            expected=f"a name that ends in {ends}",
            found=repr(suffix) if suffix else "none",
            remedy=f"Give the file a name that ends in {ends}.",
        )
    return table[suffix]


def target_among(
    targets: Mapping[str, T], target: str | Target, kind: type[T] | tuple[type[T], ...]
) -> T:
    """The target of this name; one of the right kind passes through. Errors: F440."""
    if isinstance(target, kind):
        return target
    found = targets.get(target) if isinstance(target, str) else None
    if found is None:
        text, remedy = repr(target), ""
        if isinstance(target, Target):
            text = f"{target}, which reads {target.suffix}"
            remedy = f"Name one of the expected targets, or a file that ends in {target.suffix}."
        raise F440.error(
            at=Place(detail="target"), expected=" or ".join(targets), found=text, remedy=remedy
        )
    return found
