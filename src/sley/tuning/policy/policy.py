"""Policy: ranges of sizes for each collective, and what runs in each (GC3, section 12.8)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from statistics import geometric_mean
from typing import Any

from sley.algorithms import CATALOG, build
from sley.compiler import Options
from sley.errors import Place, did_you_mean
from sley.errors.policy import D901, D903, D904
from sley.ir.collectives import SIZED
from sley.ir.program import Program
from sley.ir.sizes import sizes_text

FORMAT = 1
"""The number of the file format."""

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

    def __str__(self) -> str:
        words = [f"{word}={_word(value)}" for word, value in self.options.given().items()]
        words += [f"tile={self.tile:g}"] if self.tile != 1 else []
        if self.orders:
            words.append("orders=" + ";".join(",".join(map(str, order)) for order in self.orders))
        return " ".join([self.algorithm, *words])


@dataclass(frozen=True)
class Measured:
    """Times at one size, in microseconds: of the decision and of the default."""

    size_bytes: int
    time_us: float
    default_us: float


@dataclass(frozen=True)
class Range:
    """A range of sizes, both ends included (None: no end), and the decision for it.

    measured: the times at sizes in the range on which the decision is based, ascending.
    alternatives: other decisions that were nearly as fast; exploration tries only these.
    """

    begin_bytes: int
    end_bytes: int | None
    decision: Decision
    measured: tuple[Measured, ...] = ()
    alternatives: tuple[Decision, ...] = ()

    @property
    def sizes(self) -> str:
        """The range in words."""
        return sizes_text(self.begin_bytes, self.end_bytes)

    def label(self, collective: str) -> str:
        """The range of a collective in words, for messages."""
        return f"{collective}, {self.sizes}"

    def covers(self, size_bytes: int) -> bool:
        """Whether the range has a size."""
        return self.begin_bytes <= size_bytes and (
            self.end_bytes is None or size_bytes <= self.end_bytes
        )

    def speedup(self) -> float | None:
        """Time of the default over time of the decision: the geometric mean of the measured sizes.
        None without any."""
        if not self.measured:
            return None
        return geometric_mean(one.default_us / one.time_us for one in self.measured)


@dataclass(frozen=True)
class Machine:
    """Where a policy was trained.

    engine: "simulator" or "cpu", whose times it has learned. topology: its name, for people.
    fingerprint: equal for equal machines. nodes, gpus: the nodes, and the ranks of each.
    """

    engine: str
    topology: str
    fingerprint: str
    nodes: int
    gpus: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.gpus

    def check(self, here: Machine, at: Place) -> None:
        """Refuses another machine than `here`. Errors: D903."""
        for word in ("engine", "nodes", "gpus", "fingerprint"):
            trained, wanted = getattr(self, word), getattr(here, word)
            if trained != wanted:
                raise D903.error(
                    at=at,
                    expected=f"a policy for {here}, {word} {wanted}",
                    found=f"one for {self}, {word} {trained}",
                )

    def __str__(self) -> str:
        return f"{self.topology} ({self.nodes} x {self.gpus} ranks, {self.engine})"


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
                if before.end_bytes is None or before.end_bytes >= after.begin_bytes:
                    raise D901.error(
                        at=Place(detail=collective),
                        expected="ascending ranges that don't overlap",
                        found=f"{before.sizes} before {after.sizes}",
                    )

    @cached_property
    def _begins(self) -> dict[str, list[int]]:
        return {name: [one.begin_bytes for one in ranges] for name, ranges in self.ranges.items()}

    def find(self, collective: str, size_bytes: int) -> Range | None:
        """The range of a call, by bisection; None where the default runs."""
        begins = self._begins.get(collective)
        if not begins:
            return None
        one = self.ranges[collective][max(bisect_right(begins, size_bytes) - 1, 0)]
        return one if one.covers(size_bytes) else None


def _check_range(collective: str, one: Range) -> None:
    """Refuses a range without sizes, or with a decision that the collective or a file can't have.
    Errors: D901, D904."""
    place = Place(detail=one.label(collective))
    if one.begin_bytes < 0 or (one.end_bytes is not None and one.end_bytes < one.begin_bytes):
        raise D901.error(
            at=place,
            expected="a range of sizes from 0 on",
            found=f"{one.begin_bytes} to {one.end_bytes}",
        )
    measured = [0, *(m.size_bytes for m in one.measured)]
    if measured != sorted(set(measured)) or not all(map(one.covers, measured[1:])):
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


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))
