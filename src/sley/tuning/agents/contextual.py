"""Contextual bandit: Thompson sampling of a Gaussian process over sizes and knobs.

What is measured with one arm at one size also tells something about similar arms and about the
sizes nearby, so some tens of samples of each size suffice for hundreds of arms.
"""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import numpy as np
from threadpoolctl import ThreadpoolController

from sley.tuning.agents.agent import Agent, ArmPrediction
from sley.tuning.backends import Backend

_OCTAVES = 4.0
"""The distance of sizes, in factors of two, over which times relative to the default change."""

_DEVIATIONS = 1.5
"""The distance of arms, in standard deviations of a feature, over which the same holds."""

_LEAST_DEVIATION = 0.02
"""The least standard deviation of the logarithm of one measured time that is assumed."""

_LEAST_AMPLITUDE = 0.25
"""The least variance of the logarithms of the arms' times around their estimates."""

_GROWTH = 0.02
"""The share by which the measurements grow before the process is conditioned on them again."""

_CAUTION = 0.5
"""The deployed arm has the least mean plus this many standard deviations."""

_TIE = 0.01
"""Arms whose logarithms of time differ by less are equally fast, as for `sley.choose`."""


@cache
def _threads() -> ThreadpoolController:
    """The threads of NumPy's linear algebra. These matrices are small: several threads take longer
    than one, and much longer where other work runs."""
    return ThreadpoolController()


class Thompson(Agent):
    """Thompson sampling: the arm that is fastest in a sample of what the times may be, by a
    Gaussian process of the logarithm of time over the default's time.

    Its prior mean is the back end's rough estimate (`Backend.expected`); its kernel is a Matern 5/2
    over the logarithm of the size and the arms' features, each scaled to its own deviation. Each
    size is first measured with the default.
    """

    name = "thompson"
    DEFAULTS: ClassVar[int] = 2
    """Measurements of the default at a size before any other arm."""

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        super().__init__(backend, seed)
        deviation = backend.features.std(axis=0)
        varies = deviation > 0
        numbers = backend.features[:, varies]
        # Columns of zeros and ones have their own scale: two algorithms are sqrt(2) apart.
        is_word = ((numbers == 0) | (numbers == 1)).all(axis=0)
        self._features = numbers / np.where(is_word, 1.0, deviation[varies]) / _DEVIATIONS
        self._size = np.log2(backend.sizes) / _OCTAVES
        cells = np.arange(len(backend.sizes))
        self._prior = backend.expected - backend.expected[cells, backend.default][:, None]
        self._process: Any = None
        self._offset = 0.0
        self._fitted = 0  # measurements that the process knows
        self._predicted: dict[int, ArmPrediction] = {}

    def choose(self, cell: int) -> int:
        default = int(self.backend.default[cell])
        # All times are relative to the default's, so it comes first.
        if self.tally.count[cell, default] < self.DEFAULTS:
            return default
        # A draw from what is believed of each arm chooses it as often as it may be the best (Russo
        # et al. 2018, section 4). Draws are independent: drawing all arms together would take a
        # factorisation of their covariance, cubic in the arms.
        expected = self.predict(cell)
        noise = self.rng.standard_normal(len(expected.log_time))
        sample = expected.log_time + expected.deviation * noise
        return int(np.where(self.mask(cell), sample, np.inf).argmin())

    def best(self, cell: int) -> int:
        expected = self.predict(cell)
        careful = np.where(
            self.mask(cell), expected.log_time + _CAUTION * expected.deviation, np.inf
        )
        # Of equally fast arms those with the fewest blocks leave most of the GPU to computation.
        equal = np.flatnonzero(careful <= careful.min() + _TIE)
        fewest = equal[self.backend.blocks[equal] == self.backend.blocks[equal].min()]
        return int(fewest[careful[fewest].argmin()])

    def predict(self, cell: int) -> ArmPrediction:
        # A fit is cubic in the measured pairs. Few new measurements hardly change what it predicts.
        if int(self.tally.count.sum()) > self._fitted * (1 + _GROWTH):
            self._fit()
        if cell not in self._predicted:
            self._predicted[cell] = self._predict(cell)
        return self._predicted[cell]

    def _predict(self, cell: int) -> ArmPrediction:
        prior = self._prior[cell]
        if self._process is None:
            wide = np.full(len(prior), np.sqrt(_LEAST_AMPLITUDE))
            return ArmPrediction(prior, wide)
        size = np.full(len(prior), self._size[cell])
        points = np.column_stack((size, self._features))
        with _threads().limit(limits=1):
            mean, deviation = self._process.predict(points, return_std=True)
        return ArmPrediction(mean + self._offset + prior, deviation)

    def _fit(self) -> None:
        """Conditions the process on all measured times of sizes whose default was measured."""
        # These imports take half a second, and only agents of this kind need them.
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern

        self._fitted = int(self.tally.count.sum())
        self._predicted.clear()
        tally, default = self.tally, self.backend.default
        cells = np.arange(len(default))
        known = tally.count[cells, default]
        base = tally.sum[cells, default] / np.maximum(known, 1)
        cell, arm = np.nonzero(tally.count * (known > 0)[:, None])
        if not len(cell):
            self._process = None
            return
        count = tally.count[cell, arm]
        # The process has mean 0: what it learns is how times differ from the rough estimates, and
        # by how much on average (Rasmussen and Williams 2006, section 2.7).
        target = tally.sum[cell, arm] / count - base[cell] - self._prior[cell, arm]
        self._offset = float(target.mean())
        amplitude = max(float(target.var()), _LEAST_AMPLITUDE)
        noise = max(tally.deviation()[0], _LEAST_DEVIATION) ** 2
        # A mean of `count` times has the noise of one over `count`; the constant keeps the matrix
        # invertible where arms have equal features. The kernel's lengths are fixed: few samples
        # would fit them badly, and a search would fit hundreds of times (`optimizer=None`).
        process = GaussianProcessRegressor(
            ConstantKernel(amplitude) * Matern(nu=2.5), alpha=noise / count + 1e-5, optimizer=None
        )
        with _threads().limit(limits=1):
            points = np.column_stack((self._size[cell], self._features[arm]))
            self._process = process.fit(points, target - self._offset)
