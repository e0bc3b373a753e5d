"""Workload: the calls of a rank with the computation between them (GC3, section 8.6)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from sley.errors import Place, SleyError, did_you_mean
from sley.errors.tuning import D945
from sley.ir.collectives import SIZED
from sley.ir.sizes import MAX_BYTES
from sley.ir.tables import NONE, BoolArray, ByteArray, FloatArray, IntArray, LongArray, Table
from sley.ir.words import is_integer, is_real

COLLECTIVES = tuple(SIZED)
"""The collectives of calls; a column of a workload has their numbers."""

MOST_STEPS = 1 << 20
"""Bound on the steps of a workload: more are a mistake."""

_MOST_US = 1e12
_MOST_RANKS = 1 << 20


class Group(IntEnum):
    """The ranks of a call: CLUSTER, all of them; NODE, those of each node; RAIL, those with the
    same place in each node."""

    CLUSTER = 0
    NODE = 1
    RAIL = 2


class Cell(NamedTuple):
    """Calls that are equal for a tuner: of one collective, among the same ranks, of one size."""

    collective: str
    group: Group
    size_bytes: int


@dataclass(frozen=True, eq=False, repr=False)
class Workload(Table):
    """Steps of one rank in order, each of them a computation, then waits, then a call. All ranks
    do the same at the same time.

    name: for people. ranks: of the cluster.
    compute_us: float64 (steps,), the computation in microseconds.
    collective: int8 (steps,), the number in `COLLECTIVES` of the collective that is then called;
        NONE for a step without a call.
    group: int8 (steps,), the `Group` that calls it; NONE without a call.
    size_bytes: int64 (steps,), of the largest buffer of any rank, as nccl-tests counts it; 0
        without a call.
    waited: int32 (steps,), the step that waits for the call, after its computation: the call's own
        step if the call overlaps nothing, otherwise a later one; NONE without a call.

    Errors: D945.
    """

    name: str
    ranks: int
    compute_us: FloatArray
    collective: ByteArray
    group: ByteArray
    size_bytes: LongArray
    waited: IntArray

    def __post_init__(self) -> None:
        super().__post_init__()
        _check(self.ranks, 1, _MOST_RANKS, "ranks", Place())
        rows, calls = np.arange(len(self)), self.collective != NONE
        for name, is_bad in (
            ("steps", np.array([not 0 < len(self) <= MOST_STEPS])),
            ("compute_us", ~((self.compute_us >= 0) & (self.compute_us <= _MOST_US))),
            ("collective", (self.collective < NONE) | (self.collective >= len(COLLECTIVES))),
            ("group", ((self.group < 0) | (self.group >= len(Group)))[calls]),
            ("size_bytes", ((self.size_bytes < 1) | (self.size_bytes > MAX_BYTES))[calls]),
            ("waited", ((self.waited < rows) | (self.waited >= len(self)))[calls]),
            ("waited", self.waited[~calls] != NONE),
        ):
            if is_bad.any():
                row = int(np.flatnonzero(is_bad)[0])
                expected = f"a workload with valid {name}"
                raise D945.error(at=Place(detail=self.name), expected=expected, found=f"row {row}")

    @property
    def overlaps(self) -> BoolArray:
        """bool (steps,): whether a call runs beside what follows it."""
        return self.waited > np.arange(len(self))

    def calls(self) -> Iterator[tuple[int, Cell]]:
        """The steps that make a call, and the cell of each."""
        for row in np.flatnonzero(self.collective != NONE).tolist():
            yield row, self.cell(row)

    def cell(self, row: int) -> Cell:
        """The cell of a step's call."""
        return Cell(
            COLLECTIVES[self.collective[row]], Group(self.group[row]), int(self.size_bytes[row])
        )

    def cells(self) -> list[Cell]:
        """The distinct cells, in ascending order."""
        return sorted({cell for _, cell in self.calls()})


@dataclass
class Steps:
    """A workload in the making: computations, calls and waits in the order of a rank.

    at: where its text is, for errors.
    """

    at: Place = field(default_factory=Place)
    _rows: list[list[Any]] = field(default_factory=list)
    _compute_us: float = 0.0

    def __len__(self) -> int:
        return len(self._rows)

    def compute(self, time_us: float) -> None:
        """A computation, after those since the last call. Errors: D945."""
        if not is_real(time_us) or not 0 <= time_us <= _MOST_US:
            raise _bad("compute_us", f"a number from 0 to {_MOST_US:g}", time_us, self.at)
        self._compute_us += float(time_us)

    def call(
        self,
        collective: str,
        size_bytes: int,
        *,
        group: Group = Group.CLUSTER,
        overlaps: bool = False,
    ) -> int:
        """A call; its number, for `wait`, if it overlaps what follows. Errors: D945."""
        if collective not in COLLECTIVES:
            remedy = did_you_mean(str(collective), COLLECTIVES)
            expected = f"a collective of {', '.join(COLLECTIVES)}"
            found = repr(collective)
            raise D945.error(at=self.at, expected=expected, found=found, remedy=remedy)
        _check(size_bytes, 1, MAX_BYTES, "size_bytes", self.at)
        row = len(self._rows)
        self._add(COLLECTIVES.index(collective), group, int(size_bytes))
        self._rows[row][_WAITED] = NONE if overlaps else row
        return row

    def wait(self, *calls: int) -> None:
        """Waits for overlapping calls. Errors: D945."""
        for call in calls:
            if not 0 <= call < len(self._rows) or self._rows[call][_WAITED] != NONE:
                raise _bad("wait", "a call that overlaps and was not waited for", call, self.at)
        for call in calls:
            self._rows[call][_WAITED] = len(self._rows)
        self._add(NONE, NONE, 0)

    def workload(self, name: str, ranks: int) -> Workload:
        """The workload of the steps so far. It ends with a wait for the calls that have none.
        Errors: D945."""
        steps = Steps(self.at, [list(row) for row in self._rows], self._compute_us)
        is_open = [row[_COLLECTIVE] != NONE and row[_WAITED] == NONE for row in steps._rows]
        if any(is_open) or steps._compute_us or not steps._rows:
            steps.wait(*np.flatnonzero(is_open).tolist())
        columns: list[Any] = list(zip(*steps._rows, strict=True))
        return Workload(name, ranks, *columns)

    def _add(self, collective: int, group: int, size_bytes: int) -> None:
        self._rows.append([self._compute_us, collective, int(group), size_bytes, NONE])
        self._compute_us = 0.0


_COLLECTIVE, _WAITED = 1, 4
"""Places in a row of `Steps`."""


def _check(value: object, least: int, most: int, name: str, at: Place) -> None:
    if not is_integer(value) or not least <= value <= most:  # type: ignore[operator]
        raise _bad(name, f"an integer from {least} to {most}", value, at)


def _bad(name: str, expected: str, value: object, at: Place) -> SleyError:
    return D945.error(at=at, expected=f"{name}: {expected}", found=repr(value))
