"""Search: the trees or routes, with the options, that are simulated as the fastest for a size."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sley.compiler.choices import Choice
from sley.compiler.search import TIE, compiler_for, search_ranges
from sley.compiler.synthesis import (
    FEW_CHUNKS,
    MOST_MERGED,
    ROUTED,
    Synthesis,
    algorithm_of,
    along_rings,
    few_trees,
    front,
    low_trees,
    through_switches,
    without_multiples,
)
from sley.errors import SleyError
from sley.errors.topology import T612
from sley.ir.program import Program
from sley.ir.topology import Topology
from sley.ir.words import Protocol
from sley.model.nccl.choice import tiled
from sley.topologies.forests import MOST_RANKS, WITHIN
from sley.topologies.routes import MOST_DIRECT

COMPARED: Mapping[str, Any] = {
    "schedule": ["msccl", "hpds"],
    "allocate": "connection",
    "channels": 1,
    "protocol": ["Simple", "LL", "LL128", "Direct"],
    "instances": [1, 2, 3, 4, 6, 8, 12, 16],
}
"""The options with which plans along trees are compared; those that `choose` tries take minutes.
Direct spares the copies into slots and out of them, for which trees wait at each rank. Powers of
two alone leave up to half of a GPU's blocks unused, and so slow blocks' links."""

TILES = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
"""The tiles to compare, as shares of the topology's, each with `of_tile`: the whole one, and
smaller ones until two in a row save less than `_SAVED` of the time of larger ones among these. A
rank passes on a tile once it has all of it, so the links of tall trees, and of sums one after the
other, idle for tiles at the begin and at the end."""

_OF_SEARCH = ("tie", "progress", "executor")
"""The overrides that aren't for the compiler of candidates."""

_SAVED = 0.002
"""The share of the time that smaller tiles have to save, since they are a setting more; and more
thread blocks, in calls that tiles cut. In shorter ones it is TIE: the model is less exact there."""

_OF_ROUTES = {"schedule": "msccl"}
"""The schedule with which programs along routes are nearly always simulated as the fastest."""

_OF_MANY = {"instances": 1}
"""The same of more than MOST_DIRECT ranks: such programs have many blocks already."""

_OF_SWITCHES = {"schedule": "msccl", "protocol": ["Simple", "Direct"]}
"""The options of programs with switches: other schedules and protocols have none. With Direct they
read and write the ranks' own buffers, which spares copies into slots."""

_OF_ORDERS = {"schedule": "msccl"}
"""The schedule of sums in several orders: others move the data of one order after the other."""

_CLOSE = 0.01
"""The share of the bandwidth that further trees may lack, for large sizes."""

_SEND_US = 3.0
"""About the time of a send without data."""

_FAR = 3
"""Trees that sends and link loads alone make so many times as slow as the fastest are left out."""

_LIKELY = 1.1
"""Trees that are at most so many times as slow, by sends and link loads, are compared first. Then
most others have no chance: even their loads alone take longer than the fastest plan."""

_MERGED = {"schedule": "hpds", "protocol": ["Simple", "Direct"], "instances": 1}
"""The options of trees with a few connections more than blocks fit on a GPU: some share a block."""


@dataclass(frozen=True, eq=False, repr=False)
class Fastest:
    """What is simulated as the fastest.

    front: the trees or routes that came into question, by ascending sends, then others. synthesis:
    the fastest ones. choice: their plan. tile: the plan's, as a share of the topology's. left: the
    combinations of options that a limit of time left out.
    """

    front: list[Synthesis]
    synthesis: Synthesis
    choice: Choice
    tile: float
    left: int


def fastest(
    collective: str,
    topology: Topology,
    size: int,
    *,
    chunks: int | None = None,
    within: float = WITHIN,
    in_place: bool,
    tiles: Sequence[float] = (1.0,),
    most_blocks: int | None = None,
    limit_s: float | None = None,
    **overrides: Any,
) -> Fastest:
    """The trees or routes that are the fastest for a size in the simulator, with the options
    `compared`, and overrides of them and of other arguments of `choose`.

    chunks: only the trees of `pack_forest`, or routes, with so many. tiles: to compare, as `TILES`,
    the whole one first, for who can set them. most_blocks: as for `choose`: plans with more are
    taken only if there are no others. limit_s: after so many seconds no further ones are
    made or compared, once there are some. Errors: T612.
    """
    until = time.monotonic() + (float("inf") if limit_s is None else limit_s)
    collective = algorithm_of(collective).collective
    if topology.ranks < 2:
        raise T612.error(
            expected="2 ranks or more, since one alone has no data to move",
            found=f"1 on {topology.name}",
            remedy="Give a topology with more GPUs.",
        )
    most = topology.model.most_blocks if most_blocks is None else most_blocks
    search = _Search(collective, topology, size, in_place, most, until, overrides)
    made = search.trees(chunks, within)
    near = search.near(made)
    for programs, options in search.contests(near):
        search.compare(programs, options, tiles)
    if not search.fit and "max_blocks" not in overrides:
        few = min(near[0], key=lambda one: one.connections)
        options = {**compared(collective, switched=few.switched), "max_blocks": most}
        search.choose([(few, few.program(in_place=in_place))], options)
    if not search.found:
        assert search.refused is not None
        raise search.refused
    synthesis, choice, tile = search.best()
    front = made if synthesis in made else [*made, synthesis]
    return Fastest(front, synthesis, choice, tile, search.left)


_Pair = tuple[Synthesis, Program]


@dataclass
class _Search:
    """The trees or routes of a collective that were compared for a size, on a topology.

    most: the thread blocks that fit on a GPU. until: the monotonic clock's seconds after which no
    further trees are made or compared, once there are some. overrides: of options. found: the trees
    or routes, plan and tile of the fastest of each comparison. left: as in `Fastest`. refused: why
    a target takes none of some programs, such as those with switches.
    """

    collective: str
    topology: Topology
    size: int
    in_place: bool
    most: int
    until: float
    overrides: Mapping[str, Any]
    found: list[tuple[Synthesis, Choice, float]] = field(default_factory=list)
    left: int = 0
    refused: SleyError | None = None

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self.until

    @property
    def fit(self) -> list[Choice]:
        """The plans that fit on a GPU."""
        return [choice for _, choice, _ in self.found if not self._over(choice)]

    def _over(self, choice: Choice) -> int:
        return max(choice.plan.blocks_per_rank - self.most, 0)

    def has_chance(self, one: Synthesis) -> bool:
        """Whether trees may be faster than what fits, by the loads of links alone."""
        least_us = min((choice.end.time_us for choice in self.fit), default=float("inf"))
        return self.size / one.algbw_GBps / 1e3 < least_us

    def trees(self, chunks: int | None, within: float) -> list[Synthesis]:
        """The trees or routes that come into question, by ascending sends, then even trees and
        those through switches: at least one, and no further ones after `until`."""
        collective, topology = self.collective, self.topology
        each = [(chunks, within)]
        if chunks is None and not self._are_many:
            each += [(None, _CLOSE)] if within > _CLOSE and collective != ROUTED else []
            each += [(number, within) for number in FEW_CHUNKS]
        made = list[Synthesis]()
        for number, share in each:
            if not made or not self.is_over:
                made.append(
                    Synthesis.of(collective, topology, chunks=number, within=share, switches=False)
                )
        if chunks is not None or self.is_over:
            return made
        low = low_trees(collective, topology, self.until)
        every = [*low, made[0], *without_multiples(made[1:])]
        made = front(every)
        by_bandwidth = sorted(every, key=lambda one: -one.algbw_GBps)
        crowded = by_bandwidth[0].connections > self.most and topology.ranks <= MOST_RANKS
        if collective == "allreduce" and crowded:
            made += few_trees(topology, self.most, self.until)[-2:]
        for even in (one.even for one in by_bandwidth if not one.is_even and collective != ROUTED):
            if even.connections <= MOST_MERGED * self.most:
                made.append(even)
                break
        may_be = collective != ROUTED and topology.ranks <= MOST_RANKS and not self.is_over
        rings = along_rings(collective, topology) if may_be else None
        if rings is not None and rings.algbw_GBps >= by_bandwidth[0].algbw_GBps * (1 - _CLOSE):
            made.append(rings)
        return made + (through_switches(topology, within)[-1:] if collective == "allreduce" else [])

    @property
    def _are_many(self) -> bool:
        """Whether there are routes for more ranks than data goes directly between."""
        return self.topology.ranks > MOST_DIRECT and self.collective == ROUTED

    def near(self, made: list[Synthesis]) -> list[list[Synthesis]]:
        """Those that sends and link loads alone make nearly as fast as the fastest, which comes
        first; and those that are slower, but not much slower."""

        def about_us(one: Synthesis) -> float:
            return one.sends * _SEND_US + self.size / one.algbw_GBps / 1e3

        by_time = sorted(made, key=about_us)
        slowness = [about_us(one) / about_us(by_time[0]) for one in by_time]
        likely, near = (bisect_right(slowness, most) for most in (_LIKELY, _FAR))
        return [by_time[:likely], by_time[likely:near]]

    def contests(
        self, parts: list[list[Synthesis]]
    ) -> Iterator[tuple[list[_Pair], Mapping[str, Any]]]:
        """The programs that are compared with one another, and with which options: of each part
        those without switches and those with some; the one that needs a few blocks too many; and
        sums up binomial trees, with late leaves or in several orders; none after the first after
        `until`."""
        is_first = True
        for part in parts:
            whole, shared = list[_Pair](), list[_Pair]()
            for one in part:
                if is_first or (not self.is_over and self.has_chance(one)):
                    first, *others = one.compared_programs(self.most, in_place=self.in_place)
                    # Trees that share channels come last: they are slower most of the time.
                    whole.append((one, first))
                    shared.extend((one, other) for other in others)
                    is_first = False
            whole += shared
            for switched in (False, True):
                programs = [(one, p) for one, p in whole if one.switched is switched]
                if programs:
                    yield programs, compared(self.collective, switched=switched)
        near = [one for part in parts for one in part]
        widest = max(near, key=lambda one: (one.algbw_GBps, one.is_even))
        is_near = 1 < widest.connections / self.most <= MOST_MERGED
        if is_near and not (widest.switched or widest.is_even or self.is_over):
            program = widest.program(in_place=self.in_place)
            yield [(widest, program)], {**COMPARED, **_MERGED, "max_blocks": self.most}
        summed = list[_Pair]()
        for one in near:
            variants = [(one, True)] if one.leaves_wait else []
            variants += [(one.binomial, False)] if one.binomial is not None else []
            for made, late in variants if not self.is_over and self.has_chance(one) else ():
                few = made.compared_programs(self.most, in_place=self.in_place, leaves_last=late)
                summed.extend((made, program) for program in few)
        if summed:
            yield summed, compared(self.collective)
        ordered = list[_Pair]()
        for one in near:
            if one.sum_orders > 1 and not self.is_over:
                program = one.program(in_place=self.in_place, sum_orders=one.sum_orders)
                ordered.append((one, program))
        if ordered:
            yield ordered, {**compared(self.collective), **_OF_ORDERS}

    def compare(
        self, programs: list[_Pair], options: Mapping[str, Any], tiles: Iterable[float]
    ) -> None:
        """Chooses among programs with each tile, as far as `TILES` says."""
        best_us, losses = float("inf"), 0
        for tile in tiles:
            near = [(one, program) for one, program in programs if self.has_chance(one)]
            if tile != 1:
                near = [(o, p) for o, p in near if is_cut(p, self.size, self.topology, tile)]
            if not near or (self.found and self.is_over):
                continue
            many = _OF_MANY if self._are_many else {}
            time_us = self.choose(near, {**options, **of_tile(tile), **many}, tile, best_us)
            losses = losses + 1 if time_us > best_us * (1 - _SAVED) else 0
            if losses == 2:
                break
            # A whole tile has other protocols, too, so it says little of smaller ones.
            best_us = min(best_us, time_us) if tile != 1 else best_us

    def choose(
        self,
        programs: list[_Pair],
        options: Mapping[str, Any],
        tile: float = 1.0,
        under_us: float = float("inf"),
    ) -> float:
        """Keeps the fastest of programs with a tile; its time in microseconds, infinite if a target
        takes none, or all take longer than `under_us`."""
        is_long = any(is_cut(program, self.size, self.topology, 1) for _, program in programs)
        tie = _SAVED if is_long else TIE
        of: dict[str, Any] = {"most_blocks": self.most, **options, **self.overrides}
        ranged = {word: of.pop(word) for word in _OF_SEARCH if word in of}
        if self.until != float("inf"):
            ranged["limit_s"] = max(self.until - time.monotonic(), 0)
        made_of = [program for _, program in programs]
        try:
            compiler = compiler_for(made_of, tiled(self.topology, tile), **of)
            choices = search_ranges(
                compiler, [self.size], **{"tie": tie, "under_us": under_us, **ranged}
            )
        except SleyError as error:
            if of.get("target") is None:
                raise
            self.refused = self.refused or error
            return float("inf")
        self.left += choices.left
        if not choices.ranges:
            return float("inf")
        choice = choices.at(self.size)
        one = next(one for one, program in programs if program is choice.program)
        self.found.append((one, choice, tile))
        return choice.end.time_us

    def best(self) -> tuple[Synthesis, Choice, float]:
        """The fastest of those that need the fewest blocks too many. What is hardly faster isn't
        worth more sends, settings or orders, which come later."""

        def rank(one: tuple[Synthesis, Choice, float]) -> tuple[int, float]:
            _, choice, tile = one
            return self._over(choice), choice.end.time_us * (1 if tile == 1 else 1 + _SAVED)

        fewest, least_us = min(map(rank, self.found))
        return next(one for one in self.found if rank(one) <= (fewest, least_us * (1 + _SAVED)))


def of_tile(tile: float) -> Mapping[str, Any]:
    """The options of plans with a tile, given as a share of the topology's: of smaller ones with
    Direct, nearly always the fastest for so large calls, and as many slots as take no more memory.
    """
    slots = int(Protocol.DIRECT.slots / tile)
    return {} if tile == 1 else {"protocol": "Direct", "slots": slots}


def is_cut(program: Program, size: int, topology: Topology, tile: float) -> bool:
    """Whether messages of a call are longer than a tile, given as a share of the topology's."""
    c, t = program.collective, program.transfers
    longest = size / c.blocks / c.chunks * t.count[t.remote].max(initial=1)
    return bool(longest > topology.model.tile_bytes[Protocol.DIRECT] * tile)


def compared(collective: str, *, switched: bool = False) -> Mapping[str, Any]:
    """The options with which plans of a collective are compared. switched: whether switches reduce
    and multicast."""
    own = _OF_ROUTES if collective == ROUTED else _OF_SWITCHES if switched else {}
    return {**COMPARED, **own}
