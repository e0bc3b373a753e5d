"""Evaluate: how far agents are from the oracle after some samples of each size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning.agents.agent import Agent
from sley.tuning.backends import Backend, Recorded
from sley.tuning.noise import Noise
from sley.tuning.sweep import Sweep
from sley.tuning.training import Training

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


def curve(
    sweep: Sweep,
    agent: str,
    samples: Sequence[int],
    *,
    noise: Noise | None = None,
    aside: Sequence[int] = (),
    seed: int = 0,
    make: Callable[[Backend, int], Agent] | None = None,
) -> Curve:
    """The learning curve of an agent on a recorded sweep.

    agent, make: as for `Training`. samples: numbers of measurements of each size, after each of
    which the agent is evaluated. aside: sizes (their places) that are never measured. Errors: D923.
    """
    backend = Recorded(sweep, noise, seed=seed)
    training = Training(backend, agent, seed=seed, aside=aside, make=make)
    chosen: list[list[int]] = []
    for count in sorted(samples):
        training.run(count)
        chosen.append([training.agent.best(cell) for cell in range(len(sweep.sizes))])
    return curve_of(agent, sweep, sorted(samples), chosen, training.cells)


def curve_of(
    agent: str,
    sweep: Sweep,
    samples: Sequence[int],
    chosen: Sequence[Sequence[int]],
    trained: ArrayLike,
) -> Curve:
    """The curve of choices on a sweep. chosen: the arms of all sizes at each of `samples`."""
    arms = np.array(chosen, np.int64)
    time_us = np.array([[sweep.true_us(c, arm) for c, arm in enumerate(row)] for row in chosen])
    return Curve(
        agent,
        np.array(samples, np.int64),
        arms,
        time_us / sweep.best_us - 1,
        time_us / sweep.default_us - 1,
        np.isin(np.arange(len(sweep.sizes)), trained),
    )
