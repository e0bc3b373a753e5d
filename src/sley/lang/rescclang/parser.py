"""Parser: the statements of a ResCCLang text (ResCCL, figure 14), whose syntax is Python's.

algorithm  = ["def"] "ResCCLAlgo" "(" parameter {"," parameter} ")" ":" block
parameter  = name "=" (number | string)
block      = simple {";" simple} | indented {simple {";" simple} | loop}
simple     = name "=" expression | "transfer" "(" 4 * (expression ",") type ")"
loop       = "for" name "in" "range" "(" expression [, expression [, expression]] ")" ":" block
expression = term {("+" | "-") term}
term       = factor {("*" | "/" | "//" | "%") factor}
factor     = {"-"} (number | name | "(" expression ")")
type       = "recv" | "rrc", bare or in quotes

Python's own parser reads the text, which never runs: it bounds the nesting of blocks and of
parentheses, and refuses what isn't Python. First the values that `parse_text` makes, then the walk
over Python's tree, which refuses all that isn't in this grammar. Lines and columns count from 1.
"""

from __future__ import annotations

import ast
import difflib
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, NoReturn, TypeAlias

from sley.errors import Place, Rule, SleyError
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
    at: Place


@dataclass(frozen=True, slots=True)
class Expression:
    """An expression in postfix order, which is evaluated without recursion.

    text: the expression as it is written, for messages; "" if that is long.
    """

    nodes: tuple[ExpressionStep, ...]
    text: str
    at: Place


@dataclass(frozen=True, slots=True)
class Assign:
    """`name = value`"""

    name: str
    value: Expression

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
    at: Place

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
    at: Place

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
    """A parameter of the header, whose name is at `at`.

    value: None if it is neither a number nor a string. word: the value as it is written.
    """

    name: str
    value: object
    word: str
    at: Place
    value_at: Place


@dataclass(frozen=True, slots=True)
class SyntaxTree:
    """A text: the header, which begins at `at`, and the body.

    transfers: the transfers in the order of their sites. loops: the number of loops.
    """

    parameters: tuple[Parameter, ...]
    body: Block
    transfers: tuple[Transfer, ...]
    loops: int
    at: Place


HEAD = "ResCCLAlgo"
RESERVED = frozenset({"range", "transfer", "recv", "rrc", HEAD})
"""Words of the language, which can't be names of variables; Python refuses its own."""

_NEWLINE = re.compile(r"\r\n|\r|\n")
_EMPTY_LINES = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n))*+")
_EMPTY_LINE = re.compile(r"[ \t]*(?:#[^\r\n]*)?")
_UNREADABLE = re.compile("[\0\ud800-\udfff]")
"""Characters for which Python names no place."""

_BINARY: dict[type[ast.operator], tuple[Act, str]] = {
    ast.Add: (Act.ADD, "+"),
    ast.Sub: (Act.SUBTRACT, "-"),
    ast.Mult: (Act.MULTIPLY, "*"),
    ast.Div: (Act.DIVIDE, "/"),
    ast.FloorDiv: (Act.DIVIDE, "//"),
    ast.Mod: (Act.REMAINDER, "%"),
}
_FORMS = {
    "for": "for name in range(...): with one to three bounds, without else",
    "transfer": "transfer(source rank, destination rank, step, chunk, type)",
}
Node: TypeAlias = ast.stmt | ast.expr | ast.arg
_MAX_TEXT, _MAX_CANDIDATES = 60, 1000


def shorten(text: str) -> str:
    """The user's text, shortened for a message."""
    return text if len(text) <= 40 else text[:37] + "..."


def nearest(word: str, candidates: Iterable[str]) -> str:
    """ ", did you mean ...": the candidates most similar to a word; "" if none is."""
    known = [c for c, _ in zip(candidates, range(_MAX_CANDIDATES), strict=False)]
    lower = {c.lower(): c for c in known}
    close = difflib.get_close_matches(word[:_MAX_TEXT].lower(), lower, n=3, cutoff=0.6)
    return f", did you mean {' or '.join(lower[c] for c in close)}?" if close else ""


def syntax_tree(text: str, file: str, parameters: Iterable[str]) -> SyntaxTree:
    """The tree of a text. parameters: names that the body may read but not assign. Errors: L115,
    L124, L143, L150, L153, with line and column."""
    text = text.removeprefix("\ufeff")
    if unreadable := _UNREADABLE.search(text):
        before = _NEWLINE.split(text[: unreadable.start()])
        at = Place(file, len(before), len(before[-1]) + 1)
        raise L143.error(at=at, expected="characters of a text", found=ascii(unreadable[0]))
    begin = _EMPTY_LINES.match(text).end()  # type: ignore[union-attr]  # it matches nothing, too
    text, line = text[begin:], len(_NEWLINE.split(text[:begin]))
    if _EMPTY_LINE.fullmatch(text):
        raise L115.error(
            at=Place(file, line, 1),
            expected=f"{HEAD}(...):",
            found="no program",
            remedy="Write a header and a body, as in ResCCL's figure 16.",
        )
    head = re.match(r"[ \t]*(def[ \t]+)?(\w*)", text)
    assert head is not None  # it matches nothing, too
    whole = Place(file, line, head.start(2) + 1)
    # Python's names go on with more characters than \w has.
    is_longer = f"a{text[head.end() : head.end() + 1]}".isidentifier()
    if head[2] != HEAD or is_longer or text[0] in " \t":
        beginning = _NEWLINE.split(text, 1)[0].lstrip(" \t")
        found = f"{shorten(beginning)!r}{nearest(head[2], [HEAD])}"
        raise L143.error(at=whole, expected=f"{HEAD}(...): without indentation", found=found)
    # A line is put before the header, so that its columns stay, whether it has a `def` or not.
    source = ("\n" if head[1] else "def \\\n") + text
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's, about a text like 1if
            function, *others = ast.parse(source).body
    except SyntaxError as error:
        at = Place(file, (error.lineno or 2) + line - 2, max(error.offset or 1, 1))
        remedy = _INDENTATION if isinstance(error, IndentationError) else ""
        # Lines in the message would be those of the source; what follows it is for programmers.
        more = r" \(detected at line \d+\)| on line \d+| for integer string conversion.*"
        found = re.sub(more, "", error.msg)
        if found == "invalid syntax" and error.lineno and error.end_offset:
            word = _NEWLINE.split(source)[error.lineno - 1][at.column - 1 : error.end_offset - 1]
            found += f": {shorten(word)!r}" if word.strip() else ": the end of the line"
        expected = "the language's syntax, which is Python's"
        raise L143.error(at=at, expected=expected, found=found, remedy=remedy) from None
    except (MemoryError, RecursionError):
        raise L143.error(
            at=whole,
            expected="expressions of less depth",
            found="one with too many operators",
            remedy="Assign parts of the expression to variables.",
        ) from None
    assert isinstance(function, ast.FunctionDef)  # it begins with def
    walk = _TreeWalk(source, file, line - 2, parameters)
    for other in others:
        walk.refuse(other, "nothing after the algorithm")
    return walk.algorithm(function, whole)


_INDENTATION = "Indent all statements of a block equally, with only spaces or only tabs."


class _TreeWalk:
    """Makes a `SyntaxTree` of Python's tree. skipped: the text's lines before the source's."""

    def __init__(self, source: str, file: str, skipped: int, parameters: Iterable[str]) -> None:
        # Python counts columns in bytes.
        self._lines = [line.encode() for line in _NEWLINE.split(source)]
        self._file, self._skipped = file, skipped
        self._parameters = frozenset(parameters)
        self._transfers: list[Transfer] = []
        self._loops = 0
        self._last = (0, 0, 0)

    def algorithm(self, function: ast.FunctionDef, at: Place) -> SyntaxTree:
        """The tree of the whole text, whose header is at this place."""
        given = function.args
        plain, valued = given.args, len(given.defaults)
        others = [given.vararg, given.kwarg, *given.posonlyargs, *given.kwonlyargs]
        others += [*plain[: len(plain) - valued], *(one for one in plain if one.annotation)]
        for other in others:
            if other is not None:
                self.refuse(other, "a parameter with a value, as in nRanks=32")
        if function.returns is not None:
            self.refuse(function.returns, "':' after ')'")
        parameters = tuple(map(self._parameter, plain, given.defaults))
        body = self._block(function.body)
        return SyntaxTree(parameters, body, tuple(self._transfers), self._loops, at)

    def refuse(self, node: Node, expected: str, rule: Rule = L143, remedy: str = "") -> NoReturn:
        """Refuses what stands at a node."""
        found = repr(shorten(self._text(node) or self._rest(node)))
        raise rule.error(at=self._at(node), expected=expected, found=found, remedy=remedy)

    def _at(self, node: Node) -> Place:
        return self._place(node.lineno, node.col_offset)

    def _place(self, line: int, column: int) -> Place:
        # Characters are counted from the last place on: all from the beginnings of their lines
        # would take square time in a long line.
        known, last, count = self._last
        if line != known:
            last = count = 0
        begin, end = sorted((last, column))
        between = len(self._lines[line - 1][begin:end].decode(errors="ignore"))
        count += between if column > last else -between
        self._last = line, column, count
        return Place(self._file, line + self._skipped, count + 1)

    def _rest(self, node: Node) -> str:
        """The line from a node on."""
        return self._lines[node.lineno - 1][node.col_offset :].decode()

    def _text(self, node: Node) -> str:
        """What is written at a node; "" if it has several lines."""
        if node.end_lineno != node.lineno:
            return ""
        return self._lines[node.lineno - 1][node.col_offset : node.end_col_offset].decode()

    def _parameter(self, name: ast.arg, value: ast.expr) -> Parameter:
        # The header refuses other values, since it knows the parameters' rules.
        try:
            literal = ast.literal_eval(value)
        except (ValueError, TypeError):
            literal = None
        known = literal if type(literal) in (int, str) else None
        word = self._text(value) or self._rest(value)
        return Parameter(name.arg, known, word, self._at(name), self._at(value))

    def _block(self, body: list[ast.stmt]) -> Block:
        statements = tuple(map(self._statement, body))
        return Block(statements, sum(map(_cost, statements)))

    def _statement(self, node: ast.stmt) -> Statement:
        match node:
            case ast.Assign(targets=[ast.Name() as name]):
                self._check_variable(name)
                return Assign(name.id, self._expression(node.value))
            case ast.For(
                target=ast.Name() as name,
                iter=ast.Call(func=ast.Name(id="range"), args=bounds, keywords=[]),
                orelse=[],
            ) if 1 <= len(bounds) <= 3:
                self._check_variable(name)
                number = self._loops
                self._loops += 1
                ends = self._bounds(bounds)
                return For(name.id, *ends, self._block(node.body), number, self._at(node))
            case ast.Expr(
                value=ast.Call(func=ast.Name(id="transfer"), args=[*ends, kind], keywords=[])
            ) if len(ends) == 4:
                return self._transfer(ends, kind, self._at(node))
            case _:
                raise self._unknown(node)

    def _unknown(self, node: ast.stmt) -> SleyError:
        """The error of a statement that the language doesn't have."""
        word = re.split(r"\W", self._rest(node), maxsplit=1)[0]
        if word in _FORMS:
            self.refuse(node, _FORMS[word])
        expected = "name = ..., for ... in range(...): or transfer(...)"
        if not (near := nearest(word, _FORMS)):
            self.refuse(node, expected)
        remedy = "Use one of these words in this spelling."
        found = f"{shorten(word)!r}{near}"
        return L143.error(at=self._at(node), expected=expected, found=found, remedy=remedy)

    def _check_variable(self, name: ast.Name) -> None:
        if name.id in RESERVED:
            remedy = "The name of a variable can't be a word of the language."
            self.refuse(name, "the name of a variable", remedy=remedy)
        if name.id in self._parameters:
            self.refuse(name, "another name", L150)

    def _bounds(self, given: list[ast.expr]) -> tuple[Expression, Expression, Expression]:
        """Start, stop and step of a range."""
        found = [self._expression(one) for one in given]
        if len(found) == 1:
            found.insert(0, _constant(0, found[0]))
        start, stop, *step = found
        return start, stop, step[0] if step else _constant(1, stop)

    def _transfer(self, ends: list[ast.expr], kind: ast.expr, at: Place) -> Transfer:
        src, dst, step, chunk = map(self._expression, ends)
        # A bare word, or a string's value.
        word = getattr(kind, "id", getattr(kind, "value", None))
        if word not in TYPES:
            self.refuse(kind, " or ".join(TYPES), L124)
        found = Transfer(src, dst, step, chunk, TYPES[word], len(self._transfers), at)
        self._transfers.append(found)
        return found

    def _expression(self, node: ast.expr) -> Expression:
        steps: list[ExpressionStep] = []
        todo = [node]
        # Each node comes before its right side, and that before its left side: the reverse of the
        # postfix order. Ends: each node is taken once. Without recursion, since a sum may be long.
        while todo:
            match one := todo.pop():
                case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                    act, sign = _BINARY[type(op)]
                    steps.append(ExpressionStep(act, sign, 0, self._sign_at(left, sign)))
                    todo += (left, right)
                case ast.UnaryOp(op=ast.USub(), operand=operand):
                    steps.append(ExpressionStep(Act.NEGATE, "-", 0, self._at(one)))
                    todo.append(operand)
                case ast.Constant(value=int() as number) if not isinstance(number, bool):
                    if number > MAX_VALUE:
                        self.refuse(one, f"a number up to {MAX_VALUE}", L153)
                    steps.append(ExpressionStep(Act.NUMBER, "", number, self._at(one)))
                case ast.Name(id=word) if word not in RESERVED:
                    steps.append(ExpressionStep(Act.NAME, word, 0, self._at(one)))
                case _:
                    self.refuse(one, "numbers, names, + - * / // % and parentheses")
        text = self._text(node)
        short = text if len(text) <= _MAX_TEXT else ""
        return Expression(tuple(reversed(steps)), short, self._at(node))

    def _sign_at(self, left: ast.expr, sign: str) -> Place:
        """The place of an operator, which Python's tree lacks: behind its left side; if it is on a
        further line, the left side's."""
        line, end = left.end_lineno or 0, left.end_col_offset or 0
        column = self._lines[line - 1].find(sign.encode(), end)
        return self._at(left) if column < 0 else self._place(line, column)


def _constant(value: int, like: Expression) -> Expression:
    """A number that the text omits, at the place of `like`."""
    return Expression((ExpressionStep(Act.NUMBER, "", value, like.at),), str(value), like.at)


def _cost(statement: Statement) -> int:
    return 1 + sum(len(expression.nodes) for expression in statement.expressions)
