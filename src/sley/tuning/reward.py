"""Reward: how good a call's time is, relative to the default's (GC3, section 12.6)."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from math import log

SMOOTHED = 10
"""The number of calls of a rolling mean on a shared network."""

UNDER_USED = 0.5
"""The links are under-used by a default whose utilisation is below this share."""

AMPLIFIED = 1.5
"""The factor of rewards for arms that use such links better."""


@dataclass(frozen=True)
class TunedCall:
    """A call with its time.

    key: equal for calls of the same collective, size and arm. time_us, default_us: its time and the
    default's. utilisation, default_utilisation: lower bound over time for both, 0 to 1. is_default:
    the default ran. is_shared: the network is shared.
    """

    key: tuple[int, ...]
    time_us: float
    default_us: float
    utilisation: float
    default_utilisation: float
    is_default: bool
    is_shared: bool


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

    def __call__(self, call: TunedCall) -> float:
        """The reward of the next call."""
        reward = log(call.default_us / call.time_us)
        fans_out = not call.is_default and call.utilisation > call.default_utilisation
        if fans_out and call.default_utilisation < UNDER_USED:
            reward *= AMPLIFIED
        recent = self._recent[call.key]
        recent.append(reward)
        return sum(recent) / len(recent) if call.is_shared else reward
