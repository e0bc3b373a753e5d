"""Choices: the fastest options for each size, as predicted by the simulator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sley.compiler.options import Options
from sley.errors import counted
from sley.errors.compiler import C312
from sley.formats import Target, files, target_named, write_file
from sley.ir.plan import Plan
from sley.ir.plan_table import TABLE, PlanRow, PlanTable, Recipe
from sley.ir.program import Program
from sley.ir.sizes import SizeRange, size_in_bytes, size_text
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.model.bounds import Bound
from sley.model.simulation.result import errors_text
from sley.report.limit import blocks_text, threads_of
from sley.report.tables import Text, table_lines

MARGIN = 0.06
"""Relative difference of times that makes a new range: about the least median error of the
simulator's predictions of published tables, that of sizes above 64 MB (docs/measurements.md)."""

_LEFT = range(2, 6)
"""The columns of words, which are flush left."""

AS_GIVEN = "as given"
"""What a plan that `choose` was given shows in place of its options."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """The simulator's prediction for one size.

    size_bytes: the size of the call, as nccl-tests counts it. time_us: the time of the call. bound:
    the lower bound of all algorithms.
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
        """The share of the bandwidth that the bound allows, 0 to 1."""
        return self.bound.time_us / self.time_us

    def __repr__(self) -> str:
        return (
            f"Prediction({size_text(self.size_bytes)}: {self.time_us:.1f} us, "
            f"{self.algbw_GBps:.2f} GB/s, {self.of_bound:.1%} of the bound)"
        )


@dataclass(frozen=True, repr=False)
class RunnerUp:
    """The other candidate that comes closest to the choice for a range.

    algorithm, options: its program's name and its options. size_bytes: the size at which it comes
    closest. slower: how much longer it takes there than the choice, 0.05 for 5 %; slightly below 0
    if it was not chosen because it needs more thread blocks. as_given: as for `Choice`.
    """

    algorithm: str
    options: Options
    size_bytes: int
    slower: float
    as_given: bool = False

    def __repr__(self) -> str:
        made = AS_GIVEN if self.as_given else self.options
        return (
            f"RunnerUp({self.algorithm}, {made}: {self.slower:.1%} slower at "
            f"{size_text(self.size_bytes)})"
        )


@dataclass(frozen=True, repr=False)
class Choice:
    """The best candidate for a range of sizes.

    begin, end: predictions for the first and the last size, both in the range.
    program, options: the candidate.
    plan: its plan, verified.
    runner_up: the next best candidate, or None.
    as_given: whether the plan is one that `choose` was given, as it is; then `program` is lifted
        from it, and of `options` it has the protocol.
    """

    begin: Prediction
    end: Prediction
    program: Program
    options: Options
    plan: Plan
    runner_up: RunnerUp | None
    as_given: bool = False

    @property
    def sizes(self) -> SizeRange:
        """The sizes."""
        return SizeRange(self.begin.size_bytes, self.end.size_bytes)

    @property
    def algorithm(self) -> str:
        """The program's name."""
        return self.program.name

    def __repr__(self) -> str:
        made = AS_GIVEN if self.as_given else self.options
        return (
            f"Choice({self.sizes}: {self.algorithm}, {made}, {self.end.time_us:.1f} us at "
            f"{size_text(self.end.size_bytes)})"
        )


@dataclass(frozen=True, repr=False)
class Choices:
    """A table of size ranges without gaps, and the choice for each.

    topology: the cluster.
    interpreter: whether the predictions are for an interpreter, or for code generated for each
        plan.
    target: the name of the runtime that can run all plans; None if no runtime was given.
    ranges: the ranges, from small to large sizes.
    candidates: the number of different plans that were compared.
    simulations: the number of simulations; candidates that could not win were left out.
    left: the combinations of options that a limit of time left out.
    untried: then the programs of which no plan was compared.
    others: for each program that no range has, where a simulation of it comes closest to the
        fastest; the closest first.
    """

    topology: Topology
    interpreter: bool
    target: str | None
    ranges: tuple[Choice, ...]
    candidates: int
    simulations: int
    left: int = 0
    others: tuple[RunnerUp, ...] = ()
    untried: tuple[str, ...] = ()

    def __repr__(self) -> str:
        sizes, ranges = self.sizes, counted(len(self.ranges), "range")
        return f"Choices({sizes} on {self.topology.name}: {ranges}, {self._searched})"

    @property
    def sizes(self) -> SizeRange:
        """All sizes of the table."""
        return SizeRange(self.ranges[0].begin.size_bytes, self.ranges[-1].end.size_bytes)

    @property
    def _searched(self) -> str:
        return f"{counted(self.candidates, 'plan')}, {counted(self.simulations, 'simulation')}"

    def show(self) -> Text:
        """The table of ranges as a text, as `sley choose` prints it."""
        rows = [tuple(self.rows[0]), *(tuple(row.values()) for row in self.rows)]
        runs = "an interpreter" if self.interpreter else "code generated for each plan"
        if self.target is not None:
            runs = f"for {self.target}: {runs}" + ", a slot a chunk" * self.interpreter
        title = f"{self.ranges[0].plan.collective.name} on {self.topology.name}, {runs}"
        head = [
            f"# {title}",
            f"# {self._searched}; the chosen plans are proven",
            f"# at each size of its range, a plan is at most {MARGIN:.0%} slower than the fastest"
            f"{' that was compared' * bool(self.left)}; the simulator's own errors, median / 90th "
            f"percentile: {errors_text(self.topology)}",
        ]
        if self.left:
            none = f", none of {', '.join(self.untried)}" * bool(self.untried)
            compared = f"{counted(self.left, 'combination')} not compared{none}"
            head.append(f"# the time was over: {compared}")
        most = max(choice.plan.blocks_per_rank for choice in self.ranges)
        if remark := blocks_text(most, self.topology.model):
            head.append(f"# up to {most} blocks on a rank: {remark}; max_blocks limits them")
        others = [
            f"{one.algorithm} ({one.slower:.0%} slower at {size_text(one.size_bytes)})"
            for one in self.others
        ]
        foot = [f"# not chosen: {', '.join(others)}"] * bool(others)
        return Text("\n".join([*head, *table_lines(rows, _LEFT), *foot, *self._runtimes()]))

    @property
    def rows(self) -> list[dict[str, str]]:
        """The words of the table, a row for each range, by column."""
        return [self._cells(place) for place in range(len(self.ranges))]

    def _runtimes(self) -> list[str]:
        """The runtimes that can run each choice as a file; nothing if one was given."""
        if self.target is not None:
            return []
        begins: dict[str, list[str]] = {}
        for choice in self.ranges:
            names = ", ".join(files.runtimes(choice.plan))
            if not names:
                why = files.why_none(choice.plan)
                names = f"no runtime ({why}; a target, such as mscclpp, leaves such plans out)"
            begins.setdefault(names, []).append(size_text(choice.begin.size_bytes))
        return [f"# files for {names}: from {', '.join(of)}" for names, of in begins.items()]

    def _cells(self, place: int) -> dict[str, str]:
        """The row of a range, by column; a range ends below the first size of the next."""
        choice, o = self.ranges[place], self.ranges[place].options
        following = self.ranges[place + 1 : place + 2]
        last = size_text(choice.end.size_bytes)
        end = f"<{size_text(following[0].begin.size_bytes)}" if following else last
        made: tuple[object, ...] = (AS_GIVEN, "-", "-", "-")
        if not choice.as_given:
            words = (o.schedule and o.schedule.value, o.allocate and o.allocate.value)
            made = (*words, o.channels, o.instances)
        compiled = zip(
            ("schedule", "allocate", "channels", "instances"), map(str, made), strict=True
        )
        ends = (choice.begin.size_bytes, choice.end.size_bytes)
        threads = {threads_of(choice.plan, self.topology, size): None for size in ends}
        return {
            "from": size_text(choice.begin.size_bytes),
            "to": end,
            "algorithm": choice.algorithm,
            "protocol": choice.plan.protocol.value,
            **dict(compiled),
            "blocks": str(choice.plan.blocks_per_rank),
            **({} if None in threads else {"threads": " to ".join(map(str, threads))}),
            "us at from": f"{choice.begin.time_us:.1f}",
            "us at to": f"{choice.end.time_us:.1f}",
            "GB/s at to": f"{choice.end.algbw_GBps:.2f}",
            "of bound": f"{choice.end.of_bound:.1%}",
        }

    def at(self, size: int | str) -> Choice:
        """The choice for a size. Errors: C312."""
        size_bytes = size_in_bytes(size)
        if size_bytes is None or not self.sizes.covers(size_bytes):
            expected = f"a size from {self.sizes}, which the table covers"
            raise C312.error(expected=expected, found=repr(size))
        return next(one for one in self.ranges if one.sizes.covers(size_bytes))

    def plan_for(self, size: int | str) -> Plan:
        """The plan for a size. Errors: as `at`."""
        return self.at(size).plan

    def save(
        self, folder: str | os.PathLike[str], *, target: str | Target = "executor"
    ) -> list[Path]:
        """Writes the plan of each range to its own file in `folder`, for the range's sizes, and
        beside them plans.toml, the table of the ranges; returns the files of the plans. A
        runtime that has all plans selects the right one for each call; `sley package` and
        SLEY_PLAN_DIR read the folder. Each plan is named as its file, since MSCCL++ finds a plan's
        resources by its name.

        `choose` considers the limits of a target only if it got this target. Errors: those of
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
                name=path.stem,
                min_bytes=choice.sizes.begin_bytes,
                max_bytes=choice.sizes.end_bytes,
            )
            paths.append(path)
        write_file(to / TABLE, self.table(paths).text())
        return paths

    def table(self, paths: Sequence[Path]) -> PlanTable:
        """The table of the ranges, with the plans in these files."""
        nodes, ranks = self.topology.nodes, self.topology.ranks
        grid = {"nodes": nodes, "gpus": ranks // nodes} if nodes > 1 and ranks % nodes == 0 else {}
        return PlanTable(tuple(_row(*one, grid) for one in zip(self.ranges, paths, strict=True)))


def _row(choice: Choice, path: Path, grid: Mapping[str, int]) -> PlanRow:
    """grid: the nodes and GPUs of each, if there are several."""
    c = choice.plan.collective
    options = {} if choice.as_given else choice.options.given()
    time = f"{choice.end.time_us:.1f} us at {size_text(choice.end.size_bytes)}"
    return PlanRow(
        Recipe(path.name).given(**grid),
        choice.sizes,
        c.name,
        c.ranks,
        c.in_place,
        None if c.root == NONE else c.root,
        note=f"{Recipe(choice.algorithm, options=options)}: {time}, by simulation",
    )
