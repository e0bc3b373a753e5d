"""Agent: what learns from measured times which arm to choose for each size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from sley.ir.tables import BoolArray, FloatArray
from sley.tuning.backends import Backend, Tally


class ArmPrediction(NamedTuple):
    """What an agent expects of the arms at a size, also of those that it has never measured.

    log_time: float64 (arms,), the logarithm of time over the default's time. deviation: float64
    (arms,), its standard deviation.
    """

    log_time: FloatArray
    deviation: FloatArray


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
        self.tally = Tally.of(len(backend.sizes), len(backend.recipes))

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

    def predict(self, cell: int) -> ArmPrediction | None:
        """The expected times of all arms, or None for an agent that can't tell."""
        return None

    def mask(self, cell: int) -> BoolArray:
        """bool (arms,): the arms that may be chosen."""
        allowed: BoolArray = self.backend.mask[cell]
        return allowed
