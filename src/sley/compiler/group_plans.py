"""Group plans: plans for groups of ranks that call collectives at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np

from sley.compiler.choices import MARGIN, Choice
from sley.compiler.entry import compile
from sley.compiler.synthesis import tree_directions
from sley.compiler.tree_search import fastest
from sley.errors import without_inner_frames
from sley.errors.topology import T613
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import checked_size
from sley.ir.tables import FloatArray, LongArray, Value, frozen_array
from sley.ir.topology import Topology
from sley.model.simulation import GroupRun, simulate_at_once
from sley.topologies import Group, topology_of
from sley.topologies.rates import group_rates
from sley.verification import verify

_INSTANCES = (1, 2, 4, 8, 16)
"""Those that are tried: a small group has few trees, whose blocks alone don't fill the links."""


@dataclass(frozen=True, eq=False, repr=False)
class GroupCall(Value):
    """A collective that groups of ranks call at the same time, each for its own data.

    collective: allgather, reducescatter, allreduce or alltoall. size: of each call, as for
    `simulate`. groups: the ranks of each, a rank in one at most. Errors: T613.
    """

    collective: str
    size: int | str
    groups: Sequence[Sequence[int]]

    def __post_init__(self) -> None:
        try:
            groups = tuple(tuple(group) for group in self.groups)
        except TypeError:
            found = repr(self.groups)[:60]
            raise T613.error(expected="groups, each a list of ranks", found=found) from None
        object.__setattr__(self, "groups", groups)


@dataclass(frozen=True, eq=False, repr=False)
class GroupPlans(Value):
    """Plans for groups that call collectives at the same time, along trees, or routes for an
    AllToAll. Times are simulated.

    groups: all groups, call after call. call: int64 (groups,), the call of each. programs, plans:
    of each group.
    alone_us: float64 (groups,), of the fastest plan for a group alone, while no other group calls.
    apart_us, time_us: float64 (groups,), of all groups at once, with these plans, and with `plans`.
    bound_us: the least time of all data by trees and routes along the paths of transfers, without
    latency.
    """

    groups: tuple[Group, ...]
    call: LongArray
    programs: tuple[Program, ...]
    plans: tuple[Plan, ...]
    alone_us: FloatArray
    apart_us: FloatArray
    time_us: FloatArray
    bound_us: float


@without_inner_frames
def plan_groups(
    calls: Sequence[GroupCall], topology: Topology | str, *, in_place: bool = False
) -> GroupPlans:
    """Plans for calls that groups of a cluster make at the same time. They are chosen so that the
    last call ends as early as possible in the simulator.

    Each group's plan is made for all of its links, or for the part of their rates by which the data
    of all groups takes the least time, and with several numbers of instances: a group with more
    blocks gets more of a link. Errors: T603, T604, T612, T613, S702.
    """
    return _Search(calls, topology_of(topology), in_place).plans()


class _Search:
    """The search for plans of calls. For each call it looks at one way after the other to plan
    it, while the other calls' plans stay: a part of the rates or all of them, and the instances."""

    def __init__(self, calls: Sequence[GroupCall], cluster: Topology, in_place: bool) -> None:
        self._calls, self._cluster, self._in_place = calls, cluster, in_place
        self._groups, ups = list[Group](), list[tuple[bool, ...]]()
        for call in calls:
            ranks = [rank for group in call.groups for rank in group]
            twice = sorted({rank for rank in ranks if ranks.count(rank) > 1})
            if twice:
                found = f"{', '.join(map(str, twice))} in several groups of {call.collective}"
                raise T613.error(expected="each rank once", found=found)
            for group in call.groups:
                if len(group) < 2:
                    raise T613.error(expected="2 or more ranks in a group", found=repr(list(group)))
                self._groups.append(Group.of(cluster, group))
            ups += [tree_directions(call.collective)] * len(call.groups)
        if not self._groups:
            raise T613.error(expected="calls of at least one group", found="none")
        # The blocks of all calls of a rank are on its GPU at the same time.
        every = np.concatenate([group.ranks for group in self._groups])
        self._most_blocks = max(cluster.model.most_blocks // int(np.bincount(every).max()), 1)
        self._size = [checked_size(call.size) for call in calls]
        number = np.repeat(np.arange(len(calls)), [len(call.groups) for call in calls])
        self._call = frozen_array(number, np.int64)
        sizes = np.array(self._size, np.float64)[self._call]
        rates = group_rates(cluster, self._groups, ups, sizes)
        self._bound_us = float((sizes / np.bincount(rates.pairs.group, rates.root)).max()) / 1e3
        self._alone = [_Alike.of(group.topology) for group in self._groups]
        parts = zip(self._groups, rates.group_GBps, strict=True)
        self._shared = [_Alike.of(group.at(GBps)) for group, GBps in parts]
        # Groups that are alike have one plan.
        self._choice, self._plan = cache(self._fastest), cache(self._with_instances)

    def plans(self) -> GroupPlans:
        """The best that are found."""
        numbers = self._call.tolist()
        alone = [self._choice(*of) for of in zip(numbers, self._alone, strict=True)]
        apart = best = [(choice.program, choice.plan) for choice in alone]
        apart_us = best_us = self._times(apart)
        found = True
        # Ends: the plans are among finitely many, and end earlier each time.
        while found:
            found = False
            for call, parts, instances in product(
                range(len(self._calls)), (self._alone, self._shared), _INSTANCES
            ):
                tried = list(best)
                for group in np.flatnonzero(self._call == call).tolist():
                    tried[group] = self._plan(call, parts[group], instances)
                if max(plan.blocks_per_rank for _, plan in tried) > self._most_blocks:
                    continue
                times_us = self._times(tried)
                if times_us.max() < best_us.max() * (1 - MARGIN):
                    best, best_us, found = tried, times_us, True
        for plan in {plan for _, plan in best}:
            verify(plan)
        return GroupPlans(
            groups=tuple(self._groups),
            call=self._call,
            programs=tuple(program for program, _ in best),
            plans=tuple(plan for _, plan in best),
            alone_us=np.array([choice.end.time_us for choice in alone]),
            apart_us=apart_us,
            time_us=best_us,
            bound_us=self._bound_us,
        )

    def _fastest(self, call: int, part: _Alike) -> Choice:
        """The trees and instances with which a call is the fastest alone."""
        return fastest(
            self._calls[call].collective,
            part.topology,
            self._size[call],
            in_place=self._in_place,
            protocol="Simple",  # calls that are simulated at once have one
            instances=list(_INSTANCES),
            most_blocks=self._most_blocks,
        ).choice

    def _with_instances(self, call: int, part: _Alike, instances: int) -> tuple[Program, Plan]:
        """The program and plan of these trees with a number of instances."""
        choice = self._choice(call, part)
        if choice.options.instances == instances:
            return choice.program, choice.plan
        options = replace(choice.options, instances=instances)
        return choice.program, compile(
            choice.program, options, topology=part.topology, verify=False
        )

    def _times(self, made: list[tuple[Program, Plan]]) -> FloatArray:
        rows = zip(made, self._groups, self._call.tolist(), strict=True)
        runs = [GroupRun(plan, group, self._size[call]) for (_, plan), group, call in rows]
        return simulate_at_once(runs, self._cluster)


@dataclass(frozen=True)
class _Alike:
    """A topology, equal to others with the same links at the same rates."""

    links: bytes
    topology: Topology = field(compare=False)

    @classmethod
    def of(cls, topology: Topology) -> _Alike:
        t = topology.links
        rows = np.column_stack([t.src, t.dst, t.kind, t.GBps.round(6), t.latency_us])
        return cls(rows.tobytes() + topology.vertices.node.tobytes(), topology)
