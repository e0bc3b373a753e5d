"""Documents: JSON texts of schedules, read within limits, and the lines of their strings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np

from sley.errors import Place
from sley.errors.formats import F404
from sley.errors.schedules import F551, F552
from sley.errors.text_files import text_of
from sley.ir.words import is_real

MAX_TEXT = 16 << 20
MAX_CONTAINERS = 2_000_000
"""Limit of the lists and objects of a text."""

_MAX_NUMBER = 1e18


def file_text(path: str | os.PathLike[str]) -> str:
    """The text of a schedule's file. Errors: F404, F552."""
    text = text_of(Path(path), F404)
    if len(text) > MAX_TEXT:
        expected = f"at most {MAX_TEXT} characters"
        raise F552.error(at=Place(os.fspath(path)), expected=expected, found=str(len(text)))
    return text


def source_text(
    source: str | os.PathLike[str], beginning: str, file: str | None
) -> tuple[str, str]:
    """The text of a source, and its name in messages.

    source: a file (a path), or a text that begins with `beginning`. file: the name; by default the
    path. Errors: F404, F552.
    """
    if isinstance(source, str) and source.lstrip()[:1] == beginning:
        return source, file or "<text>"
    return file_text(source), file or os.fspath(source)


def json_object(file: str, text: str) -> dict[str, Any]:
    """The JSON object of a text, in bounded memory. Errors: F551, F552."""
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        expected = f"at most {MAX_CONTAINERS} objects and lists"
        raise F552.error(at=Place(file), expected=expected, found="more")
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as problem:
        at = Place(file, problem.lineno, problem.colno)
        raise F551.error(at=at, expected="JSON", found=problem.msg) from problem
    except (RecursionError, ValueError) as problem:
        found = "lists in lists, too deep" if isinstance(problem, RecursionError) else str(problem)
        raise F551.error(at=Place(file), expected="JSON", found=found) from problem
    if not isinstance(found, dict):
        raise F551.error(at=Place(file), expected="an object in JSON", found=_kind(found))
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word}, which is no number of JSON")


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {dict: "an object", list: "a list", str: "a string"}
    return kinds.get(type(value), repr(value)[:40])


class JsonObject:
    """Checked access to a JSON object.

    where: what the object is, for messages; "" for the outermost one.
    """

    def __init__(self, file: str, values: Mapping[str, Any], where: str = "") -> None:
        self.file = file
        self.values = values
        self._where = where

    def refuse(self, key: str, expected: str, found: object) -> NoReturn:
        """Refuses the value of a key. Errors: F551."""
        detail = f"{self._where}, {key}" if self._where else key
        at = Place(self.file, detail=detail)
        raise F551.error(at=at, expected=expected, found=_kind(found))

    def _value(self, key: str, expected: str) -> Any:
        if key not in self.values:
            where = self._where or "the outermost object"
            at = Place(self.file, detail=where)
            raise F551.error(at=at, expected=f"{key}: {expected}", found="no such key")
        return self.values[key]

    def number(self, key: str) -> float:
        """A finite number above 0. Errors: F551."""
        value = self._value(key, "a number above 0")
        if not is_real(value) or not 0 < value <= _MAX_NUMBER:
            self.refuse(key, f"a number above 0, up to {_MAX_NUMBER:g}", value)
        return float(value)

    def items(self, key: str) -> list[Any]:
        """A list. Errors: F551."""
        return cast("list[Any]", self._typed(key, list, "a list"))

    def table(self, key: str) -> dict[str, Any]:
        """An object. Errors: F551."""
        return cast("dict[str, Any]", self._typed(key, dict, "an object"))

    def text(self, key: str) -> str:
        """A string. Errors: F551."""
        return cast("str", self._typed(key, str, "a string"))

    def _typed(self, key: str, kind: type, expected: str) -> object:
        value = self._value(key, expected)
        if not isinstance(value, kind):
            self.refuse(key, expected, value)
        return value


class Lines:
    """The lines of the strings of a text; of equal strings, that of the first.

    pattern: what the strings begin with.
    """

    def __init__(self, text: str, pattern: str) -> None:
        ends = np.array([found.start() for found in re.finditer("\n", text)], np.int64)
        found = [(m[1], m.start()) for m in re.finditer(rf'"((?:{pattern})[^"\n]*)"', text)]
        lines = np.searchsorted(ends, np.array([at for _, at in found], np.int64)) + 1
        self._line: dict[str, int] = {}
        for (string, _), line in zip(found, lines.tolist(), strict=True):
            self._line.setdefault(string, line)

    def __getitem__(self, string: str) -> int:
        return self._line.get(string, 1)
