"""Document: a text as an object of JSON, read in bounded memory and as MSCCL++ reads it, with
nlohmann::json: no NaN, no numbers beyond a double, and surrogates only in pairs.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from sley.errors import Place
from sley.errors.formats import F403
from sley.errors.mscclpp import F470
from sley.formats.format import content_of

MAX_TEXT_BYTES = 32 << 20
MAX_CONTAINERS = 2_000_000
"""Limit of the lists and objects of a text."""

_SHOWN_CHARS = 60

_SHORT_DIGITS = 308
"""An integer with at most as many digits is in the range of a double."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.\w]+')
"""A string, a number or a word of JSON."""

_LONE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]|\\(u[dD][89a-fA-F]..)|\\.")
"""An escape in a string; group 1 is a surrogate without its other half."""

Object = dict[str, Any]
"""An object of JSON."""

INT32 = (1 << 31) - 1
UINT32 = (1 << 32) - 1


def read_json(source: str | os.PathLike[str], file: str | None = None) -> tuple[str, str, Object]:
    """The file's name in messages, the text and its object, by a path or a text. Errors:
    F403, F404, F470."""
    if isinstance(source, str) and ("{" in source or "\n" in source):
        file, text = file or "<text>", source
        if len(text) > MAX_TEXT_BYTES:
            _too_large(file, f"{MAX_TEXT_BYTES} bytes of text")
    else:
        file = file or os.fspath(source)
        text = _text_of(os.fspath(source), file)
    return file, text, _document(text, file)


def _text_of(path: str, file: str) -> str:
    content = content_of(path, file, MAX_TEXT_BYTES)
    if len(content) > MAX_TEXT_BYTES:
        _too_large(file, f"{MAX_TEXT_BYTES} bytes of text")
    try:
        return content.decode("utf-8-sig")
    except ValueError as problem:
        raise F470.error(at=Place(file), expected="text in UTF-8", found=str(problem)) from problem


def _too_large(file: str, limit: str) -> NoReturn:
    raise F403.error(at=Place(file), expected=f"at most {limit}", found="more")


class _NumberError(ValueError):
    """A word of the text, in the place of a number, that no double represents."""


def _document(text: str, file: str) -> Object:
    """The object of a JSON text. Errors: F403, F470."""
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        _too_large(file, f"{MAX_CONTAINERS} objects and lists")

    def refuse(found: str, place: int | None = None, cause: Exception | None = None) -> NoReturn:
        at = Place(file) if place is None else _place(file, text, place)
        raise F470.error(at=at, expected="an object in JSON", found=found) from cause

    try:
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_no_number,
        )
        text.encode()
    except json.JSONDecodeError as problem:
        refuse(_fault(text, problem), problem.pos, problem)
    except RecursionError as problem:
        refuse("lists in lists, too deep", cause=problem)
    except UnicodeEncodeError as problem:
        refuse("half of a surrogate pair", problem.start, problem)
    except _NumberError as problem:
        word = str(problem)
        start = next((m.start() for m in _TOKEN.finditer(text) if m[0] == word), None)
        refuse(f"{_shortened(word)}, which is no finite number", start, problem)
    except ValueError as problem:  # a repeated key
        refuse(str(problem), cause=problem)
    if "\\u" in text:
        for escape in _LONE.finditer(text):
            if escape[1]:
                refuse(f"\\{escape[1]}, half of a surrogate pair", escape.start())
    if not isinstance(document, dict):
        refuse(f"a {_kind(document)}")
    return document


def _fault(text: str, problem: json.JSONDecodeError) -> str:
    """What is wrong at the place of a problem."""
    if not text.strip():
        return "an empty file"
    if text[problem.pos : problem.pos + 1] == '"' and problem.msg.startswith("Unterminated"):
        return "a string without its end"
    if not text[problem.pos :].strip():
        return f"the end of the file ({problem.msg})"
    return problem.msg


def _place(file: str, text: str, position: int) -> Place:
    """The line and the column of a position in a text."""
    before = text[:position]
    return Place(file, before.count("\n") + 1, position - before.rfind("\n"))


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {show(again)} twice in an object")
    return found


def _integer(word: str) -> int:
    if len(word) > _SHORT_DIGITS:
        _float(word)
    return int(word)


def _float(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        _no_number(word)
    return value


def _no_number(word: str) -> NoReturn:
    raise _NumberError(word)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {dict: "object", list: "list", str: "string", bool: "Boolean"}
    return kinds.get(type(value), "null" if value is None else "number")


def show(value: object) -> str:
    """A value for messages: scalars as in JSON, others by their kind."""
    if isinstance(value, (dict, list)):
        return f"{'an' if isinstance(value, dict) else 'a'} {_kind(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    return _shortened(json.dumps(value[:_SHOWN_CHARS] if isinstance(value, str) else value))
