"""Watch: equal calls under a policy, measured against the default, and reverted to it if slower.

The engine runs the calls in turns (`native.Choice`). After the last turn it adds up the times over
all ranks, and every rank's `Watch` makes the same next turns from the same sums. So the ranks need
no other agreement, and a watch reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from typing import Final, TypeAlias

Turns: TypeAlias = list[tuple[int, int]]
"""The next calls: for each turn the number of a plan, and how many calls it runs."""

POLICY: Final = 0
DEFAULT: Final = 1
"""The numbers of the policy's plan and of the default; those from 2 on are alternatives."""

MARGIN = 0.1
"""A plan is slower than another one if a call takes longer by more than this fraction."""

FIRST_CALLS, MOST_CALLS = 64, 512
"""Calls from one check to the next: at first, and at most; they double as long as nothing
changes."""

WARM_CALLS = 8
"""Calls of a plan that are not counted: the first ones try the ways of copying."""

PAIRS = 8
"""Calls of each of two plans that are compared, by turns. Their medians count, which a late rank
or another program changes less than means."""

TRIAL_CALLS = WARM_CALLS + 2 * PAIRS

_ALWAYS = 1 << 62


@dataclass(frozen=True)
class Switch:
    """A change to another plan.

    call: how many calls ran before it. before, after: the plans' numbers. before_us, after_us:
    the times of a call, in microseconds, that led to it.
    """

    call: int
    before: int
    after: int
    before_us: float
    after_us: float


class Watch:
    """The turns of equal calls under a policy.

    ranks: how many ranks' times are added up. plans: the number of plans: the policy's, the
    default, alternatives. default_us: the time of a call with the default that the policy has
    measured; None if it has none. explore: the most calls, as a fraction of all, that may be spent
    on trials of alternatives. on_switch: called at every change.

    While the policy's plan runs, the mean time of its calls is compared with `default_us`. If it is
    slower, or without `default_us`, a trial runs the plan and the default by turns. If the default
    is faster, it stays; else its measured time replaces `default_us`.

    current: the number of the plan that runs but for trials. calls: those that have been decided.
    """

    def __init__(
        self,
        ranks: int,
        plans: int,
        default_us: float | None,
        explore: float,
        on_switch: Callable[[Switch], None],
    ) -> None:
        self.ranks, self._default_us, self._explore = ranks, default_us, explore
        self._on_switch = on_switch
        self.current = POLICY
        self.calls = 0
        self._explored = 0
        self._interval = FIRST_CALLS
        self._rival: int | None = None
        self._next_rivals = cycle([POLICY, *range(DEFAULT + 1, plans)])
        self._has_alternatives = plans > DEFAULT + 1
        if default_us is None:
            self.turns: Turns = [(POLICY, WARM_CALLS), *self._trial(DEFAULT)]
        else:
            self.turns = [(POLICY, WARM_CALLS), *self._check()]

    def decide(self, seconds: Sequence[float]) -> Turns:
        """The next turns. seconds: of each turn that has ended, the sum over all ranks of the mean
        time of a call."""
        self.calls += sum(calls for _, calls in self.turns)
        times_us = [one / self.ranks * 1e6 for one in seconds]
        rival, self._rival = self._rival, None
        if rival is None:
            self.turns = self._after_check(times_us[-1])
        else:
            pairs = times_us[-2 * PAIRS :]
            self.turns = self._after_trial(rival, median(pairs[::2]), median(pairs[1::2]))
        return self.turns

    def _after_check(self, time_us: float) -> Turns:
        if self._default_us is not None and is_slower(time_us, self._default_us):
            return self._trial(DEFAULT)
        self._interval = min(2 * self._interval, MOST_CALLS)
        calls = self.calls + TRIAL_CALLS
        if self._has_alternatives and self._explored + TRIAL_CALLS <= self._explore * calls:
            self._explored += TRIAL_CALLS
            return self._trial(next(one for one in self._next_rivals if one != self.current))
        return self._check()

    def _after_trial(self, rival: int, current_us: float, rival_us: float) -> Turns:
        if rival == DEFAULT:
            self._default_us = rival_us
        if is_slower(current_us, rival_us):
            switch = Switch(self.calls, self.current, rival, current_us, rival_us)
            self.current, self._interval = rival, FIRST_CALLS
            self._on_switch(switch)
        if self.current == DEFAULT:
            return [(DEFAULT, _ALWAYS)]
        return self._check()

    def _check(self) -> Turns:
        return [(self.current, self._interval)]

    def _trial(self, rival: int) -> Turns:
        self._rival = rival
        return [(rival, WARM_CALLS), *[(self.current, 1), (rival, 1)] * PAIRS]


def is_slower(time_us: float, other_us: float) -> bool:
    """Whether a time is longer than another one by more than the margin."""
    return time_us > other_us * (1 + MARGIN)
