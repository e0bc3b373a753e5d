"""Clocks: what agents of a one-sided machine know of one another's operations."""

from __future__ import annotations

import numpy as np


class Clock:
    """What an agent knows of all agents (blocks, ports and callers): for each, how many of its
    epochs have ended. An access in epoch e comes before all that know e + 1 of its agent.

    strong: of accesses that are in memory. base: of calls that had ended, which relaxed signals and
    packets show as well. loose: as if relaxed signals published memory, for messages; its last
    place is the length of the longest chain.
    """

    __slots__ = ("base", "loose", "strong")

    def __init__(self, strong: np.ndarray, base: np.ndarray, loose: np.ndarray) -> None:
        self.strong, self.base, self.loose = strong, base, loose

    @classmethod
    def zero(cls, agents: int) -> Clock:
        """The clock of who knows nothing."""
        nothing = np.zeros(agents + 1, np.int32)
        return cls(nothing, nothing, nothing)

    def joined(self, other: Clock, *, relaxed: bool = False) -> Clock:
        """The clock after `other` was observed, by a relaxed signal or by one that publishes."""
        return Clock(
            np.maximum(self.strong, other.base if relaxed else other.strong),
            np.maximum(self.base, other.base),
            np.maximum(self.loose, other.loose),
        )

    def lengthened(self) -> Clock:
        """The clock after a wait, which the chain of operations counts."""
        loose = self.loose.copy()
        loose[-1] += 1
        return Clock(self.strong, self.base, loose)

    def advanced(self, agent: int, epochs: int) -> Clock:
        """The clock when `agent` has ended this number of epochs."""
        strong, loose = self.strong.copy(), self.loose.copy()
        strong[agent] = loose[agent] = epochs
        loose[-1] += 1
        return Clock(strong, self.base, loose)

    def restarted(self) -> Clock:
        """The clock when a call begins: what is known has ended, and no chain has begun."""
        loose = self.loose.copy()
        loose[-1] = 0
        return Clock(self.strong, self.strong, loose)
