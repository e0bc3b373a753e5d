"""Back ends: what runs a call with an arm, and measures its time.

All have the interface `Backend`: the simulator (`Simulated`) and the CPU runtime (`live.Live`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from sley.errors.tuning import D923
from sley.ir.sizes import SizeRange
from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.ir.words import is_real
from sley.tuning.arms import fingerprint
from sley.tuning.policy import Machine, Recipe
from sley.tuning.sweeps import ArmTimes

SHARED = SizeRange(2 << 20, 64 << 20)
"""The sizes at which other tenants of a network disturb most (MSCCLang 7.3; GC3, section 10.3):
such calls meet congestion, but are too short to average it."""


@dataclass(frozen=True)
class Noise:
    """The noise of a single measured call.

    sigma: the standard deviation of the logarithm of any time.
    congestion: on a network that is shared, the mean share by which a call of SHARED sizes takes
        longer while it meets others; 0 for an own network.
    met: the share of such calls that meet others.

    Errors: D923 for numbers out of range.
    """

    sigma: float = 0.03
    congestion: float = 0.0
    met: float = 0.5

    def __post_init__(self) -> None:
        for name, most in (("sigma", 1.0), ("congestion", 10.0), ("met", 1.0)):
            value = getattr(self, name)
            if not is_real(value) or not 0 <= value <= most:
                expected = f"{name} from 0 to {most:g}"
                raise D923.error(expected=expected, found=f"{name}={value!r}")

    def factor(self, size_bytes: int, crosses_network: bool, rng: np.random.Generator) -> float:
        """Measured over true time of one call."""
        factor = float(np.exp(rng.normal(0, self.sigma)))
        shared = self.congestion and crosses_network and SHARED.covers(size_bytes)
        if shared and rng.random() < self.met:
            factor *= 1 + rng.exponential(self.congestion)
        return factor


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


@dataclass
class Tally:
    """The measured times of all arms at all sizes, in logarithms of microseconds.

    count: int64 (cells, arms). sum, squares: float64 (cells, arms).
    """

    count: LongArray
    sum: FloatArray
    squares: FloatArray

    @classmethod
    def of(cls, cells: int, arms: int) -> Tally:
        """A tally without times."""
        shape = (cells, arms)
        return cls(np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape))

    def add(self, cell: int, arm: int, time_us: float) -> None:
        """Adds a time."""
        log = float(np.log(time_us))
        self.count[cell, arm] += 1
        self.sum[cell, arm] += log
        self.squares[cell, arm] += log * log

    def mean(self, cell: int) -> FloatArray:
        """float64 (arms,): the mean logarithm of the times; infinite without any."""
        count = self.count[cell]
        return np.where(count > 0, self.sum[cell] / np.maximum(count, 1), np.inf)

    def deviation(self, cell: int | slice = slice(None)) -> tuple[float, int]:
        """The standard deviation of one logarithm of time, from the measurements that were repeated
        in a cell, by default in all, and its degrees of freedom; (0, 0) without any."""
        count, total = self.count[cell], self.sum[cell]
        again = count > 1
        freedom = int((count[again] - 1).sum())
        if not freedom:
            return 0.0, 0
        spread = (self.squares[cell][again] - total[again] ** 2 / count[again]).sum()
        return float(np.sqrt(max(float(spread), 0.0) / freedom)), freedom
