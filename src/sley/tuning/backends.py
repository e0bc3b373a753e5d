"""Back ends: what runs a call with an arm, and measures its time.

All have the interface `Backend`: the simulator (`Simulated`), a recorded sweep (`Recorded`) and the
CPU runtime (`live.Live`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning.arms import Arms, fingerprint
from sley.tuning.noise import Noise
from sley.tuning.policy import Machine, Recipe
from sley.tuning.sweeps import Sweep, time_at


class Backend(Protocol):
    """A collective on a cluster whose calls can be measured. A cell is one of its sizes.

    collective: its name. machine: where it runs. sizes: int64 (cells,), ascending.
    decisions: the arms. features: float64 (arms, features), what is known of each
        (`Arms.features`). expected: float64 (cells, arms), the logarithm of a rough estimate of the
        times, up to a constant for each cell.
    blocks: int64 (arms,), the thread blocks of a rank; of equally fast arms the one with the fewest
        is the best, as it leaves most of the GPU to computation.
    mask: bool (cells, arms), the arms that may be chosen. default: int64 (cells,), the arm that
        runs without a tuner.
    margin: the share by which an arm must be faster than the default to be deployed.
    """

    @property
    def collective(self) -> str: ...
    @property
    def machine(self) -> Machine: ...
    @property
    def sizes(self) -> LongArray: ...
    @property
    def decisions(self) -> Sequence[Recipe]: ...
    @property
    def features(self) -> FloatArray: ...
    @property
    def expected(self) -> FloatArray: ...
    @property
    def blocks(self) -> LongArray: ...
    @property
    def mask(self) -> BoolArray: ...
    @property
    def default(self) -> LongArray: ...
    @property
    def margin(self) -> float: ...

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


class _Simulation(ABC):
    """The parts of a back end that the arms of a cluster give, and noise. mask, default: as of a
    `Backend`."""

    margin = 0.01  # nothing but noise makes measurements differ

    def __init__(
        self,
        arms: Arms,
        sizes: LongArray,
        mask: BoolArray,
        default: LongArray,
        noise: Noise | None,
        seed: int,
    ) -> None:
        self.collective, self.machine = arms.collective, machine_of(arms)
        self.sizes, self.mask, self.default = sizes, mask, default
        self.decisions, self.features = arms.decisions, arms.features
        self.expected, self.blocks = arms.expected(sizes), arms.blocks
        self.noise = noise or Noise()
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """See `Repeatable`."""
        self.calls, self._seed = 0, seed

    def measure(self, cell: int, arm: int) -> float:
        """See `Backend`."""
        true_us = self._true_us(cell, arm)
        # A generator for each call: a training that resumes gets the noise of the next calls.
        self.calls += 1
        crosses, rng = self.machine.nodes > 1, np.random.default_rng((self._seed, self.calls))
        return true_us * self.noise.factor(int(self.sizes[cell]), crosses, rng)

    @abstractmethod
    def _true_us(self, cell: int, arm: int) -> float:
        """The time without noise."""


class Recorded(_Simulation):
    """A recorded sweep, with noise."""

    def __init__(self, sweep: Sweep, noise: Noise | None = None, *, seed: int = 0) -> None:
        super().__init__(sweep.arms, sweep.sizes, sweep.mask, sweep.default, noise, seed)
        self._sweep = sweep

    def _true_us(self, cell: int, arm: int) -> float:
        return self._sweep.true_us(cell, arm)


class Simulated(_Simulation):
    """The simulator, with noise; an arm is simulated when it is first called at a size."""

    def __init__(
        self, arms: Arms, sizes: Sequence[int], noise: Noise | None = None, *, seed: int = 0
    ) -> None:
        ascending = sorted(sizes)
        mask = np.stack([arms.feasible(size) for size in ascending])
        default = np.array([arms.default(size) for size in ascending], np.int64)
        super().__init__(arms, np.array(ascending, np.int64), mask, default, noise, seed)
        self._arms = arms
        self._known: dict[tuple[int, int], float] = {}

    def _true_us(self, cell: int, arm: int) -> float:
        if (cell, arm) not in self._known:
            self._known[cell, arm] = time_at(self._arms, arm, int(self.sizes[cell]))
        return self._known[cell, arm]


def machine_of(arms: Arms) -> Machine:
    """The cluster of the arms, as policies name it."""
    t = arms.topology
    return Machine("simulator", t.name, fingerprint(t), arms.nodes, arms.gpus)
