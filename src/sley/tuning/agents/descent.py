"""Coordinate descent over the knobs, online, as AutoCCL does (NSDI 2025)."""

from __future__ import annotations

import numpy as np

from sley.tuning.agents.agent import Agent
from sley.tuning.backends import Backend

_REPEATS = 2
"""Measurements of each neighbour before it is compared."""


class Descent(Agent):
    """Coordinate descent: from the best arm known, it varies one knob at a time.

    The knobs are algorithm, protocol, channels, parallel parts, fusion and tile. It begins at the
    default; a cell without measurements of its own begins at the best arm of the nearest size. If
    no neighbour is faster it starts again from a random arm.
    """

    name = "descent"

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        super().__init__(backend, seed)
        knobs = [
            (d.algorithm, o.protocol, o.channels, o.instances, o.fusion, d.tile)
            for d in backend.decisions
            for o in [d.options]
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
