"""Environment: tuning as an environment of Gymnasium, over one or several back ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsInt

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from sley.engine.limits import whole
from sley.errors.tuning import D923
from sley.ir.tables import NONE, BoolArray
from sley.tuning.backends import Repeatable
from sley.tuning.levels import HINTS, DecisionLevel, DecisionStep, Levels, Vocabulary
from sley.tuning.reward import Reward
from sley.tuning.state import BOUND, CALL, WINDOW, CallWindow, Site, Stream, state_size

ID = "sley/Tuning-v0"
"""The environment's name in Gymnasium's registry; `gymnasium.make` takes `Tuning`'s arguments."""

BASELINE = 5
"""Measurements of the default at a size when an episode first calls it."""

MASKED = -1.0
"""The reward of a call one of whose actions the mask excludes; it runs the default."""

Observation = dict[str, NDArray[Any]]


class Tuning(gymnasium.Env[Observation, int]):
    """An episode is a number of calls; a decision for a call takes three steps (`DecisionLevel`):
    keep the default or tune, plan and protocol, other knobs.

    The second and third step have a single action if the default is kept. They are not left out:
    a call that takes fewer steps is discounted less, and agents would keep the default in order to
    reach the next call. The reward is given when the call has run (`Reward`). An episode is
    truncated after its last call.

    Observation: "state": float32 (`state_size`,), see `Stream.state`; "window": float32 (WINDOW *
    CALL,), see `CallWindow.rows`; "chosen": int8 (3 + actions,), the level and the chosen plan,
    one-hot; "hints": float32 (actions, HINTS), see `Levels.hints`; "mask": int8 (actions,), 1 for
    actions that may be chosen. An action outside the mask runs the default, for the reward MASKED.

    The info of a call's last step has site (its place), size_bytes, arm, time_us, default_us and
    is_masked.

    Episodes with equal seeds are equal if all back ends are `Repeatable`; one that measures is not.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's name and type

    def __init__(
        self,
        sites: Sequence[Site],
        *,
        vocabulary: Vocabulary | None = None,
        calls: int = 32,
        cells: int = 4,
        explores: bool = False,
    ) -> None:
        """sites: back ends; an episode's calls are on those of one machine, drawn at random.
        vocabulary: by default that of all back ends. calls: the calls of an episode. cells: from
        how many pairs of site and size they are drawn. explores: a part of the calls must tune
        (`exploration`). Otherwise an agent learns at first, while its arms are bad, to keep the
        default, and then no longer sees any arm.

        Errors: D923.
        """
        self.calls = whole(calls, "calls", 1, 1 << 20, D923)
        self.cells = whole(cells, "cells", 1, 1 << 20, D923)
        if not sites:
            raise D923.error(expected="at least one back end", found="none")
        self.sites = tuple(sites)
        self.vocabulary = vocabulary or Vocabulary.of(site.backend for site in sites)
        self._explores = explores
        self._levels = [Levels(self.vocabulary, site.backend) for site in self.sites]
        machines = dict.fromkeys(site.backend.machine for site in self.sites)
        self._machines = [
            [place for place, site in enumerate(self.sites) if site.backend.machine == machine]
            for machine in machines
        ]
        actions = self.vocabulary.actions
        self.action_space = spaces.Discrete(actions)  # type: ignore[assignment]
        self.observation_space = space_of(self.vocabulary)  # type: ignore[assignment]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode: nothing has been measured. A seed begins the noise anew."""
        super().reset(seed=seed)
        if seed is not None:
            for site in self.sites:
                if isinstance(site.backend, Repeatable):
                    site.backend.reseed(int(self.np_random.integers(1 << 31)))
        self._streams: dict[int, Stream] = {}
        self._window = CallWindow()
        self._rewards = Reward()
        self._done = 0
        self._pool, self._step = self._draw(), DecisionStep()
        self._next_call()
        return self._observe(), {}

    def step(self, action: SupportsInt) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes the action of a level."""
        chosen, step = int(action), self._step
        if not self.action_masks()[chosen]:
            return self._end(self._default, is_masked=True)
        if step.level is DecisionLevel.KNOBS:
            return self._end(self._stream.levels.arm(self._cell, step, chosen))
        self._step = step.after(chosen)
        return self._observe(), 0.0, False, False, {}

    def action_masks(self) -> BoolArray:
        """bool (actions,): the actions that may be chosen now, as sb3-contrib asks for them."""
        stream, cell = self._stream, self._cell
        mask = stream.levels.mask(cell, self._step, stream.site.backend.mask[cell])
        return mask.astype(np.bool_)

    @property
    def _stream(self) -> Stream:
        return self._streams[self._place]

    @property
    def _default(self) -> int:
        return int(self._stream.site.backend.default[self._cell])

    def _draw(self) -> list[tuple[int, int]]:
        """The pairs of site and cell of an episode."""
        # One machine an episode, as a caller has one; few sizes, so that each comes again and what
        # was measured of it helps.
        places = self._machines[self.np_random.integers(len(self._machines))]
        pairs = [
            (place, cell)
            for place in places
            for cell in range(len(self.sites[place].backend.sizes))
        ]
        count = min(self.cells, len(pairs))
        rows = self.np_random.choice(len(pairs), count, replace=False)
        return [pairs[row] for row in rows.tolist()]

    def _next_call(self) -> None:
        self._place, self._cell = self._pool[self.np_random.integers(len(self._pool))]
        if self._place not in self._streams:
            site, levels = self.sites[self._place], self._levels[self._place]
            self._streams[self._place] = Stream(site, levels, self._window)
        stream, backend = self._stream, self._stream.site.backend
        # Rewards are relative to the default's time, so it is measured before the first of a size;
        # several times, or its noise would be in all of them.
        if stream.default_us(self._cell) is None:
            for _ in range(BASELINE):
                time_us = backend.measure(self._cell, self._default)
                stream.measure_default(self._cell, time_us)
        explores = self._explores and self.np_random.random() < stream.exploration(self._cell)
        self._step = DecisionStep(explores=bool(explores))

    def _end(
        self, arm: int, *, is_masked: bool = False
    ) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Runs the call with an arm, and begins the next."""
        stream, cell = self._stream, self._cell
        site = stream.site
        default_us = stream.default_us(cell)
        assert default_us is not None  # `_next_call` has measured it
        time_us = site.backend.measure(cell, arm)
        stream.record(cell, arm, time_us)
        reward = MASKED
        if not is_masked:
            own, of_default = (site.utilisation(cell, us) for us in (time_us, default_us))
            reward = self._rewards(
                (self._place, cell, arm),
                default_us / time_us,
                fans_out=arm != self._default and own > of_default,
                of_default=of_default,
                is_shared=stream.is_shared,
            )
        info = {
            "site": self._place,
            "size_bytes": int(site.backend.sizes[cell]),
            "arm": arm,
            "time_us": time_us,
            "default_us": default_us,
            "is_masked": is_masked,
        }
        self._done += 1
        is_last = self._done == self.calls
        if is_last:
            self._step = DecisionStep()
        else:
            self._next_call()
        return self._observe(), reward, False, is_last, info

    def _observe(self) -> Observation:
        allowed = self._stream.site.backend.mask[self._cell]
        return observe(self._stream, self._cell, self._step, allowed)


def observe(stream: Stream, cell: int, step: DecisionStep, allowed: BoolArray) -> Observation:
    """The observation of a step of a decision. allowed: bool (arms,), the arms that may be
    chosen."""
    levels = stream.levels
    chosen = np.zeros(len(DecisionLevel) + levels.vocabulary.actions, np.int8)
    chosen[step.level] = 1
    if step.plan != NONE:
        chosen[len(DecisionLevel) + step.plan] = 1
    feasible = stream.site.backend.mask[cell]
    return {
        "state": stream.state(cell),
        "window": stream.window.rows.ravel().copy(),
        "chosen": chosen,
        "hints": levels.hints(cell, step, stream.speedups(cell), feasible),
        "mask": levels.mask(cell, step, allowed),
    }


def space_of(vocabulary: Vocabulary) -> spaces.Dict:
    """The space of an observation."""
    actions = vocabulary.actions

    def box(*shape: int) -> spaces.Box:
        return spaces.Box(-BOUND, BOUND, shape, np.float32)

    return spaces.Dict(
        {
            "state": box(state_size(vocabulary)),
            "window": box(WINDOW * CALL),
            "chosen": spaces.MultiBinary(len(DecisionLevel) + actions),
            "hints": box(actions, HINTS),
            "mask": spaces.MultiBinary(actions),
        }
    )


if ID not in gymnasium.registry:
    gymnasium.register(ID, entry_point="sley.tuning.environment:Tuning")
