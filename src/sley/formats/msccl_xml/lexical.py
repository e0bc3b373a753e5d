"""Lexical: refuses well-formed XML that the runtimes' own lexers don't read, or read otherwise.

The lexers know only tags, comments without "=" in their first word, spaces and line ends. They take
a value as it stands between its quotes, and a number as C does: with a leading 0 it is octal.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from sley.errors import Place
from sley.errors.formats import F462
from sley.formats.format import Problems

# Names are bounded, so that a text without an end of a tag takes time proportional to its length.
_NAME = rb"[^ <>/!?\n\r\t=\"]{1,200}"
_TOKENS = (
    rb"[ \n\r]+",
    rb"</" + _NAME + rb">",
    rb"<" + _NAME + rb"(?: " + _NAME + rb'="[^"]*")* ?/?>',
    rb"<!--(?=[^ >/\n\r=]{0,200}[ >/\n\r]).*?-->",
)
_TOKEN = re.compile(b"|".join(_TOKENS), re.DOTALL)
_ATTRIBUTE = re.compile(rb' ([^ ="]+)="([^"]*)"')
_OCTAL = re.compile(rb"-?0[0-9]+")

_MOST_ATTRIBUTES = 16
_MOST_CHARACTERS = 255
_SHOWN_BYTES = 40


def check_text(text: bytes, file: str, target: str, problems: Problems) -> None:
    """Adds F462 for text, well-formed XML, that the target's lexer does not read as XML does."""
    end = 0
    for match in tokens(text):
        tag = match.group()
        if tag[:1] == b"<" and b"=" in tag and tag[:4] != b"<!--":
            for expected, found in _faults(tag):
                _add(problems, text, match.start(), file, f"{expected}, for {target}", found)
            if problems.full:
                return
        end = match.end()
    if end < len(text):
        expected = (
            "only tags and comments, one space between attributes, double quotes, and no tabs, "
            f"declarations or line ends in tags, for {target}"
        )
        found = ascii(text[end : end + _SHOWN_BYTES].decode("utf-8", "replace"))
        _add(problems, text, end, file, expected, found)


def tokens(text: bytes) -> Iterator[re.Match[bytes]]:
    """The tokens from the start of the text, up to the first place without one."""
    position = 0
    # No token is empty, so the search ends at the end of the text at the latest.
    while (match := _TOKEN.match(text, position)) is not None:
        yield match
        position = match.end()


def attributes_of(tag: bytes) -> list[tuple[bytes, bytes]]:
    """The names and values of a tag's attributes."""
    return _ATTRIBUTE.findall(tag)


def limit_faults(attributes: list[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    """What the attributes of a tag should be by the lexers' limits, and are."""
    if len(attributes) > _MOST_ATTRIBUTES:
        yield f"at most {_MOST_ATTRIBUTES} attributes", str(len(attributes))
    for _, value in attributes:
        if len(value) > _MOST_CHARACTERS:
            yield f"values of at most {_MOST_CHARACTERS} bytes", f"{len(value)} of them"


def _faults(tag: bytes) -> Iterator[tuple[str, str]]:
    """What a tag's attributes should be, and are."""
    attributes = attributes_of(tag)
    yield from limit_faults(attributes)
    for key, value in attributes:
        if key == b"name":
            continue
        shown = ascii(value[:_SHOWN_BYTES].decode("utf-8", "replace"))
        if b"&" in value:
            yield "characters as they are, no references", shown
        elif _OCTAL.fullmatch(value):
            yield "numbers without a leading 0, which are octal", shown


def _add(
    problems: Problems, text: bytes, position: int, file: str, expected: str, found: str
) -> None:
    line = text.count(b"\n", 0, position) + 1
    column = position - text.rfind(b"\n", 0, position)
    problems.add(F462, Place(file, line, column), expected=expected, found=found)
