"""Agents that don't learn, the default and a static table; and random search."""

from __future__ import annotations

import numpy as np

from sley.tuning.agents.agent import Agent


class Default(Agent):
    """NCCL's own choice, the baseline."""

    name = "default"

    def choose(self, cell: int) -> int:
        return int(self.backend.default[cell])

    def best(self, cell: int) -> int:
        return int(self.backend.default[cell])


class Table(Agent):
    """A static table: at each size the arm with the least estimate (`Backend.expected`), whatever
    is measured. It is what a model alone chooses."""

    name = "table"

    def choose(self, cell: int) -> int:
        return self.best(cell)

    def best(self, cell: int) -> int:
        return int(np.where(self.mask(cell), self.backend.expected[cell], np.inf).argmin())


class Random(Agent):
    """Random search: any arm that may be chosen; the fastest measured one is the best."""

    name = "random"

    def choose(self, cell: int) -> int:
        return int(self.rng.choice(np.flatnonzero(self.mask(cell))))
