"""Gate: keeps an agent from deploying what is slower than the default."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm as normal
from scipy.stats import t as student

from sley.errors.tuning import D923
from sley.ir.words import is_real
from sley.tuning.agents.agent import Agent, Prediction

_LEAST_DEVIATION = 0.01
"""The least standard deviation of the logarithm of one measured time that is assumed."""


MARGIN = 0.01
"""By which share an arm must be faster than the default, where nothing but noise makes measurements
differ."""


class Gate(Agent):
    """An agent behind a safety gate: it deploys an arm instead of the default only if that was
    measured to be faster, beyond what noise explains.

    agent: chooses what to measure. margin: an arm must be faster by this share at least.
    least: measurements of an arm and of the default before they are compared. risk: the probability
        with which noise alone lets any slower arm of a size through at a look, by Student's t and
        Bonferroni's correction for the arms that are compared. Where nothing was measured, the
        agent's prediction must be as certain.

    Errors: D923.
    """

    def __init__(
        self, agent: Agent, *, margin: float = MARGIN, least: int = 3, risk: float = 0.01
    ) -> None:
        super().__init__(agent.backend)
        for name, value, smallest in (("margin", margin, 0.0), ("risk", risk, 1e-9)):
            if not is_real(value) or not smallest <= value < 1:
                expected = f"{name} from {smallest:g} to below 1"
                raise D923.error(expected=expected, found=f"{name}={value!r}")
        self.agent, self.margin, self.least, self.risk = agent, margin, least, risk
        self.name = agent.name

    def choose(self, cell: int) -> int:
        count, default = self.tally.count[cell], int(self.backend.default[cell])
        # The default is measured again now and then, for what it takes may have changed.
        if count[default] < max(self.least, count.sum() // 12):
            return default
        wanted = self.agent.best(cell)
        return wanted if count[wanted] < self.least else self.agent.choose(cell)

    def observe(self, cell: int, arm: int, time_us: float) -> None:
        super().observe(cell, arm, time_us)
        self.agent.observe(cell, arm, time_us)

    def best(self, cell: int) -> int:
        default, count = int(self.backend.default[cell]), self.tally.count[cell]
        if not count.any():
            return self._unseen(cell, default)
        if count[default] < self.least:
            return default
        mean = np.where(self.mask(cell), self.tally.mean(cell), np.inf)
        wanted = self.agent.best(cell)
        for arm in dict.fromkeys((wanted, *np.argsort(mean, kind="stable").tolist())):
            if arm == default:
                break
            if self._is_faster(cell, arm, default):
                return int(arm)
        return default

    def predict(self, cell: int) -> Prediction | None:
        return self.agent.predict(cell)

    def _is_faster(self, cell: int, arm: int, default: int) -> bool:
        """Whether an arm was measured to be faster than the default beyond noise and margin."""
        tally, rows = self.tally, [arm, default]
        count = tally.count[cell, rows]
        if count.min() < self.least:
            return False
        deviation, freedom = tally.deviation(cell)
        compared = int((tally.count[cell] >= self.least).sum()) - 1
        quantile = float(student.ppf(1 - self.risk / compared, freedom))
        error = max(deviation, _LEAST_DEVIATION) * float(np.sqrt((1 / count).sum()))
        mean = tally.sum[cell, rows] / count
        return bool(mean[0] + self.margin + quantile * error < mean[1])

    def _unseen(self, cell: int, default: int) -> int:
        expected = self.agent.predict(cell)
        if expected is None:
            return default
        quantile = float(normal.ppf(1 - self.risk))
        worst = expected.log_time + quantile * expected.deviation
        arm = int(np.where(self.mask(cell), worst, np.inf).argmin())
        return arm if worst[arm] + self.margin < 0 else default
