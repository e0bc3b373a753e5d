"""Comparison: the simulated times of candidates, in this process or in several."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, wait
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeAlias

from sley.compiler.candidates import Candidate, CandidateCompiler, Position, Series
from sley.compiler.choices import MARGIN
from sley.compiler.options import Options
from sley.errors import SleyError
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.words import Allocation, Schedule

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of combinations that are done, and of all. If it returns True, the search
ends with what it has compared."""

SHARED = 0.1
"""How much faster, at most, a plan counts as that shares thread blocks than the plan with the
blocks that it merges: on packaged machines it was at most 9 % faster, and that only where both were
slow."""

_REACH = (1 + MARGIN) * (1 + SHARED)
"""Plans that take so many times as long as the fastest are out of reach."""

STRIDE = 4
"""Largest factor between neighbouring sizes at which all candidates are compared."""

_NEAR = 1.5
"""At a size between two such sizes those candidates are compared that take at one of them at most
so many times as long as the fastest: times grow steadily, and no faster than the size."""

_TURN_S = 1.0
"""How long an executor's thread compares before it asks whether the search goes on."""

_Times: TypeAlias = dict[int, float]
"""Simulated times in microseconds, by size."""

_Fastest: TypeAlias = dict[int, tuple[float, float]]
"""The two least times so far, by size."""


@dataclass(frozen=True)
class _Compared:
    """A candidate that has been compared.

    times_us: of the sizes at which it was simulated, at least of those at which it is within MARGIN
    of the fastest; none if it has too many blocks. plan: None if it is far from the fastest at all
    sizes.
    """

    position: Position
    options: Options
    key: bytes
    blocks: int
    times_us: _Times
    plan: Plan | None


class _Task(NamedTuple):
    """Series of options with one schedule for a contender.

    fastest: the least times so far. known: the plans that have been simulated. apart: for series
    that share blocks, the times of the plans that don't, by options. until: nothing begins later,
    as `time.time` tells it, but what there must be one of.
    """

    series: tuple[Series, ...]
    fastest: _Fastest
    known: frozenset[bytes]
    apart: dict[Options, _Times]
    until: float


class _Result(NamedTuple):
    """What a turn of a task has compared, why the target can't run a plan, how many combinations
    are done, and the rest of the task."""

    compared: list[_Compared]
    refused: SleyError | None
    done: int
    rest: _Task | None


class CandidateComparison:
    """The comparison of a compiler's candidates at sizes.

    Plans that share thread blocks come last: they take most of the time of compiling, and are
    compiled only if the plan without shared blocks is within reach of the fastest.

    After `run`, candidates: the distinct ones within the limit of blocks, the simplest first; if
    there are none, those with the fewest blocks. times_us: of each candidate, by size, at the sizes
    at which it was simulated: at least where it is within MARGIN of the fastest.
    """

    def __init__(self, compiler: CandidateCompiler, sizes: Sequence[int]) -> None:
        self._compiler = compiler
        self._fastest: _Fastest = dict.fromkeys(sizes, (float("inf"), float("inf")))
        self._compared: list[_Compared] = []
        self.candidates: list[Candidate] = []
        self.times_us: list[_Times] = []

    def run(self, executor: Executor | None, limit_s: float | None, progress: Progress) -> int:
        """Compares, and returns the number of combinations that are left when the time is over.
        Errors: C3xx, V2xx for a program that does not do what it promises, F4xx if the target can
        run none."""
        until = time.time() + (float("inf") if limit_s is None else limit_s)
        total = sum(len(series.options) for series in self._compiler.series)
        # A step more, so that progress ends when the search does.
        done, is_stopped, refused = 0, progress(0, total + 1) is True, self._compiler.refused
        given = list(self._compiler.given())
        self._take(_compare(self._compiler, given, self._fastest, set(), until)[0])
        for result in self._results(executor, until):
            self._take(result.compared)
            done += result.done
            refused = refused or result.refused
            is_stopped = progress(done, total + 1) is True or is_stopped or time.time() > until
            if is_stopped and self._compared:
                break
        if not self._compared and refused is not None:
            raise refused
        self._close()
        progress(total + 1, total + 1)
        return total - done

    def _take(self, compared: list[_Compared]) -> None:
        self._compared += compared
        for one in compared:
            for size, time_us in one.times_us.items():
                first, second = self._fastest[size]
                first, second, _ = sorted((first, second, time_us))
                self._fastest[size] = (first, second)

    def _results(self, executor: Executor | None, until: float) -> Iterator[_Result]:
        """The results of all tasks."""
        made = None if executor is None else pickle.dumps(self._compiler)
        for shares_blocks in (False, True):
            series = [one for one in self._compiler.series if one.shares_blocks is shares_blocks]
            # The first series of all contenders come first: a search that ends early leaves out
            # none. Then comes the first schedule, which is the fastest most of the time.
            series.sort(key=_turn_of)
            if executor is None or made is None:
                for one in series:
                    yield _run(self._compiler, self._task([one], until))
                continue
            groups = groupby(series, lambda one: _turn_of(one)[:3])
            tasks = [self._task(list(group), until) for _, group in groups]
            waiting = {executor.submit(_run_there, made, task) for task in tasks}
            try:
                # Ends: each turn takes at least one series off a task.
                while waiting:
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for result in [future.result() for future in ended]:
                        if result.rest is not None:
                            waiting.add(executor.submit(_run_there, made, result.rest))
                        yield result
            finally:
                for future in waiting:
                    future.cancel()

    def _task(self, series: list[Series], until: float) -> _Task:
        """The task of series of one contender."""
        apart: dict[Options, _Times] = {}
        if series[0].shares_blocks:
            distinct, limit = self._distinct(), self._compiler.space.limit
            apart = {
                one.options: distinct[one.key].times_us
                for one in self._compared
                if one.position.contender == series[0].contender
                and one.blocks <= limit(one.options)
            }
        known = frozenset(one.key for one in self._compared)
        return _Task(tuple(series), dict(self._fastest), known, apart, until)

    def _distinct(self) -> dict[bytes, _Compared]:
        """The distinct plans by digest, first the given ones, then the simplest. Each has the times
        of all that equal it, whichever of them was simulated."""
        distinct = dict[bytes, _Compared]()
        for one in sorted(self._compared, key=lambda c: (not c.position.as_given, c.position)):
            first = distinct.setdefault(one.key, one)
            distinct[one.key] = replace(first, times_us={**first.times_us, **one.times_us})
        return distinct

    def _close(self) -> None:
        """Fills `candidates` and `times_us`. Errors: as of the simulator."""
        distinct = self._distinct()
        limit = self._compiler.space.limit
        kept = [one for one in distinct.values() if one.blocks <= limit(one.options)]
        fewest = min(one.blocks for one in distinct.values())
        for one in distinct.values() if not kept else ():
            if one.blocks == fewest:
                simulator = self._candidate(one).simulator
                times_us = {size: simulator(size).time_us for size in self._fastest}
                kept.append(replace(one, times_us=times_us))
        self.candidates = [self._candidate(one) for one in kept]
        self.times_us = [one.times_us for one in kept]

    def _candidate(self, one: _Compared) -> Candidate:
        return Candidate(self._compiler, one.position, one.options, one.plan)


def _turn_of(series: Series) -> tuple[bool, int, int, int]:
    """The order of series: whether it isn't its contender's first, the numbers of its schedule, its
    contender and its own."""
    schedule = list(Schedule).index(series.options[0].schedule or Schedule.MSCCL)
    return series.number > 0, schedule, series.contender, series.number


def _run(compiler: CandidateCompiler, task: _Task) -> _Result:
    """A turn of a task: at least one series. Where it ends has no effect on what is compared."""
    until = min(task.until, time.time() + _TURN_S)
    compared, fastest, known, done = list[_Compared](), dict(task.fastest), set(task.known), 0
    left = list(task.series)
    while left and (done == 0 or time.time() < until):
        series, asked, late = left.pop(0), 0, 0

        def wanted(options: Options, of: Series = series) -> bool:
            nonlocal asked, late
            if (asked or _is_any(fastest)) and time.time() > task.until:
                late += 1
                return False
            asked += 1
            return _may_win(compiler, task, fastest, of, options)

        made = list(compiler.compiled(series, wanted))
        found, cut = _compare(compiler, made, fastest, known, task.until)
        compared += found
        done += len(series.options) - late - cut
    rest = task._replace(series=tuple(left), fastest=fastest, known=frozenset(known))
    return _Result(compared, compiler.refused, done, rest if left else None)


def _may_win(
    compiler: CandidateCompiler, task: _Task, fastest: _Fastest, series: Series, options: Options
) -> bool:
    """Whether options are worth compiling: they don't share blocks, or the plan without shared
    blocks is within reach of the fastest."""
    if not series.shares_blocks or not _is_any(fastest):
        return True
    apart = replace(options, allocate=Allocation.CONNECTION)
    times_us = task.apart.get(apart)
    if times_us is not None:
        # At the other sizes its lower bound is too high, and sharing blocks only raises it.
        return any(us <= fastest[size][0] * _REACH for size, us in times_us.items())
    # It is no candidate, since it has too many blocks or its options aren't tried: its times only
    # tell whether the plan that merges its blocks may be one of the fastest.
    one = Candidate(compiler, Position(series.contender, series.number, 0), apart)
    return any(
        one.least(size) <= first * _REACH and one.simulator(size).time_us <= first * _REACH
        for size, (first, _) in fastest.items()
    )


def _is_any(fastest: _Fastest) -> bool:
    """Whether there is a time at each size."""
    return all(first < float("inf") for first, _ in fastest.values())


def _compare(
    compiler: CandidateCompiler,
    made: list[Candidate],
    fastest: _Fastest,
    known: set[bytes],
    until: float,
) -> tuple[list[_Compared], int]:
    """Simulates every candidate that can still be second, or within MARGIN of the fastest, by its
    lower bound; of equal plans the first. Updates `fastest` and `known`. Returns what is compared,
    and how many candidates a size lacks since the time was over."""
    between = _between(sorted(fastest))
    limit = compiler.space.limit
    keys = {one.position: digest(one.plan) for one in made}
    fit = list[Candidate]()
    for one in made:
        key = keys[one.position]
        if key not in known and one.plan.blocks_per_rank <= limit(one.options):
            known.add(key)
            fit.append(one)
    times_us: dict[Position, _Times] = {one.position: {} for one in made}
    cut = set[Position]()
    for size in sorted(fastest, key=between.__contains__):
        first, second = fastest[size]
        near = (
            fit
            if size not in between
            else [
                one
                for one in fit
                if any(
                    times_us[one.position].get(beside, float("inf")) <= fastest[beside][0] * _NEAR
                    for beside in between[size]
                )
            ]
        )
        # By ascending lower bound: the first bound that is too high rules out all that follow.
        for one in sorted(near, key=lambda one: one.least(size)):
            if one.least(size) > max(first * (1 + MARGIN), second):
                break
            if first < float("inf") and time.time() > until:
                cut.add(one.position)
                continue
            time_us = one.simulator(size).time_us
            times_us[one.position][size] = time_us
            first, second = sorted((first, second, time_us))[:2]
        fastest[size] = (first, second)
    found = list[_Compared]()
    for one in made:
        times = times_us[one.position]
        is_near = any(us <= fastest[size][0] * (1 + MARGIN) for size, us in times.items())
        plan, blocks = one.plan if is_near else None, one.plan.blocks_per_rank
        found.append(_Compared(one.position, one.options, keys[one.position], blocks, times, plan))
    return found, len(cut)


def _between(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Sizes with their neighbours, of which no two are neighbours: without them the others are
    still at most a factor of STRIDE apart."""
    found: dict[int, tuple[int, int]] = {}
    for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        if before not in found and after <= STRIDE * before:
            found[size] = (before, after)
    return found


def _run_there(made: bytes, task: _Task) -> _Result:
    """A task, in a thread of an executor. made: the compiler, pickled."""
    if getattr(_THREAD, "made", b"") != made:
        _THREAD.made, _THREAD.compiler = made, pickle.loads(made)
    return _run(_THREAD.compiler, task)


_THREAD = threading.local()
"""The compiler of an executor's thread: it keeps results of passes, so no two threads share one."""
