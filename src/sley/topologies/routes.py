"""Routes: an AllToAll's data over other ranks, where ranks have no link or the links of direct
transfers would be the busiest.

The steps, for ranks that are alike enough (MOST_STEPS):

1. *Flows.* A linear program finds how each rank's data flows to all others, so that the busiest
   link has the least load. Equal sends of data from equal origins have one variable, equal ranks or
   links one row, which costs nothing (Grohe, Kersting, Mladenov and Selman 2014). Its dual is
   lengths of links, which prove how good the best routes can be (Shahrokhi and Matula 1990).
2. *Whole chunks.* From the ends of each rank's flow to its beginning, chunks take the sends by
   their shares, and those that are left the ones with the least load.
3. *Busy links.* Of at most MOST_DIRECT ranks, single chunks then leave the busiest links for
   routes over at most one rank, as long as that lowers the highest load: near the end of each flow
   few sends are left to choose from.

Routes go along the paths that transfers take (`Topology.paths`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import exp, inf

import numpy as np

from sley.errors import SleyError
from sley.errors.topology import T612
from sley.ir.graph import distances
from sley.ir.linear import LinearProgram
from sley.ir.tables import (
    NONE,
    FloatArray,
    IntArray,
    LongArray,
    Value,
    frozen_array,
    offsets_of,
    spans,
)
from sley.ir.topology import Topology
from sley.topologies.forests import WITHIN, check_request
from sley.topologies.rates import RankPairs, Steps

MOST_RANKS = 1024
"""Bound on the ranks of a topology: the time to tell which are alike grows with their third power.
"""

MOST_DIRECT = 64
"""The most ranks that exchange all data directly, if no routes have more bandwidth: each rank has
connections to all others."""

_TRIED_CHUNKS = (1, 2, 3, 4, 6, 8)
"""The chunks between two ranks that are tried, if the user gives no number."""

_PASSES = 4
"""How often the flows of whole chunks are improved."""

_STEEP = 60.0
"""The logarithm of how much more a chunk costs on the busiest link than on one without load."""

_MOST_OVER = 2.0
"""The highest load that prices regard, as a multiple of the highest by the flows."""

_ROUNDING = 1e-6
"""The part of a chunk by which rounding must not lose one."""

_EXACT = 1e-3
"""The share of the best time by which flows may be above it."""

_PER_SEND = 1e-4
"""The cost of a send of all data beside the time of the busiest link: few sends, if that is all the
difference."""

_NOTHING = 1e-9
"""A share of data that is rounding."""

_PER_CROSSING = 3.0
"""The cost of a send to another place of another node, in sends: with few of them, a rank has few
connections."""


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
    ranks = topology.ranks
    if ranks == 1:
        empty = np.zeros(0, np.int64), np.zeros((0, 1), np.int32)
        return Routing(topology, *empty, float("inf"))
    flows = _Flows.of(topology)
    best: Routing | None = None
    for number in _TRIED_CHUNKS if chunks is None else (chunks,):
        weight, passed = flows.whole(number)
        if ranks <= MOST_DIRECT:
            most = number * ranks / flows.optimum_GBps / (1 - within)
            weight, passed = _relieved(flows.pairs, weight, passed, most)
        columns = frozen_array(weight, np.int64), frozen_array(passed, np.int32)
        found = Routing(topology, *columns, flows.optimum_GBps)
        if best is None or found.algbw_GBps > best.algbw_GBps * (1 + 1e-9):
            best = found
        if best.algbw_GBps >= flows.optimum_GBps * (1 - within - _EXACT):
            break
    assert best is not None  # some number is tried
    return best


def most_GBps(topology: Topology) -> float:  # noqa: N802 - a unit
    """The algorithm bandwidth that no routes exceed, as of `Routing`. Errors: T612."""
    return _Flows.of(topology).optimum_GBps


@dataclass(frozen=True, eq=False)
class _Flows:
    """Flows of data from every rank to all others, which divide it at will.

    optimum_GBps: as of `Routing`. They consist of steps, which take data of an origin from one rank
    to the next. origin: int64 (steps,). send: int64 (steps,), the pair of both ranks. share:
    float64 (steps,), the part of the data for one rank that takes the step. far: float64 (ranks,
    ranks), a distance of each rank from each origin, which grows by every step.
    """

    pairs: RankPairs
    optimum_GBps: float  # noqa: N815 - a unit
    origin: LongArray
    send: LongArray
    share: FloatArray
    far: FloatArray

    @classmethod
    def of(cls, topology: Topology) -> _Flows:
        """The flows with which the busiest link has the least load. Errors: T612."""
        pairs, ranks = RankPairs.of(topology), topology.ranks
        far = _distances(pairs, np.ones(len(pairs.src)))
        if np.isinf(far).any():
            origin, lost = np.argwhere(np.isinf(far))[0].tolist()
            raise T612.error(
                expected="transfers that reach every rank from every other, over others if need be",
                found=f"{topology.name}: none from rank {origin} to {lost}",
            )
        if ranks <= MOST_DIRECT and far.max() <= 1:
            one = np.ones(len(pairs.src))
            load = pairs.loads(one) / topology.links.GBps
            least = _least_load(pairs, 1.0 * (load >= load.max() * (1 - 1e-9)))
            if least >= load.max() * (1 - 1e-9):
                return cls(pairs, ranks / least, pairs.src, np.arange(len(one)), one, far)
        return _FlowProgram(pairs).flows()

    def whole(self, number: int) -> tuple[LongArray, LongArray]:
        """The weights and the passed ranks of a `Routing`, with so many chunks between two ranks.

        An origin's chunks at a rank are in the order of those that stay, then of the steps by which
        the others go on, and come by its steps in this order. So a chunk's way is found backwards.
        """
        pairs, ranks = self.pairs, self.pairs.topology.ranks
        taken = self._taken(number)
        used = np.flatnonzero(taken)
        origin, send, count = self.origin[used], self.send[used], taken[used]
        before = pairs.src[send]
        coming, going = (origin * ranks + end[send] for end in (pairs.dst, pairs.src))
        order = np.argsort(coming, kind="stable")
        begin = offsets_of(count[order])
        first = begin[np.searchsorted(coming[order], np.arange(ranks * ranks))]
        # The place of each step's first chunk among those at the rank that it leaves.
        onward = np.argsort(going, kind="stable")
        place = np.empty_like(count)
        place[onward] = offsets_of(count[onward])[:-1]
        place += number - place[onward][np.searchsorted(going[onward], going)]
        source, rank = (np.repeat(end, number) for end in np.nonzero(~np.eye(ranks, dtype=bool)))
        turn = np.tile(np.arange(number), ranks * (ranks - 1))
        columns = list[LongArray]()
        # Ends: each step back is nearer to the origin.
        while len(on := np.flatnonzero(rank != source)):
            columns.append(np.where(rank != source, rank, NONE))
            chunk = first[source[on] * ranks + rank[on]] + turn[on]
            row = np.searchsorted(begin, chunk, side="right") - 1
            turn[on] = place[order[row]] + chunk - begin[row]
            rank[on] = before[order[row]]
        passed = np.column_stack([source, *columns[::-1]])
        # Backwards, with the ends of short routes in the last columns.
        moved = np.argsort(passed == NONE, axis=1, kind="stable")
        passed = np.take_along_axis(passed, moved, axis=1)
        passed, weight = np.unique(passed, axis=0, return_counts=True)
        return weight, passed

    def _taken(self, number: int) -> LongArray:
        """int64 (steps,): the chunks that take each step. Of those that reach a rank, each step
        gets the whole part of its share; then each chunk takes the step with the least price of all
        links back to the origin. Prices grow steeply with the load, if all later ones go by their
        shares. Further passes know better how the others go."""
        pairs, ranks = self.pairs, self.pairs.topology.ranks
        rank = pairs.dst[self.send]
        # The farthest first: all chunks that a rank passes on are known then.
        order = np.lexsort((-self.share, rank, self.origin, -self.far[self.origin, rank]))
        origin, send, share = self.origin[order], self.send[order], self.share[order]
        coming, going = (origin * ranks + end[send] for end in (pairs.dst, pairs.src))
        starts = np.flatnonzero(np.diff(coming, prepend=NONE))
        width = np.diff(starts, append=len(order))
        parts = (share / np.repeat(np.add.reduceat(share, starts), width)).tolist()
        rows = [
            (at, range(first, first + options))
            for at, first, options in np.stack([coming[starts], starts, width]).T.tolist()
        ]
        path = [pairs.link[a:b].tolist() for a, b in pairwise(pairs.offset.tolist())]
        paths, after = [path[one] for one in send.tolist()], going.tolist()
        busy: list[float] = (1 / pairs.topology.links.GBps).tolist()
        flow = np.bincount(send, share, len(pairs.src))
        load: list[float] = (number * pairs.loads(flow) / pairs.topology.links.GBps).tolist()
        expected, best, least = (number * share).tolist(), list[int](), inf
        peak = max(load)

        def price(step: int) -> float:
            """What a chunk costs that takes a step."""
            total: float = back[after[step]]
            for link in paths[step]:
                over = min((load[link] + busy[link]) / peak, _MOST_OVER)
                total += busy[link] * exp(_STEEP * (over - 1))
            return total

        for _ in range(_PASSES):
            back = [0.0] * (ranks * ranks)
            for at, steps in reversed(rows):
                back[at] = sum(parts[step] * price(step) for step in steps)
            amount, found = [number] * (ranks * ranks), [0] * len(order)
            for at, steps in rows:
                left = amount[at]
                for step in steps:
                    found[step] = int(amount[at] * parts[step] + _ROUNDING)
                    left -= found[step]
                    for link in paths[step]:
                        load[link] += (found[step] - expected[step]) * busy[link]
                for _ in range(left):
                    step = min(steps, key=price)
                    found[step] += 1
                    for link in paths[step]:
                        load[link] += busy[link]
                for step in steps:
                    amount[after[step]] += found[step]
            expected = found
            if max(load) < least:
                best, least = found, max(load)
        taken = np.empty(len(order), np.int64)
        taken[order] = best
        return taken


def _relieved(
    pairs: RankPairs, weight: LongArray, passed: LongArray, enough: float
) -> tuple[LongArray, LongArray]:
    """The routes after chunks left the busiest links, one after the other, for routes on which all
    links have less load; none do once the highest load is `enough`, in chunks a GB/s."""
    ranks, links = pairs.topology.ranks, pairs.topology.links
    pair = np.full((ranks, ranks), NONE)
    pair[pairs.src, pairs.dst] = np.arange(len(pairs.src))
    path = np.split(pairs.link, pairs.offset[1:-1])
    chunks = Counter[tuple[int, ...]]()
    for row, count in zip(passed.tolist(), weight.tolist(), strict=True):
        chunks[tuple(rank for rank in row if rank != NONE)] = count

    def crossed(route: tuple[int, ...]) -> LongArray:
        found: LongArray = np.concatenate([path[pair[ends]] for ends in pairwise(route)])
        return found

    over, load = defaultdict[int, set[tuple[int, ...]]](set), np.zeros(len(links))
    for route, count in chunks.items():
        for link in crossed(route).tolist():
            over[link].add(route)
            load[link] += count / links.GBps[link]
    # Ends: each move takes a chunk off a link with the highest load, and gives no link as much.
    while load.max() > enough:
        most, busiest = load.max(), int(load.argmax())
        higher = load + 1 / links.GBps
        peak = np.full((ranks, ranks), inf)
        peak[pairs.src, pairs.dst] = np.maximum.reduceat(higher[pairs.link], pairs.offset[:-1])
        np.fill_diagonal(peak, 0)
        routes = [route for route in sorted(over[busiest]) if chunks[route]]
        source, end = (np.array([route[at] for route in routes]) for at in (0, -1))
        by = np.maximum(peak[source], peak[:, end].T)
        row, rank = np.unravel_index(by.argmin(), by.shape)
        old = routes[row]
        new = tuple(dict.fromkeys((old[0], int(rank), old[-1])))
        twice = len(np.unique(crossed(new))) < len(crossed(new))
        if twice or by[row, rank] >= most * (1 - _NOTHING):
            break
        for route, sign in ((old, -1), (new, 1)):
            chunks[route] += sign
            for link in crossed(route).tolist():
                over[link].add(route)
                load[link] += sign / links.GBps[link]
    used = sorted(route for route, count in chunks.items() if count)
    longest = max(map(len, used))
    rows = [[*route, *[NONE] * (longest - len(route))] for route in used]
    return np.array([chunks[route] for route in used]), np.array(rows, np.int32)


def _distances(pairs: RankPairs, cost: FloatArray) -> FloatArray:
    """float64 (ranks, ranks): the length of a shortest route between each two ranks. cost: float64
    (pairs,), of each send."""
    ranks = pairs.topology.ranks
    return distances(ranks, pairs.src, pairs.dst, cost, np.arange(ranks))


def _cost(pairs: RankPairs, length: FloatArray) -> FloatArray:
    """float64 (pairs,): the length of each send. length: float64 (links,)."""
    return np.add.reduceat(length[pairs.link], pairs.offset[:-1])


def _least_load(pairs: RankPairs, length: FloatArray) -> float:
    """The load of the busiest link below which no routes are, in GB a GB/s for 1 GB between each
    two ranks, by any lengths of links."""
    far = _distances(pairs, _cost(pairs, length))
    return float(far.sum() / (length * pairs.topology.links.GBps).sum())


class _FlowProgram:
    """The linear program. Its variables: for each class of steps, the part of the data for one rank
    that takes one of them; then the load of the busiest link. Errors: T612."""

    def __init__(self, pairs: RankPairs) -> None:
        self._pairs, ranks = pairs, pairs.topology.ranks
        color, self._of_link = pairs.colors(np.zeros(ranks))
        self._steps = steps = Steps(pairs, color, np.ones(ranks, bool))
        rates = pairs.topology.links.GBps
        self._class_GBps = np.bincount(self._of_link, rates).astype(np.float64)
        self._unit = _least_load(pairs, 1 / rates)
        # In units in which the price of a send is far above the solver's tolerance.
        crossing = pairs.crosses & (ranks > MOST_DIRECT)
        self._price = np.where(crossing, _PER_CROSSING, 1.0) * _PER_SEND
        busiest = ranks * (ranks - 1.0)
        cost = np.append(self._price[steps.send] * steps.count, busiest)
        self._program = LinearProgram(cost)
        # What comes to a rank stays or goes on.
        one = np.ones(len(steps.origin))
        self._program.limit([steps.comes, steps.goes], one, equal=True)
        self._limit_links()

    def _limit_links(self) -> None:
        """Limits the load of a link of each class, which is a part of the load by all steps."""
        pairs, links = self._pairs, int(self._of_link.max()) + 1
        sends, send = np.unique(self._steps.send, return_inverse=True)
        owner, crossed = spans(pairs.offset[sends], np.diff(pairs.offset)[sends])
        key = owner * links + self._of_link[pairs.link[crossed]]
        use, times = np.unique(key, return_counts=True)
        begin = np.searchsorted(use // links, np.arange(len(sends) + 1))
        step, at = spans(begin[send], np.diff(begin)[send])
        link = use[at] % links
        load = self._steps.count[step] * times[at] / self._class_GBps[link] / self._unit
        busiest = np.arange(links), np.full(links, len(send)), -1.0
        self._program.limit([(link, step, load), busiest], np.zeros(links))

    def flows(self) -> _Flows:
        """The flows. Errors: T612."""
        pairs, steps, ranks = self._pairs, self._steps, self._pairs.topology.ranks
        solved = self._program.solve("ipm") or self._program.solve()
        if solved is None:
            raise self._unsolved()
        dual = np.maximum(-solved.dual[len(steps.origin) :], 0) / self._class_GBps
        length = dual[self._of_link]
        # All flows take shortest routes by these lengths.
        far = _distances(pairs, _cost(pairs, length) / self._unit + self._price)
        used = solved.variables[:-1] > _NOTHING
        keys, shares = steps.keys[used], solved.variables[:-1][used]
        color = steps.of_send
        sends = np.flatnonzero(np.isin(color, color[steps.send[used]]))
        src, dst = pairs.src[sends], pairs.dst[sends]
        found = list[tuple[LongArray, LongArray, FloatArray]]()
        for origin in range(ranks):  # one after the other, to save memory
            key = steps.key(origin, sends)
            at = np.minimum(np.searchsorted(keys, key), len(keys) - 1)
            own = np.flatnonzero((keys[at] == key) & (far[origin, src] < far[origin, dst]))
            found.append((np.full(len(own), origin), sends[own], shares[at[own]]))
        origins, send, share = (np.concatenate(of) for of in zip(*found, strict=True))
        if len(np.unique(origins * ranks + pairs.dst[send])) < ranks * (ranks - 1):
            raise self._unsolved()
        optimum_GBps = ranks / _least_load(pairs, length)  # noqa: N806 - a unit
        return _Flows(pairs, optimum_GBps, origins, send, share, far)

    def _unsolved(self) -> SleyError:
        return T612.error(
            expected="links whose rates the solver of linear programs can compare",
            found=self._pairs.topology.name,
        )
