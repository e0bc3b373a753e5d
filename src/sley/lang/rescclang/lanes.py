"""Lanes: runs many iterations at once, each as one lane of arrays.

An independent loop is expanded: each lane becomes as many lanes as it has iterations. Other loops
run one iteration after another, in all lanes that are not finished. This is right because the
outermost loop is independent: a name that a lane reads was assigned by the lane itself, or is not
assigned within that loop (`flow`). So it has a value in all lanes or in none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sley.ir.tables import IntArray, LongArray, offsets_of, spans
from sley.lang.rescclang.arithmetic import (
    LaneError,
    Names,
    Value,
    check_step,
    check_transfer,
    evaluate,
)
from sley.lang.rescclang.budget import CALL, Budget
from sley.lang.rescclang.flow import LoopFlow
from sley.lang.rescclang.syntax import Assign, Block, For, Transfer

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
        count = np.maximum(0, -((start - stop) // step))
        return cls(start, step, offsets_of(np.broadcast_to(count, lanes)))

    @property
    def count(self) -> LongArray:
        return np.diff(self.offset)

    def piece(self, first: int, end: int) -> tuple[LongArray, LongArray]:
        """The lanes and the loop variable's values of the iterations first ... end - 1."""
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
        for name in flow.assigned & names.keys():
            names[name] = np.array(np.broadcast_to(names[name], lanes), np.int64)
        needed = [name for name in flow.assigned | flow.exposed if name in names]
        active = np.flatnonzero(count)
        for turn in range(turns):
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
