"""Gate: keeps an agent from deploying what is slower than the default."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtri, stdtrit  # scipy.stats would take half a second to import

from sley.tuning.agents.agent import Agent, ArmPrediction
from sley.tuning.backends import Tally

_LEAST_DEVIATION = 0.01
"""The least standard deviation of the logarithm of one measured time that is assumed: few equal
times are no proof that there is no noise."""

LEAST = 3
"""Measurements of an arm and of the default, and pairs of both, before they are compared."""

RISK = 0.005
"""The probability that noise alone makes a slower arm of a size pass one test (Student's t, with
Bonferroni's correction for the arms that are compared). A training tests after each measurement."""

_SHARE = 0.9
"""The share of a size's measurements, as pairs, up to which undecided arms are compared."""


class Gate(Agent):
    """An agent behind a safety gate: it deploys an arm instead of the default only if that was
    measured to be faster, beyond what noise explains and by the back end's margin. Where nothing
    was measured, the agent must expect that with a probability of 1 - RISK.

    Noise may hang together: a machine drifts, or changes between states. So what the agent wants
    to deploy is measured in turn with the default, and the ratios of neighbouring times must tell
    that it is faster, as well as the means of all times.

    agent: chooses what to measure.
    """

    def __init__(self, agent: Agent) -> None:
        super().__init__(agent.backend)
        self.agent, self.name, self.tally = agent, agent.name, agent.tally
        self._pairs = Tally.of(*self.tally.count.shape)  # the arms' times over the default's
        self._last: dict[int, tuple[int, float]] = {}

    def choose(self, cell: int) -> int:
        count, default = self.tally.count[cell], int(self.backend.default[cell])
        # The default is measured again now and then, for what it takes may have changed.
        if count[default] <= count.sum() // 24:
            return default
        wanted = self.undecided(cell)
        if wanted is None or self._is_hopeless(cell, wanted):
            return self.agent.choose(cell)
        return default if self._last[cell][0] == wanted else wanted

    def undecided(self, cell: int) -> int | None:
        """The arm that the agent would deploy, and that seems faster than what the gate deploys,
        without enough measurements to tell; None if there is none."""
        wanted, deployed = self.agent.best(cell), self.best(cell)
        mean = self.tally.mean(cell)
        is_slower = np.isfinite(mean[wanted]) and (
            mean[wanted] + self.backend.margin >= mean[deployed]
        )
        return None if wanted == deployed or is_slower else wanted

    def _is_hopeless(self, cell: int, arm: int) -> bool:
        """Whether further pairs of an arm are not worth their time: those so far don't favour it,
        or nearly all measurements were of pairs."""
        pairs, count = self._pairs.sum[cell, arm], self._pairs.count[cell, arm]
        if count < LEAST:
            return False
        most = _SHARE * self.tally.count[cell].sum()
        return bool(pairs >= -self.backend.margin * count or self._pairs.count[cell].sum() >= most)

    def observe(self, cell: int, arm: int, time_us: float) -> None:
        self.agent.observe(cell, arm, time_us)
        default = int(self.backend.default[cell])
        before, before_us = self._last.get(cell, (arm, time_us))
        if before == default != arm:
            self._pairs.add(cell, arm, time_us / before_us)
        elif arm == default != before:
            self._pairs.add(cell, before, before_us / time_us)
        self._last[cell] = arm, time_us

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
        """Whether an arm was measured to be faster than the default beyond noise and margin: by the
        means of all times, and by those of the pairs."""
        count, pairs = self.tally.count[cell, [arm, default]], self._pairs.count[cell, arm]
        if min(*count, pairs) < LEAST:
            return False
        # At least 1: both the arm and the default have LEAST measurements here.
        compared = int((self.tally.count[cell] >= LEAST).sum()) - 1
        own, of_default = self.tally.sum[cell, [arm, default]] / count
        apart = _error(*self.tally.deviation(cell), RISK / compared, (1 / count).sum())
        # What hangs together is the machine's state, so all sizes tell how far pairs are apart.
        # Each time between two others is in two pairs, so they tell less than independent ones.
        deviation, freedom = self._pairs.deviation()
        deviation = max(deviation, self._pairs.deviation(cell)[0])
        together = _error(deviation, freedom, RISK, (2 - 1 / pairs) / pairs)
        slower = max(own - of_default + apart, self._pairs.sum[cell, arm] / pairs + together)
        return bool(slower + self.backend.margin < 0)

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


def _error(deviation: float, freedom: int, risk: float, share: float) -> float:
    """By how much noise makes a mean differ with a probability of `risk`. deviation: of a value,
    with its degrees of freedom. share: the mean's variance over the value's."""
    quantile = float(stdtrit(freedom, 1 - risk))
    return quantile * max(deviation, _LEAST_DEVIATION) * math.sqrt(share)
