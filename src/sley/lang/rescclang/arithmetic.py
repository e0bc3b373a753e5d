"""Arithmetic: the value of an expression, for one iteration or for many at once.

A value is an integer, or an int64 array with an entry for each lane, which is one of the iterations
that run at once. Numbers stay within 32 bits, so that no product of two overflows 64.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from sley.errors import Rule
from sley.errors.language import L101, L103, L124
from sley.errors.rescclang import L146, L153
from sley.ir.tables import BoolArray, LongArray
from sley.lang.rescclang.parser import nearest
from sley.lang.rescclang.syntax import (
    MAX_VALUE,
    MIN_VALUE,
    Act,
    Expression,
    ExpressionStep,
    For,
    Transfer,
)

Value: TypeAlias = int | LongArray
Names: TypeAlias = dict[str, Value]

_OPERATORS: tuple[Callable[[Any, Any], Any], ...] = (
    operator.sub,
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.mod,
)
"""Operators by Act; negation subtracts from 0. A tuple, since enumerations hash slowly."""

_NUMBER, _NAME, _NEGATE = Act.NUMBER, Act.NAME, Act.NEGATE


class LaneError(Exception):
    """A mistake in one of many lanes, which runs alone to tell what it is. lane: its number."""

    def __init__(self, lane: int) -> None:
        super().__init__(lane)
        self.lane = lane


class PlainError(LaneError):
    """A mistake of plain execution; among lanes one that is wrong in all of them."""

    def __init__(
        self, rule: Rule, where: ExpressionStep | Expression | Transfer, expected: str, found: str
    ) -> None:
        super().__init__(0)
        self.rule, self.expected, self.found = rule, expected, found
        self.line, self.column = where.line, where.column


def evaluate(expression: Expression, names: Names) -> Value:
    """The value of an expression; division rounds down, as Python's // does.

    Errors: PlainError of L146 or L153; LaneError.
    """
    stack: list[Value] = []
    for node in expression.nodes:
        act = node.act
        if act is _NUMBER:
            stack.append(node.value)
        elif act is _NAME:
            if node.word not in names:
                found = f"{node.word[:60]}{nearest(node.word, names)}"
                raise PlainError(L146, node, "a variable that has a value", found)
            stack.append(names[node.word])
        elif act is _NEGATE:
            stack.append(_combine(node, 0, stack.pop()))
        else:
            right = stack.pop()
            stack.append(_combine(node, stack.pop(), right))
    return stack[0]


def _combine(node: ExpressionStep, left: Value, right: Value) -> Value:
    alone = isinstance(left, int) and isinstance(right, int)
    if node.act in (Act.DIVIDE, Act.REMAINDER):
        if alone and right == 0:
            raise PlainError(L153, node, "a divisor other than 0", f"{left} {node.word} 0")
        if not alone:
            _refuse_lanes(np.equal(right, 0))
    value: Value = _OPERATORS[node.act](left, right)
    if not alone:
        value = np.asarray(value)
        if value.min() < MIN_VALUE or value.max() > MAX_VALUE:
            _refuse_lanes((value < MIN_VALUE) | (value > MAX_VALUE))
    elif not MIN_VALUE <= value <= MAX_VALUE:
        text = f"-({right})" if node.act is Act.NEGATE else f"{left} {node.word} {right}"
        expected = f"a number from {MIN_VALUE} to {MAX_VALUE}"
        raise PlainError(L153, node, expected, f"{text} = {value}")
    return value


def _refuse_lanes(wrong: BoolArray | np.bool_) -> None:
    """Raises the LaneError of the first wrong lane, if there is one."""
    if wrong.any():
        raise LaneError(int(np.argmax(wrong)))


def check_step(loop: For, step: Value) -> None:
    """Refuses a range whose step is zero. Errors: PlainError of L153; LaneError."""
    if isinstance(step, int) and step == 0:
        raise PlainError(L153, loop.step, "a step other than 0", _equation(loop.step, 0))
    _refuse_lanes(np.equal(step, 0))


def check_transfer(
    t: Transfer, ranks: int, src: Value, dst: Value, step: Value, chunk: Value
) -> None:
    """Refuses a transfer of ranks or chunks that don't exist (both from 0 to ranks - 1), from a
    rank to itself or at a negative step. Errors: PlainError of L101, L103 or L124; LaneError."""
    if not all(isinstance(value, int) for value in (src, dst, step, chunk)):
        wrong: BoolArray = np.asarray(np.equal(src, dst) | np.less(step, 0))
        for value in (src, dst, chunk):
            wrong = wrong | np.less(value, 0) | np.greater_equal(value, ranks)
        _refuse_lanes(wrong)
        return
    for rule, what, where, value in (
        (L101, "a source rank", t.src, src),
        (L101, "a destination rank", t.dst, dst),
        (L103, "a chunk", t.chunk, chunk),
    ):
        if not 0 <= value < ranks:
            raise PlainError(rule, where, f"{what} from 0 to {ranks - 1}", _equation(where, value))
    if src == dst:
        raise PlainError(L124, t, "two different ranks", f"a transfer from rank {src} to itself")
    if step < 0:
        raise PlainError(L124, t.step, "a step from 0", _equation(t.step, step))


def _equation(where: Expression, value: Value) -> str:
    """An expression with its value, as in "dstRank = 9"."""
    return str(value) if where.text in ("", str(value)) else f"{where.text} = {value}"
