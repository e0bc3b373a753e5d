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
    """A mistake in a lane. An integer is wrong in all lanes, of which 0 is the first."""

    def __init__(
        self, rule: Rule, where: ExpressionStep | Expression | Transfer, expected: str, found: str
    ) -> None:
        super().__init__(rule.code)
        self.rule = rule
        self.line, self.column = where.line, where.column
        self.expected, self.found = expected, found
        self.lane = 0

    def at(self, lane: int) -> LaneError:
        """The same mistake, in another lane."""
        self.lane = lane
        return self


def pick(value: Value, lane: int) -> int:
    """The value of one lane."""
    return value if isinstance(value, int) else int(value[lane])


def evaluate(expression: Expression, names: Names) -> Value:
    """The value of an expression; division rounds down, as Python's // does.

    Errors: LaneError of L146 or L153.
    """
    stack: list[Value] = []
    for node in expression.nodes:
        act = node.act
        if act is _NUMBER:
            stack.append(node.value)
        elif act is _NAME:
            if node.word not in names:
                found = f"{node.word[:60]}{nearest(node.word, names)}"
                raise LaneError(L146, node, "a variable that has a value", found)
            stack.append(names[node.word])
        elif act is _NEGATE:
            stack.append(_combine(node, 0, stack.pop()))
        else:
            right = stack.pop()
            stack.append(_combine(node, stack.pop(), right))
    return stack[0]


def _combine(node: ExpressionStep, left: Value, right: Value) -> Value:
    if isinstance(left, int) and isinstance(right, int):
        return _combine_numbers(node, left, right)
    if node.act in (Act.DIVIDE, Act.REMAINDER):
        zero = np.equal(right, 0)
        if zero.any():
            _refuse_lane(node, left, right, int(np.argmax(zero)))
    value = np.asarray(_OPERATORS[node.act](left, right))
    if value.min() < MIN_VALUE or value.max() > MAX_VALUE:
        _refuse_lane(node, left, right, int(np.argmax((value < MIN_VALUE) | (value > MAX_VALUE))))
    return value


def _combine_numbers(node: ExpressionStep, left: int, right: int) -> int:
    if right == 0 and node.act in (Act.DIVIDE, Act.REMAINDER):
        raise LaneError(L153, node, "a divisor other than 0", f"{left} {node.word} 0")
    value: int = _OPERATORS[node.act](left, right)
    if not MIN_VALUE <= value <= MAX_VALUE:
        text = f"-({right})" if node.act is Act.NEGATE else f"{left} {node.word} {right}"
        expected = f"a number from {MIN_VALUE} to {MAX_VALUE}"
        raise LaneError(L153, node, expected, f"{text} = {value}")
    return value


def _refuse_lane(node: ExpressionStep, left: Value, right: Value, lane: int) -> None:
    """Raises the LaneError of one lane."""
    try:
        _combine_numbers(node, pick(left, lane), pick(right, lane))
    except LaneError as fault:
        raise fault.at(lane) from None


def check_step(loop: For, step: Value) -> None:
    """Refuses a range whose step is zero. Errors: LaneError of L153."""
    zero = np.equal(step, 0)
    if zero.any():
        fault = LaneError(L153, loop.step, "a step other than 0", _equation(loop.step, 0))
        raise fault.at(0 if isinstance(step, int) else int(np.argmax(zero)))


def check_transfer(
    transfer: Transfer, ranks: int, src: Value, dst: Value, step: Value, chunk: Value
) -> None:
    """Refuses a transfer of ranks or chunks that don't exist (both from 0 to ranks - 1), from a
    rank to itself or at a negative step. Errors: LaneError of L101, L103 or L124."""
    values = (src, dst, step, chunk)
    if all(isinstance(v, int) for v in values):
        _check_numbers(transfer, ranks, *(pick(v, 0) for v in values))
        return
    bad: BoolArray = np.asarray(np.equal(src, dst) | np.less(step, 0))
    for value in (src, dst, chunk):
        bad = bad | np.less(value, 0) | np.greater_equal(value, ranks)
    if not bad.any():
        return
    lane = int(np.argmax(bad))
    try:
        _check_numbers(transfer, ranks, *(pick(v, lane) for v in values))
    except LaneError as fault:
        raise fault.at(lane) from None


def _check_numbers(t: Transfer, ranks: int, src: int, dst: int, step: int, chunk: int) -> None:
    for rule, what, where, value in (
        (L101, "a source rank", t.src, src),
        (L101, "a destination rank", t.dst, dst),
        (L103, "a chunk", t.chunk, chunk),
    ):
        if not 0 <= value < ranks:
            expected = f"{what} from 0 to {ranks - 1}"
            raise LaneError(rule, where, expected, _equation(where, value))
    if src == dst:
        raise LaneError(L124, t, "two different ranks", f"a transfer from rank {src} to itself")
    if step < 0:
        raise LaneError(L124, t.step, "a step from 0", _equation(t.step, step))


def _equation(where: Expression, value: int) -> str:
    """An expression with its value, as in "dstRank = 9"."""
    return str(value) if where.text in ("", str(value)) else f"{where.text} = {value}"
