"""Reward: how good a call's time is, relative to the default's (GC3, section 12.6)."""

from __future__ import annotations

from collections import defaultdict, deque
from math import log

SMOOTHED = 10
"""The number of calls of a rolling mean on a shared network."""

UNDER_USED = 0.5
"""The links are under-used by a default whose utilisation is below this share."""

AMPLIFIED = 1.5
"""The factor of rewards for arms that use such links better."""


class Reward:
    """The reward of each call: the natural logarithm of the default's time over the call's.

    It is AMPLIFIED if the default leaves the links under-used (utilisation below UNDER_USED) and an
    arm other than the default uses them better than the default. While the network is shared, it is
    the mean over the last SMOOTHED calls with the same collective, size and arm: a mean over
    different arms would reward one arm for another's time.
    """

    def __init__(self) -> None:
        self._recent: defaultdict[tuple[int, ...], deque[float]] = defaultdict(
            lambda: deque(maxlen=SMOOTHED)
        )

    def __call__(
        self,
        key: tuple[int, ...],
        speedup: float,
        *,
        fans_out: bool,
        of_default: float,
        is_shared: bool,
    ) -> float:
        """The reward of the next call.

        key: equal for calls of the same collective, size and arm. speedup: the default's time over
        the call's. fans_out: the arm is another than the default and uses the links better.
        of_default: the default's utilisation, lower bound over time. is_shared: the network is.
        """
        # Logarithms: twice as fast and half as fast cancel out, and noise counts alike at all sizes
        # (GC3, section 12.6).
        reward = log(speedup)
        if fans_out and of_default < UNDER_USED:
            reward *= AMPLIFIED
        recent = self._recent[key]
        recent.append(reward)
        return sum(recent) / len(recent) if is_shared else reward
