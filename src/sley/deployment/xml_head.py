"""XML head: the first tag of a file, as msccl-executor-nccl, RCCL and msccl read it.

They read a file with their own small parser, not with an XML library, and compare only the
attributes of the first tag with a call. Source: src/misc/msccl/msccl_parser.cc of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sley.errors import Place, Rule
from sley.text_files import text_of

_SPACE = re.compile("[ \n\r]*")
_TAG = re.compile(r'<[^ =>/\n\r]+(?: [^ =>/\n\r"]*(?:=["\'][^"]*")?)* ?/?>')
_ATTRIBUTE = re.compile(r' ([^ =>/\n\r"]*)=["\']([^"]*)"')
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NUMBER = re.compile(r"[ \t\n\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]{1,19})")
_MOST_ATTRIBUTES = 16
_MOST_CHARS = 255
_SHOWN = 40


@dataclass(frozen=True)
class XmlHead:
    """The attributes of a file's first tag."""

    attributes: Mapping[str, str]
    file: str
    rule: Rule

    def text(self, word: str) -> str:
        """An attribute. Errors: `rule`."""
        if word not in self.attributes:
            refuse(self.file, self.rule, f"the attribute {word}", "a first tag without it")
        return self.attributes[word]

    def number(self, word: str, default: int | None = None) -> int:
        """An attribute as C's strtol reads it: other text is 0. Errors: `rule` for a missing one
        without a default."""
        if default is not None and word not in self.attributes:
            return default
        match = _NUMBER.match(self.text(word))
        if match is None:
            return 0
        digits = match[2]
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" else 10
        value = int(re.match("[0-7]*", digits)[0] or "0", 8) if base == 8 else int(digits, base)  # type: ignore[index]
        return -value if match[1] == "-" else value


def read_head(path: Path, rule: Rule) -> XmlHead:
    """The first tag of a file. Errors: `rule` for a file whose first tag can't be read."""
    file, text = str(path), text_of(path, rule)
    start = _SPACE.match(text).end()  # type: ignore[union-attr]
    while text.startswith("<!--", start):
        comment = _COMMENT.match(text, start)
        if comment is None:
            refuse(file, rule, "a comment that ends", "none")
        start = _SPACE.match(text, comment.end()).end()  # type: ignore[union-attr]
    if not text.startswith("<", start):
        found = ascii(text[start : start + _SHOWN])[1:-1] or "an empty file"
        refuse(file, rule, 'a file that begins with "<"', found)
    tag = _TAG.match(text, start)
    if tag is None:
        shown = ascii(text[start : start + _SHOWN])[1:-1]
        expected = "one tag with one space between attributes, without tabs and line ends"
        refuse(file, rule, expected, f"{shown}...")
    pairs: list[tuple[str, str]] = _ATTRIBUTE.findall(tag[0])
    if len(pairs) > _MOST_ATTRIBUTES:
        refuse(file, rule, f"at most {_MOST_ATTRIBUTES} attributes", str(len(pairs)))
    attributes: dict[str, str] = {}
    for word, value in pairs:
        if len(value.encode()) > _MOST_CHARS:
            refuse(file, rule, f"{word} of at most {_MOST_CHARS} characters", str(len(value)))
        attributes.setdefault(word, value)
    return XmlHead(attributes, file, rule)


def refuse(file: str, rule: Rule, expected: str, found: str) -> NoReturn:
    """Raises a rule for a file."""
    raise rule.error(at=Place(file), expected=expected, found=found)
