"""Routes: an AllToAll's data over other ranks, where ranks have no link or the links of direct
transfers would be the busiest.

The steps, for at most MOST_RANKS ranks:

1. *Candidates.* Direct transfers, then in each of a few rounds the shortest routes, by lengths that
   grow exponentially with a link's load (Plotkin, Shmoys and Tardos 1995).
2. *Shares.* A linear program divides each pair's data among its candidates, so that the busiest
   link has the least load. Its dual is lengths of links: shorter routes by these are further
   candidates, until there are none. The lengths also prove how good the best routes can be
   (Shahrokhi and Matula 1990).
3. *Whole chunks.* Each pair's chunks take routes by these shares, and those that are left the
   routes with the least load.

Routes go along the paths that transfers take (`Topology.paths`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sley.errors.topology import T612
from sley.ir.graph import distances
from sley.ir.linear import LinearProgram
from sley.ir.tables import NONE, FloatArray, IntArray, LongArray, Value, frozen_array, spans
from sley.ir.topology import Topology
from sley.topologies.forests import WITHIN, check_request
from sley.topologies.rates import RankPairs

MOST_RANKS = 64
"""Bound on the ranks of a topology: the time of the linear program grows with their fourth power.
"""

_TRIED_CHUNKS = (1, 2, 3, 4, 6, 8)
"""The chunks between two ranks that are tried, if the user gives no number."""

_ROUNDS = 16
"""Rounds in which candidates are looked for before the first linear program."""

_STEEP = 8.0
"""The logarithm of how much longer the busiest link is than one without load, in these rounds."""

_PROGRAMS = 64
"""The most linear programs: nearly always, one is enough."""

_EXACT = 1e-3
"""The share of the best time by which shares of candidates may be above it."""

_PER_SEND = 1e-4
"""The cost of a send of all data beside the time of the busiest link: few sends, if that is all the
difference."""


@dataclass(frozen=True, eq=False, repr=False)
class Routing(Value):
    """Routes from every rank to every other.

    topology: where they are. weight: int64 (routes,), the chunks that each route carries.
    passed: int32 (routes, longest), the ranks that it passes, from source to destination; NONE
    after the end. optimum_GBps: the algorithm bandwidth that no routes along the paths of transfers
    exceed, with chunks of any size.
    """

    topology: Topology
    weight: LongArray
    passed: IntArray
    optimum_GBps: float  # noqa: N815 - a unit

    @property
    def chunks(self) -> int:
        """The chunks that the size of a call covers: all that a rank sends, and its own."""
        others: int = max(self.topology.ranks - 1, 1)
        return int(self.weight.sum()) // others

    @property
    def rows(self) -> LongArray:
        """int64 (routes, 1 + longest): the weight of each route, then the ranks that it passes, as
        `sley.algorithms.routed_alltoall` takes them."""
        return np.column_stack([self.weight, self.passed])

    @property
    def height(self) -> int:
        """The most sends between two ranks."""
        return int(self.passed.shape[1]) - 1

    @cached_property
    def loads(self) -> LongArray:
        """int64 (links,): the chunks that each link of the topology carries."""
        route, turn = np.nonzero(self.passed[:, 1:] != NONE)
        ends = self.passed[route, turn], self.passed[route, turn + 1]
        return frozen_array(self.topology.loads(*ends, self.weight[route]), np.int64)

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """The size of a call over the time of the busiest link; infinite for one rank."""
        return self.topology.algbw_GBps(self.loads, self.chunks)

    def __repr__(self) -> str:
        return (
            f"Routing({self.topology.name}: {len(self.weight)} routes of at most {self.height} "
            f"sends, {self.algbw_GBps:.2f} of {self.optimum_GBps:.2f} GB/s)"
        )


def find_routes(
    topology: Topology, *, chunks: int | None = None, within: float = WITHIN
) -> Routing:
    """Routes between all ranks of a topology.

    chunks: of the data between two ranks; by default the fewest, of several numbers up to 8, with
    which the routes lack at most `within` of the best routes' bandwidth, or the one with the most.
    Errors: T612.
    """
    check_request(topology, chunks, within, MOST_RANKS)
    if topology.ranks == 1:
        empty = np.zeros(0, np.int64), np.zeros((0, 1), np.int32)
        return Routing(topology, *empty, float("inf"))
    shares = _Shares(topology)
    optimum = topology.ranks / shares.least
    best: Routing | None = None
    for number in _TRIED_CHUNKS if chunks is None else (chunks,):
        weight = shares.whole(number)
        used = weight > 0
        passed = shares.passed[used]
        passed = passed[:, (passed != NONE).any(axis=0)]
        columns = frozen_array(weight[used], np.int64), frozen_array(passed, np.int32)
        found = Routing(topology, *columns, optimum)
        if best is None or found.algbw_GBps > best.algbw_GBps * (1 + 1e-9):
            best = found
        if best.algbw_GBps >= optimum * (1 - within - _EXACT):
            break
    assert best is not None  # some number is tried
    return best


class _Shares:
    """The shares of each pair's data that take its candidates.

    least: the load of the busiest link, in GB a GB/s for 1 GB between each two ranks, below which
    no routes are. passed: int64 (candidates, longest), as in `Routing`, those of a pair one after
    the other. share: float64 (candidates,). Errors: T612.
    """

    def __init__(self, topology: Topology) -> None:
        self._ranks, self._GBps = topology.ranks, topology.links.GBps
        self._pairs = pairs = RankPairs.of(topology)
        self._number = np.full((self._ranks, self._ranks), NONE)
        self._number[pairs.src, pairs.dst] = np.arange(len(pairs.src))
        self._from, self._to = np.nonzero(~np.eye(self._ranks, dtype=bool))
        length, self.passed = self._shortest(np.ones(len(pairs.src)))
        if np.isinf(length).any():
            lost = int(np.argmax(np.isinf(length)))
            raise T612.error(
                expected="transfers that reach every rank from every other, over others if need be",
                found=f"{topology.name}: none from rank {self._from[lost]} to {self._to[lost]}",
            )
        self.share = np.ones(len(self.passed))
        load = self._load(self.share)
        self.least = self._bound(load >= load.max() * (1 - 1e-9))
        if self.least < load.max() * (1 - 1e-9):
            self._divide(self._add_by_loads(load))

    def whole(self, number: int) -> LongArray:
        """int64 (candidates,): how many of the chunks of each pair take each candidate: the whole
        part of its share; then a chunk goes where its busiest link has the least load, and of
        candidates with room, to the one with the fewest sends."""
        count: LongArray = np.floor(self.share * number + 1e-6).astype(np.int64)
        pair, sends, room = self._pair(), self._sent(), number * self.least
        candidate, link, times = self._crossed()
        busy = times / self._GBps[link]
        load = np.bincount(link, busy * count[candidate], len(self._GBps)).astype(np.float64)
        crossed = np.searchsorted(candidate, np.arange(len(pair) + 1))
        of_pair = np.searchsorted(pair, np.arange(len(self._from) + 1))
        lacking = number - np.bincount(pair, count, len(self._from)).astype(np.int64)
        for one in np.repeat(np.arange(len(lacking)), lacking).tolist():
            first, end = of_pair[one : one + 2]
            own = slice(crossed[first], crossed[end])
            peak = np.maximum.reduceat(load[link[own]] + busy[own], crossed[first:end] - own.start)
            chosen = first + np.lexsort((sends[first:end], np.maximum(peak, room)))[0]
            count[chosen] += 1
            used = slice(crossed[chosen], crossed[chosen + 1])
            load[link[used]] += busy[used]
        return count

    def _shortest(self, cost: FloatArray) -> tuple[FloatArray, LongArray]:
        """float64 (pairs,): the length of a shortest route between each two ranks; int64 (pairs,
        longest): that route. cost: float64 (linked pairs,), the length of each send, above 0."""
        ranks, every = self._ranks, np.arange(self._ranks)
        far = self._far(cost)
        send = np.full((ranks, ranks), np.inf)
        send[self._pairs.src, self._pairs.dst] = cost
        # The rank before each one on a route from each origin.
        before = np.stack([(far[origin][:, None] + send).argmin(axis=0) for origin in every])
        length = far[self._from, self._to]
        last, columns = np.where(np.isinf(length), self._from, self._to), list[LongArray]()
        while (going := last != self._from).any():
            columns.append(np.where(going, last, NONE))
            last = np.where(going, before[self._from, last], last)
        # Backwards, with the ends of short routes in the last columns.
        passed = np.column_stack([self._from, *columns[::-1]])
        moved = np.argsort(passed == NONE, axis=1, kind="stable")
        return length, np.take_along_axis(passed, moved, axis=1)

    def _far(self, cost: FloatArray) -> FloatArray:
        """float64 (ranks, ranks): the length of a shortest route between each two ranks."""
        return distances(
            self._ranks, self._pairs.src, self._pairs.dst, cost, np.arange(self._ranks)
        )

    def _sends(self, length: FloatArray) -> FloatArray:
        """float64 (linked pairs,): the length of each send, by float64 (links,), that of links."""
        found = np.bincount(self._pairs.pair, length[self._pairs.link], len(self._pairs.src))
        return found.astype(np.float64)

    def _bound(self, length: FloatArray) -> float:
        """The load of the busiest link below which no routes are, by any lengths of links."""
        far = self._far(self._sends(length.astype(np.float64)))
        return float(far.sum() / (length * self._GBps).sum())

    def _sent(self) -> LongArray:
        """int64 (candidates,): the sends of each candidate."""
        sends: LongArray = (self.passed != NONE).sum(axis=1) - 1
        return sends

    def _pair(self) -> LongArray:
        """int64 (candidates,): the pair of ranks of each candidate, among those with data."""
        last = self.passed[np.arange(len(self.passed)), self._sent()]
        return self.passed[:, 0] * (self._ranks - 1) + last - (last > self.passed[:, 0])

    def _crossed(self) -> tuple[LongArray, LongArray, LongArray]:
        """int64 (crossings,): a candidate, a link that it crosses, and how many times."""
        candidate, turn = np.nonzero(self.passed[:, 1:] != NONE)
        pair = self._number[self.passed[candidate, turn], self.passed[candidate, turn + 1]]
        count, links = np.diff(self._pairs.offset)[pair], len(self._GBps)
        crossing = spans(self._pairs.offset[pair], count)[1]
        key = np.repeat(candidate, count) * links + self._pairs.link[crossing]
        key, times = np.unique(key, return_counts=True)
        return key // links, key % links, times

    def _load(self, share: FloatArray) -> FloatArray:
        """float64 (links,): the load of each link, if candidates take these shares."""
        candidate, link, times = self._crossed()
        return np.bincount(link, times * share[candidate], len(self._GBps)) / self._GBps

    def _add(self, passed: LongArray) -> int:
        """Adds candidates; returns how many are new."""
        wide = max(passed.shape[1], self.passed.shape[1])
        both = [
            np.pad(one, ((0, 0), (0, wide - one.shape[1])), constant_values=NONE)
            for one in (self.passed, passed)
        ]
        before = len(self.passed)
        self.passed = np.unique(np.concatenate(both), axis=0)
        self.passed = self.passed[np.argsort(self._pair(), kind="stable")]
        return len(self.passed) - before

    def _add_by_loads(self, load: FloatArray) -> float:
        """Adds the shortest routes of each round, by lengths that grow with the load of all rounds
        before it. Returns the least load of the busiest link in a round. load: that of the first.
        """
        found, least = [self.passed], float(load.max())
        for _ in range(_ROUNDS):
            busy = np.exp(_STEEP * (load / load.max() - 1)) + np.exp(-_STEEP)
            _, self.passed = self._shortest(self._sends(busy / self._GBps))
            own = self._load(np.ones(len(self.passed)))
            load, least = load + own, min(least, float(own.max()))
            found.append(self.passed)
        self.passed = found[0]
        for passed in found[1:]:
            self._add(passed)
        return least

    def _divide(self, scale: float) -> None:
        """Finds the shares, and further candidates. scale: a load of the busiest link."""
        links, pairs = len(self._GBps), len(self._from)
        for _ in range(_PROGRAMS):
            candidate, link, times = self._crossed()
            every, most = np.arange(len(self.passed)), len(self.passed)
            program = LinearProgram(np.append(_PER_SEND / pairs * self._sent(), 1.0))
            load = times / self._GBps[link] / scale
            busiest = np.arange(links), np.full(links, most), -1.0
            program.limit([(link, candidate, load), busiest], np.zeros(links))
            program.limit([(self._pair(), every, 1.0)], np.ones(pairs), equal=True)
            solved = program.solve("ipm") or program.solve()
            if solved is None:
                raise T612.error(
                    expected="links whose rates the solver of linear programs can compare",
                    found=self._pairs.topology.name,
                )
            self.share = solved.variables[:-1]
            length = np.maximum(-solved.dual[:links], 0) / self._GBps
            # Of routes that are as short, the one with the fewest sends.
            _, passed = self._shortest(self._sends(length) + _PER_SEND * _EXACT / pairs)
            self.least = max(self.least, self._bound(length))
            if self.least >= solved.variables[-1] * scale * (1 - _EXACT):
                return
            if not self._add(passed):
                return
