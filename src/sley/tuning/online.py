"""Online: an agent that decides for every call, and learns again when the machine has changed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sley.tuning.agents.agent import Agent
from sley.tuning.backends import Backend

_KNOWN = 5
"""Measurements of an arm before its times are watched."""

_SLACK, _ALARM = 0.5, 10.0
"""Page's CUSUM test in standard deviations: what each difference from the mean is reduced by, and
the sum that means a change. In 240,000 calls without any change (24 streams with Thompson sampling)
there were 5 false alarms."""

_LEAST_DEVIATION = 0.02
"""The least standard deviation of the logarithm of one measured time that is assumed."""


class Online:
    """Decides for each call of a stream: explores first, then deploys what is best.

    make: makes the agent, behind its gate; again after each change of the machine. samples: how
    many calls of a size explore, at most; after them a share `explore` of the calls does.
    changes: (call, cell) at which a change was found; calls: how many have been observed.
    """

    def __init__(
        self,
        backend: Backend,
        make: Callable[[], Agent],
        *,
        samples: int = 50,
        explore: float = 0.02,
        seed: int = 0,
    ) -> None:
        self.backend, self.samples, self.explore = backend, samples, explore
        self.changes: list[tuple[int, int]] = []
        self.calls = 0
        self._make = make
        self._rng = np.random.default_rng(seed)
        self._forget()

    def _forget(self) -> None:
        self.agent = self._make()
        shape = (len(self.backend.sizes), len(self.backend.decisions))
        self._above, self._below = np.zeros(shape), np.zeros(shape)

    def choose(self, cell: int) -> int:
        """The arm of the next call."""
        explores = self.agent.tally.count[cell].sum() < self.samples
        if explores or self._rng.random() < self.explore:
            return self.agent.choose(cell)
        return self.agent.best(cell)

    def observe(self, cell: int, arm: int, time_us: float) -> None:
        """Learns from the time of the call. A change of the machine, found in any cell, makes it
        learn all cells again."""
        self.calls += 1
        if self._has_changed(cell, arm, time_us):
            self.changes.append((self.calls, cell))
            self._forget()
        self.agent.observe(cell, arm, time_us)

    def _has_changed(self, cell: int, arm: int, time_us: float) -> bool:
        tally = self.agent.tally
        count = int(tally.count[cell, arm])
        if count < _KNOWN:
            return False
        mean = tally.sum[cell, arm] / count
        # Of all sizes and arms: five times of one arm tell little of how much they vary.
        deviation = max(tally.deviation()[0], _LEAST_DEVIATION)
        step = (np.log(time_us) - mean) / deviation
        self._above[cell, arm] = max(0.0, self._above[cell, arm] + step - _SLACK)
        self._below[cell, arm] = max(0.0, self._below[cell, arm] - step - _SLACK)
        return bool(max(self._above[cell, arm], self._below[cell, arm]) > _ALARM)
