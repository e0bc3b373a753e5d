"""choose: the fastest options for each size, found with the simulator (docs/choosing.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from typing import Any

from sley.compiler.choices import Choice, Choices, Prediction, RunnerUp
from sley.compiler.options import Options
from sley.compiler.pipeline import check_kinds
from sley.compiler.space import Candidate, Space, candidates
from sley.errors.compiler import C304, C311, C313
from sley.errors.simulation import S702
from sley.formats import Target, target_named
from sley.ir.cost_model import CostModel
from sley.ir.program import Program
from sley.ir.sizes import size_in_bytes
from sley.ir.topology import Topology
from sley.verify import verify

TIE = 0.01
"""Times that differ by no more are equal: the model is not that exact."""

STRIDE = 4
"""All candidates are compared at sizes no further apart than by this factor."""

CONTENDERS = 0.1
"""Between two sizes only those are looked at that are slower by no more at one of them."""

SIZE_BITS = 6
"""Borders of ranges are sizes with so many significant bits: right to some 3 %."""

Progress = Callable[[int, int], None]
"""Called with how many steps are done, and how many there are."""


# More than eight parameters: what is searched and what is simulated is given by name in one call.
def choose(
    programs: Program | Sequence[Program],
    sizes: int | str | Sequence[int | str],
    topology: Topology | None = None,
    options: Options | None = None,
    *,
    interpreter: bool = False,
    model: CostModel | None = None,
    target: str | Target | None = None,
    progress: Progress | None = None,
    **overrides: Any,
) -> Choices:
    """The fastest plans for sizes on a topology, as a table of ranges without gaps.

    programs: one, or several that bring about the same collective, to choose among algorithms.
    sizes: where all candidates are compared, and at sizes between them that are more than a
        factor of 4 apart; the ranges cover all from the first to the last.
    topology: by default the one that the first program was written for.
    options: how to compile all candidates. What they leave open is tried: Simple, LL and LL128,
        unless the program asks for a protocol; all schedules that go with the other options; both
        allocations, unless the program gives thread blocks; 1, 2 and 4 channels where it leaves
        them open; 1 to 24 instances. Without max_blocks no rank has more than 108 thread blocks,
        the multiprocessors of an A100. The other options have the defaults of `compile`.
    interpreter, model: as `Simulator` takes them.
    target: a runtime that has to be able to run the plans (msccl, executor, rccl): they are
        tile-major, per_chunk, and within its limits.
    progress: called with how many steps are done, and how many there are.
    overrides: options by name, which go before those of `options`; each value of a list is tried.

    Candidates whose times differ by 1 % or less count as equally fast; among them the one with the
    fewest thread blocks is taken, then the one with the simpler options. Only what is chosen is
    verified. Errors: C304, C307, C311, C313, S702, and those of `compile`.
    """
    ordered_programs = _programs(programs)
    cluster = topology or ordered_programs[0].topology
    if cluster is None:
        raise C311.error(expected="a topology to choose on", found="none")
    if model is not None:
        cluster = replace(cluster, model=model)
    asked = _dense(_sizes(sizes))
    space = Space.of(options, overrides, None if target is None else target_named(target))
    report = progress or (lambda done, total: None)
    steps = 2 * len(asked) - 1
    found = candidates(
        ordered_programs,
        cluster,
        space,
        interpreter=interpreter,
        progress=lambda done, total: report(done, total + steps),
    )
    built = max(sum(len(s) for p in ordered_programs for s in space.series(p)), 1)
    search = _Search(found)
    table = search.table(asked, lambda done: report(built + done, built + steps))
    return Choices(
        topology=cluster,
        interpreter=interpreter,
        ranges=tuple(search.choice(*row) for row in search.ranges(table)),
        candidates=len(found),
        simulations=search.simulations,
    )


@dataclass(frozen=True)
class _Row:
    """What was found for a size. times_us: by candidate, of those that were simulated."""

    size_bytes: int
    winner: int
    times_us: dict[int, float]

    @property
    def best_us(self) -> float:
        return min(self.times_us.values())

    def contenders(self) -> set[int]:
        """Those that may win nearby."""
        most = self.best_us * (1 + CONTENDERS)
        return {index for index, time_us in self.times_us.items() if time_us <= most}


@dataclass
class _Search:
    """The search over candidates. simulations: how many were made."""

    candidates: list[Candidate]
    simulations: int = field(default=0)

    def table(self, sizes: list[int], progress: Callable[[int], None]) -> list[_Row]:
        """A row for each size, and rows between those that differ."""
        rows: list[_Row] = []
        for done, size in enumerate(sizes, 1):
            rows.append(self.fastest(size, self.candidates))
            progress(done)
        table = rows[:1]
        for done, (before, after) in enumerate(pairwise(rows), len(sizes) + 1):
            table += [*self._between(before, after), after]
            progress(done)
        return table

    def fastest(self, size_bytes: int, among: Iterable[Candidate]) -> _Row:
        """What is best for a size. Candidates that can't be the best or the second, because they
        take longer than these at least, are not simulated."""
        least = sorted((c.least(size_bytes), c.index) for c in among)
        times: dict[int, float] = {}
        first = second = float("inf")
        for least_us, index in least:
            if least_us > max(first * (1 + TIE), second):
                break
            time_us = self.candidates[index].simulator(size_bytes).time_us
            self.simulations += 1
            times[index] = time_us
            first, second = sorted((first, second, time_us))[:2]
        return _Row(size_bytes, self._simplest(_equal(times)), times)

    def _simplest(self, indices: Iterable[int]) -> int:
        return min(indices, key=lambda i: (self.candidates[i].blocks, i))

    def _between(self, before: _Row, after: _Row) -> list[_Row]:
        """Rows between two that differ, until their sizes are next to one another."""
        middle = _middle(before.size_bytes, after.size_bytes)
        if before.winner == after.winner or middle is None:
            return []
        among = sorted(before.contenders() | after.contenders())
        row = self.fastest(middle, [self.candidates[i] for i in among])
        # A third one comes in between only where it is faster than both.
        either = _equal(row.times_us) & {before.winner, after.winner}
        if either:
            row = replace(row, winner=self._simplest(either))
        return [*self._between(before, row), row, *self._between(row, after)]

    def ranges(self, table: list[_Row]) -> list[tuple[list[_Row], int]]:
        """Neighbours with the same winner, and the last size of their range."""
        groups = [list(rows) for _, rows in groupby(table, lambda row: row.winner)]
        ends = [rows[0].size_bytes - 1 for rows in groups[1:]] + [table[-1].size_bytes]
        return list(zip(groups, ends, strict=True))

    def choice(self, rows: list[_Row], end: int) -> Choice:
        """What was chosen for a range, verified. Errors: V2xx."""
        chosen = self.candidates[rows[0].winner]
        verify(chosen.plan)
        others = [
            (time_us / row.times_us[chosen.index] - 1, row.size_bytes, index)
            for row in rows
            for index, time_us in row.times_us.items()
            if index != chosen.index
        ]
        runner_up = None
        if others:
            slower, size_bytes, index = min(others)
            other = self.candidates[index]
            runner_up = RunnerUp(other.program.name, other.options, size_bytes, slower)
        return Choice(
            begin=self._predicted(chosen, rows[0].size_bytes),
            end=self._predicted(chosen, end),
            program=chosen.program,
            options=chosen.options,
            plan=chosen.plan,
            blocks_per_rank=chosen.blocks,
            runner_up=runner_up,
        )

    def _predicted(self, candidate: Candidate, size_bytes: int) -> Prediction:
        simulation = candidate.simulator(size_bytes)
        return Prediction(size_bytes, simulation.time_us, simulation.bound)


def _equal(times_us: dict[int, float]) -> set[int]:
    """Those that are as fast as the fastest."""
    most = min(times_us.values()) * (1 + TIE)
    return {index for index, time_us in times_us.items() if time_us <= most}


def _middle(low: int, high: int) -> int | None:
    """A size of SIZE_BITS significant bits about the geometric mean of two, None where there is
    none between them."""
    mean = round((low * high) ** 0.5)
    unit = 1 << max(mean.bit_length() - SIZE_BITS, 0)
    middle = round(mean / unit) * unit
    return middle if low < middle < high else None


def _programs(programs: Program | Sequence[Program]) -> list[Program]:
    """The programs, all of them for one collective. Errors: C304, C307, C313."""
    given = [programs] if isinstance(programs, Program) else programs
    if not isinstance(given, (list, tuple)):
        given = [given]  # type: ignore[list-item]
    if not given:
        raise C304.error(expected="a program to choose options for", found="none")
    for program in given:
        check_kinds(program, None)
    first = given[0].collective
    for program in given[1:]:
        c = program.collective
        if (c.name, c.ranks, c.root, c.in_place) != (
            first.name,
            first.ranks,
            first.root,
            first.in_place,
        ):
            raise C313.error(
                at=program.sources.whole, expected=f"programs for {first}", found=str(c)
            )
    return list(given)


def _sizes(sizes: int | str | Sequence[int | str]) -> list[int]:
    """The sizes in rising order. Errors: S702."""
    several = [sizes] if isinstance(sizes, str) or not isinstance(sizes, Iterable) else list(sizes)
    found = [size_in_bytes(size) for size in several]
    for size, given in zip(found, several, strict=True):
        if size is None:
            raise S702.error(expected="a positive number of bytes", found=repr(given))
    if not found:
        raise S702.error(expected="at least one size", found="none")
    return sorted({size for size in found if size is not None})


def _dense(sizes: list[int]) -> list[int]:
    """The sizes, and more between those that are over a factor of STRIDE apart: a plan that is
    fastest only between two sizes would never be seen at them."""
    dense = sizes[:1]
    for size in sizes[1:]:
        while dense[-1] * STRIDE < size:
            dense.append(dense[-1] * STRIDE)
        dense.append(size)
    return dense
