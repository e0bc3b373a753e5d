"""Search: the fastest options for each size, by simulation (docs/choosing.md)."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, Protocol, TypeVar

from sley.compiler.choices import Choice, Choices, Prediction, RunnerUp
from sley.compiler.options import Options
from sley.compiler.pipeline import check_kinds
from sley.compiler.space import Candidate, Space, candidates
from sley.errors.compiler import C304, C311, C313
from sley.errors.simulation import S702
from sley.formats import Target, refuse_varying_counts, target_named
from sley.ir.collective import Collective
from sley.ir.cost_model import CostModel
from sley.ir.program import Program
from sley.ir.sizes import checked_size
from sley.ir.topology import Topology
from sley.verify import verify

T = TypeVar("T")

TIE = 0.01
"""Relative difference up to which times count as equal, since the model is not more exact."""

STRIDE = 4
"""Largest factor between neighbouring sizes at which all candidates are compared."""

CONTENDERS = 0.1
"""Between two sizes only candidates within this of the best at one of them are compared."""

SIZE_BITS = 6
"""Significant bits of the sizes at the borders of ranges: exact to about 3 %."""

Progress = Callable[[int, int], None]
"""Called with the number of steps that are done, and of all steps."""


# More than eight parameters: one call gives the parameters of the search and of the simulation.
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
    executor: Executor | None = None,
    **overrides: Any,
) -> Choices:
    """The fastest plans for sizes on a topology, as a table of ranges without gaps.

    programs: one, or several for the same collective, to choose among algorithms.
    sizes: the sizes at which all candidates are compared, with sizes in between if they are more
        than a factor of 4 apart; the ranges cover all sizes from the first to the last.
    topology: by default the one that the first program was written for.
    options: how to compile all candidates. Open options are tried: Simple, LL and LL128, unless the
        program requests a protocol; all schedules that the other options allow; both allocations,
        unless the program requests thread blocks; 1, 2 and 4 channels, unless it requests channels;
        1 to 24 instances. Without max_blocks no rank has more than 108 thread blocks, the
        multiprocessors of an A100. The other options have the defaults of `compile`.
    interpreter, model: as for `Simulator`.
    target: a runtime that must be able to run the plans (msccl, executor, rccl): they are
        tile-major, per_chunk, and within its limits.
    progress: called with the number of steps that are done, and of all steps.
    executor: simulates the sizes; by default this thread does. Each of its processes compiles the
        candidates once.
    overrides: options by name, which take precedence over `options`; of a list each value is tried.

    Candidates whose times differ by 1 % or less count as equally fast; of these the choice is the
    one with the fewest thread blocks, then the one with the simplest options. Only choices are
    verified. Errors: C304, C307, C311, C313, F437 with a target, S702, and those of
    `compile`.
    """
    ordered_programs = _check_programs(programs, topology)
    cluster = topology or ordered_programs[0].topology
    if cluster is None:
        raise C311.error(expected="a topology to choose on", found="none")
    if model is not None:
        cluster = replace(cluster, model=model)
    all_sizes = _add_sizes(_sort_sizes(sizes))
    space = Space.of(options, overrides, _target(target, ordered_programs[0].collective))
    report = progress or (lambda done, total: None)
    steps = 2 * len(all_sizes) - 1
    found = candidates(
        ordered_programs,
        cluster,
        space,
        interpreter=interpreter,
        progress=lambda done, total: report(done, total + steps),
    )
    built = max(sum(len(s) for p in ordered_programs for s in space.series(p)), 1)
    search = _Search(found)
    made = (ordered_programs, cluster, space, interpreter)
    tasks: _Tasks = search if executor is None else _Remote(executor, pickle.dumps(made))
    rows = list(_counted(tasks.rows(all_sizes), lambda done: report(built + done, built + steps)))
    between = _counted(
        tasks.between(list(pairwise(rows))),
        lambda done: report(built + len(rows) + done, built + steps),
    )
    table = rows[:1]
    for row, further in zip(rows[1:], between, strict=True):
        table += [*further, row]
    return Choices(
        topology=cluster,
        interpreter=interpreter,
        ranges=tuple(search.choice(*row) for row in search.ranges(table)),
        candidates=len(found),
        simulations=sum(len(row.times_us) for row in table),
    )


def _counted(found: Iterable[T], progress: Callable[[int], None]) -> Iterator[T]:
    """Yields each, and tells the number so far."""
    for done, one in enumerate(found, 1):
        progress(done)
        yield one


@dataclass(frozen=True)
class _Row:
    """The result for a size. times_us: the times of the candidates that were simulated."""

    size_bytes: int
    winner: int
    times_us: dict[int, float]

    @property
    def best_us(self) -> float:
        return min(self.times_us.values())

    def contenders(self) -> set[int]:
        """Candidates that may win at sizes nearby."""
        most = self.best_us * (1 + CONTENDERS)
        return {index for index, time_us in self.times_us.items() if time_us <= most}


class _Tasks(Protocol):
    """What finds rows: this thread, or an executor."""

    def rows(self, sizes: Sequence[int]) -> Iterable[_Row]:
        """The row of each size."""
        ...

    def between(self, pairs: Sequence[tuple[_Row, _Row]]) -> Iterable[list[_Row]]:
        """The rows between each two neighbours."""
        ...


@dataclass
class _Search:
    """The search among candidates."""

    candidates: list[Candidate]

    def rows(self, sizes: Sequence[int]) -> Iterator[_Row]:
        return (self.fastest(size, self.candidates) for size in sizes)

    def between(self, pairs: Sequence[tuple[_Row, _Row]]) -> Iterator[list[_Row]]:
        return (self._between(*pair) for pair in pairs)

    def fastest(self, size_bytes: int, among: Iterable[Candidate]) -> _Row:
        """The best candidate for a size. Candidates whose lower bound rules out that they are the
        best or the second are not simulated."""
        least = sorted((c.least(size_bytes), c.index) for c in among)
        times: dict[int, float] = {}
        first = second = float("inf")
        for least_us, index in least:
            if least_us > max(first * (1 + TIE), second):
                break
            time_us = self.candidates[index].simulator(size_bytes).time_us
            times[index] = time_us
            first, second = sorted((first, second, time_us))[:2]
        return _Row(size_bytes, self._simplest(_equal(times)), times)

    def _simplest(self, indices: Iterable[int]) -> int:
        return min(indices, key=lambda i: (self.candidates[i].plan.blocks_per_rank, i))

    def _between(self, before: _Row, after: _Row) -> list[_Row]:
        """Rows between two with different winners, down to neighbouring sizes."""
        middle = _middle(before.size_bytes, after.size_bytes)
        if before.winner == after.winner or middle is None:
            return []
        among = sorted(before.contenders() | after.contenders())
        row = self.fastest(middle, [self.candidates[i] for i in among])
        # A third candidate wins only if it is faster than both.
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
        """The choice for a range, verified. Errors: V2xx."""
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
            begin=_predict(chosen, rows[0].size_bytes),
            end=_predict(chosen, end),
            program=chosen.program,
            options=chosen.options,
            plan=chosen.plan,
            runner_up=runner_up,
        )


@dataclass
class _Remote:
    """The search in an executor. made: what the candidates are made from, pickled."""

    executor: Executor
    made: bytes

    def rows(self, sizes: Sequence[int]) -> Iterator[_Row]:
        return self.executor.map(_row_of, [self.made] * len(sizes), sizes)

    def between(self, pairs: Sequence[tuple[_Row, _Row]]) -> Iterator[list[_Row]]:
        return self.executor.map(_between_of, [self.made] * len(pairs), pairs)


def _row_of(made: bytes, size_bytes: int) -> _Row:
    return next(_search_of(made).rows([size_bytes]))


def _between_of(made: bytes, pair: tuple[_Row, _Row]) -> list[_Row]:
    return next(_search_of(made).between([pair]))


@lru_cache(maxsize=1)
def _search_of(made: bytes) -> _Search:
    """The search of an executor's process, with its own candidates."""
    programs, topology, space, interpreter = pickle.loads(made)
    return _Search(
        candidates(
            programs, topology, space, interpreter=interpreter, progress=lambda _done, _all: None
        )
    )


def _predict(candidate: Candidate, size_bytes: int) -> Prediction:
    simulation = candidate.simulator(size_bytes)
    return Prediction(size_bytes, simulation.time_us, simulation.bound)


def _equal(times_us: dict[int, float]) -> set[int]:
    """The candidates that are as fast as the fastest."""
    most = min(times_us.values()) * (1 + TIE)
    return {index for index, time_us in times_us.items() if time_us <= most}


def _middle(low: int, high: int) -> int | None:
    """A size of SIZE_BITS significant bits near the geometric mean of two, or None if there is none
    between them."""
    mean = round((low * high) ** 0.5)
    unit = 1 << max(mean.bit_length() - SIZE_BITS, 0)
    middle = round(mean / unit) * unit
    return middle if low < middle < high else None


def _check_programs(programs: Program | Sequence[Program], topology: object) -> list[Program]:
    """The programs, all of them for one collective. Errors: C304, C307 for them or the topology,
    C313."""
    given = [programs] if isinstance(programs, Program) else programs
    if not isinstance(given, (list, tuple)):
        given = [given]  # type: ignore[list-item]
    if not given:
        raise C304.error(expected="a program to choose options for", found="none")
    for program in given:
        check_kinds(program, topology)
    first = given[0].collective
    for program in given[1:]:
        c = program.collective
        if any(getattr(c, n) != getattr(first, n) for n in ("name", "ranks", "root", "in_place")):
            whole = program.sources.whole
            raise C313.error(at=whole, expected=f"programs for {first}", found=str(c))
    return list(given)


def _target(target: str | Target | None, collective: Collective) -> Target | None:
    """The target of a search, if it has one. Errors: F437."""
    if target is None:
        return None
    found = target_named(target)
    refuse_varying_counts(collective)
    return found


def _sort_sizes(sizes: int | str | Sequence[int | str]) -> list[int]:
    """The sizes in ascending order. Errors: S702."""
    several = [sizes] if isinstance(sizes, str) or not isinstance(sizes, Iterable) else list(sizes)
    if not several:
        raise S702.error(expected="at least one size", found="none")
    return sorted({checked_size(size) for size in several})


def _add_sizes(sizes: list[int]) -> list[int]:
    """The sizes, and further ones between those more than a factor of STRIDE apart, since a plan
    may be the fastest only between two sizes."""
    dense = sizes[:1]
    for size in sizes[1:]:
        while dense[-1] * STRIDE < size:
            dense.append(dense[-1] * STRIDE)
        dense.append(size)
    return dense
