"""Lexer: the tokens of a ResCCLang text, including tokens for indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, NoReturn

from sley.errors import Place
from sley.errors.rescclang import L143

MAX_BLOCKS = 32
"""Bound on nested blocks."""

INDENTATION = "Indent all statements of a block equally, with only spaces or only tabs."
"""The remedy for an indentation that fits no block."""

_NEWLINE = re.compile(r"\r\n|\r|\n")
_BLANK = re.compile(r"[ \t]*(#.*)?$")
_TOKEN = re.compile(
    r"[ \t]*(?:([A-Za-z][A-Za-z0-9_]*)|([0-9]+)|(\"[^\"]*\"|'[^']*')|(//|[-+*/%(),:=])|(?:#.*)?$)"
)


class TokenKind(Enum):
    """The kind of a token; the value is its name in messages."""

    WORD = "word"
    NUMBER = "number"
    STRING = "string"
    SIGN = "sign"
    NEWLINE = "the end of the line"
    INDENT = "an indented line"
    DEDENT = "the end of the block"
    END = "the end of the text"


_KINDS = (TokenKind.WORD, TokenKind.NUMBER, TokenKind.STRING, TokenKind.SIGN)
"""Kinds of tokens in the order of the pattern's groups."""


class Token(NamedTuple):
    """A token; `text` is empty for tokens of the layout."""

    kind: TokenKind
    text: str
    line: int
    column: int

    def __str__(self) -> str:
        return repr(shorten(self.text)) if self.text else self.kind.value


def shorten(text: str) -> str:
    """The user's text, shortened for a message."""
    return text if len(text) <= 40 else text[:37] + "..."


def split_lines(text: str) -> list[str]:
    """The lines of a text, as an editor counts them, without a byte order mark."""
    return _NEWLINE.split(text.removeprefix("\ufeff"))


class Lexer:
    """Makes tokens of lines. Errors: L143."""

    def __init__(self, lines: list[str], file: str) -> None:
        self._lines = lines
        self._file = file
        self._indents = [""]
        self._open: list[Token] = []

    def tokens(self) -> Iterator[Token]:
        """All tokens. Within parentheses, line ends and indentation are ignored."""
        number = 0
        for number, line in enumerate(self._lines, 1):
            if _BLANK.match(line):
                continue
            start = 0
            if not self._open:
                start = len(line) - len(line.lstrip(" \t"))
                yield from self._layout(line[:start], number)
            yield from self._line(line, start, number)
            if not self._open:
                yield Token(TokenKind.NEWLINE, "", number, len(line) + 1)
        if self._open:
            last = self._open[-1]
            raise L143.error(
                at=Place(self._file, last.line, last.column),
                expected="a ')' that closes this '('",
                found=TokenKind.END.value,
            )
        end = len(self._lines[-1]) + 1
        for _ in self._indents[1:]:
            yield Token(TokenKind.DEDENT, "", number, end)
        yield Token(TokenKind.END, "", number, end)

    def _layout(self, indent: str, number: int) -> Iterator[Token]:
        column = len(indent) + 1
        if indent != self._indents[-1] and indent.startswith(self._indents[-1]):
            self._indents.append(indent)
            if len(self._indents) > MAX_BLOCKS + 1:
                raise L143.error(
                    at=Place(self._file, number, column),
                    expected=f"at most {MAX_BLOCKS} nested blocks",
                    found="one more",
                    remedy="Nest fewer loops.",
                )
            yield Token(TokenKind.INDENT, "", number, column)
            return
        while indent != self._indents[-1]:
            if not self._indents[-1].startswith(indent):
                raise L143.error(
                    at=Place(self._file, number, column),
                    expected="the indentation of a block around this line, or deeper: "
                    + " or ".join(map(_spell, self._indents[:4])),
                    found=_spell(indent),
                    remedy=INDENTATION,
                )
            self._indents.pop()
            yield Token(TokenKind.DEDENT, "", number, column)

    def _line(self, line: str, start: int, number: int) -> Iterator[Token]:
        while match := _TOKEN.match(line, start):
            group = match.lastindex
            if group is None:
                return
            text = match[group]
            token = Token(_KINDS[group - 1], text, number, match.start(group) + 1)
            if text == "(":
                self._open.append(token)
            elif text == ")" and self._open:
                self._open.pop()
            yield token
            start = match.end()
        start = len(line) - len(line[start:].lstrip(" \t"))
        self._refuse(line[start], number, start + 1)

    def _refuse(self, character: str, line: int, column: int) -> NoReturn:
        if character in "\"'":
            expected, found = f"a string that ends in its line with {character}", "none"
        elif character == "_":
            expected, found = "a name that begins with a letter", repr(character)
        else:
            expected = "a name, a number, a string, or one of + - * / // % ( ) , : ="
            found = f"{character!r} (U+{ord(character):04X})"
        raise L143.error(
            at=Place(self._file, line, column),
            expected=expected,
            found=found,
            remedy="Remove the character; a string ends on its line, with the quote with "
            "which it starts.",
        )


def _spell(indent: str) -> str:
    spaces, tabs = indent.count(" "), indent.count("\t")
    if spaces and tabs:
        return f"{tabs} tabs and {spaces} spaces"
    return f"{tabs} tabs" if tabs else f"{spaces} spaces"
