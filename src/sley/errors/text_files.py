"""Text files: reads text, TOML and JSON from users' files, which it refuses if they are too large;
checked access to their tables."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

from sley.errors import Diagnostic, Place, Rule, SleyError, did_you_mean, reason_of

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

MAX_FILE_BYTES = 64 << 20

_MOST_PARTS = 32
"""The most parts of a TOML key: tomllib's time and memory grow with the square of their number."""

# A key begins a line, or follows a bracket or a comma. Possessive quantifiers and few beginnings
# keep the search's time proportional to the text's length.
_PART = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[A-Za-z0-9_-]++)"""
_LONG_KEY = re.compile(
    rf"(?:^|[\[{{,])[ \t]*+(?:{_PART}[ \t]*+\.[ \t]*+){{{_MOST_PARTS}}}", re.MULTILINE
)

_LINE_AND_COLUMN = re.compile(r" \(at line (\d+), column (\d+)\)$")


class _Content(io.FileIO):
    """A file that raises an OSError instead of waiting for content, as some of /proc and /sys
    would let a reader wait."""

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = super().readinto(buffer)
        if count is None:
            raise BlockingIOError(errno.EAGAIN, "no content yet, and perhaps never")
        return count


def open_file(path: Path) -> BinaryIO:
    """The content of a regular file. OSError for others: a pipe may never have a writer, and a
    device no end; and for a file whose reader would have to wait."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("not a regular file")
    return io.BufferedReader(
        _Content(path, opener=lambda file, flags: os.open(file, flags | os.O_NONBLOCK))
    )


def text_of(path: Path, rule: Rule) -> str:
    """The text of a file. Errors: `rule`, caused by the OSError or ValueError."""
    from sley.errors import recognition  # late: it reads files with `open_file`

    at = Place(str(path))
    try:
        with open_file(path) as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise rule.error(at=at, expected=f"at most {MAX_FILE_BYTES} bytes", found="more")
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        expected, remedy = "a file that can be read", "Check the path and the permissions."
        raise rule.error(at=at, expected=expected, found=reason_of(error), remedy=remedy) from error
    except ValueError as error:
        if isinstance(error, UnicodeDecodeError):
            lines = error.object[: error.start].decode(errors="replace").split("\n")
            at = Place(str(path), len(lines), len(lines[-1]) + 1)
        kind = recognition.kind_of(path)
        found = str(error) if kind is recognition.BINARY else kind.text
        raise rule.error(at=at, expected="a text file in UTF-8", found=found) from error


def toml_tables(file: str, text: str, rule: Rule) -> dict[str, Any]:
    """The tables of the TOML text in `file`. Errors: `rule`."""
    import tomllib  # late: most processes read no TOML

    if _LONG_KEY.search(text):
        expected = f"keys of up to {_MOST_PARTS} parts"
        raise rule.error(at=Place(file), expected=expected, found="a longer key")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError is a ValueError
        place = _LINE_AND_COLUMN.search(str(error))
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
        raise rule.error(
            at=Place(file, line, column),
            expected="TOML",
            found=_LINE_AND_COLUMN.sub("", str(error)) + _shown(text, line),
        ) from error


def json_of(file: str, text: str, rule: Rule) -> Any:
    """The value of the JSON text in `file`. Errors: `rule`."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        at = Place(file, error.lineno, error.colno)
        raise rule.error(at=at, expected="JSON", found=error.msg) from error
    except (RecursionError, ValueError) as error:
        found = "lists in lists, too deep" if isinstance(error, RecursionError) else str(error)
        raise rule.error(at=Place(file), expected="JSON", found=found) from error


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is no number of JSON")


_MOST_SHOWN = 60


def _shown(text: str, line: int) -> str:
    """A line of a text, as the end of a message; "" without one."""
    shown = text.split("\n")[line - 1].strip() if line else ""
    return f": {shown[:_MOST_SHOWN]!r}" if shown else ""


T = TypeVar("T")

_MISSING = object()
_KINDS = {str: "a string", bool: "true or false", list: "a list", dict: "a table"}


def excerpt(value: object) -> str:
    """A value's repr, cut to a length that fits a message."""
    try:
        text = repr(value)
    except ValueError:  # Python limits the digits that it writes, but not those of hexadecimals
        text = "a number of too many digits"
    return text if len(text) <= _MOST_SHOWN else text[: _MOST_SHOWN - 3] + "..."


class Section:
    """A table of TOML, or an object of JSON. Methods take values by key.

    rule: of a wrong key or value, the error of all methods. path: the table's keys in its file; ""
    for the outermost one.
    """

    def __init__(self, file: str, values: Mapping[str, Any], rule: Rule, path: str = "") -> None:
        self.file, self.values, self.rule, self.path = file, values, rule, path

    def place(self, key: str = "") -> Place:
        """The place of a key in the file."""
        return Place(self.file, detail=".".join(part for part in (self.path, key) if part))

    def refuse(
        self, key: str, expected: str, found: object, rule: Rule | None = None, remedy: str = ""
    ) -> SleyError:
        """The error about the value of a key."""
        at, shown = self.place(key), excerpt(found)
        return (rule or self.rule).error(at=at, expected=expected, found=shown, remedy=remedy)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def value(self, key: str, expected: str, default: Any = _MISSING) -> Any:
        """The unchecked value of a key, or `default` without the key."""
        if key in self.values:
            return self.values[key]
        if default is _MISSING:
            raise SleyError([self._missing(key, expected)])
        return default

    def _missing(self, key: str, expected: str) -> Diagnostic:
        remedy = f"Add the key {key}."
        at = self.place(key)
        return self.rule.diagnostic(at=at, expected=expected, found="no such key", remedy=remedy)

    def _unknown(self, key: str, known: Collection[str], wanted: Collection[str]) -> Diagnostic:
        # gpus in one tool's files is gpus_per_node in another's.
        longer = [one for one in wanted if one.startswith(f"{key}_") or key.startswith(f"{one}_")]
        near = did_you_mean(longer[0], longer) if longer else ""
        return self.rule.diagnostic(
            at=self.place(key),
            expected=", ".join(sorted(known)),
            found=excerpt(key),
            remedy=did_you_mean(key, wanted) or near or did_you_mean(key, known),
        )

    def key_faults(
        self, required: Collection[str], optional: Collection[str] = ()
    ) -> list[Diagnostic]:
        """A diagnostic for each unknown key, and for each required one that is missing and for
        which no unknown one seems to stand. Every table below the outermost one may have the key
        "source"."""
        known = {*required, *optional, *(("source",) if self.path else ())}
        missing = [key for key in required if key not in self.values]
        unknown = [key for key in self.values if key not in known]
        found = [self._unknown(key, known, missing) for key in unknown]
        meant = " ".join(one.remedy for one in found if one.remedy).replace("?", "").split()
        return found + [self._missing(key, "this key") for key in missing if key not in meant]

    def check_keys(self, required: Collection[str], optional: Collection[str] = ()) -> None:
        """Refuses the faults of `key_faults`, and a source that is no text."""
        if faults := self.key_faults(required, optional):
            raise SleyError(faults)
        self.typed("source", str, "")

    def typed(self, key: str, kind: type[T], default: Any = _MISSING) -> T:
        """A value of a type."""
        found = self.value(key, _KINDS[kind], default)
        if not isinstance(found, kind):
            raise self.refuse(key, _KINDS[kind], found)
        return found

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A real number, in the range of a float: JSON's integers have any length."""
        found = self.value(key, "a number", default)
        if type(found) is not float and not (type(found) is int and found.bit_length() < 1024):
            raise self.refuse(key, "a number", found)
        return float(found)

    def section(self, key: str) -> Section:
        """A table."""
        values: dict[str, Any] = self.typed(key, dict)
        return Section(self.file, values, self.rule, self.place(key).detail)

    def sections(self, key: str, default: Any = _MISSING) -> list[Section]:
        """A list of tables."""
        rows = {f"{key}[{k}]": one for k, one in enumerate(self.typed(key, list, default))}
        named = Section(self.file, rows, self.rule, self.path)
        return [named.section(name) for name in rows]
