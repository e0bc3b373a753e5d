"""Rows: the transfers that a program has said, in the order of one iteration after the other."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np

from sley.ir.tables import IntArray, LongArray
from sley.lang.rescclang.arithmetic import Value

_COLUMNS = 5


@dataclass(frozen=True)
class Batch:
    """Transfers that lanes have said: those of a lane before those of the next, each lane's in the
    order in which it says them.

    lane: int32 (transfers,), ascending. columns: int32 (transfers,) each: source rank,
    destination rank, step, chunk, and the number of the transfer in the text.
    """

    lane: IntArray
    columns: tuple[IntArray, ...]

    @classmethod
    def of(cls, lanes: int, *values: Value) -> Batch:
        """One transfer of every lane."""
        columns = (np.asarray(v, np.int32) for v in values)
        return cls(
            np.arange(lanes, dtype=np.int32),
            tuple(np.broadcast_to(column, lanes) for column in columns),
        )

    def of_lanes(self, lane: LongArray) -> Batch:
        """The same transfers, of which lane i's are said by lane[i] (ascending)."""
        return Batch(lane[self.lane].astype(np.int32), self.columns)


def merged(batches: list[Batch]) -> Batch | None:
    """What lanes say in one batch after the other, lane by lane."""
    if len(batches) <= 1:
        return batches[0] if batches else None
    lane = np.concatenate([b.lane for b in batches])
    columns = tuple(np.concatenate([b.columns[k] for b in batches]) for k in range(_COLUMNS))
    if not (lane[1:] < lane[:-1]).any():
        return Batch(lane, columns)
    order = np.argsort(lane, kind="stable")
    return Batch(lane[order], tuple(column[order] for column in columns))


class Rows:
    """Collects transfers, one by one or in batches."""

    def __init__(self) -> None:
        self._single = array("i")
        self._parts: list[tuple[IntArray, ...]] = []

    def say(self, *values: int) -> None:
        """One transfer, with the values of its columns."""
        self._single.extend(values)

    def add(self, batch: Batch) -> None:
        """The transfers of a batch."""
        self._flush()
        self._parts.append(batch.columns)

    def columns(self) -> tuple[IntArray, ...]:
        """All transfers, as columns; empties the collection."""
        self._flush()
        parts, self._parts = self._parts, []
        if not parts:
            return (np.zeros(0, np.int32),) * _COLUMNS
        return tuple(np.concatenate([p[k] for p in parts]) for k in range(_COLUMNS))

    def _flush(self) -> None:
        if self._single:
            rows = np.frombuffer(self._single, np.int32).reshape(-1, _COLUMNS)
            self._parts.append(tuple(np.ascontiguousarray(column) for column in rows.T))
            self._single = array("i")
