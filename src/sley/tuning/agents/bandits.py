"""Bandits that learn each size by itself: epsilon-greedy and UCB, without any context.

They are the peers that a learner with context has to beat (CS244C's bandit is of this kind).
"""

from __future__ import annotations

import numpy as np

from sley.tuning.agents.agent import Agent


class EpsilonGreedy(Agent):
    """Mostly the fastest arm so far, and with probability EPSILON a random one."""

    name = "epsilon-greedy"
    EPSILON = 0.3

    def choose(self, cell: int) -> int:
        if not self.tally.count[cell].any():
            return int(self.backend.default[cell])
        if self.rng.random() < self.EPSILON:
            return int(self.rng.choice(np.flatnonzero(self.mask(cell))))
        return self.best(cell)


class Ucb(Agent):
    """UCB1 on the logarithm of time: each arm once, in random order, then the arm with the least
    lower confidence bound."""

    name = "ucb"
    WIDTH = 0.1
    """The scale of the confidence bounds: the standard deviation of a single logarithm of time."""

    def choose(self, cell: int) -> int:
        count = self.tally.count[cell]
        untried = np.flatnonzero(self.mask(cell) & (count == 0))
        if len(untried):
            return int(self.rng.choice(untried))
        radius = self.WIDTH * np.sqrt(2 * np.log(count.sum()) / np.maximum(count, 1))
        bound = np.where(self.mask(cell), self.tally.mean(cell) - radius, np.inf)
        return int(bound.argmin())
