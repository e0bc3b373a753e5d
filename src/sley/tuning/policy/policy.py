"""Policy: ranges of sizes for each collective, and what runs in each (GC3, section 12.8)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import geometric_mean

from sley.algorithms import CATALOG, build
from sley.compiler import Options
from sley.errors import Place, did_you_mean
from sley.errors.policy import D901, D904
from sley.ir.collectives import SIZED
from sley.ir.plan_table import Machine, Measured, PlanRow, Recipe
from sley.ir.program import Program
from sley.ir.sizes import SizeRange
from sley.ir.topology import MAX_RANKS
from sley.ir.words import is_integer

TILES = tuple(0.5**power for power in range(7))
"""The tiles that a decision may ask for, as shares of the runtime's own tile."""


@dataclass(frozen=True)
class Decision:
    """What runs for a call.

    algorithm: its name in the catalog. options: how it is compiled; the open ones have the
    compiler's defaults. tile: the tile's size as a share of the runtime's own. orders: the rings of
    a `multi-ring-` algorithm, if they aren't its own.
    """

    algorithm: str
    options: Options = field(default_factory=Options)
    tile: float = 1.0
    orders: tuple[tuple[int, ...], ...] = ()

    def program(self, nodes: int, gpus: int, *, in_place: bool) -> Program:
        """The algorithm's program for nodes of GPUs. Errors: L120, and the algorithm's own."""
        orders = self.orders or None
        return build(self.algorithm, nodes=nodes, gpus=gpus, orders=orders, in_place=in_place)

    @classmethod
    def of(cls, recipe: Recipe) -> Decision:
        """The decision of a recipe. Errors: C304, D901 for other arguments than orders."""
        arguments = dict(recipe.arguments)
        orders = arguments.pop("orders", ())
        is_list = isinstance(orders, tuple) and all(isinstance(one, tuple) for one in orders)
        if arguments or not (is_list and all(is_rank(rank) for one in orders for rank in one)):
            expected = "no arguments but orders, a list of lists of ranks"
            raise D901.error(expected=expected, found=repr(recipe.arguments))
        return cls(recipe.name, Options.of(None, recipe.options), recipe.tile, orders)

    @property
    def recipe(self) -> Recipe:
        """The decision as a recipe, without the ranks."""
        arguments = {"orders": self.orders} if self.orders else {}
        return Recipe(self.algorithm, arguments, self.options.given(), self.tile)

    def __str__(self) -> str:
        return str(self.recipe)


@dataclass(frozen=True)
class Range:
    """A range of sizes, and the decision for it.

    measured: the times at sizes in the range on which the decision is based, ascending.
    alternatives: other decisions that were nearly as fast; exploration tries only these.
    """

    sizes: SizeRange
    decision: Decision
    measured: tuple[Measured, ...] = ()
    alternatives: tuple[Decision, ...] = ()

    @classmethod
    def of(cls, row: PlanRow) -> Range:
        """The range of a table's row. Errors: C304."""
        others = tuple(map(Decision.of, row.alternatives))
        return cls(row.sizes, Decision.of(row.recipe), row.measured, others)

    def row(self, collective: str) -> PlanRow:
        """The range as a row of a table."""
        speedup = self.speedup()
        return PlanRow(
            self.decision.recipe,
            self.sizes,
            collective,
            note="" if speedup is None else f"measured {speedup:.2f} times as fast as the default",
            measured=self.measured,
            alternatives=tuple(one.recipe for one in self.alternatives),
        )

    def label(self, collective: str) -> str:
        """The range of a collective in words, for messages."""
        return f"{collective}, {self.sizes}"

    def speedup(self) -> float | None:
        """Time of the default over time of the decision: the geometric mean of the measured sizes.
        None without any."""
        if not self.measured:
            return None
        return geometric_mean(one.default_us / one.time_us for one in self.measured)


@dataclass(frozen=True)
class Change:
    """A change of what an agent would deploy for a size, during its training.

    call: the number of the call of this collective, from 1. before, after: the decisions in words.
    """

    call: int
    collective: str
    size_bytes: int
    before: str
    after: str


@dataclass(frozen=True)
class Policy:
    """What a tuner has learned on one machine: ranges of sizes by collective.

    ranges: for each collective's name, its ranges, which are ascending and don't overlap. A call
        in none of them runs the default of the runtime.
    machine: where it was trained. agent: the agent that learned it. notes: facts about the training
        as text, by name (seed, samples, version of sley). changes: what the agent changed its mind
        about, in order.

    Errors: D901 for overlapping ranges and unknown collectives; D904 for unknown algorithms and
    those of another collective.
    """

    machine: Machine
    ranges: Mapping[str, tuple[Range, ...]]
    agent: str = ""
    notes: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        for collective, ranges in self.ranges.items():
            if collective not in SIZED:
                raise D901.error(
                    expected=f"a collective of {', '.join(SIZED)}",
                    found=repr(collective),
                    remedy=did_you_mean(collective, SIZED),
                )
            for one in ranges:
                _check_range(collective, one)
            for before, after in pairwise(ranges):
                end = before.sizes.end_bytes
                if end is None or end >= after.sizes.begin_bytes:
                    raise D901.error(
                        at=Place(detail=collective),
                        expected="ascending ranges that don't overlap",
                        found=f"{before.sizes} before {after.sizes}",
                    )

    @cached_property
    def _begins(self) -> dict[str, list[int]]:
        return {
            name: [one.sizes.begin_bytes for one in ranges] for name, ranges in self.ranges.items()
        }

    def find(self, collective: str, size_bytes: int) -> Range | None:
        """The range of a call, by bisection; None where the default runs."""
        begins = self._begins.get(collective)
        if not begins:
            return None
        one = self.ranges[collective][max(bisect_right(begins, size_bytes) - 1, 0)]
        return one if one.sizes.covers(size_bytes) else None


def _check_range(collective: str, one: Range) -> None:
    """Refuses a range without sizes, or with a decision that the collective or a file can't have.
    Errors: D901, D904."""
    place = Place(detail=one.label(collective))
    if one.sizes.begin_bytes < 0 or one.sizes.is_empty:
        raise D901.error(at=place, expected="a range of sizes from 0 on", found=str(one.sizes))
    measured = [0, *(m.size_bytes for m in one.measured)]
    if measured != sorted(set(measured)) or not all(map(one.sizes.covers, measured[1:])):
        found = ", ".join(map(str, measured[1:]))
        raise D901.error(at=place, expected="measured sizes of the range, ascending", found=found)
    for decision in (one.decision, *one.alternatives):
        known = CATALOG.get(decision.algorithm)
        if known is None or known.collective != collective:
            names = [a.name for a in CATALOG.values() if a.collective == collective]
            raise D904.error(
                at=place,
                expected=f"one of {', '.join(names)}",
                found=repr(decision.algorithm),
                remedy=did_you_mean(decision.algorithm, names),
            )
        if decision.tile not in TILES:
            expected = f"a tile of {', '.join(f'{tile:g}' for tile in TILES)}"
            raise D901.error(at=place, expected=expected, found=f"{decision.tile!r}")


def is_rank(value: object) -> bool:
    """Whether a value may be a rank."""
    return is_integer(value) and 0 <= value < MAX_RANKS  # type: ignore[operator]
