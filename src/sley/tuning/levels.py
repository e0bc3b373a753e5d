"""Levels: a decision in three steps: keep the default or tune, plan and protocol, other knobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.ir.plan_table import Recipe
from sley.ir.tables import NONE, BoolArray, FloatArray, LongArray
from sley.tuning.backends import Backend

KEEP, TUNE = 0, 1
"""The actions of the first level: the call runs the default, or the next levels choose an arm."""

HINTS = 3
"""The numbers that describe an action: see `Levels.hints`."""

_MOST = 4.0
"""Bound on the logarithms of speed-ups that are observed."""


class DecisionLevel(IntEnum):
    """A level of a decision (GC3, section 12.9)."""

    CALL = 0
    PLAN = 1
    KNOBS = 2


@lru_cache(maxsize=4096)
def words_of(recipe: Recipe) -> tuple[str, str]:
    """A recipe in two texts: plan and protocol, and all other knobs."""
    algorithm, *options = str(recipe).split()
    protocol = [word for word in options if word.startswith("protocol=")]
    others = [word for word in options if word not in protocol]
    return " ".join([algorithm, *protocol]), " ".join(others)


@dataclass(frozen=True)
class Vocabulary:
    """The actions of the levels, as texts of `words_of`; an action is a place in `plans` or
    `knobs`. Several back ends share one vocabulary, so that one policy serves all of them."""

    plans: tuple[str, ...]
    knobs: tuple[str, ...]

    @classmethod
    def of(cls, backends: Iterable[Backend]) -> Vocabulary:
        """The vocabulary of all recipes of some back ends, sorted."""
        words = [words_of(one) for backend in backends for one in backend.recipes]
        plans, knobs = ({word[place] for word in words} for place in (0, 1))
        return cls(tuple(sorted(plans)), tuple(sorted(knobs)))

    @property
    def actions(self) -> int:
        """The number of actions: that of the level with the most."""
        return max(len((KEEP, TUNE)), len(self.plans), len(self.knobs))


class DecisionStep(NamedTuple):
    """A step of a decision: its level, and the actions of the levels before it (NONE if open).

    explores: the call explores: it must not keep the default if any arm is allowed.
    """

    level: DecisionLevel = DecisionLevel.CALL
    call: int = NONE
    plan: int = NONE
    explores: bool = False

    def after(self, action: int) -> DecisionStep:
        """The next step, which knows this one's action. A kept default has no plan."""
        if self.level is DecisionLevel.CALL:
            return DecisionStep(DecisionLevel.PLAN, action)
        return DecisionStep(DecisionLevel.KNOBS, self.call, action if self.call == TUNE else NONE)


class Levels:
    """The arms of a back end as actions of a vocabulary.

    plan, knobs: int64 (arms,), the actions that lead to each arm; NONE for arms whose recipe is
    not in the vocabulary: they can't be chosen.
    """

    def __init__(self, vocabulary: Vocabulary, backend: Backend) -> None:
        self.vocabulary, self.backend = vocabulary, backend
        plans = {word: place for place, word in enumerate(vocabulary.plans)}
        knobs = {word: place for place, word in enumerate(vocabulary.knobs)}
        words = [words_of(recipe) for recipe in backend.recipes]
        known = [plan in plans and other in knobs for plan, other in words]
        pairs = [
            (plans[plan], knobs[other]) if is_known else (NONE, NONE)
            for (plan, other), is_known in zip(words, known, strict=True)
        ]
        self.plan: LongArray
        self.knobs: LongArray
        self.plan, self.knobs = np.array(pairs, np.int64).T
        self._arm = np.full((len(plans), len(knobs)), NONE, np.int64)
        rows = np.flatnonzero(self.plan != NONE)
        self._arm[self.plan[rows], self.knobs[rows]] = rows
        cells = np.arange(len(backend.sizes))
        own = backend.expected[cells, backend.default][:, None]
        self._estimate = np.clip(own - backend.expected, -_MOST, _MOST)

    def arm(self, cell: int, step: DecisionStep, knobs: int) -> int:
        """The arm of a decision: its last step, and that step's action. NONE if there is none."""
        if step.call == KEEP:
            return int(self.backend.default[cell])
        return int(self._arm[step.plan, knobs])

    def actions(self, cell: int, step: DecisionStep) -> LongArray:
        """int64 (arms,): the action of this step that leads to each arm, NONE if none does."""
        if step.level is DecisionLevel.CALL:
            action = np.where(self.plan == NONE, NONE, TUNE)
            action[self.backend.default[cell]] = KEEP
            return action
        if step.call == KEEP:
            return np.full(len(self.plan), NONE, np.int64)
        if step.level is DecisionLevel.PLAN:
            return self.plan
        return np.where(self.plan == step.plan, self.knobs, NONE)

    def mask(self, cell: int, step: DecisionStep, allowed: BoolArray) -> NDArray[np.int8]:
        """int8 (actions,): 1 for actions that lead to an allowed arm. allowed: bool (arms,).

        A call that doesn't explore can keep the default; then each further level has one action, 0.
        """
        mask = np.zeros(self.vocabulary.actions, np.int8)
        if step.level is DecisionLevel.CALL:
            mask[TUNE] = bool((allowed & (self.plan != NONE)).any())
            mask[KEEP] = not (step.explores and mask[TUNE])
        elif step.call == KEEP:
            mask[0] = 1
        else:
            action = self.actions(cell, step)
            mask[action[allowed & (action != NONE)]] = 1
        return mask

    def hints(
        self, cell: int, step: DecisionStep, speedup: FloatArray, allowed: BoolArray
    ) -> NDArray[np.float32]:
        """float32 (actions, HINTS): what is known of each action before it is chosen.

        In order: the best estimate of the logarithm of the speed-up over the default among the
        allowed arms that it leads to (`Backend.expected`), the best measured one, and the share of
        these arms that were measured. speedup: float64 (arms,), the measured logarithms, NaN if
        there is none.
        """
        hints = np.zeros((self.vocabulary.actions, HINTS), np.float32)
        action = self.actions(cell, step)
        rows = np.flatnonzero(allowed & (action != NONE))
        if not len(rows):
            return hints
        actions = action[rows]
        # Several arms lead to one action, so maxima are taken by action: the later levels can still
        # choose the best of them.
        best = np.full((len(hints), 2), -np.inf)
        np.maximum.at(best[:, 0], actions, self._estimate[cell, rows])
        is_measured = np.isfinite(speedup[rows])
        np.maximum.at(best[:, 1], actions[is_measured], speedup[rows[is_measured]])
        hints[:, :2] = np.where(np.isfinite(best), np.clip(best, -_MOST, _MOST), 0.0)
        count = np.bincount(actions, minlength=len(hints))
        measured = np.bincount(actions[is_measured], minlength=len(hints))
        hints[:, 2] = measured / np.maximum(count, 1)
        return hints
