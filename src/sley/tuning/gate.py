"""Gate: keeps an agent from deploying what is slower than the default."""

from __future__ import annotations

import numpy as np

from sley.errors.tuning import D923
from sley.ir.words import is_real
from sley.tuning.agents.agent import Agent, Prediction

_LEAST_DEVIATION = 0.01
"""The least standard deviation of the logarithm of one measured time that is assumed."""


class Gate(Agent):
    """An agent behind a safety gate: it deploys an arm instead of the default only if that was
    measured to be faster, beyond what noise explains.

    agent: chooses what to measure. margin: an arm must be faster by this share at least.
    least: measurements of an arm and of the default before they are compared. certainty: standard
        deviations between the two means, at least. Where nothing was measured, the agent's
        prediction must be as certain.

    Errors: D923.
    """

    def __init__(
        self, agent: Agent, *, margin: float = 0.01, least: int = 3, certainty: float = 2.0
    ) -> None:
        super().__init__(agent.backend)
        for name, value, most in (("margin", margin, 1.0), ("certainty", certainty, 100.0)):
            if not is_real(value) or not 0 <= value <= most:
                raise D923.error(expected=f"{name} from 0 to {most:g}", found=f"{name}={value!r}")
        self.agent, self.margin, self.least, self.certainty = agent, margin, least, certainty
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
            if arm == default or not np.isfinite(mean[arm]):
                break
            if self._is_faster(cell, arm, default):
                return int(arm)
        return default

    def predict(self, cell: int) -> Prediction | None:
        return self.agent.predict(cell)

    def _is_faster(self, cell: int, arm: int, default: int) -> bool:
        """Whether an arm was measured to be faster than the default beyond noise and margin."""
        tally, rows = self.tally, [arm, default]
        count, total = tally.count[cell, rows], tally.sum[cell, rows]
        if count.min() < self.least:
            return False
        spread = tally.squares[cell, rows] - total**2 / count
        variance = max(float(spread.sum() / (count.sum() - 2)), _LEAST_DEVIATION**2)
        error = float(np.sqrt(variance * (1 / count).sum()))
        mean = total / count
        return bool(mean[0] + self.margin + self.certainty * error < mean[1])

    def _unseen(self, cell: int, default: int) -> int:
        expected = self.agent.predict(cell)
        if expected is None:
            return default
        worst = expected.log_time + self.certainty * expected.deviation
        arm = int(np.where(self.mask(cell), worst, np.inf).argmin())
        return arm if worst[arm] + self.margin < 0 else default
