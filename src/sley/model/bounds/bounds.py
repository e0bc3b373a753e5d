"""Bounds: the lower bounds of a collective on a topology, for one size or all sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from sley.errors import without_inner_frames
from sley.ir.collective import Collective
from sley.ir.sizes import checked_size, size_text
from sley.ir.tables import Value
from sley.ir.topology import Topology
from sley.model.bounds.allreduce import allreduce
from sley.model.bounds.cuts import Cuts, RateLimit, tightest
from sley.model.bounds.exchange import exchange
from sley.model.bounds.latency import latency
from sley.model.bounds.mixed import mixed
from sley.model.bounds.needs import (
    Collect,
    Everywhere,
    Exchange,
    Mixed,
    Needs,
    Spread,
    accesses,
    needs_of,
)
from sley.model.bounds.spread import spread
from sley.topologies import topology_of


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return (
            f"Bound({size_text(self.size_bytes)}: {self.time_us:.1f} us, "
            f"{self.algbw_GBps:.2f} GB/s, by {self.reason})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Bounds(Value):
    """The lower bounds of a collective on a topology, for all sizes; computed on first use.

    nominal: whether links have their nominal rates, not those that transfers reach.
    """

    collective: Collective
    topology: Topology
    nominal: bool = False

    @classmethod
    def of(
        cls, collective: Collective, topology: Topology | str, *, nominal: bool = False
    ) -> Bounds:
        """The bounds with rank r on GPU r. GPUs beyond the collective's ranks hold no chunks, but
        may forward and reduce.

        topology: a topology, or its name, as for `sley.topologies.find`.
        Errors: C305 if the topology has fewer GPUs than the collective has ranks, C307, T604.
        """
        topology = topology_of(topology)
        topology.check_ranks(collective.ranks)
        return cls(collective, topology, nominal)

    def at(self, size: int | str) -> Bound:
        """The bound for a call of this size, as nccl-tests counts it: a number of bytes, or a text
        such as "64M". Errors: S702."""
        size_bytes = checked_size(size)
        latency_us, latency_reason = self._latency
        return Bound(
            size_bytes,
            float(self._limit.ratio) * size_bytes / self._whole / 1e3,
            latency_us,
            self.reason,
            latency_reason,
        )

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The upper bound on the algorithm bandwidth (size over time) at any size; infinite if no
        data has to move."""
        return float(self._whole / self._limit.ratio) if self._limit.ratio else math.inf

    @property
    def exact(self) -> bool:
        """Whether `algbw_GBps` can be reached (to about 1 part in 100,000) without latency and with
        chunks of any size; if not, the true optimum may be lower."""
        return self._limit.exact

    @property
    def reason(self) -> str:
        """The cut that limits `algbw_GBps`."""
        limit = self._limit
        if not limit.chunks:
            return limit.where
        share = limit.chunks / self._whole
        text = f"{share:.4g} times the size {limit.where} at {limit.GBps:.6g} GB/s"
        return text if limit.exact else f"{text} (the tightest bound found)"

    @property
    def _whole(self) -> int:
        """The number of chunks that the size of a call covers."""
        return self.collective.blocks * self.collective.chunks

    @cached_property
    def _needs(self) -> Needs:
        return needs_of(self.collective)

    @cached_property
    def _cuts(self) -> Cuts:
        return Cuts(self.topology, self.collective.ranks, nominal=self.nominal)

    @cached_property
    def _limit(self) -> RateLimit:
        topology = self.topology
        if not topology.shared_memory or topology.nodes > 1 or topology.in_network:
            return self._links
        touched = accesses(self._needs, self.collective.ranks)
        memory = RateLimit(touched, topology.model.memory_GBps, "read and written in the memory")
        return tightest([self._links, memory])

    @cached_property
    def _links(self) -> RateLimit:
        match self._needs:
            case Spread(chunks):
                return spread(self._cuts, chunks)
            case Collect(chunks):
                return spread(self._cuts, chunks, collect=True)
            case Everywhere(chunks):
                return allreduce(self._cuts, chunks)
            case Exchange() as needs:
                return exchange(self._cuts, needs)
            case Mixed() as needs:
                return mixed(self._cuts, needs)

    @cached_property
    def _latency(self) -> tuple[float, str]:
        return latency(self._cuts, self._needs)


@without_inner_frames
def bound(
    collective: Collective, topology: Topology | str, size: int | str, *, nominal: bool = False
) -> Bound:
    """The lower bound on the time for one size. For several sizes use `Bounds.of(...).at(size)`,
    which computes the cuts once.

    topology, nominal, size: as for `Bounds.of` and `Bounds.at`.
    Errors: those of both.
    """
    return Bounds.of(collective, topology, nominal=nominal).at(size)
