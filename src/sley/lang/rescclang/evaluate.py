"""Evaluate: runs statements one after another, and the iterations of independent loops at once.

Either way the transfers have the order of plain execution, and of several mistakes the first one of
plain execution is reported. In the order of the file:

The flow of names: the independent loops, whose iterations pass no values to one another or out of
the loop. These may run all iterations at once. Since a loop may have no iterations, it is never
certain that it assigns a name.

The budget bounds the work of loops, so that every text is read in bounded time.

Arithmetic: the value of an expression is an integer, or an int64 array with an entry for each lane,
which is one of the iterations that run at once. Numbers stay within 32 bits, so that no product of
two overflows 64.

Lanes: an independent loop is expanded, so each lane becomes as many lanes as it has iterations.
Other loops run one iteration after another, in all lanes that are not finished. This is right
because the outermost loop is independent: a name that a lane reads was assigned by the lane itself,
or is not assigned within that loop. So it has a value in all lanes or in none.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn, TypeAlias

import numpy as np

from sley.errors import Rule, SleyError
from sley.errors.language import L101, L103, L124
from sley.errors.rescclang import L146, L153, L156
from sley.ir.tables import BoolArray, IntArray, LongArray, offsets_of, spans
from sley.lang.rescclang.parser import (
    MAX_VALUE,
    MIN_VALUE,
    Act,
    Assign,
    Block,
    Expression,
    ExpressionStep,
    For,
    Statement,
    SyntaxTree,
    Transfer,
    nearest,
)


@dataclass(frozen=True, slots=True)
class LoopFlow:
    """The variables of a loop.

    independent: whether no name that an iteration assigns is read in another one or after the loop.
    exposed: names that an iteration may read before it assigns them, without the loop's variable.
    assigned: names that an iteration may assign, with the loop's variable.
    """

    independent: bool
    exposed: frozenset[str]
    assigned: frozenset[str]


def flow(algorithm: SyntaxTree) -> list[LoopFlow]:
    """The flow of each loop, by its number."""
    analysis = _Analysis(algorithm.loops)
    analysis.summary(algorithm.body)
    analysis.mark(algorithm.body, set())
    return analysis.loops


class _Analysis:
    """Two passes over the blocks. Linear in the size of the text times its depth."""

    def __init__(self, loops: int) -> None:
        self.loops = [LoopFlow(False, frozenset(), frozenset())] * loops

    def summary(self, block: Block) -> tuple[set[str], set[str]]:
        """The names that a block may read before it assigns them, and those it may assign."""
        exposed: set[str] = set()
        assigned: set[str] = set()
        certain: set[str] = set()
        for statement in block.statements:
            exposed |= _reads(statement) - certain
            if isinstance(statement, Assign):
                certain.add(statement.name)
                assigned.add(statement.name)
            elif isinstance(statement, For):
                inner_exposed, inner_assigned = self.summary(statement.body)
                inner_exposed.discard(statement.name)
                inner_assigned.add(statement.name)
                names = frozenset(inner_exposed), frozenset(inner_assigned)
                self.loops[statement.number] = LoopFlow(False, *names)
                exposed |= inner_exposed - certain
                assigned |= inner_assigned
        return exposed, assigned

    def mark(self, block: Block, live: set[str]) -> None:
        """Marks the independent loops of a block. live: the names that may be read after the block
        before they are assigned; it becomes those before the block."""
        for statement in reversed(block.statements):
            if isinstance(statement, Assign):
                live.discard(statement.name)
            elif isinstance(statement, For):
                loop = self.loops[statement.number]
                exposed, assigned = loop.exposed, loop.assigned
                if exposed.isdisjoint(assigned) and live.isdisjoint(assigned):
                    self.loops[statement.number] = replace(loop, independent=True)
                # A loop without iterations assigns nothing, so names that were live stay live. To
                # copy `live` for each loop would take square time.
                restored = [name for name in assigned if name in live]
                live |= exposed
                self.mark(statement.body, live)
                live.discard(statement.name)
                live.update(restored)
            live |= _reads(statement)


def _reads(statement: Statement) -> set[str]:
    nodes = (node for expression in statement.expressions for node in expression.nodes)
    return {node.word for node in nodes if node.act is Act.NAME}


MAX_TRANSFERS = 2**24
"""Bound on transfers: one between each two of 4,096 ranks. 1,024 GPUs need about two million."""

MAX_ITERATIONS = 2**27
"""Bound on the iterations of all loops together."""

MAX_WORK = 2**34
"""Bound on steps of evaluation, in units of one of many lanes: about twenty seconds."""

ALONE = 256
"""Weight of an iteration that runs alone, in Python."""

CALL = 4096
"""Weight of iterations that run at once, besides 1 for each: a call of NumPy."""


class Budget:
    """The work so far. Errors: L156, before any work beyond a bound."""

    def __init__(self) -> None:
        self._transfers = 0
        self._iterations = 0
        self._work = 0
        self.enforced = True

    def loop(self, loop: For, iterations: int, weight: int) -> None:
        """Adds a loop's iterations in all lanes. weight: of running a step in all of them."""
        if not self.enforced:
            return
        self._iterations += iterations
        self._work += weight * loop.body.cost
        if self._iterations > MAX_ITERATIONS:
            self._refuse(
                loop,
                f"at most {MAX_ITERATIONS} iterations of all loops together",
                f"{self._iterations} iterations with this loop over {loop.name[:60]}",
            )
        if self._work > MAX_WORK:
            self._refuse(
                loop,
                f"at most {MAX_WORK} steps of evaluation",
                f"{self._work} with {iterations} iterations of this loop over {loop.name[:60]}",
            )

    def transfers(self, transfer: Transfer, count: int) -> None:
        """Adds transfers."""
        if not self.enforced:
            return
        self._transfers += count
        if self._transfers > MAX_TRANSFERS:
            found = f"{self._transfers} with this one"
            self._refuse(transfer, f"at most {MAX_TRANSFERS} transfers", found)

    def _refuse(self, where: For | Transfer, expected: str, found: str) -> None:
        raise L156.error(at=where.at, expected=expected, found=found)


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
        self.rule, self.at, self.expected, self.found = rule, where.at, expected, found


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


PIECE = 2**18
"""Lanes that run at once: their arrays fit into a cache, and memory stays bounded."""

COLUMNS = 5
"""Columns of transfers: source rank, destination rank, step, chunk, and site."""


@dataclass(frozen=True)
class Batch:
    """Transfers of lanes: sorted by lane, and for each lane in the order of execution.

    lane: int32 (transfers,), ascending. columns: `COLUMNS` of int32 (transfers,).
    """

    lane: IntArray
    columns: tuple[IntArray, ...]

    @classmethod
    def of(cls, lanes: int, *values: Value) -> Batch:
        """One transfer of each lane."""
        columns = (np.asarray(v, np.int32) for v in values)
        return cls(
            np.arange(lanes, dtype=np.int32),
            tuple(np.broadcast_to(column, lanes) for column in columns),
        )

    def of_lanes(self, lane: LongArray) -> Batch:
        """The same transfers, those of lane i as transfers of lane[i] (ascending)."""
        return Batch(lane[self.lane].astype(np.int32), self.columns)


def _merge(batches: list[Batch]) -> Batch | None:
    """The transfers of one batch after another, sorted by lane."""
    if len(batches) <= 1:
        return batches[0] if batches else None
    lane = np.concatenate([b.lane for b in batches])
    columns = tuple(np.concatenate([b.columns[k] for b in batches]) for k in range(COLUMNS))
    if not (lane[1:] < lane[:-1]).any():
        return Batch(lane, columns)
    # Stable: the transfers of a lane keep the order of execution.
    order = np.argsort(lane, kind="stable")
    return Batch(lane[order], tuple(column[order] for column in columns))


@dataclass(frozen=True)
class Span:
    """The iterations of a loop in all lanes, numbered lane by lane.

    start, step: of the ranges. offset: int64 (lanes + 1,), the first iteration of each lane.
    """

    start: Value
    step: Value
    offset: LongArray

    @classmethod
    def of(cls, loop: For, names: Names, lanes: int) -> Span:
        """The iterations of a loop. Errors: LaneError."""
        start, stop, step = (evaluate(e, names) for e in loop.expressions)
        check_step(loop, step)
        # As `range` counts: rounded up, and none if the stop lies behind the start.
        count = np.maximum(0, -((start - stop) // step))
        return cls(start, step, offsets_of(np.broadcast_to(count, lanes)))

    @property
    def count(self) -> LongArray:
        return np.diff(self.offset)

    def piece(self, first: int, end: int) -> tuple[LongArray, LongArray]:
        """The lanes and the loop variable's values of the iterations first ... end - 1."""
        # Empty lanes begin where the next one does: of those that begin here the last has `first`.
        low = int(np.searchsorted(self.offset, first, side="right")) - 1
        high = int(np.searchsorted(self.offset, end, side="left"))
        begin = self.offset[low:high]
        skipped = np.maximum(begin, first) - begin
        ends = np.minimum(self.offset[low + 1 : high + 1], end) - begin
        owner, turn = spans(skipped, ends - skipped)
        owner += low
        return owner, np.asarray(_of(self.start, owner) + turn * _of(self.step, owner))

    def owner(self, iteration: int) -> int:
        """The lane of an iteration."""
        return int(np.searchsorted(self.offset, iteration, side="right")) - 1


def _of(value: Value, lanes: LongArray) -> Value:
    return value if isinstance(value, int) else value[lanes]


@dataclass(frozen=True)
class LaneRunner:
    """Runs blocks on lanes.

    Errors: LaneError, with a failing lane, which need not be the first one; L156.
    """

    flows: list[LoopFlow]
    budget: Budget
    ranks: int

    def expand(
        self, loop: For, span: Span, names: Names, first: int, end: int
    ) -> Iterator[tuple[LongArray, Batch]]:
        """Runs iterations first ... end - 1 at once, in pieces: yields the lane of each iteration
        of a piece, and their transfers. The lane of a LaneError is the iteration."""
        exposed = [name for name in self.flows[loop.number].exposed if name in names]
        # Iterations are independent, so pieces of them give the same as all at once.
        for begin in range(first, end, PIECE):
            owner, value = span.piece(begin, min(begin + PIECE, end))
            inner = {name: _of(names[name], owner) for name in exposed}
            inner[loop.name] = value
            try:
                batch = self._block(loop.body, inner, len(owner))
            except LaneError as fault:
                raise LaneError(begin + fault.lane) from None
            if batch is not None:
                yield owner, batch

    def _block(self, block: Block, names: Names, lanes: int) -> Batch | None:
        batches: list[Batch] = []
        for statement in block.statements:
            if isinstance(statement, Assign):
                names[statement.name] = evaluate(statement.value, names)
            elif isinstance(statement, Transfer):
                batches.append(self._transfer(statement, names, lanes))
            else:
                batches += self._loop(statement, names, lanes)
        return _merge(batches)

    def _transfer(self, t: Transfer, names: Names, lanes: int) -> Batch:
        self.budget.transfers(t, lanes)
        src, dst, step, chunk = (evaluate(e, names) for e in t.expressions)
        check_transfer(t, self.ranks, src, dst, step, chunk)
        return Batch.of(lanes, src, dst, step, chunk, t.site)

    def _loop(self, loop: For, names: Names, lanes: int) -> list[Batch]:
        span = Span.of(loop, names, lanes)
        if not self.flows[loop.number].independent:
            return self._in_turn(loop, span, names, lanes)
        total = int(span.offset[-1])
        self.budget.loop(loop, total, total + -(-total // PIECE) * CALL)
        try:
            return [
                batch.of_lanes(owner) for owner, batch in self.expand(loop, span, names, 0, total)
            ]
        except LaneError as fault:
            raise LaneError(span.owner(fault.lane)) from None

    def _in_turn(self, loop: For, span: Span, names: Names, lanes: int) -> list[Batch]:
        """Runs the first iteration of each lane, then the second, and so on."""
        flow, count, batches = self.flows[loop.number], span.count, []
        turns, total = int(count.max(initial=0)), int(span.offset[-1])
        self.budget.loop(loop, total, total + turns * CALL)
        # Arrays of their own: lanes that have finished keep their values while others go on.
        for name in flow.assigned & names.keys():
            names[name] = np.array(np.broadcast_to(names[name], lanes), np.int64)
        needed = [name for name in flow.assigned | flow.exposed if name in names]
        active = np.flatnonzero(count)
        for turn in range(turns):
            # A lane that has finished never runs again, so there are only ever fewer.
            active = active[count[active] > turn]
            inner = {name: _of(names[name], active) for name in needed}
            inner[loop.name] = _of(span.start, active) + turn * _of(span.step, active)
            try:
                batch = self._block(loop.body, inner, len(active))
            except LaneError as fault:
                raise LaneError(int(active[fault.lane])) from None
            if batch is not None:
                batches.append(batch.of_lanes(active))
            for name in flow.assigned & names.keys():
                names[name][active] = inner[name]  # type: ignore[index]
        return batches


def transfers(
    algorithm: SyntaxTree, variables: dict[str, int], ranks: int, *, at_once: bool = True
) -> tuple[IntArray, ...]:
    """The transfers of an algorithm, as int32 columns: source rank, destination rank, step, chunk,
    and the site, which is the number of the transfer in the text.

    variables: values at the start. at_once: whether independent loops run all iterations at once;
    False is the plain interpreter, for tests. Errors: L101, L103, L124, L146, L153 to L156.
    """
    run = _RunState(algorithm, variables, ranks, at_once)
    try:
        run.block(algorithm.body)
    except PlainError as mistake:
        raise run.error(mistake) from None
    return run.rows.columns()


class _RunState:
    """The state of a run: variables, the loops around the current statement, and transfers."""

    def __init__(
        self, algorithm: SyntaxTree, variables: dict[str, int], ranks: int, at_once: bool
    ) -> None:
        self.rows = Rows()
        self._ranks = ranks
        self._names: Names = dict(variables)
        self._loops: list[tuple[str, int]] = []
        self._at_once = at_once
        self._budget = Budget()
        self._lanes = LaneRunner(flow(algorithm), self._budget, ranks)

    def error(self, fault: PlainError) -> SleyError:
        """The mistake as an error that names the values of the loops' variables."""
        loops = ", ".join(f"{name[:60]} = {value}" for name, value in self._loops)
        return fault.rule.error(
            at=fault.at,
            expected=fault.expected,
            found=f"{fault.found} with {loops}" if loops else fault.found,
        )

    def block(self, block: Block) -> None:
        """Runs statements. Errors: PlainError; L156."""
        for statement in block.statements:
            if isinstance(statement, Assign):
                self._names[statement.name] = evaluate(statement.value, self._names)
            elif isinstance(statement, Transfer):
                self._transfer(statement)
            else:
                self._for(statement)

    def _transfer(self, t: Transfer) -> None:
        self._budget.transfers(t, 1)
        values = self._evaluate(t)
        check_transfer(t, self._ranks, *values)
        self.rows.add(*values, t.site)

    def _evaluate(self, statement: Transfer | For) -> tuple[int, ...]:
        # Outside of lanes all values are integers.
        return tuple(int(evaluate(e, self._names)) for e in statement.expressions)

    def _for(self, loop: For) -> None:
        start, stop, step = self._evaluate(loop)
        check_step(loop, step)
        values = range(start, stop, step)
        if self._at_once and self._lanes.flows[loop.number].independent:
            self._expand(loop, values)
            return
        self._budget.loop(loop, len(values), len(values) * ALONE)
        self._loops.append((loop.name, start))
        for value in values:
            self._iteration(loop, value)
        self._loops.pop()

    def _iteration(self, loop: For, value: int) -> None:
        self._loops[-1] = (loop.name, value)
        self._names[loop.name] = value
        self.block(loop.body)

    def _expand(self, loop: For, values: range) -> None:
        span = Span.of(loop, self._names, 1)
        self._budget.loop(loop, len(values), len(values) + -(-len(values) // PIECE) * CALL)
        try:
            for _, batch in self._lanes.expand(loop, span, self._names, 0, len(values)):
                self.rows.extend(batch)
        except LaneError as fault:
            self._run_first_faulty(loop, values, span, fault)

    def _run_first_faulty(self, loop: For, values: range, span: Span, fault: LaneError) -> NoReturn:
        """Runs the first failing iteration alone, which raises its first mistake.

        Since iterations are independent, bisection finds it in twice the time of all iterations.
        """
        # The work has been counted already.
        self._budget.enforced = False
        good, bad = 0, fault.lane
        # All before `good` are right, and `bad` is wrong. Ends: `middle` is below `bad`, so each
        # turn brings the two nearer to each other.
        while good < bad:
            middle = (good + bad) // 2
            try:
                for _ in self._lanes.expand(loop, span, self._names, good, middle + 1):
                    pass
                good = middle + 1
            except LaneError as earlier:
                bad = earlier.lane
        self._loops.append((loop.name, values[bad]))
        self._iteration(loop, values[bad])
        raise fault


class Rows:
    """A collection of transfers."""

    def __init__(self) -> None:
        self._single = array("i")
        self._parts: list[tuple[IntArray, ...]] = []

    def add(self, *values: int) -> None:
        """Adds one transfer, with the values of its columns."""
        self._single.extend(values)

    def extend(self, batch: Batch) -> None:
        """Adds the transfers of a batch."""
        self._flush()
        self._parts.append(batch.columns)

    def columns(self) -> tuple[IntArray, ...]:
        """All transfers, as columns; empties the collection."""
        self._flush()
        parts, self._parts = self._parts, []
        if not parts:
            return (np.zeros(0, np.int32),) * COLUMNS
        return tuple(np.concatenate([p[k] for p in parts]) for k in range(COLUMNS))

    def _flush(self) -> None:
        if self._single:
            rows = np.frombuffer(self._single, np.int32).reshape(-1, COLUMNS)
            self._parts.append(tuple(np.ascontiguousarray(column) for column in rows.T))
            self._single = array("i")
