"""Parser: the syntax of a ResCCLang text, by recursive descent (ResCCL, figure 14).

algorithm  = ["def"] "ResCCLAlgo" "(" parameter {"," parameter} ")" ":" block
parameter  = name "=" (number | string)
block      = simple | indented {simple | loop}
simple     = name "=" expression | "transfer" "(" 4 * (expression ",") type ")"
loop       = "for" name "in" "range" "(" expression [, expression [, expression]] ")" ":" block
expression = term {("+" | "-") term}
term       = factor {("*" | "/" | "//" | "%") factor}
factor     = {"-"} (number | name | "(" expression ")")
type       = "recv" | "rrc", bare or in quotes

First the values that the parser makes of a text, then the lexer, whose tokens include those of the
indentation, then the parser. Lines and columns count from 1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, NoReturn, TypeAlias

from sley.errors import Place, Rule
from sley.errors.language import L115, L124
from sley.errors.rescclang import L143, L150, L153
from sley.ir.words import TransferKind
from sley.lang.transfers import TYPES

MIN_VALUE, MAX_VALUE = -(2**31), 2**31 - 1
"""Bounds on all numbers of a program, intermediate results included."""


class Act(IntEnum):
    """The operation of a node of an expression on the stack of values."""

    NEGATE = 0
    ADD = 1
    SUBTRACT = 2
    MULTIPLY = 3
    DIVIDE = 4
    REMAINDER = 5
    NUMBER = 6
    NAME = 7


class ExpressionStep(NamedTuple):
    """A step of an expression in postfix order: pushes a value, or combines the last values.

    word: the name, or the operator as it is written. value: the value of a number.
    """

    act: Act
    word: str
    value: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression in postfix order, which is evaluated without recursion.

    text: the expression as it is written, for messages; "" if that is long.
    """

    nodes: tuple[ExpressionStep, ...]
    text: str
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Assign:
    """`name = value`"""

    name: str
    value: Expression
    line: int
    column: int

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True)
class Transfer:
    """`transfer(src, dst, step, chunk, kind)`; `site` counts the transfers of the text from 0."""

    src: Expression
    dst: Expression
    step: Expression
    chunk: Expression
    kind: TransferKind
    site: int
    line: int
    column: int

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """Source rank, destination rank, step and chunk."""
        return self.src, self.dst, self.step, self.chunk


@dataclass(frozen=True, slots=True)
class For:
    """`for name in range(start, stop, step): body`; `number` counts the loops of the text from 0.

    The default of start is 0, that of step is 1.
    """

    name: str
    start: Expression
    stop: Expression
    step: Expression
    body: Block
    number: int
    line: int
    column: int

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """Start, stop and step of the range."""
        return self.start, self.stop, self.step


Statement: TypeAlias = Assign | Transfer | For


@dataclass(frozen=True, slots=True)
class Block:
    """Statements. cost: steps of evaluation to run them once, without the bodies of loops."""

    statements: tuple[Statement, ...]
    cost: int


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the header, whose name is at (line, column).

    value: None if it is neither a number nor a string. word: the value as it is written.
    """

    name: str
    value: int | str | None
    word: str
    line: int
    column: int
    value_line: int
    value_column: int


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """A text: the header, which begins at (line, column), and the body.

    transfers: the transfers in the order of their sites. loops: the number of loops.
    """

    parameters: tuple[Parameter, ...]
    body: Block
    transfers: tuple[Transfer, ...]
    loops: int
    line: int
    column: int


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


HEAD = "ResCCLAlgo"
RESERVED = frozenset({"def", "for", "in", "range", "transfer", "recv", "rrc", HEAD})
"""Words of the language, which can't be names of variables."""

MAX_PARENTHESES = 64
"""Bound on nested parentheses."""

_LEVELS = (
    {"+": Act.ADD, "-": Act.SUBTRACT},
    {"*": Act.MULTIPLY, "/": Act.DIVIDE, "//": Act.DIVIDE, "%": Act.REMAINDER},
)
_OPERAND = "a number, a name or '('"
_ARGUMENTS = ("source rank", "destination rank", "step", "chunk")
_MAX_TEXT, _MAX_CANDIDATES = 60, 1000


def nearest(word: str, candidates: Iterable[str]) -> str:
    """ ", did you mean ...": the candidates most similar to a word; "" if none is."""
    known = [c for c, _ in zip(candidates, range(_MAX_CANDIDATES), strict=False)]
    lower = {c.lower(): c for c in known}
    close = difflib.get_close_matches(word[:_MAX_TEXT].lower(), lower, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(lower[c] for c in close)}?" if close else ""


class Parser:
    """Makes an `SyntaxTree` of lines. Errors: L115, L124, L143, L150, L153, with line and
    column.

    parameters: names that the body may read but not assign.
    """

    def __init__(self, lines: list[str], file: str, parameters: Iterable[str]) -> None:
        self._lines = lines
        self._file = file
        self._parameters = frozenset(parameters)
        self._tokens = Lexer(lines, file).tokens()
        self._next = next(self._tokens)
        self._last = self._next
        self._depth = 0
        self._transfers: list[Transfer] = []
        self._loops = 0

    def algorithm(self) -> SyntaxTree:
        """The whole text."""
        if self._at(TokenKind.END):
            raise L115.error(
                at=self._place(),
                expected=f"{HEAD}(...):",
                found="no program",
                remedy="Write a header and a body, as in ResCCL's figure 16.",
            )
        self._accept("def")
        first = self._next
        if first.text != HEAD:
            self._refuse(L143, f"{HEAD}(...):", hint=nearest(first.text, [HEAD]))
        self._advance()
        parameters = self._header()
        body = self._block()
        if not self._at(TokenKind.END):
            self._refuse(L143, "nothing after the algorithm")
        return SyntaxTree(
            parameters, body, tuple(self._transfers), self._loops, first.line, first.column
        )

    def _advance(self) -> Token:
        self._last = self._next
        if not self._at(TokenKind.END):
            self._next = next(self._tokens)
        return self._last

    def _at(self, kind: TokenKind) -> bool:
        return self._next.kind is kind

    def _accept(self, text: str) -> bool:
        # The text of a string includes its quotes, so it never equals a sign or a word.
        if self._next.text != text:
            return False
        self._advance()
        return True

    def _expect(self, text: str, expected: str = "") -> None:
        if not self._accept(text):
            self._refuse(L143, expected or repr(text))

    def _place(self) -> Place:
        return Place(self._file, self._next.line, self._next.column)

    def _refuse(
        self,
        rule: Rule,
        expected: str,
        *,
        hint: str = "",
        remedy: str = "",
        token: Token | None = None,
    ) -> NoReturn:
        """Refuses a token, by default the next one."""
        token = token or self._next
        at, found = Place(self._file, token.line, token.column), f"{token}{hint}"
        raise rule.error(at=at, expected=expected, found=found, remedy=remedy)

    def _word(self, expected: str) -> Token:
        if not self._at(TokenKind.WORD):
            self._refuse(L143, expected)
        return self._advance()

    def _header(self) -> tuple[Parameter, ...]:
        self._expect("(")
        parameters = []
        while not self._accept(")"):
            parameters.append(self._parameter())
            if self._next.text != ")":
                self._expect(",", "',' or ')'")
        self._expect(":")
        return tuple(parameters)

    def _parameter(self) -> Parameter:
        name = self._word("the name of a parameter, or ')'")
        self._expect("=")
        first, value = self._next, self._value()
        # The header refuses values that are not literals, since it knows the parameters' rules.
        word = self._last.text if value is not None else first.text
        if first.text == "-" and value is not None:
            word = f"-{word}"
        return Parameter(name.text, value, word, name.line, name.column, first.line, first.column)

    def _value(self) -> int | str | None:
        if self._at(TokenKind.STRING):
            return self._advance().text[1:-1]
        negative = self._accept("-")
        if self._at(TokenKind.NUMBER):
            number = self._number()
            self._advance()
            return -number if negative else number
        while self._next.text not in (",", ")") and not self._at(TokenKind.END):
            self._advance()
        return None

    def _block(self) -> Block:
        """The block after a colon: a simple statement in the same line, or indented lines."""
        statements: list[Statement] = []
        if not self._at(TokenKind.NEWLINE):
            statements.append(self._simple("a statement, or the end of the line"))
        else:
            self._advance()
            if not self._at(TokenKind.INDENT):
                self._refuse(L143, "an indented statement", remedy=INDENTATION)
            self._advance()
            while not self._at(TokenKind.DEDENT):
                statements.append(self._statement())
            self._advance()
        return Block(tuple(statements), sum(map(_cost, statements)))

    def _statement(self) -> Statement:
        if self._at(TokenKind.INDENT):
            expected = "a statement with the same indentation as the one before"
            self._refuse(L143, expected, remedy=INDENTATION)
        return self._for() if self._next.text == "for" else self._simple("a statement")

    def _simple(self, expected: str) -> Statement:
        word = self._word(expected)
        statement: Statement
        if word.text == "transfer":
            statement = self._transfer(word)
        else:
            if self._next.text != "=":
                words = "name = ..., for ... in range(...): or transfer(...)"
                hint = nearest(word.text, ["for", "transfer"])
                remedy = "Use one of these words in this spelling."
                self._refuse(L143, words, hint=hint, remedy=remedy, token=word)
            self._check_variable(word)
            self._advance()
            statement = Assign(word.text, self._expression(), word.line, word.column)
        if not self._at(TokenKind.NEWLINE):
            self._refuse(L143, "an operator, or the end of the line")
        self._advance()
        return statement

    def _check_variable(self, word: Token) -> None:
        if word.text in RESERVED:
            remedy = "The name of a variable can't be a word of the language."
            self._refuse(L143, "the name of a variable", remedy=remedy, token=word)
        if word.text in self._parameters:
            self._refuse(L150, "another name", token=word)

    def _for(self) -> For:
        start = self._advance()
        name = self._word("the name of a variable")
        self._check_variable(name)
        self._expect("in")
        self._expect("range", "range(...)")
        self._expect("(")
        bounds = self._bounds()
        self._expect(":")
        number = self._loops
        self._loops += 1
        return For(name.text, *bounds, self._block(), number, start.line, start.column)

    def _bounds(self) -> tuple[Expression, Expression, Expression]:
        """Start, stop and step of a range, and its ')'."""
        first = self._expression()
        if self._accept(")"):
            return _constant(0, first), first, _constant(1, first)
        self._expect(",", "an operator, ',' or ')'")
        stop = self._expression()
        if self._accept(")"):
            return first, stop, _constant(1, stop)
        self._expect(",", "an operator, ',' or ')'")
        step = self._expression()
        self._expect(")", "an operator or ')'")
        return first, stop, step

    def _transfer(self, start: Token) -> Transfer:
        self._expect("(")
        src, dst, step, chunk = (self._argument(word) for word in _ARGUMENTS)
        kind = TYPES.get(self._next.text.strip("\"'"))
        if kind is None or self._next.kind not in (TokenKind.WORD, TokenKind.STRING):
            self._refuse(L124, " or ".join(TYPES))
        self._advance()
        self._expect(")")
        site = len(self._transfers)
        transfer = Transfer(src, dst, step, chunk, kind, site, start.line, start.column)
        self._transfers.append(transfer)
        return transfer

    def _argument(self, word: str) -> Expression:
        argument = self._expression(f"the {word}")
        self._expect(",", "an operator or ','")
        return argument

    def _expression(self, expected: str = _OPERAND) -> Expression:
        first = self._next
        nodes: list[ExpressionStep] = []
        self._binary(nodes, expected)
        last = self._last
        text = ""
        if last.line == first.line:
            end = last.column - 1 + len(last.text)
            text = self._lines[first.line - 1][first.column - 1 : end]
        text = text if len(text) <= _MAX_TEXT else ""
        return Expression(tuple(nodes), text, first.line, first.column)

    def _binary(self, nodes: list[ExpressionStep], expected: str, level: int = 0) -> None:
        """Operands joined by the operators of a level, each of them of the next one."""
        if level == len(_LEVELS):
            self._factor(nodes, expected)
            return
        self._binary(nodes, expected, level + 1)
        while self._next.text in _LEVELS[level]:
            sign = self._advance()
            self._binary(nodes, _OPERAND, level + 1)
            act = _LEVELS[level][sign.text]
            nodes.append(ExpressionStep(act, sign.text, 0, sign.line, sign.column))

    def _factor(self, nodes: list[ExpressionStep], expected: str) -> None:
        signs = []
        while self._next.text == "-":
            signs.append(self._advance())
        token = self._next
        if token.kind is TokenKind.NUMBER:
            nodes.append(ExpressionStep(Act.NUMBER, "", self._number(), token.line, token.column))
            self._advance()
        elif token.kind is TokenKind.WORD:
            if token.text in RESERVED:
                self._refuse(L143, expected)
            nodes.append(ExpressionStep(Act.NAME, token.text, 0, token.line, token.column))
            self._advance()
        elif token.text == "(":
            self._parenthesis(nodes)
        else:
            self._refuse(L143, expected)
        nodes += [ExpressionStep(Act.NEGATE, "-", 0, s.line, s.column) for s in reversed(signs)]

    def _parenthesis(self, nodes: list[ExpressionStep]) -> None:
        self._depth += 1
        if self._depth > MAX_PARENTHESES:
            remedy = "Assign parts of the expression to variables."
            self._refuse(L143, f"at most {MAX_PARENTHESES} nested parentheses", remedy=remedy)
        self._advance()
        self._binary(nodes, _OPERAND)
        self._expect(")", "an operator or ')'")
        self._depth -= 1

    def _number(self) -> int:
        """The number of the next token. Long ones are refused before their conversion, which takes
        square time."""
        digits = self._next.text.lstrip("0") or "0"
        if len(digits) > len(str(MAX_VALUE)) or int(digits) > MAX_VALUE:
            raise L153.error(
                at=self._place(),
                expected=f"a number up to {MAX_VALUE}",
                found=shorten(digits),
            )
        return int(digits)


def _constant(value: int, like: Expression) -> Expression:
    """A number that the text omits, at the place of `like`."""
    node = ExpressionStep(Act.NUMBER, "", value, like.line, like.column)
    return Expression((node,), str(value), like.line, like.column)


def _cost(statement: Statement) -> int:
    return 1 + sum(len(expression.nodes) for expression in statement.expressions)
