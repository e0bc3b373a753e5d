"""The peers of the tuner's agents, and learning curves of all of them.

`Default` is NCCL's choice, `Table` a model's without any measurement; `Ucb` learns each size by
itself, `Descent` searches the knobs one by one as AutoCCL does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.tuning import ArmTimes, Simulated, Training
from sley.tuning.agents import Agent
from sley.tuning.backends import Backend

WORSE = 0.01
"""A choice that takes longer than the default by more than this share is a regression."""


@dataclass(frozen=True, eq=False)
class Curve:
    """What an agent would deploy after some samples of each size.

    regret: float64 (points, sizes), time over the oracle's time, less one. slower: float64 (points,
    sizes), time over the default's time, less one. is_trained: bool (sizes,), the sizes that were
    measured; the others were kept aside.
    """

    regret: FloatArray
    slower: FloatArray
    is_trained: BoolArray


def curve(
    sweep: ArmTimes,
    make: Callable[[Backend, int], Agent],
    samples: Sequence[int],
    *,
    aside: Sequence[int] = (),
    seed: int = 0,
) -> Curve:
    """The learning curve of an agent on a recorded sweep, after each number of samples.

    make: as for `Training`. aside: sizes (their places) that are never measured.
    """
    training = Training(Simulated(sweep, seed=seed), make, seed=seed, aside=aside)
    chosen: list[list[int]] = []
    for count in samples:
        training.run(count)
        chosen.append([training.agent.best(cell) for cell in range(len(sweep.sizes))])
    return curve_of(sweep, chosen, training.cells)


def curve_of(sweep: ArmTimes, chosen: Sequence[Sequence[int]], trained: LongArray) -> Curve:
    """The curve of choices on a sweep. chosen: the arms of all sizes at each point."""
    time_us = np.array([[sweep.true_us(c, arm) for c, arm in enumerate(row)] for row in chosen])
    is_trained = np.isin(np.arange(len(sweep.sizes)), trained)
    return Curve(time_us / sweep.best_us - 1, time_us / sweep.default_us - 1, is_trained)


class Default(Agent):
    """NCCL's own choice, the baseline."""

    name = "default"

    def choose(self, cell: int) -> int:
        return int(self.backend.default[cell])

    def best(self, cell: int) -> int:
        return int(self.backend.default[cell])


class Table(Agent):
    """A static table: at each size the arm with the least estimate (`Backend.expected`), whatever
    is measured. It is what a model alone chooses."""

    name = "table"

    def choose(self, cell: int) -> int:
        return self.best(cell)

    def best(self, cell: int) -> int:
        return int(np.where(self.mask(cell), self.backend.expected[cell], np.inf).argmin())


class Ucb(Agent):
    """UCB1 on the logarithm of time: each arm once, in random order, then the arm with the least
    lower confidence bound."""

    name = "ucb"
    WIDTH = 0.1
    """The scale of the confidence bounds: the standard deviation of a single logarithm of time."""

    def choose(self, cell: int) -> int:
        count = self.tally.count[cell]
        untried = np.flatnonzero(self.mask(cell) & (count == 0))
        if len(untried):
            return int(self.rng.choice(untried))
        radius = self.WIDTH * np.sqrt(2 * np.log(count.sum()) / np.maximum(count, 1))
        bound = np.where(self.mask(cell), self.tally.mean(cell) - radius, np.inf)
        return int(bound.argmin())


_REPEATS = 2
"""Measurements of each neighbour before it is compared."""


class Descent(Agent):
    """Coordinate descent (AutoCCL): from the best arm known, it varies one knob at a time.

    The knobs are algorithm, protocol, channels, parallel parts, fusion and tile. It begins at the
    default; a cell without measurements of its own begins at the best arm of the nearest size. If
    no neighbour is faster it starts again from a random arm.
    """

    name = "descent"

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        super().__init__(backend, seed)
        knobs = [
            (r.name, *map(r.options.get, ("protocol", "channels", "instances", "fusion")), r.tile)
            for r in backend.recipes
        ]
        columns = [list(column) for column in zip(*knobs, strict=True)]
        self._knobs = np.array([[c.index(knob) for knob in c] for c in columns]).T
        self._centre: dict[int, int] = {}
        self._queue: dict[int, list[int]] = {}

    def choose(self, cell: int) -> int:
        if cell not in self._centre:
            self._centre[cell] = self._start(cell)
            self._queue[cell] = self._around(cell)
        queue = self._queue[cell]
        while queue and self.tally.count[cell, queue[0]] >= _REPEATS:
            queue.pop(0)
        if queue:
            return queue[0]
        best = self.best(cell)
        if best != self._centre[cell]:
            self._centre[cell] = best
        else:  # a local optimum
            self._centre[cell] = int(self.rng.choice(np.flatnonzero(self.mask(cell))))
        self._queue[cell] = self._around(cell)
        return self._queue[cell][0]

    def _start(self, cell: int) -> int:
        measured = np.flatnonzero(self.tally.count.any(axis=1))
        if not len(measured):
            return int(self.backend.default[cell])
        nearest = int(measured[np.abs(measured - cell).argmin()])
        arm = self.best(nearest)
        return arm if self.mask(cell)[arm] else int(self.backend.default[cell])

    def _around(self, cell: int) -> list[int]:
        """The centre and the arms that differ from it in one knob, one knob after the other."""
        centre = self._centre[cell]
        differs = self._knobs != self._knobs[centre]
        near = np.flatnonzero(self.mask(cell) & (differs.sum(axis=1) == 1))
        order = self.rng.permutation(self._knobs.shape[1])
        by_knob = [near[differs[near, knob]].tolist() for knob in order]
        return [centre, *(arm for arms in by_knob for arm in arms)]
