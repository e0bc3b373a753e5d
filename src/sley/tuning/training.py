"""Training: an agent measures and learns, cell by cell, and can stop and go on."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.communicator.selection.policy import CHANGE
from sley.engine.limits import whole
from sley.errors import Place
from sley.errors.tuning import D922, D923
from sley.ir.plan_table import Measured, PlanRow, Recipe
from sley.ir.sizes import SizeRange
from sley.tuning.agents.agent import Agent
from sley.tuning.agents.contextual import Thompson
from sley.tuning.arrays import columns_of, read_arrays, write_arrays
from sley.tuning.backends import Backend, Repeatable
from sley.tuning.gate import Gate

MOST_SAMPLES = 100_000

NEAR = 1.05
"""Arms measured within this factor of the deployed one become its alternatives."""

_MOST_ALTERNATIVES = 3

_MOST_LENGTH = 80
"""Longer values are not shown in errors."""

_COLUMNS: Mapping[str, type] = {"cell": np.int64, "arm": np.int64, "time_us": np.float64}
"""The arrays of a checkpoint: a row for each measurement."""


class Training:
    """An agent in training: rounds in which each cell is measured once, in random order.

    A checkpoint is the history of all measurements: a new agent that is given the same history is
    in the same state, whatever kind it is. No pickle is written or read.

    make: makes the agent, from a back end and a seed; a safety gate is put before it. aside: cells
    that are not measured. Errors: D923.
    """

    def __init__(
        self,
        backend: Backend,
        make: Callable[[Backend, int], Agent] = Thompson,
        *,
        seed: int = 0,
        aside: Sequence[int] = (),
    ) -> None:
        self.backend, self.seed = backend, whole(seed, "seed", 0, rule=D923)
        self.agent = Gate(make(backend, self.seed))
        self.name = self.agent.name
        self.cells = np.setdiff1d(np.arange(len(backend.sizes)), aside)
        if not len(self.cells):
            raise D923.error(expected="at least one size to measure", found="all of them aside")
        self.history: list[tuple[int, int, float]] = []
        self.changes: list[dict[str, Any]] = []
        self._deployed = [int(arm) for arm in backend.default]
        self._rng = np.random.default_rng(self.seed)

    @property
    def rounds(self) -> int:
        """The measurements of each cell so far."""
        return len(self.history) // len(self.cells)

    def run(
        self, samples: int, progress: Callable[[int, int], None] = lambda _done, _all: None
    ) -> None:
        """Trains until each cell has this many measurements. progress: called with the rounds that
        are done, and all. Errors: D923."""
        whole(samples, "samples", 1, MOST_SAMPLES, D923)
        # Each round ends with a measurement of every cell, so the loop ends. In random order, a
        # drift of the machine doesn't hit the same sizes each time.
        while self.rounds < samples:
            for cell in self._rng.permutation(self.cells).tolist():
                arm = self.agent.choose(cell)
                self._learn(cell, arm, self.backend.measure(cell, arm))
            progress(self.rounds, samples)

    def _learn(self, cell: int, arm: int, time_us: float) -> None:
        self.agent.observe(cell, arm, time_us)
        self.history.append((cell, arm, time_us))
        best, deployed = self.agent.best(cell), self._deployed[cell]
        if best != deployed:
            self._deployed[cell] = best
            recipes, size = self.backend.recipes, int(self.backend.sizes[cell])
            words = str(recipes[deployed]), str(recipes[best])
            change = (len(self.history), self.backend.collective, size, *words)
            self.changes.append(dict(zip(CHANGE, change, strict=True)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a checkpoint of all whole rounds (.npz of NumPy). Errors: F461."""
        rows = self.history[: self.rounds * len(self.cells)]
        cells, arms, times = zip(*rows, strict=True) if rows else ((), (), ())
        columns = {"cell": cells, "arm": arms, "time_us": times}
        arrays: dict[str, NDArray[Any]] = {
            name: np.array(columns[name], kind) for name, kind in _COLUMNS.items()
        }
        write_arrays(path, self._facts(), arrays)

    def resume(self, path: str | os.PathLike[str]) -> None:
        """Brings a new training into the state of a checkpoint. Errors: D922."""
        place = Place(os.fspath(path))
        try:
            facts, arrays = read_arrays(path)
            columns = columns_of(arrays, _COLUMNS)
            rows = list(zip(*(column.tolist() for column in columns.values()), strict=True))
            rounds, rest = divmod(len(rows), len(self.cells))
            if rest or not all(0 < time_us < math.inf for *_, time_us in rows):
                raise ValueError("rounds that are not whole, or times that are none")
        except (TypeError, ValueError) as error:
            expected = "a checkpoint, as `sley tune train` writes it"
            raise D922.error(at=place, expected=expected, found=str(error)) from error
        for word, own in self._facts().items():
            if facts.get(word) != own:
                pair = [str(value) for value in (own, facts.get(word))]
                texts = [f" {text}" if len(text) <= _MOST_LENGTH else "" for text in pair]
                expected = f"a checkpoint of this training, with its {word}{texts[0]}"
                raise D922.error(at=place, expected=expected, found=f"other {word}{texts[1]}")
        # The agent must choose what the file says at each step; else the file is of another agent,
        # and its state would be one that no training reaches.
        left = iter(rows)
        for _ in range(rounds):
            for cell in self._rng.permutation(self.cells).tolist():
                row = next(left)
                if row[0] != cell or row[1] != self.agent.choose(cell):
                    expected = "the measurements of this training"
                    raise D922.error(at=place, expected=expected, found=f"row {row}")
                self._learn(*row)
        if isinstance(self.backend, Repeatable):
            self.backend.calls = len(rows)

    def _facts(self) -> dict[str, Any]:
        """What must be equal for a checkpoint to fit."""
        return {
            "agent": self.name,
            "seed": self.seed,
            "collective": self.backend.collective,
            "machine": dict(vars(self.backend.machine)),
            "sizes": self.backend.sizes.tolist(),
            "cells": self.cells.tolist(),
            "choices": [str(recipe) for recipe in self.backend.recipes],
            "noise": str(self.backend.noise) if isinstance(self.backend, Repeatable) else "",
        }

    def rows(self) -> tuple[PlanRow, ...]:
        """What the agent would deploy, as rows of a policy. Sizes that keep the default have no
        row, nor have sizes below the first and above the last one, of which nothing is known.

        Two sizes with rows share the sizes between them, up to their geometric mean. Towards a
        size with the default, a range ends where the times of its arm and of the default cross, by
        their logarithms, and at the geometric mean at most.
        """
        # By ascending sizes; a neighbour with the same recipe makes the last row longer.
        chosen = [self.agent.best(cell) for cell in range(len(self.backend.sizes))]
        ranges: list[PlanRow] = []
        for cell, arm in enumerate(chosen):
            if arm == int(self.backend.default[cell]):
                continue
            found = self._range(cell, chosen)
            last = ranges[-1] if ranges else None
            if (
                last
                and last.sizes.end_bytes == found.sizes.begin_bytes - 1
                and (last.recipe == found.recipe)
            ):
                ranges[-1] = _join(last, found)
            else:
                ranges.append(found)
        return tuple(ranges)

    def _range(self, cell: int, chosen: Sequence[int]) -> PlanRow:
        """The row of one size. chosen: the arms of all sizes."""
        backend, arm = self.backend, chosen[cell]
        begin, end = (self._reach(cell, to, chosen) for to in (cell - 1, cell + 1))
        if cell > 0 and chosen[cell - 1] != int(backend.default[cell - 1]):
            begin += 1  # the other range has the size in the middle
        mean, default = self.agent.tally.mean(cell), int(backend.default[cell])
        measured: tuple[Measured, ...] = ()
        near: list[int] = []
        if np.isfinite(mean[[arm, default]]).all():
            times = np.exp(mean[[arm, default]]).tolist()
            measured = (Measured(int(backend.sizes[cell]), *times),)
            # Two more than are kept: the arm itself and the default are among the fastest.
            close = np.argsort(mean, kind="stable")[: _MOST_ALTERNATIVES + 2].tolist()
            near = [a for a in close if mean[a] < mean[arm] + np.log(NEAR)]
        others = [backend.recipes[a] for a in near if a not in (arm, default)]
        kept = tuple(others[:_MOST_ALTERNATIVES])
        sizes, recipe = SizeRange(begin, end), backend.recipes[arm]
        return PlanRow(recipe, sizes, backend.collective, measured=measured, alternatives=kept)

    def _reach(self, cell: int, to: int, chosen: Sequence[int]) -> int:
        """The last size of a cell's range towards another cell."""
        sizes = self.backend.sizes.tolist()
        if not 0 <= to < len(sizes):
            return int(sizes[cell])
        if chosen[to] != int(self.backend.default[to]):
            return isqrt(sizes[cell] * sizes[to])
        own, other = (self._slower(c, chosen[cell]) for c in (cell, to))
        # Where the line through both logarithms is 0. Beyond the mean, the other size's default is
        # nearer.
        share = min(own / (own - other), 0.5) if own < 0 < other else 0.5 * (own < 0)
        return int(sizes[cell] * (sizes[to] / sizes[cell]) ** share)

    def _slower(self, cell: int, arm: int) -> float:
        """The logarithm of an arm's time over the default's. By the measured means, if both have
        one. Otherwise a standard deviation above the agent's expectation. Infinite if the agent
        expects nothing."""
        mean, default = self.agent.tally.mean(cell), int(self.backend.default[cell])
        if np.isfinite(mean[[arm, default]]).all():
            return float(mean[arm] - mean[default])
        expected = self.agent.predict(cell)
        if expected is None:
            return np.inf
        return float(expected.log_time[arm] + expected.deviation[arm])


def _join(first: PlanRow, second: PlanRow) -> PlanRow:
    """Two neighbours with one recipe as one row."""
    others: list[Recipe] = [*first.alternatives]
    others += [other for other in second.alternatives if other not in others]
    sizes = SizeRange(first.sizes.begin_bytes, second.sizes.end_bytes)
    measured = (*first.measured, *second.measured)
    return replace(
        first, sizes=sizes, measured=measured, alternatives=tuple(others[:_MOST_ALTERNATIVES])
    )
