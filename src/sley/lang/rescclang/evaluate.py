"""Evaluate: runs statements one after another, and the iterations of independent loops at once.

Either way the transfers have the order of plain execution, and of several mistakes the first one of
plain execution is reported.
"""

from __future__ import annotations

from array import array
from typing import NoReturn

import numpy as np

from sley.errors import Place, SleyError
from sley.ir.tables import IntArray
from sley.lang.rescclang.arithmetic import (
    LaneError,
    Names,
    PlainError,
    check_step,
    check_transfer,
    evaluate,
)
from sley.lang.rescclang.budget import ALONE, CALL, Budget
from sley.lang.rescclang.flow import flow
from sley.lang.rescclang.lanes import COLUMNS, PIECE, Batch, LaneRunner, Span
from sley.lang.rescclang.syntax import Assign, Block, For, SyntaxTree, Transfer


def transfers(
    algorithm: SyntaxTree, variables: dict[str, int], ranks: int, *, file: str, at_once: bool = True
) -> tuple[IntArray, ...]:
    """The transfers of an algorithm, as int32 columns: source rank, destination rank, step, chunk,
    and the site, which is the number of the transfer in the text.

    variables: values at the start. at_once: whether independent loops run all iterations at once;
    False is the plain interpreter, for tests. Errors: L101, L103, L124, L146, L153 to L156.
    """
    run = _RunState(algorithm, variables, ranks, file, at_once)
    try:
        run.block(algorithm.body)
    except PlainError as mistake:
        raise run.error(mistake) from None
    return run.rows.columns()


class _RunState:
    """The state of a run: variables, the loops around the current statement, and transfers."""

    def __init__(
        self, algorithm: SyntaxTree, variables: dict[str, int], ranks: int, file: str, at_once: bool
    ) -> None:
        self.rows = Rows()
        self._file = file
        self._ranks = ranks
        self._names: Names = dict(variables)
        self._loops: list[tuple[str, int]] = []
        self._flows = flow(algorithm)
        self._at_once = at_once
        self._budget = Budget(file)
        self._lanes = LaneRunner(self._flows, self._budget, ranks)

    def error(self, fault: PlainError) -> SleyError:
        """The mistake as an error that names the values of the loops' variables."""
        loops = ", ".join(f"{name[:60]} = {value}" for name, value in self._loops)
        return fault.rule.error(
            at=Place(self._file, fault.line, fault.column),
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
        if self._at_once and self._flows[loop.number].independent:
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
        self._budget.enforced = False
        good, bad = 0, fault.lane
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
