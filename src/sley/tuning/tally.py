"""Tally: what was measured of a back end's arms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.tables import FloatArray, LongArray


@dataclass
class Tally:
    """The measured times of all arms at all sizes, in logarithms of microseconds.

    count: int64 (cells, arms). sum, squares: float64 (cells, arms).
    """

    count: LongArray
    sum: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, cells: int, arms: int) -> Tally:
        """A tally without times."""
        shape = (cells, arms)
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))

    def add(self, cell: int, arm: int, time_us: float) -> None:
        """Adds a time."""
        log = float(np.log(time_us))
        self.count[cell, arm] += 1
        self.sum[cell, arm] += log
        self.squares[cell, arm] += log * log

    def mean(self, cell: int) -> FloatArray:
        """float64 (arms,): the mean logarithm of the times; infinite without any."""
        count = self.count[cell]
        return np.where(count > 0, self.sum[cell] / np.maximum(count, 1), np.inf)

    def deviation(self, cell: int | slice = slice(None)) -> tuple[float, int]:
        """The standard deviation of one logarithm of time, from the measurements that were repeated
        in a cell, by default in all, and its degrees of freedom; (0, 0) without any."""
        count, total = self.count[cell], self.sum[cell]
        again = count > 1
        freedom = int((count[again] - 1).sum())
        if not freedom:
            return 0.0, 0
        spread = (self.squares[cell][again] - total[again] ** 2 / count[again]).sum()
        return float(np.sqrt(max(float(spread), 0.0) / freedom)), freedom
