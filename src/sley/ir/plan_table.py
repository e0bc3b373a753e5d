"""Plan table: which plan runs for which calls, as a value and as TOML; and what makes a plan.

    [[plans]]
    what = "ring-allreduce"          # an algorithm, or a file beside the table
    ranks = 8                        # nodes, gpus, nics, root: as on the command line
    collective = "allreduce"         # by default the plan's
    in_place = true                  # by default both, for what runs in both places
    min_bytes = "64K"                # both sizes included; an open end is the file's
    max_bytes = "16M"
    arguments = { stages = 2 }       # of an algorithm, or of a function in a Python file
    options = { instances = 2 }      # of sley.Options
    tile = 0.5                       # a share of the runtime's own tile
    note = "why"
    measured = [{ size_bytes = 65536, time_us = 10.0, default_us = 12.0 }]
    alternatives = [{ what = "ring-allreduce", options = { instances = 4 } }]

A table of a tuner also has [machine], where it was measured, and [facts] about the training.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from sley.errors import Place, Rule, did_you_mean, recognition
from sley.errors.deployment import F528
from sley.errors.policy import D903
from sley.errors.text_files import Section, text_of, toml_tables
from sley.ir.sizes import ALL_SIZES, SizeRange
from sley.ir.topology import MAX_RANKS
from sley.ir.words import is_integer, is_real


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a plan is made from; selection, the command line and the tuner build it.

    name: of an algorithm of the library, or the path of a file with a program, a schedule or a
        plan (`file.py:function` for one of several functions).
    arguments: of the algorithm or the function, by name.
    options: of the compiler, by the names in `sley.Options`.
    tile: the tile's size as a share of the runtime's own.

    Enumerations become their values and lists tuples, so a recipe is equal to the one that is read
    back from a file.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tile: float = 1.0

    def __post_init__(self) -> None:
        for word in ("arguments", "options"):
            object.__setattr__(self, word, _plain(getattr(self, word)))

    @property
    def key(self) -> str:
        """Equal for equal recipes."""
        arguments, options = sorted(self.arguments.items()), sorted(self.options.items())
        return repr((self.name, arguments, options, self.tile))

    @property
    def stem(self) -> str:
        """The algorithm's name, or the file's without its suffix."""
        return Path(file_and_name(self.name)[0]).stem

    def given(self, **arguments: Any) -> Recipe:
        """The recipe with further arguments; None leaves one as it is."""
        more = {word: value for word, value in arguments.items() if value is not None}
        return replace(self, arguments={**self.arguments, **more})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recipe) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        words = [f"{word}={value}" for word, value in self.options.items()]
        words += [f"tile={self.tile:g}"] if self.tile != 1 else []
        if orders := self.arguments.get("orders"):
            words.append("orders=" + ";".join(",".join(map(str, order)) for order in orders))
        return " ".join([self.name, *words])


def file_and_name(what: str) -> tuple[str, str]:
    """The file that a recipe names, and the name in it that follows FILE.py:, else ""."""
    file, _, name = what.partition(".py:")
    return (f"{file}.py", name) if name else (what, "")


def _plain(value: Any) -> Any:
    """The value as a file has it: an enumeration's member as its value, a list as a tuple."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (list, tuple)):
        return tuple(map(_plain, value))
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return value


TABLE = "plans.toml"
"""The name of the table in a folder of plans."""

_GRID = ("nodes", "gpus", "nics")
"""Arguments that a row has beside `arguments`, as the command line has options for them."""

_RECIPE = ("what", *_GRID, "arguments", "options", "tile")
_ROW = (
    *("what", "collective", "ranks", *_GRID, "in_place", "root", "min_bytes", "max_bytes"),
    *("arguments", "options", "tile", "note", "measured", "alternatives", "refused"),
)
_MOST_TEXT, _MOST_NUMBER = 1000, 1e15


@dataclass(frozen=True)
class Measured:
    """Times at one size, in microseconds: of a row's plan, and of the runtime's default."""

    size_bytes: int
    time_us: float
    default_us: float


@dataclass(frozen=True)
class Machine:
    """Where the times of a table were measured.

    engine: "simulator" or "cpu". topology: its name, for people. fingerprint: equal for equal
    machines. nodes, gpus: the nodes, and the ranks of each.
    """

    engine: str
    topology: str
    fingerprint: str
    nodes: int
    gpus: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.gpus

    def check(self, here: Machine, at: Place) -> None:
        """Refuses another machine than `here`. Errors: D903."""
        for word in ("engine", "nodes", "gpus", "fingerprint"):
            trained, wanted = getattr(self, word), getattr(here, word)
            if trained != wanted:
                raise D903.error(
                    at=at,
                    expected=f"a policy for {here}, {word} {wanted}",
                    found=f"one for {self}, {word} {trained}",
                )

    def __str__(self) -> str:
        return f"{self.topology} ({self.nodes} x {self.gpus} ranks, {self.engine})"


@dataclass(frozen=True)
class PlanRow:
    """What runs for some calls.

    recipe: what makes the plan. sizes: of the largest buffer of any rank; the open ends are those
        of the plan's file, if it has some.
    collective, ranks, in_place, root: the calls; "" and None for what the plan is for, and
        in_place None for both places if the recipe makes plans for both.
    note: the reason, in words. refused: other plans, each with the reason against it.
    measured: times on which the choice is based, by ascending sizes in the range.
    alternatives: other recipes that were nearly as fast; exploration tries only these.
    entry: the row's place in its file.
    """

    recipe: Recipe
    sizes: SizeRange = ALL_SIZES
    collective: str = ""
    ranks: int | None = None
    in_place: bool | None = None
    root: int | None = None
    note: str = ""
    measured: tuple[Measured, ...] = ()
    alternatives: tuple[Recipe, ...] = ()
    refused: tuple[str, ...] = ()
    entry: Place = field(default=Place(), compare=False)

    def __str__(self) -> str:
        return f"{self.recipe.name}, {self.sizes}"

    @property
    def speedup(self) -> float | None:
        """Time of the default over time of the plan: the geometric mean of the measured sizes. None
        without any."""
        if not self.measured:
            return None
        return geometric_mean(one.default_us / one.time_us for one in self.measured)

    @property
    def reason(self) -> str:
        """How much faster than the default the plan was measured, and the note; "" for neither."""
        faster = self.speedup
        words = [f"measured {faster:.2f} times as fast as the default"] if faster else []
        return ", ".join([*words, *([self.note] if self.note else [])])

    def lines(self) -> Iterator[str]:
        """The row in TOML."""
        values: dict[str, Any] = {
            **_recipe_values(self.recipe),
            "collective": self.collective or None,
            "ranks": self.ranks,
            "in_place": self.in_place,
            "root": self.root,
            "min_bytes": self.sizes.begin_bytes or None,
            "max_bytes": self.sizes.end_bytes,
            "note": self.note or None,
            "measured": [vars(one) for one in self.measured] or None,
            "alternatives": [_recipe_values(one) for one in self.alternatives] or None,
            "refused": self.refused or None,
        }
        yield "[[plans]]"
        yield from (
            f"{word} = {_toml(values[word])}" for word in _ROW if values.get(word) is not None
        )
        yield ""


@dataclass(frozen=True)
class PlanTable:
    """What runs for which calls: of the rows for a call, the first one counts.

    machine: where the times were measured, None without times. facts: what else the maker of the
    table says, as values that TOML has.
    """

    rows: tuple[PlanRow, ...] = ()
    machine: Machine | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    def of(self, collective: str) -> tuple[PlanRow, ...]:
        """The rows of a collective."""
        return tuple(row for row in self.rows if row.collective == collective)

    def text(self) -> str:
        """The table in TOML. Errors: F528 for a value that TOML doesn't have."""
        heads = {"machine": self.machine and vars(self.machine), "facts": self.facts}
        lines = []
        for word, values in heads.items():
            if values:
                lines += [f"[{word}]", *(f"{_key(k)} = {_toml(v)}" for k, v in values.items()), ""]
        return "\n".join([*lines, *(line for row in self.rows for line in row.lines())])


def _recipe_values(recipe: Recipe) -> dict[str, Any]:
    arguments = dict(recipe.arguments)
    values = {"what": recipe.name, **{word: arguments.pop(word, None) for word in _GRID}}
    tile = None if recipe.tile == 1 else recipe.tile
    more = {"arguments": arguments or None, "options": recipe.options or None, "tile": tile}
    return values | more


def _key(name: str) -> str:
    return name if name.isascii() and name.replace("_", "a").isalnum() else _toml(name)


def _toml(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if is_integer(value) or is_real(value):
        return repr(value)
    if isinstance(value, Mapping):
        given = (f"{_key(k)} = {_toml(v)}" for k, v in value.items() if v is not None)
        return f"{{ {', '.join(given)} }}"
    if isinstance(value, Iterable):
        return f"[{', '.join(map(_toml, value))}]"
    raise F528.error(expected="values that TOML has", found=repr(value))


_READ = (
    *(recognition.PACKAGE_TABLE, recognition.POLICY, recognition.SLEY_TOPOLOGY),
    *(*recognition.VAGUE, *recognition.ABSENT),
)
"""Kinds of files whose faults the reader tells: what a damaged table may be taken for, too."""


def read_table(path: Path, rule: Rule = F528) -> PlanTable:
    """The table in a file. Errors: `rule`."""
    at, kind = Place(str(path)), recognition.kind_of(path)
    if kind not in _READ:
        remedy = kind.advice(str(path))
        raise rule.error(at=at, expected="a table of plans", found=kind.text, remedy=remedy)
    found = toml_tables(str(path), text_of(path, rule), rule)
    _check_texts(found, at, rule)
    return _Reader(path.parent).table(Section(str(path), found, rule))


def _check_texts(value: Any, at: Place, rule: Rule) -> None:
    """Refuses texts that would spoil a terminal. Errors: `rule`."""
    if isinstance(value, str) and not (value.isprintable() and len(value) <= _MOST_TEXT):
        expected = f"texts of at most {_MOST_TEXT} characters, without control characters"
        raise rule.error(at=at, expected=expected, found=ascii(value[:60]))
    if isinstance(value, dict):
        _check_texts([*value, *value.values()], at, rule)
    elif isinstance(value, list):
        for one in value:
            _check_texts(one, at, rule)


@dataclass(frozen=True)
class _Reader:
    """Reads the entries of a table. folder: where its files are. Errors of each: the table's
    rule."""

    folder: Path

    def table(self, top: Section) -> PlanTable:
        for word, value in top.values.items():
            if isinstance(value, dict) and word not in ("machine", "facts"):
                remedy = f"Write [[plans]], what = {json.dumps(word)} and the entries of the plan."
                raise top.refuse("", "tables [[plans]]", word, remedy=remedy)
        _check_words(top, ("plans", "machine", "facts"))
        rows, has_machine = top.values.get("plans", []), "machine" in top
        if not isinstance(rows, list) or not (rows or has_machine):
            raise top.refuse("plans", "tables [[plans]]", rows)
        named = Section(top.file, {f"plan {k}": row for k, row in enumerate(rows, 1)}, top.rule)
        machine = self._machine(top.section("machine")) if has_machine else None
        plans = tuple(self._row(named.section(name)) for name in named.values)
        return PlanTable(plans, machine, top.typed("facts", dict, {}))

    def _row(self, row: Section) -> PlanRow:
        _check_words(row, _ROW)
        refused = row.typed("refused", list, [])
        if not all(isinstance(one, str) for one in refused):
            raise row.refuse("refused", "texts", refused)
        own = {word: row.values[word] for word in _RECIPE if word in row}
        least, most = row.values.get("min_bytes"), row.values.get("max_bytes")
        return PlanRow(
            self._recipe(Section(row.file, own, row.rule, row.path)),
            SizeRange.of(least, most, row.rule, row.place()),
            row.typed("collective", str, ""),
            _number(row, "ranks", 1),
            row.typed("in_place", bool) if "in_place" in row else None,
            _number(row, "root", 0),
            row.typed("note", str, ""),
            tuple(map(self._measured, row.sections("measured", []))),
            tuple(map(self._recipe, row.sections("alternatives", []))),
            tuple(refused),
            row.place(),
        )

    def _recipe(self, given: Section) -> Recipe:
        _check_words(given, _RECIPE)
        if not (what := given.typed("what", str)):
            raise given.refuse("what", "an algorithm or a file", what)
        arguments = dict(given.typed("arguments", dict, {}))
        for word in _GRID:
            if (number := _number(given, word, 1)) is not None:
                arguments[word] = number
        tile = given.number("tile", 1.0)
        if not 0 < tile <= 1:
            raise given.refuse("tile", "a number above 0, at most 1", tile)
        options = given.typed("options", dict, {})
        return Recipe(self._source(what), arguments, options, tile)

    def _source(self, what: str) -> str:
        """The name of an algorithm, perhaps misspelt; or the path of a file beside the table."""
        beside = self.folder / what
        is_name = not beside.suffix and Path(what).name == what and not beside.is_file()
        return what if is_name else str(beside)

    def _measured(self, given: Section) -> Measured:
        words = [one.name for one in fields(Measured)]
        _check_words(given, words)
        times = [given.number(word) for word in words]
        is_whole = is_integer(given.values["size_bytes"])
        if not is_whole or not all(0 < time < _MOST_NUMBER for time in times):
            raise given.refuse("", f"a whole {', '.join(words)}, all positive", given.values)
        return Measured(given.values["size_bytes"], *times[1:])

    def _machine(self, given: Section) -> Machine:
        words = [one.name for one in fields(Machine)]
        _check_words(given, words)
        values: list[Any] = [given.typed(word, str) for word in words[:3]]
        for word in words[3:]:
            given.value(word, "a number")
            values.append(_number(given, word, 1))
        return Machine(*values)


def _check_words(table: Section, words: Sequence[str]) -> None:
    """Refuses another word; at the place of the table, whose entries have no lines."""
    for word in table.values:
        if word not in words:
            near = did_you_mean(word, words)
            if "what" in words and "what" not in table and isinstance(table.values[word], str):
                near = "Did you mean what, which names an algorithm or a file?"
            of_row = f"If it is an option of the compiler, write options = {{ {word} = ... }}."
            remedy = " ".join(filter(None, (near, of_row if "options" in words else "")))
            raise table.refuse("", f"one of {', '.join(words)}", word, remedy=remedy)


def _number(table: Section, word: str, least: int) -> int | None:
    value: Any = table.values.get(word)
    if word in table and not (is_integer(value) and least <= int(value) <= MAX_RANKS):
        raise table.refuse(word, f"a number from {least} to {MAX_RANKS}", value)
    return None if value is None else int(value)
