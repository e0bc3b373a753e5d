"""Choices: which options are fastest for which sizes, by the simulator."""

from __future__ import annotations

import os
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path

from sley import files
from sley.bounds.bound import Bound
from sley.compiler.options import Options
from sley.errors.compiler import C312
from sley.formats import Target, target_named
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import size_in_bytes, size_text
from sley.ir.topology import Topology


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of one size.

    size_bytes: of the call, as nccl-tests counts it. time_us: how long it takes. bound: what no
    algorithm falls below.
    """

    size_bytes: int
    time_us: float
    bound: Bound

    @property
    def algbw_GBps(self) -> float:  # noqa: N802 - a unit
        """Size over time, in 10^9 bytes a second."""
        return self.size_bytes / self.time_us / 1e3

    @property
    def of_bound(self) -> float:
        """Which part of the bandwidth that the bound allows is reached, 0 to 1."""
        return self.bound.time_us / self.time_us


@dataclass(frozen=True)
class RunnerUp:
    """The other candidate that comes closest within a range.

    algorithm, options: what it is. size_bytes: where it comes closest. slower: how much longer it
    takes there than what was chosen, 0.05 for 5 %; a little below 0 where it was not chosen because
    it needs more thread blocks.
    """

    algorithm: str
    options: Options
    size_bytes: int
    slower: float


@dataclass(frozen=True)
class Choice:
    """What is best for a range of sizes.

    begin, end: what it does at the first and the last size, both included.
    program, options: what was chosen.
    plan: what becomes of them, verified.
    blocks_per_rank: thread blocks of the rank that has most.
    runner_up: the next best, None without another candidate.
    """

    begin: Prediction
    end: Prediction
    program: Program
    options: Options
    plan: Plan
    blocks_per_rank: int
    runner_up: RunnerUp | None

    @property
    def begin_bytes(self) -> int:
        """The first size."""
        return self.begin.size_bytes

    @property
    def end_bytes(self) -> int:
        """The last size."""
        return self.end.size_bytes

    @property
    def algorithm(self) -> str:
        """The program's name."""
        return self.program.name


@dataclass(frozen=True)
class Choices:
    """A table of size ranges without gaps, and what was chosen for each.

    topology: the cluster that it is for.
    interpreter: whether an interpreter was to run the plans, or code made for them.
    ranges: the ranges, from small to large sizes.
    candidates: among how many different plans they were chosen.
    simulations: how many sizes of them were simulated; what could not win was left out.
    """

    topology: Topology
    interpreter: bool
    ranges: tuple[Choice, ...]
    candidates: int
    simulations: int

    def at(self, size_bytes: int | str) -> Choice:
        """The choice for a size. Errors: C312."""
        size = size_in_bytes(size_bytes)
        first, last = self.ranges[0].begin_bytes, self.ranges[-1].end_bytes
        if size is None or not first <= size <= last:
            raise C312.error(
                expected=f"a size from {size_text(first)} to {size_text(last)}, which the table "
                "covers",
                found=repr(size_bytes),
            )
        return self.ranges[bisect_left([r.end_bytes for r in self.ranges], size)]

    def plan_for(self, size_bytes: int | str) -> Plan:
        """The plan for a size. Errors: as `at`."""
        return self.at(size_bytes).plan

    def save(
        self, folder: str | os.PathLike[str], *, target: str | Target = "executor"
    ) -> list[Path]:
        """Writes the plan of each range to a file of its own in `folder`, for the range's sizes;
        gives the files. A runtime that reads all of them takes for each call the right one.

        What `choose` found without that target may not be fit for it. Errors: those of
        `sley.save`.
        """
        to = Path(folder)
        to.mkdir(parents=True, exist_ok=True)
        target, paths = target_named(target), []
        for number, choice in enumerate(self.ranges, 1):
            path = to / f"{number:02}-{choice.algorithm}{target.suffix}"
            files.save(
                choice.plan,
                path,
                target=target,
                min_bytes=choice.begin_bytes,
                max_bytes=choice.end_bytes,
            )
            paths.append(path)
        return paths
