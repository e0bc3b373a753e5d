"""Back ends: what runs a call with an arm, and measures its time.

All have the interface `Backend`: the simulator (`Simulated`) and the CPU runtime (`live.Live`).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning.arms import fingerprint
from sley.tuning.noise import Noise
from sley.tuning.policy import Machine, Recipe
from sley.tuning.sweeps import ArmTimes


class Backend(Protocol):
    """A collective on a cluster whose calls can be measured. A cell is one of its sizes.

    collective: its name. machine: where it runs. sizes: int64 (cells,), ascending.
    recipes: the arms. features: float64 (arms, features), what is known of each
        (`Arms.features`). expected: float64 (cells, arms), the logarithm of a rough estimate of the
        times, up to a constant for each cell.
    blocks: int64 (arms,), the thread blocks of a rank; of equally fast arms the one with the fewest
        is the best, as it leaves most of the GPU to computation.
    mask: bool (cells, arms), the arms that may be chosen. default: int64 (cells,), the arm that
        runs without a tuner.
    margin: the share by which an arm must be faster than the default to be deployed.
    """

    collective: str
    machine: Machine
    sizes: LongArray
    recipes: tuple[Recipe, ...]
    features: FloatArray
    expected: FloatArray
    blocks: LongArray
    mask: BoolArray
    default: LongArray
    margin: float

    def measure(self, cell: int, arm: int) -> float:
        """The time of one call of a size with an arm, in microseconds."""
        ...


@runtime_checkable
class Repeatable(Protocol):
    """A back end whose noise depends on a seed and the number of the call alone, so that a training
    can go on in another process. noise: of its times. calls: how many have been measured."""

    noise: Noise
    calls: int

    def reseed(self, seed: int) -> None:
        """Begins anew: the noise of a seed, before the first call."""
        ...


class Simulated:
    """The simulator, with noise; an arm that `times` doesn't know is simulated when it is first
    called at a size."""

    margin = 0.01  # nothing but noise makes measurements differ

    def __init__(self, times: ArmTimes, noise: Noise | None = None, *, seed: int = 0) -> None:
        arms, t = times.arms, times.arms.topology
        self.machine = Machine("simulator", t.name, fingerprint(t), arms.nodes, arms.gpus)
        self.collective = arms.collective
        self.sizes, self.mask, self.default = times.sizes, times.mask, times.default
        self.recipes, self.features, self.blocks = arms.recipes, arms.features, arms.blocks
        self.expected = arms.expected(times.sizes)
        self.noise, self._times = noise or Noise(), times
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """See `Repeatable`."""
        self.calls, self._seed = 0, seed

    def measure(self, cell: int, arm: int) -> float:
        """See `Backend`."""
        # A generator for each call: a training that resumes gets the noise of the next calls.
        self.calls += 1
        crosses, rng = self.machine.nodes > 1, np.random.default_rng((self._seed, self.calls))
        factor = self.noise.factor(int(self.sizes[cell]), crosses, rng)
        return self._times.true_us(cell, arm) * factor
