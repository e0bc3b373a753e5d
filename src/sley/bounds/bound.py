"""Bound: a time that no algorithm falls below, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bound:
    """A lower bound of a collective's time on a topology, for one size.

    size_bytes: of the call, as nccl-tests counts it.
    bandwidth_us: what the data takes to cross the narrowest cut, with every link at its rate.
    latency_us: launch, and the hops that data must make one after the other.
    bandwidth_reason, latency_reason: which cut, which hops.
    """

    size_bytes: int
    bandwidth_us: float
    latency_us: float
    bandwidth_reason: str
    latency_reason: str

    @property
    def time_us(self) -> float:
        """The larger of both."""
        return max(self.bandwidth_us, self.latency_us)

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The algorithm bandwidth that cannot be exceeded; infinite where nothing takes time."""
        return self.size_bytes / self.time_us / 1e3 if self.time_us else math.inf

    @property
    def reason(self) -> str:
        """What limits it."""
        longer = self.bandwidth_us >= self.latency_us
        return self.bandwidth_reason if longer else self.latency_reason
