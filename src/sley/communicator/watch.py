"""Watch: equal calls under a policy, measured against the default, and reverted to it if slower.

The engine runs the calls in turns (`native.Choice`). After the last turn it adds up the times over
all ranks, and every rank's `Watch` makes the same next turns from the same sums. So the ranks need
no other agreement, and a watch reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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

FIRST_CALLS, MOST_CALLS = 64, 1024
"""Calls from one trial to the next: at first, and at most. They double as long as nothing changes,
so that in the long run the default has 2 calls of 100."""

WARM_CALLS = 12
"""Calls of a plan that are not counted. In them the communicator tries its copy methods: at most
two calls of each of the three, and as many again after a bad start."""

PAIRS = 8
"""Calls of each of two plans that are compared, by turns. Their medians count, which a late rank
or another program changes less than means."""

TRIAL_CALLS = WARM_CALLS + 2 * PAIRS

_ALWAYS = 1 << 62


OnChange: TypeAlias = Callable[[int, int, int, float, float], None]
"""Called with a change to another plan: how many calls ran before it, the numbers of the plans
before and after, and the times of a call, in microseconds, that led to it."""


class Watch:
    """The turns of equal calls under a policy.

    ranks: how many ranks' times are added up. plans: the number of plans: the policy's, the
    default, alternatives. explore: the most calls, as a fraction of all, that may be spent on
    trials of alternatives. on_change: called at every change.

    Between two trials one plan runs. A trial runs it and a rival by turns, and the one with the
    lower median goes on. The rival is the default, which stays once it is faster, or an
    alternative. Times are compared only within a trial: those of a training, or of an hour ago, may
    be those of another load.

    current: the number of the plan that runs but for trials. ran: those that ever were. calls: how
    many calls have been decided.
    """

    def __init__(self, ranks: int, plans: int, explore: float, on_change: OnChange) -> None:
        self.ranks, self._explore, self._on_change = ranks, explore, on_change
        self.current = POLICY
        self.ran = {POLICY}
        self.calls = 0
        self._explored = 0
        self._interval = FIRST_CALLS
        self._rival: int | None = None
        self._was_default = False
        self._next_rivals: Iterator[int] = cycle([POLICY, *range(DEFAULT + 1, plans)])
        self._has_alternatives = plans > DEFAULT + 1
        self.turns: Turns = [(POLICY, WARM_CALLS), (POLICY, FIRST_CALLS)]

    def decide(self, seconds: Sequence[float]) -> Turns:
        """The next turns. seconds: of each turn that has ended, the sum over all ranks of the mean
        time of a call."""
        self.calls += sum(calls for _, calls in self.turns)
        times_us = [one / self.ranks * 1e6 for one in seconds]
        rival, self._rival = self._rival, None
        if rival is None:
            self._rival = rival = self._choose_rival()
            self.turns = [(rival, WARM_CALLS), *[(self.current, 1), (rival, 1)] * PAIRS]
        else:
            # The turn before them only warms the rival up.
            pairs = times_us[-2 * PAIRS :]
            self.turns = self._after_trial(rival, median(pairs[::2]), median(pairs[1::2]))
        return self.turns

    def _choose_rival(self) -> int:
        """The rival of the next trial: the default, and in between alternatives."""
        calls = self.calls + TRIAL_CALLS
        may_explore = self._explored + TRIAL_CALLS <= self._explore * calls
        self._was_default = not (self._was_default and self._has_alternatives and may_explore)
        if self._was_default:
            return DEFAULT
        self._explored += TRIAL_CALLS
        # Ends: with alternatives the cycle has two plans at least, and one of them isn't the
        # current one.
        return next(one for one in self._next_rivals if one != self.current)

    def _after_trial(self, rival: int, current_us: float, rival_us: float) -> Turns:
        self._interval = min(2 * self._interval, MOST_CALLS)
        if current_us > rival_us * (1 + MARGIN):
            before, self.current, self._interval = self.current, rival, FIRST_CALLS
            self.ran.add(rival)
            self._on_change(self.calls, before, rival, current_us, rival_us)
        return [(self.current, _ALWAYS if self.current == DEFAULT else self._interval)]
