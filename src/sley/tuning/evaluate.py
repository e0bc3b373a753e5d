"""Evaluate: how far agents are from the oracle after some samples of each size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning.agents.agent import Agent
from sley.tuning.backends import Recorded
from sley.tuning.noise import Noise
from sley.tuning.sweep import Sweep

WORSE = 0.01
"""A choice that takes longer than the default by more than this share is a regression."""


@dataclass(frozen=True, eq=False)
class Curve:
    """What an agent would deploy after some samples of each size.

    samples: int64 (points,), the measurements of each trained size. arms: int64 (points, sizes).
    regret: float64 (points, sizes), time over the oracle's time, less one. slower: float64 (points,
    sizes), time over the default's time, less one. is_trained: bool (sizes,), the sizes that were
    measured; the others were kept aside.
    """

    agent: str
    samples: LongArray
    arms: LongArray
    regret: FloatArray
    slower: FloatArray
    is_trained: BoolArray

    @property
    def regressions(self) -> LongArray:
        """int64 (points,): the sizes at which the choice is slower than the default."""
        count: LongArray = (self.slower > WORSE).sum(axis=1)
        return count


def learn(
    agent: Agent,
    sweep: Sweep,
    samples: Sequence[int],
    *,
    noise: Noise | None = None,
    aside: Sequence[int] = (),
    seed: int = 0,
) -> Curve:
    """The learning curve of an agent on a recorded sweep.

    samples: at which numbers of measurements of each size it is looked at, ascending. aside: sizes
    (their places) that are never measured. The order of the sizes is random in each round.
    """
    backend = Recorded(sweep, noise, seed=seed)
    rng = np.random.default_rng(seed)
    cells = np.arange(len(sweep.sizes))
    trained = np.setdiff1d(cells, aside)
    chosen: list[list[int]] = []
    for count in range(1, max(samples) + 1):
        for cell in rng.permutation(trained).tolist():
            arm = agent.choose(cell)
            agent.observe(cell, arm, backend.measure(cell, arm))
        if count in samples:
            chosen.append([agent.best(cell) for cell in cells.tolist()])
    arms = np.array(chosen, np.int64)
    time_us = sweep.time_us[cells, arms]
    return Curve(
        agent.name,
        np.array(sorted(samples), np.int64),
        arms,
        time_us / sweep.best_us - 1,
        time_us / sweep.default_us - 1,
        np.isin(cells, trained),
    )
