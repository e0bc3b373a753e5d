"""Document: the object of a JSON text, in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from sley.errors import Place
from sley.errors.formats import F403, F404, F470
from sley.text_files import open_file

MAX_TEXT_BYTES = 32 << 20
MAX_CONTAINERS = 2_000_000
"""Limit of the lists and objects of a text."""

_SHOWN_CHARS = 60

Object = dict[str, Any]
"""An object of JSON."""


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
    try:
        with open_file(Path(path)) as stream:
            content = stream.read(MAX_TEXT_BYTES + 1)
    except (OSError, ValueError) as problem:
        raise F404.error(
            at=Place(file), expected="a file that can be read", found=str(problem)
        ) from problem
    if len(content) > MAX_TEXT_BYTES:
        _too_large(file, f"{MAX_TEXT_BYTES} bytes of text")
    try:
        return content.decode("utf-8-sig")
    except ValueError as problem:
        raise F470.error(at=Place(file), expected="text in UTF-8", found=str(problem)) from problem


def _too_large(file: str, limit: str) -> NoReturn:
    raise F403.error(at=Place(file), expected=f"at most {limit}", found="more")


def _document(text: str, file: str) -> Object:
    """The object of a JSON text. Errors: F403, F470."""
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        _too_large(file, f"{MAX_CONTAINERS} objects and lists")
    at, expected = Place(file), "an object in JSON"
    try:
        document = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        if not isinstance(document, dict):
            raise F470.error(at=at, expected=expected, found=f"a {_kind(document)}")
        json.dumps([document.get("name"), document.get("collective")], ensure_ascii=False).encode()
    except json.JSONDecodeError as problem:
        at = Place(file, problem.lineno, problem.colno)
        raise F470.error(at=at, expected=expected, found=problem.msg) from problem
    except RecursionError as problem:
        raise F470.error(at=at, expected=expected, found="lists in lists, too deep") from problem
    except ValueError as problem:
        # A repeated key, NaN, a number of thousands of digits, or a surrogate.
        raise F470.error(at=at, expected=expected, found=str(problem)) from problem
    return document


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {show(again)} twice in an object")
    return found


def _no_constant(word: str) -> NoReturn:
    raise ValueError(word)


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {dict: "object", list: "list", str: "string", bool: "Boolean"}
    return kinds.get(type(value), "null" if value is None else "number")


def show(value: object) -> str:
    """A value for messages: scalars as in JSON, others by their kind."""
    if isinstance(value, (dict, list)):
        return f"{'an' if isinstance(value, dict) else 'a'} {_kind(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    text = json.dumps(value[:_SHOWN_CHARS] if isinstance(value, str) else value)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
