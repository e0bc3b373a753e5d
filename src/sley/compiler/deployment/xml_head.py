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
from sley.errors.text_files import text_of
from sley.formats.msccl_xml.lexical import (
    attributes_of,
    limit_faults,
    tokens,
)

_NUMBER = re.compile(r"[ \t\n\r]*([+-]?)(0[xX][0-9a-fA-F]+|[0-9]{1,19})")
_SHOWN_BYTES = 40


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
    file, text = str(path), text_of(path, rule).encode()
    tag, end = b"", 0
    for match in tokens(text):
        end = match.end()
        if match[0][:1] == b"<" and match[0][:4] != b"<!--":
            tag = match[0]
            break
    if not tag:
        refuse(file, rule, *_without_tag(text[end:]))
    pairs = attributes_of(tag)
    for expected, found in limit_faults(pairs):
        refuse(file, rule, expected, found)
    attributes: dict[str, str] = {}
    for word, value in pairs:
        attributes.setdefault(word.decode(), value.decode())
    return XmlHead(attributes, file, rule)


def _without_tag(text: bytes) -> tuple[str, str]:
    """What a file should begin with, and begins with. text: from the place on that isn't read."""
    line = text.lstrip().partition(b"\n")[0]
    shown = ascii(line[:_SHOWN_BYTES].decode("utf-8", "replace"))
    if not re.match(rb"<[a-zA-Z]", line):
        expected = "a file of MSCCL XML, which begins with a tag such as <algo name=...>"
        return expected, f"the text {shown}" if line else "an empty file"
    if b">" not in text:
        return "a first tag that ends", f"a file that ends within its first tag, {shown}"
    expected = "a first tag with one space before each attribute, and no tabs or line ends"
    return expected, f"the tag {shown}"


def refuse(file: str, rule: Rule, expected: str, found: str) -> NoReturn:
    """Raises a rule for a file."""
    raise rule.error(at=Place(file), expected=expected, found=found)
