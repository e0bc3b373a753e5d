"""Syntax: the values that the parser makes of a ResCCLang text (ResCCL, figure 14).

Lines and columns count from 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, TypeAlias

from sley.ir.words import TransferKind

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
