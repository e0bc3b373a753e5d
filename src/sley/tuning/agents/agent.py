"""Agent: what learns from measured times which arm to choose for each size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning.backends import Backend


class Prediction(NamedTuple):
    """What an agent expects of the arms at a size, also of those that it has never measured.

    log_time: float64 (arms,), the logarithm of time over the default's time. deviation: float64
    (arms,), its standard deviation.
    """

    log_time: FloatArray
    deviation: FloatArray


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


class Agent(ABC):
    """A learner for one back end.

    A caller asks `choose` for the next arm of a cell, measures it and tells `observe`; `best` is
    what the agent would deploy. `predict` is for agents that know something about cells in which
    nothing was measured.
    """

    name: str

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self.backend = backend
        self.rng = np.random.default_rng(seed)
        self.tally = Tally.of(len(backend.sizes), len(backend.decisions))

    @abstractmethod
    def choose(self, cell: int) -> int:
        """The arm to measure next."""

    def observe(self, cell: int, arm: int, time_us: float) -> None:
        """Learns from a measured time."""
        self.tally.add(cell, arm, time_us)

    def best(self, cell: int) -> int:
        """The arm to deploy: the fastest measured one, or the default if nothing was measured."""
        mean = np.where(self.mask(cell), self.tally.mean(cell), np.inf)
        arm = int(mean.argmin())
        return arm if np.isfinite(mean[arm]) else int(self.backend.default[cell])

    def predict(self, cell: int) -> Prediction | None:
        """The expected times of all arms, or None for an agent that can't tell."""
        return None

    def mask(self, cell: int) -> BoolArray:
        """bool (arms,): the arms that may be chosen."""
        allowed: BoolArray = self.backend.mask[cell]
        return allowed
