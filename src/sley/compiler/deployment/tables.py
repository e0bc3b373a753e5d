"""Tables: which plan a package has for which sizes, as a TOML file.

[[plans]]
what = "ring-allreduce"          # or a file with a program or a plan, beside the table
ranks = 8                        # nodes, gpus, nics, root: as on the command line
in_place = true                  # by default both, for algorithms and texts
min_bytes = "64K"                # both sizes included
max_bytes = "16M"
options = { instances = 2 }      # of sley.Options
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sley.algorithms import CATALOG
from sley.compiler import Options
from sley.errors import Place, SleyError
from sley.errors.deployment import F528
from sley.errors.text_files import checked_words, text_of, toml_tables
from sley.ir.sizes import size_in_bytes, sizes_text
from sley.ir.words import is_integer

_PLANS = "plans"
_NUMBERS = ("ranks", "nodes", "gpus", "nics", "root")
_OPTIONS = tuple(f.name for f in fields(Options))


@dataclass(frozen=True)
class TableRow:
    """A plan of a table.

    what: an algorithm of the library, or the path of a file. min_bytes, max_bytes: the sizes of its
    calls, both included; None for those of a file with a plan, and otherwise for all. in_place:
    None for what the file says, or for both.
    ranks, nodes, gpus, nics, root: as on the command line. arguments: those of a function in a
    Python file, by name. options: how a program is compiled.
    entry: the row's place in the table.
    """

    what: str
    min_bytes: int | None = None
    max_bytes: int | None = None
    in_place: bool | None = None
    ranks: int | None = None
    nodes: int | None = None
    gpus: int | None = None
    nics: int | None = None
    root: int | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    entry: Place = Place()

    @property
    def stem(self) -> str:
        """The algorithm's name, or the file's without its suffix."""
        return Path(self.what.partition(".py:")[0]).stem

    def __str__(self) -> str:
        return f"{self.what}, {sizes_text(self.min_bytes or 0, self.max_bytes)}"


def table_of_files(paths: Iterable[Path]) -> str:
    """The text of a table of files with plans, which lie beside it and have their own sizes."""
    return "\n".join(f'[[{_PLANS}]]\nwhat = "{path.name}"\n' for path in paths)


def read_table(path: Path) -> tuple[TableRow, ...]:
    """The rows of a table. Errors: F528, C304."""
    at = Place(str(path))
    found = toml_tables(str(path), text_of(path, F528), F528)
    _refuse_options(found, at)
    checked_words(found, (_PLANS,), at, F528)
    rows = found.get(_PLANS)
    if not isinstance(rows, list) or not rows:
        nothing = "an empty file" if rows is None else repr(rows)
        raise F528.error(at=at, expected=f"tables [[{_PLANS}]]", found=nothing)
    return tuple(_row(row, path, number) for number, row in enumerate(rows, 1))


def _row(row: Any, path: Path, number: int) -> TableRow:
    at = Place(str(path), detail=f"plan {number}")
    words = ("what", "min_bytes", "max_bytes", "in_place", *_NUMBERS, "arguments", "options")
    _refuse_options(row, at)
    row = checked_words(row, words, at, F528)
    what = row.get("what")
    if not isinstance(what, str) or not what:
        without = "no what" if row else "an empty table"
        found = without if what is None else repr(what)
        raise F528.error(at=at, expected="what: an algorithm or a file", found=found)
    for word in _NUMBERS:
        if word in row and not (is_integer(row[word]) and 0 <= row[word] < 1 << 31):
            raise F528.error(at=at, expected=f"{word}: a number", found=repr(row[word]))
    if not isinstance(row.get("in_place", True), bool):
        raise F528.error(at=at, expected="in_place: true or false", found=repr(row["in_place"]))
    if not isinstance(row.get("arguments", {}), dict):
        found = repr(row["arguments"])
        raise F528.error(at=at, expected="arguments: a table of values by name", found=found)
    least, most = _size(row, "min_bytes", at), _size(row, "max_bytes", at)
    if most is not None and most < max(least or 0, 1):
        found = f"min_bytes = {least or 0}, max_bytes = {most}"
        raise F528.error(at=at, expected="min_bytes <= max_bytes", found=found)
    return TableRow(
        what=_source(what, path.parent),
        min_bytes=least,
        max_bytes=most,
        in_place=row.get("in_place"),
        **{word: row.get(word) for word in _NUMBERS},
        arguments=row.get("arguments", {}),
        options=_options(checked_words(row.get("options", {}), _OPTIONS, at, F528), at),
        entry=at,
    )


def _refuse_options(table: Any, at: Place) -> None:
    """Refuses options of the compiler beside `options`. Errors: F528."""
    for word in table if isinstance(table, dict) else ():
        if word in _OPTIONS:
            raise F528.error(
                at=at,
                expected=f"{word} within options",
                found=f"{word} beside it",
                remedy=f"Write options = {{ {word} = ... }} in the table of the plan.",
            )


def _source(what: str, folder: Path) -> str:
    """An algorithm, or what looks like a misspelt one; or the path of a file beside the table."""
    beside = folder / what
    is_name = not beside.suffix and Path(what).name == what and not beside.exists()
    return what if what in CATALOG or is_name else str(beside)


def _size(row: Mapping[str, Any], word: str, at: Place) -> int | None:
    """The bytes of an entry; None without it."""
    value = row.get(word)
    if value is None:
        return None
    size = 0 if is_integer(value) and value == 0 else size_in_bytes(value)
    if size is None:
        raise F528.error(at=at, expected=f'{word}: 65536 or "64K", say', found=repr(value))
    return size


def _options(given: Mapping[str, Any], at: Place) -> Options:
    try:
        return Options(**given)
    except SleyError as error:
        d = error.diagnostics[0]
        raise d.rule.error(at=at, expected=d.expected, found=d.found, remedy=d.remedy) from None
