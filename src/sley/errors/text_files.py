"""Text files: reads text and TOML from users' files, which it refuses if they are too large."""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from sley.errors import Place, Rule, did_you_mean, reason_of

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
        raise rule.error(at=at, expected="a text file in UTF-8", found=str(error)) from error


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


_MOST_SHOWN = 60


def _shown(text: str, line: int) -> str:
    """A line of a text, as the end of a message; "" without one."""
    shown = text.split("\n")[line - 1].strip() if line else ""
    return f": {shown[:_MOST_SHOWN]!r}" if shown else ""


def checked_words(table: object, words: Sequence[str], at: Place, rule: Rule) -> Mapping[str, Any]:
    """A TOML table that has no other words than these. Errors: `rule`."""
    if not isinstance(table, dict):
        raise rule.error(at=at, expected=f"a table with {', '.join(words)}", found=repr(table))
    for word in table:
        if word not in words:
            raise rule.error(
                at=at,
                expected=f"one of {', '.join(words)}",
                found=repr(word),
                remedy=did_you_mean(word, words),
            )
    return table
