"""Search: the fastest options for each size, by simulation (docs/choosing.md)."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sley.compiler.candidates import Candidate, CandidateCompiler, Contender
from sley.compiler.choices import MARGIN, Choice, Choices, Prediction, RunnerUp
from sley.compiler.comparison import STRIDE, CandidateComparison, Progress
from sley.compiler.options import Options
from sley.compiler.passes.lift import lift
from sley.compiler.pipeline import check_kind
from sley.compiler.search_record import SearchRecord
from sley.compiler.space import Space
from sley.errors import without_inner_frames
from sley.errors.compiler import C304, C313
from sley.errors.runtime import R514
from sley.errors.simulation import S701
from sley.formats import FORMATS, Target, refuse_varying_counts, target_named
from sley.ir.cost_model import CostModel
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.sizes import checked_sizes
from sley.ir.sources import place_to_mend
from sley.ir.topology import Topology
from sley.ir.words import is_integer, is_real
from sley.topologies import topology_of
from sley.verification import verify

TIE = 0.01
"""Relative difference up to which times count as equal by default: the model is not more exact."""

SIZE_BITS = 3
"""Significant bits of the sizes at the borders of ranges."""

VARIANTS = (0.97, 1.03)
"""Factors of the rates of all links and memories with which a choice is simulated again."""

_SAME_PLACE = (
    "Give --in-place or --out-of-place, in Python in_place=...; or write again the file of the "
    "program that differs: sley import --in-place for a schedule."
)
"""What to do about programs for the same collective, some in place and some out of place."""

FINALISTS = 4
"""Candidates of a range that are simulated with the variants."""


# More than eight parameters: one call gives the parameters of the search and of the simulation.
@without_inner_frames
def choose(
    programs: Program | Plan | Sequence[Program | Plan],
    sizes: int | str | Sequence[int | str],
    topology: Topology | str | None = None,
    options: Options | None = None,
    *,
    interpreter: bool | None = None,
    model: CostModel | None = None,
    target: str | Target | None = None,
    most_blocks: int | None = None,
    tie: float = TIE,
    limit_s: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    **overrides: Any,
) -> Choices:
    """The fastest plans for sizes on a topology, as a table of ranges without gaps.

    programs: one, or several for the same collective, to choose among algorithms. A plan is a
        candidate as it is, whatever the options, and so are the plans of the program that is lifted
        from it.
    sizes: the sizes at which candidates are compared, with sizes in between if they are more than a
        factor of 4 apart. One is left out at a size where its loads, or its times at others, say
        that it is too slow. The ranges cover all sizes from the first to the last.
    topology: a topology, or its name, as for `sley.topologies.find`; by default the one that the
        first program was written for.
    options: how to compile all candidates. Open options are tried: Simple, LL and LL128, with
        switches Simple and Direct, unless the program requests a protocol; all schedules that the
        other options allow; both allocations, unless the program requests thread blocks; 1, 2 and 4
        channels, unless it requests channels; 1 to 24 instances. The other options have the
        defaults of `compile`.
    interpreter, model: as for `Simulator`; by default an interpreter runs the plans if `target`
        has one for MSCCL XML (msccl, executor, rccl).
    target: a runtime that must be able to run the plans: for one that reads MSCCL XML they are
        tile-major and per_chunk, and they are within its limits.
    most_blocks: without max_blocks, plans with more thread blocks on a rank are left out; by
        default the multiprocessors of the topology's cost model.
    tie: the relative difference up to which times count as equal, at most 6 %.
    limit_s: the search ends after so many seconds, or as soon as there is a plan after that, with
        the best that it has compared: `Choices.left` tells what is left.
    progress: called with the number of steps that are done, and of all steps, first with 0 done:
        each combination of options is a step. If it returns True, the search ends as at `limit_s`.
    executor: compiles and simulates; by default this thread does.
    resume: a file that keeps what is compared. If it has a part of this search, which was ended,
        the search goes on from there.
    overrides: options by name, which take precedence over `options`; of a list each value is tried.

    There are as few ranges as possible: at every compared size of a range its choice is within 6 %
    of the fastest, about the simulator's least error. Of the candidates for a range the choice is
    the one that is never far from the fastest, also if all rates are 3 % lower or higher.
    Of equally fast candidates the choice is the one with the fewest thread blocks, then the one
    with the simplest options. Only choices are verified. Errors: C304, C307, R514, S701, C313, F437
    with a target, C317 and F461 with `resume`, S702, T604, and those of `compile`.
    """
    if limit_s is not None and not (is_real(limit_s) and limit_s >= 0):
        expected = "limit_s as a number of seconds, or None"
        raise R514.error(expected=expected, found=f"limit_s={limit_s!r}")
    if not (is_real(tie) and 0 <= tie <= MARGIN):
        raise R514.error(expected=f"tie as a share from 0 to {MARGIN}", found=f"tie={tie!r}")
    compared = checked_sizes(sizes)
    compiler = compiler_for(
        programs,
        topology,
        options,
        interpreter=interpreter,
        model=model,
        target=target,
        most_blocks=most_blocks,
        **overrides,
    )
    return search_ranges(
        compiler,
        compared,
        tie=tie,
        limit_s=limit_s,
        progress=progress,
        executor=executor,
        resume=resume,
    )


def compiler_for(
    programs: Program | Plan | Sequence[Program | Plan],
    topology: Topology | str | None = None,
    options: Options | None = None,
    *,
    interpreter: bool | None = None,
    model: CostModel | None = None,
    target: str | Target | None = None,
    most_blocks: int | None = None,
    **overrides: Any,
) -> CandidateCompiler:
    """What compiles the candidates of `choose`, with its parameters and errors."""
    if most_blocks is not None and not (is_integer(most_blocks) and most_blocks >= 1):
        expected = "most_blocks as a whole number from 1, or None"
        raise R514.error(expected=expected, found=f"most_blocks={most_blocks!r}")
    contenders = _contenders(programs)
    first, _ = contenders[0]
    cluster = first.topology if topology is None else topology_of(topology)
    if cluster is None:
        raise S701.error(expected="a topology to choose on", found="none")
    if model is not None:
        cluster = replace(cluster, model=model)
    runtime = None if target is None else target_named(target)
    if runtime is not None:
        refuse_varying_counts(first.collective)
    if interpreter is None:
        interpreter = runtime is not None and not FORMATS[runtime.suffix].one_sided
    space = Space.of(options, overrides, runtime, most_blocks)
    return CandidateCompiler(contenders, cluster, space, interpreter=interpreter)


def search_ranges(
    compiler: CandidateCompiler,
    sizes: Iterable[int],
    *,
    ends: Collection[int] = (),
    tie: float = TIE,
    under_us: float = float("inf"),
    limit_s: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
) -> Choices:
    """The table of `choose` for a compiler's candidates. ends: sizes at which a range ends,
    whatever is chosen for larger ones. under_us: the time of another plan for a single size,
    without `resume`: if all candidates take longer, there are no ranges."""
    all_sizes, target = _add_sizes(sorted(set(sizes))), compiler.space.target
    record = None if resume is None else SearchRecord(resume, compiler, all_sizes)
    comparison = CandidateComparison(compiler, all_sizes, record, under_us)
    left = comparison.run(executor, limit_s, progress or (lambda done, total: None))
    search = _CandidateSearch(comparison.candidates, tie)
    rows = [
        _Row(size, {n: us[size] for n, us in enumerate(comparison.times_us) if size in us})
        for size in all_sizes
    ]
    # Without times all candidates take longer than `under_us`.
    rows = rows if all(row.times_us for row in rows) else []
    ranges = tuple(search.choices(rows, ends)) if rows else ()
    return Choices(
        topology=compiler.topology,
        interpreter=compiler.interpreter,
        target=None if target is None else str(target),
        ranges=ranges,
        others=search.others(rows, {one.algorithm for one in ranges}),
        candidates=len(comparison.candidates),
        simulations=search.simulations + sum(len(row.times_us) for row in rows),
        left=left,
        untried=comparison.untried if left else (),
    )


@dataclass(frozen=True)
class _Row:
    """The result for a size. times_us: the times of the candidates that were simulated, at least of
    those within MARGIN of the fastest."""

    size_bytes: int
    times_us: dict[int, float]

    def slowness(self, margin: float) -> dict[int, float]:
        """The candidates within a margin of the fastest, with the relative difference."""
        best = min(self.times_us.values())
        slowness = {index: time_us / best - 1 for index, time_us in self.times_us.items()}
        return {index: by for index, by in slowness.items() if by <= margin}


@dataclass
class _CandidateSearch:
    """The search among candidates.

    tie: as for `choose`. simulations: the number of simulations besides those of rows.
    """

    candidates: list[Candidate]
    tie: float
    simulations: int = 0

    def choices(self, rows: Sequence[_Row], ends: Collection[int]) -> Iterator[Choice]:
        """The choices for ranges that cover the sizes of all rows, and end at `ends`. Errors:
        V2xx."""
        groups = _groups(rows, ends)
        chosen = [self._choose_row(group) for group in groups]
        begins = [rows[0].size_bytes]
        for (group, one), (after, other) in pairwise(zip(groups, chosen, strict=True)):
            last, first = group[-1].size_bytes, after[0].size_bytes
            begins.append(last + 1 if last in ends else self._border(last, first, one, other))
        lasts = [*(begin - 1 for begin in begins[1:]), rows[-1].size_bytes]
        for row in zip(groups, chosen, begins, lasts, strict=True):
            yield self._choice(*row)

    def _choose_row(self, group: Sequence[_Row]) -> int:
        """The candidate for a range: of those within MARGIN of the fastest at each size the one
        whose largest difference is the least, as given and with the VARIANTS."""
        slowness = [row.slowness(MARGIN) for row in group]
        common = set.intersection(*(set(one) for one in slowness))
        worst = {index: max(one[index] for one in slowness) for index in common}
        finalists = sorted(worst, key=lambda index: (worst[index], self._simplicity(index)))
        finalists = finalists[:FINALISTS]
        if len(finalists) > 1:
            sizes = sorted({group[0].size_bytes, group[-1].size_bytes})
            simulators = [self.candidates[index].simulator for index in finalists]
            for factor in VARIANTS:
                variants = [simulator.with_rates(factor) for simulator in simulators]
                for size in sizes:
                    self.simulations += len(variants)
                    times = [variant.time_us(size) for variant in variants]
                    for index, time_us in zip(finalists, times, strict=True):
                        worst[index] = max(worst[index], time_us / min(times) - 1)
        least = min(worst[index] for index in finalists)
        equal = [index for index, by in worst.items() if by <= least + self.tie]
        return min(equal, key=self._simplicity)

    def _simplicity(self, index: int) -> tuple[int, int]:
        """The simplest candidate has the least."""
        return self.candidates[index].plan.blocks_per_rank, index

    def _border(self, low: int, high: int, before: int, after: int) -> int:
        """The first size of a range: where its choice `after` becomes as fast as `before`, which is
        the choice at `low`, as exactly as MARGIN tells."""
        # Ends: the middle lies strictly between, so the interval shrinks until it has none.
        while (middle := _middle(low, high)) is not None:
            times = [self.candidates[i].simulator.time_us(middle) for i in (before, after)]
            self.simulations += 2
            if max(times) <= min(times) * (1 + MARGIN):
                return middle
            low, high = (middle, high) if times[0] < times[1] else (low, middle)
        return high

    def others(self, rows: Sequence[_Row], chosen: Collection[str]) -> tuple[RunnerUp, ...]:
        """Where each program that isn't chosen comes closest to the fastest, the closest first."""
        found: dict[str, RunnerUp] = {}
        for row in rows:
            for index, slower in row.slowness(float("inf")).items():
                one = self._runner_up(index, row.size_bytes, slower)
                name = one.algorithm
                if name not in chosen and (name not in found or slower < found[name].slower):
                    found[name] = one
        return tuple(sorted(found.values(), key=lambda one: one.slower))

    def _runner_up(self, index: int, size_bytes: int, slower: float) -> RunnerUp:
        one = self.candidates[index]
        as_given = one.position.as_given
        return RunnerUp(one.program.name, one.options, size_bytes, slower, as_given)

    def _choice(self, rows: Sequence[_Row], index: int, begin: int, end: int) -> Choice:
        """The choice for a range, verified. Errors: V2xx."""
        chosen = self.candidates[index]
        verify(chosen.plan)
        known = {row.size_bytes: row.times_us[index] for row in rows}
        others = [
            (time_us / row.times_us[index] - 1, row.size_bytes, other)
            for row in rows
            for other, time_us in row.times_us.items()
            if other != index
        ]
        runner_up = None
        if others:
            slower, size_bytes, second = min(others)
            runner_up = self._runner_up(second, size_bytes, slower)
        return Choice(
            begin=_predict(chosen, begin, known),
            end=_predict(chosen, end, known),
            program=chosen.program,
            options=chosen.options,
            plan=chosen.plan,
            runner_up=runner_up,
            as_given=chosen.position.as_given,
        )


def _groups(rows: Sequence[_Row], ends: Collection[int]) -> list[list[_Row]]:
    """The fewest groups of neighbours in each of which one candidate is within MARGIN of the
    fastest at every size, and that end at `ends`."""
    groups: list[list[_Row]] = []
    common: set[int] = set()
    for row in rows:
        common &= set(near := row.slowness(MARGIN))
        if common and groups[-1][-1].size_bytes not in ends:
            groups[-1].append(row)
        else:
            groups.append([row])
            common = set(near)
    return groups


def _predict(candidate: Candidate, size_bytes: int, known: dict[int, float]) -> Prediction:
    """The prediction for a size. known: simulated times, by size."""
    simulator = candidate.simulator
    time_us = known[size_bytes] if size_bytes in known else simulator.time_us(size_bytes)
    return Prediction(size_bytes, time_us, simulator.bounds.at(size_bytes))


def _middle(low: int, high: int) -> int | None:
    """A size of SIZE_BITS significant bits near the geometric mean of two, or None if there is none
    between them."""
    mean = round((low * high) ** 0.5)
    unit = 1 << max(mean.bit_length() - SIZE_BITS, 0)
    middle = round(mean / unit) * unit
    return middle if low < middle < high else None


def _contenders(programs: object) -> list[Contender]:
    """The programs and plans, all of them for one collective. Errors: C304, C307, C313, V2xx."""
    given: Sequence[Any] = programs if isinstance(programs, (list, tuple)) else [programs]
    if not given:
        raise C304.error(expected="a program to choose options for", found="none")
    for one in given:
        if not isinstance(one, Plan):
            check_kind(one)
    first = given[0].collective
    for one in given[1:]:
        c = one.collective
        if any(getattr(c, n) != getattr(first, n) for n in ("name", "ranks", "root", "in_place")):
            raise C313.error(
                at=place_to_mend(one.sources.whole, one.name),
                expected=f"programs for {first}, as {given[0].name}",
                found=f"{one.name} for {c}",
                remedy=_SAME_PLACE if c.name == first.name and c.ranks == first.ranks else "",
            )
    return [(lift(one), one) if isinstance(one, Plan) else (one, None) for one in given]


def _add_sizes(sizes: list[int]) -> list[int]:
    """The sizes, and further ones between those more than a factor of STRIDE apart, since a plan
    may be the fastest only between two sizes."""
    dense = sizes[:1]
    for size in sizes[1:]:
        while dense[-1] * STRIDE < size:
            dense.append(dense[-1] * STRIDE)
        dense.append(size)
    return dense
