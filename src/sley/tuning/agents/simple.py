"""Agents that don't learn, and random search: the default, tables and the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sley.tuning.agents.agent import Agent
from sley.tuning.backends import Backend


class Default(Agent):
    """NCCL's own choice, the baseline."""

    name = "default"

    def choose(self, cell: int) -> int:
        return int(self.backend.default[cell])

    def best(self, cell: int) -> int:
        return int(self.backend.default[cell])


class Table(Agent):
    """A static table: an arm for each size, fixed before any measurement.

    arms: the arm of each cell.
    """

    name = "table"

    def __init__(self, backend: Backend, arms: Sequence[int], seed: int = 0) -> None:
        super().__init__(backend, seed)
        self._arms = [int(arm) for arm in arms]

    def choose(self, cell: int) -> int:
        return self._arms[cell]

    def best(self, cell: int) -> int:
        return self._arms[cell]


class Random(Agent):
    """Random search: any arm that may be chosen; the fastest measured one is the best."""

    name = "random"

    def choose(self, cell: int) -> int:
        return int(self.rng.choice(np.flatnonzero(self.mask(cell))))
