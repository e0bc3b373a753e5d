"""Gate: keeps an agent from deploying what is slower than the default."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats would take half a second to import

from sley.tuning.agents.agent import Agent, ArmPrediction

_LEAST_DEVIATION = 0.01
"""The least standard deviation of the logarithm of one measured time that is assumed: few equal
times are no proof that there is no noise."""

LEAST = 3
"""Measurements of an arm and of the default before they are compared."""

RISK = 0.01
"""The probability that noise alone makes a slower arm of a size pass one test (Student's t, with
Bonferroni's correction for the arms that are compared). A training tests after each measurement."""


class Gate(Agent):
    """An agent behind a safety gate: it deploys an arm instead of the default only if that was
    measured to be faster, beyond what noise explains and by the back end's margin. Where nothing
    was measured, the agent must expect that with a probability of 1 - RISK.

    agent: chooses what to measure.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.backend)
        self.agent, self.name, self.tally = agent, agent.name, agent.tally

    def choose(self, cell: int) -> int:
        count, default = self.tally.count[cell], int(self.backend.default[cell])
        # The default is measured again now and then, for what it takes may have changed.
        if count[default] < max(LEAST, count.sum() // 12):
            return default
        wanted = self.agent.best(cell)
        return wanted if count[wanted] < LEAST else self.agent.choose(cell)

    def observe(self, cell: int, arm: int, time_us: float) -> None:
        self.agent.observe(cell, arm, time_us)

    def best(self, cell: int) -> int:
        default, count = int(self.backend.default[cell]), self.tally.count[cell]
        if not count.any():
            return self._unseen(cell, default)
        if count[default] < LEAST:
            return default
        mean = np.where(self.mask(cell), self.tally.mean(cell), np.inf)
        wanted = self.agent.best(cell)
        # The agent's own wish first, for it knows more than the means; then by mean, up to the
        # default: no slower arm can pass the test.
        for arm in dict.fromkeys((wanted, *np.argsort(mean, kind="stable").tolist())):
            if arm == default:
                break
            if self._is_faster(cell, arm, default):
                return int(arm)
        return default

    def predict(self, cell: int) -> ArmPrediction | None:
        return self.agent.predict(cell)

    def _is_faster(self, cell: int, arm: int, default: int) -> bool:
        """Whether an arm was measured to be faster than the default beyond noise and margin."""
        tally, rows = self.tally, [arm, default]
        count = tally.count[cell, rows]
        if count.min() < LEAST:
            return False
        deviation, freedom = tally.deviation(cell)
        # At least 1: both the arm and the default have LEAST measurements here.
        compared = int((tally.count[cell] >= LEAST).sum()) - 1
        quantile = float(stdtrit(freedom, 1 - RISK / compared))
        error = max(deviation, _LEAST_DEVIATION) * float(np.sqrt((1 / count).sum()))
        mean = tally.sum[cell, rows] / count
        return bool(mean[0] + self.backend.margin + quantile * error < mean[1])

    def _unseen(self, cell: int, default: int) -> int:
        expected = self.agent.predict(cell)
        if expected is None:
            return default
        # A prediction is what the agent believes of each arm after all that it has measured. Unlike
        # a test, it needs no correction for the number of arms.
        quantile = float(ndtri(1 - RISK))
        worst = expected.log_time + quantile * expected.deviation
        arm = int(np.where(self.mask(cell), worst, np.inf).argmin())
        return arm if worst[arm] + self.backend.margin < 0 else default
