"""Live: a back end that measures calls of a communicator on this machine.

The arms are the library's plans for the CPU runtime. Each measurement compares an arm with the
default by turns, so that the machine's state (whether cores share a cache, their clock, other
programs), which lasts for seconds, changes both alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from statistics import median

import numpy as np

from sley.algorithms import CATALOG
from sley.communicator import Settings
from sley.communicator.jobs import Job, JobPlan
from sley.communicator.jobs.commands import Turn
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.machine import machine_here
from sley.communicator.selection.policy import program_of
from sley.communicator.selection.ready_plans import Capacity, check_capacity
from sley.communicator.selection.rules import default_program, default_rows
from sley.communicator.watch import WARM_CALLS
from sley.compiler import Options, compile
from sley.engine.limits import whole
from sley.engine.measure import Sweep
from sley.errors import Place, SleyError, check_name
from sley.errors.tuning import D921, D923, D926
from sley.ir.collectives import STANDARD
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.plan_table import Recipe
from sley.ir.sizes import size_text
from sley.ir.tables import BoolArray, FloatArray, LongArray
from sley.ir.words import Protocol, is_integer
from sley.tuning.arms import IN_PLACE, LIVE, features_of, moved_by, steps_of
from sley.tuning.policy import Machine

PROTOCOLS = (Protocol.SIMPLE, Protocol.DIRECT)
INSTANCES = (1, 2, 4)
CHANNELS = (1, 2)
FUSION = (None, False)
"""The options of the arms. The CPU runtime runs LL and LL128 as Simple."""

MOST_RANKS = 256

_SUMS = Sweep([], "float32")
"""All measured calls: their type, and that they are sums."""

_TIMED_US = 1000.0
"""How long the timed calls of a turn shall take."""

_MOST_CALLS = 64
"""The most timed calls of a turn."""

_PAIRS = 4
"""Turns of each of the two arms in a measurement, whose median counts."""

_STEP_US, _BYTES_PER_US = 0.5, 4000.0
"""What an agent expects of a step and of a copy before it has measured any. Only the order of
magnitude matters: it learns the rest."""

_LONG_US = 5000.0
"""Calls of this time or more are compared in a single pair of turns, and not warmed up: the ranks'
late starts are short against it."""

_REFERENCE_TURNS = 5
"""Turns of the default that give the unit of a size's times."""


@dataclass(frozen=True, eq=False)
class LiveArm:
    """A choice: its recipe and its plan.

    has_stages: whether its program has arguments that a policy doesn't express. It is a default
        of the library, which can only be chosen where it is the default.
    """

    recipe: Recipe
    plan: Plan
    has_stages: bool


@dataclass(frozen=True)
class _Cell:
    """A size. count: elements of a block. reference_us: the time of a call with the default when
    the size was first measured. calls: timed calls of a turn."""

    count: int
    reference_us: float
    calls: int


class Live(contextlib.AbstractContextManager["Live"]):
    """Calls of a communicator whose ranks are processes of this machine, as a `Backend`.

    sizes: bytes of a call's largest buffer. algorithms: those to choose among, by default all of
    the library. settings: of the communicator, by default those of the environment. Calls are sums
    of float32 in memory of the ranks' own, in place for an AllReduce and else out of place.

    A time is that of the slowest rank: the mean of calls back to back. It is measured as a ratio to
    the default's time in turn, and multiplied by the default's time when the size was first
    measured. So are the default's own times, which have the same noise. Every arm is checked at a
    size on test data before it is measured there.

    Its margin is larger than that of a simulation: a plan's time depends also on the copy method
    that its communicator has chosen, and on the machine's state, which last longer than the
    measurements of a plan that follow one another.

    Use it as a context manager, or `close` it. arms: the choices. Errors: D921, D923; D926 for a
    wrong result; those of `Job`.
    """

    margin = 0.05

    def __init__(
        self,
        collective: str,
        ranks: int,
        sizes: Sequence[int],
        *,
        algorithms: Sequence[str] | None = None,
        settings: Settings | None = None,
    ) -> None:
        _check(collective, ranks, sizes)
        hosts = Hosts.of(["here"] * ranks)
        settings = Settings.from_environment() if settings is None else settings
        self.collective = collective
        self.machine: Machine = machine_here(hosts)
        self.sizes: LongArray = np.array(sorted(set(sizes)), np.int64)
        in_place = IN_PLACE[collective]
        default = default_rows(STANDARD[collective].call, hosts, in_place=in_place)
        # Different options often give the same plan: one arm for each, under its first name.
        arms: dict[bytes, LiveArm] = {}
        for arm in _arms(collective, hosts, settings, algorithms):
            arms.setdefault(digest(arm.plan), arm)
        rows = []
        for recipe in (one.recipe for one in default):
            plan = compile(default_program(recipe), Options.of(None, recipe.options))
            rows.append(digest(plan))
            bare = Recipe(recipe.name, options=recipe.options)
            if rows[-1] not in arms:
                arms[rows[-1]] = LiveArm(bare, plan, has_stages=not _is_expressible(recipe))
            elif _is_expressible(recipe):  # named as the communicator names it
                arms[rows[-1]] = replace(arms[rows[-1]], recipe=bare)
        self.arms = tuple(arms.values())
        last = [np.inf if one.sizes.end_bytes is None else one.sizes.end_bytes for one in default]
        found = np.array([list(arms).index(row) for row in rows], np.int64)
        self.default: LongArray = found[np.searchsorted(last, self.sizes)]
        self.recipes: tuple[Recipe, ...] = tuple(arm.recipe for arm in self.arms)
        is_free = [not arm.has_stages for arm in self.arms]
        self.mask: BoolArray = np.tile(is_free, (len(self.sizes), 1))
        self.mask[np.arange(len(self.sizes)), self.default] = True
        every = [arm.plan for arm in self.arms]
        self.features: FloatArray = features_of(self.recipes, every)
        self.expected: FloatArray = _estimates(every, self.sizes)
        self.blocks: LongArray = np.array([plan.blocks_per_rank for plan in every], np.int64)
        self._settings = settings
        self._loaded: dict[int, JobPlan] = {}
        self._ready: set[tuple[int, int]] = set()
        self._cells: dict[int, _Cell] = {}

    @cached_property
    def job(self) -> Job:
        """The processes, which the first measurement starts. Errors: those of `Job`."""
        return Job([self.arms[self.default[0]].plan], self._settings)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        if "job" in self.__dict__:
            self.job.close()

    def measure(self, cell: int, arm: int) -> float:
        """See `Backend`. Errors: D926, and those of `Job`."""
        default = int(self.default[cell])
        of_cell = self._cells.get(cell) or self._begin(cell)
        self._prepare(cell, arm)
        is_long = of_cell.reference_us >= _LONG_US
        warm = 0 if is_long else 1
        rival, own = (Turn(self._loaded[one].number, warm, of_cell.calls) for one in (default, arm))
        # Default and arm in turn: what changes the machine for longer than a turn hits both, and
        # the median of their ratios drops a turn that another program disturbed.
        pairs = 1 if is_long else _PAIRS
        times_us = self._times_us([rival, own] * pairs, of_cell.count)
        ratios: list[float] = (times_us[1::2] / times_us[::2]).tolist()
        return of_cell.reference_us * median(ratios)

    def _begin(self, cell: int) -> _Cell:
        """Measures the default at a size for the first time."""
        default = int(self.default[cell])
        self._prepare(cell, default)
        number, count = self._loaded[default].number, self._count(cell, default)
        once_us = self._times_us([Turn(number, 1, 3)], count)[0]
        # So many calls that a turn is long against the clock and the ranks' start, and no longer.
        calls = int(np.clip(_TIMED_US / once_us, 1, _MOST_CALLS))
        turns = [Turn(number, 1, calls)] * _REFERENCE_TURNS
        reference_us = float(np.median(self._times_us(turns, count)))
        self._cells[cell] = _Cell(count, reference_us, calls)
        return self._cells[cell]

    def _prepare(self, cell: int, arm: int) -> None:
        """Checks an arm at a size, and makes its first calls. Errors: D926."""
        if (cell, arm) in self._ready:
            return
        if arm not in self._loaded:
            self._loaded[arm] = self.job.load(self.arms[arm].plan)
        loaded, count = self._loaded[arm], self._count(cell, arm)
        wrong = loaded.count_wrong(count, _SUMS)
        if wrong:
            size = size_text(int(self.sizes[cell]))
            raise D926.error(
                at=Place(detail=f"{self.recipes[arm]}, {size}, {self.machine.ranks} ranks"),
                expected=f"the result of {self.collective}",
                found=f"{wrong} wrong elements",
            )
        self._times_us([Turn(loaded.number, WARM_CALLS - 1, 1)], count)
        self._ready.add((cell, arm))

    def _times_us(self, turns: Sequence[Turn], count: int) -> FloatArray:
        """float64 (turns,): the time of a call in each turn on the slowest rank."""
        return np.asarray(self.job.times_us(turns, count, _SUMS).max(axis=0))

    def _count(self, cell: int, arm: int) -> int:
        """The elements of a block at a size."""
        blocks = self.arms[arm].plan.collective.blocks
        return int(self.sizes[cell]) // (blocks * _SUMS.kind.size_bytes)


def _check(collective: str, ranks: int, sizes: Sequence[int]) -> None:
    """Errors: D921, D923."""
    check_name(D921, "a collective", collective, LIVE)
    whole(ranks, "ranks", 2, MOST_RANKS, D923)
    least = ranks * _SUMS.kind.size_bytes
    if not sizes or not all(is_integer(size) and size >= least for size in sizes):
        found = ", ".join(map(repr, sizes)) or "none"
        raise D923.error(expected=f"sizes of {least} bytes or more", found=found)


def _arms(
    collective: str, hosts: Hosts, settings: Settings, algorithms: Sequence[str] | None
) -> Iterator[LiveArm]:
    """The plans that fit the communicator's connections. Errors: D921."""
    # Trees and routes are made for a topology, of which a communicator knows none.
    own = (one for one in CATALOG.values() if one.collective == collective)
    known = [one.name for one in own if not one.is_synthesised]
    for name in algorithms or ():
        check_name(D921, "an algorithm", name, known)
    nodes, gpus = hosts.count, len(hosts.members[0])
    capacity = Capacity(len(hosts.host), settings.slots, settings.channels)
    for name, instances, channels, fusion, protocol in product(
        known if algorithms is None else algorithms, INSTANCES, CHANNELS, FUSION, PROTOCOLS
    ):
        options = Options(protocol=protocol, instances=instances, channels=channels, fusion=fusion)
        recipe = Recipe(name, options=options.given())
        # Some algorithms need a power of two or another machine, some programs fix their channels.
        with contextlib.suppress(SleyError):
            program = program_of(recipe, nodes, gpus, in_place=IN_PLACE[collective])
            # As a communicator loads it.
            plan = replace(compile(program, options), topology=None)
            check_capacity(plan, capacity, name)
            yield LiveArm(recipe, plan, has_stages=False)


def _is_expressible(recipe: Recipe) -> bool:
    """Whether a policy can express a recipe: its program has no arguments but its size."""
    return set(recipe.arguments) <= {"ranks", "nodes", "gpus", "in_place"}


def _estimates(plans: Sequence[Plan], sizes: LongArray) -> FloatArray:
    """float64 (sizes, plans): logarithms of rough estimates of the times in microseconds: the steps
    of the longest thread block, one after another, and then the data that a rank sends."""
    steps = np.array([steps_of(plan) for plan in plans]) * _STEP_US
    moved = np.array([moved_by(plan) for plan in plans]) / _BYTES_PER_US
    return np.log(steps + np.outer(sizes, moved))
