"""Bound: a lower bound on the time of a collective, and its reason."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A lower bound on a collective's time on a topology, for one size.

    size_bytes: the size of the call, as nccl-tests counts it.
    bandwidth_us: the time in which the data can cross the narrowest cut at its links' rates.
    latency_us: the launch and the longest necessary sequence of hops.
    bandwidth_reason, latency_reason: the cut, the hops.
    """

    size_bytes: int
    bandwidth_us: float
    latency_us: float
    bandwidth_reason: str
    latency_reason: str

    @property
    def time_us(self) -> float:
        """The larger of the two."""
        return max(self.bandwidth_us, self.latency_us)

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The upper bound on the algorithm bandwidth; infinite for a time of 0."""
        return self.size_bytes / self.time_us / 1e3 if self.time_us else math.inf

    @property
    def reason(self) -> str:
        """The reason of the larger of the two."""
        longer = self.bandwidth_us >= self.latency_us
        return self.bandwidth_reason if longer else self.latency_reason
