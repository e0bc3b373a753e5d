"""Comparison: the simulated times of candidates, in this process or in several."""

from __future__ import annotations

import pickle
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, TypeAlias

from sley.compiler.candidates import Candidate, CandidateCompiler, Position, Series
from sley.compiler.choices import MARGIN
from sley.compiler.interrupts import TurnInterrupted, interruptible
from sley.compiler.options import Options
from sley.compiler.search_record import RecordedPlan, SearchRecord
from sley.errors import SleyError
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.words import Allocation, Schedule

Progress: TypeAlias = Callable[[int, int], object]
"""Called with the number of combinations that are done, and of all. If it returns True, the search
ends with what it has compared."""

_REACH = 1 + MARGIN
"""How many times as long as the fastest a plan may take, at the size where it does best, for the
plan that merges its blocks to be compiled: merging rarely makes it faster."""

_MERGED = 1.2
"""How many times as far a plan reaches that has too many blocks, so that only the merged one runs.

On 15 questions (10 topologies, 1K to 1G) the fastest plan so found was in the mean 0.2 %, at one
size 10 % slower than the fastest of all whose unmerged plans take up to 1.38 times as long."""

_FEW = 2
"""How many times too many blocks a plan of whole transfers may have for that: a block that merges
more of them waits for each."""

STRIDE = 4
"""Largest factor between neighbouring sizes at which all candidates are compared."""

_STEEP = 1.15
"""How much longer a call took, at most, than its size times the time of a byte in a call of half
its size or less: 1.13 in 89,000 pairs of calls on 6 topologies."""

_NEAR = 1.5
"""How much longer than it needs for one size a simulation goes on, at most, to spare it others."""

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
    are done, the series that were compared whole, and those that are left."""

    compared: list[_Compared]
    refused: SleyError | None
    done: int
    whole: list[Series]
    rest: tuple[Series, ...]


class CandidateComparison:
    """The comparison of a compiler's candidates at sizes.

    Plans that share thread blocks come last: they take most of the time of compiling, and are
    compiled only if the plan without shared blocks is within reach of the fastest.

    under_us: plans that take longer have no times.

    After `run`, candidates: the distinct ones within the limit of blocks, the simplest first; if
    there are none, those with the fewest blocks. times_us: of each candidate, by size, at the sizes
    at which it was simulated: at least where it is within MARGIN of the fastest.
    """

    def __init__(
        self,
        compiler: CandidateCompiler,
        sizes: Sequence[int],
        record: SearchRecord | None = None,
        under_us: float = float("inf"),
    ) -> None:
        self._compiler, self._record = compiler, record
        self._known = {} if record is None else record.known
        # As if two plans were known: what takes longer than `under_us` isn't near them.
        known_us = under_us / (1 + MARGIN)
        self._fastest: _Fastest = dict.fromkeys(sizes, (known_us, known_us))
        self._compared: list[_Compared] = []
        self._times_of: dict[bytes, _Times] = defaultdict(dict)  # of equal plans, by digest
        self._is_over = False
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
        done += self._resume()
        given, fastest = list(self._compiler.given()), dict(self._fastest)
        self._take(_compare(self._compiler, given, fastest, set(), float("inf"))[0])
        for result in self._results(executor, until):
            self._take(result.compared)
            if self._record is not None:
                _keep(self._record, result)
            done += result.done
            refused = refused or result.refused
            is_stopped = progress(done, total + 1) is True or is_stopped or time.time() > until
            self._is_over = is_stopped and bool(self._compared)
        if not self._compared and refused is not None:
            raise refused
        self._close()
        progress(total + 1, total + 1)
        return total - done

    @property
    def untried(self) -> tuple[str, ...]:
        """The programs of which no plan was compared: simulated, or ruled out by a lower bound of
        its time or its blocks."""
        tried = {one.position.contender for one in self._compared}
        names = [program.name for program, _ in self._compiler.contenders]
        known = {names[contender] for contender in tried}
        return tuple(dict.fromkeys(name for name in names if name not in known))

    def _take(self, compared: list[_Compared]) -> None:
        self._compared += compared
        for one in compared:
            self._times_of[one.key].update(one.times_us)
            for size, time_us in one.times_us.items():
                first, second = self._fastest[size]
                first, second, _ = sorted((first, second, time_us))
                self._fastest[size] = (first, second)

    def _resume(self) -> int:
        """Takes what the record knows. Returns the number of its combinations."""
        done = 0
        for series in self._compiler.series:
            if (rows := self._known.get(series[:2])) is not None:
                done += len(series.options)
                for number, key, blocks, times_us in rows:
                    position, options = Position(*series[:2], number), series.options[number]
                    self._take([_Compared(position, options, key, blocks, times_us, None)])
        return done

    def _results(self, executor: Executor | None, until: float) -> Iterator[_Result]:
        """The results of all tasks, or of those that had begun when the search is over."""
        made = None if executor is None else pickle.dumps(self._compiler)
        for shares_blocks in (False, True):
            series = [
                one
                for one in self._compiler.series
                if one.shares_blocks is shares_blocks and one[:2] not in self._known
            ]
            # The first options of all contenders come first: a search that ends early leaves out
            # none. Then come more instances of these, and then the first schedule, which is the
            # fastest most of the time.
            series.sort(key=_turn_of)
            if executor is None or made is None:
                for one in series:
                    if not self._is_over:
                        yield _run(self._compiler, self._task((one,), until))
                continue
            left = deque(tuple(some) for _, some in groupby(series, lambda s: _turn_of(s)[:3]))
            waiting, most = set[Future[_Result]](), 1
            try:
                # Ends: each turn takes at least one series off a task.
                while left or waiting:
                    # One at first, and one more after each turn, however many the executor runs:
                    # each task begins with the least times so far.
                    while left and len(waiting) < most:
                        task = self._task(left.popleft(), until)
                        waiting.add(executor.submit(_run_there, made, task))
                    ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for result in [future.result() for future in ended]:
                        most += 1
                        if result.rest:
                            left.appendleft(result.rest)
                        yield result
                    if self._is_over:
                        left.clear()
                        waiting = {future for future in waiting if not future.cancel()}
            finally:
                for future in waiting:
                    future.cancel()

    def _task(self, series: tuple[Series, ...], until: float) -> _Task:
        """The task of series of one contender."""
        apart: dict[Options, _Times] = {}
        if series[0].shares_blocks:
            limit = self._compiler.limit
            apart = {
                one.options: self._times_of[one.key]
                for one in self._compared
                if one.position.contender == series[0].contender
                and one.blocks <= limit(one.options)
            }
        # A record may have lost the line of the equal plan that was simulated.
        known = frozenset(key for key, times_us in self._times_of.items() if times_us)
        return _Task(series, dict(self._fastest), known, apart, until)

    def _distinct(self) -> dict[bytes, _Compared]:
        """The distinct plans by digest, first the given ones, then the simplest. Each has the times
        of all that equal it, whichever of them was simulated."""
        distinct = dict[bytes, _Compared]()
        for one in sorted(self._compared, key=lambda c: (not c.position.as_given, c.position)):
            distinct.setdefault(one.key, replace(one, times_us=self._times_of[one.key]))
        return distinct

    def _close(self) -> None:
        """Fills `candidates` and `times_us`. Errors: as of the simulator."""
        distinct = self._distinct()
        limit = self._compiler.limit
        kept = [one for one in distinct.values() if one.blocks <= limit(one.options)]
        fewest = min(one.blocks for one in distinct.values())
        for one in distinct.values() if not kept else ():
            if one.blocks == fewest:
                simulator = self._candidate(one).simulator
                times_us = {size: simulator.time_us(size) for size in self._fastest}
                kept.append(replace(one, times_us=times_us))
        self.candidates = [self._candidate(one) for one in kept]
        self.times_us = [one.times_us for one in kept]

    def _candidate(self, one: _Compared) -> Candidate:
        return Candidate(self._compiler, one.position, one.options, one.plan)


def _keep(record: SearchRecord, result: _Result) -> None:
    """Adds the series that were compared whole to a record."""
    for series in result.whole:
        own = [one for one in result.compared if one.position[:2] == series[:2]]
        rows = [RecordedPlan(c.position.number, c.key, c.blocks, c.times_us) for c in own]
        if rows or result.refused is None:  # else a later search learns again why
            record.add(series, rows)


def _turn_of(series: Series) -> tuple[int, int, int, int]:
    """The order of series: whether it is one of its contender's first two, the numbers of its
    schedule, its contender and its own."""
    schedule = list(Schedule).index(series.options[0].schedule or Schedule.MSCCL)
    return min(series.number, 2), schedule, series.contender, series.number


def _run(compiler: CandidateCompiler, task: _Task) -> _Result:
    """A turn of a task: at least one series. Wherever it ends, what is within MARGIN of the fastest
    is simulated."""
    until = min(task.until, time.time() + _TURN_S)
    compared, fastest, known, done = list[_Compared](), dict(task.fastest), set(task.known), 0
    left, whole = list(task.series), list[Series]()
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
        if not late and not cut:
            whole.append(series)
    return _Result(compared, compiler.refused, done, whole, tuple(left))


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
        return any(us <= fastest[size][0] * _REACH for size, us in times_us.items())
    # It is no candidate, since it has too many blocks or its options aren't tried: its times only
    # tell whether the plan that merges its blocks may be one of the fastest.
    one = _Timed(Candidate(compiler, Position(series.contender, series.number, 0), apart), {}, {})
    most = float("inf") if options.schedule in (None, Schedule.MSCCL) else _FEW
    is_merged = 1 < one.candidate.plan.blocks_per_rank / compiler.limit(apart) <= most
    reach = _REACH * (_MERGED if is_merged else 1)
    return any(
        one.least(size) <= first * reach and one.simulate(size, first * reach) < float("inf")
        for size, (first, _) in sorted(fastest.items())
    )


def _is_any(fastest: _Fastest) -> bool:
    """Whether there is a time at each size."""
    return all(first < float("inf") for first, _ in fastest.values())


class _Timed(NamedTuple):
    """A candidate with the times that were simulated, and by size those that it takes at least."""

    candidate: Candidate
    times_us: _Times
    least_us: _Times

    def least(self, size: int) -> float:
        """A lower bound of its time: the time of its loads; the time at half the size or less; and
        the share in the time at twice the size or more (`_STEEP`). Just past the border of a tile a
        call was up to 15 % faster than a hardly smaller one (hm-reducescatter in 8 instances on
        a3-mega:2), but of 26,000 pairs of calls at least a factor of 2 apart the larger one never
        was."""
        known = [us for at, us in self.least_us.items() if 2 * at <= size]
        known += [us * size / at / _STEEP for at, us in self.least_us.items() if at >= 2 * size]
        return max([self.candidate.least(size), *known])

    def simulate(self, size: int, until_us: float) -> float:
        """Simulates a size. Infinite if it takes longer than until_us."""
        time_us = self.candidate.simulator.time_us(size, until_us)
        self.least_us[size] = min(time_us, until_us)
        if time_us < float("inf"):
            self.times_us[size] = time_us
        return time_us

    def is_near(self, fastest: _Fastest) -> bool:
        """Whether it is within MARGIN of the fastest at a size."""
        return any(us <= fastest[size][0] * (1 + MARGIN) for size, us in self.times_us.items())


def _compare(
    compiler: CandidateCompiler,
    made: list[Candidate],
    fastest: _Fastest,
    known: set[bytes],
    until: float,
) -> tuple[list[_Compared], int]:
    """Simulates candidates, of equal ones the first. Updates `fastest` and `known`. Returns what is
    compared, without plans that the target can't run, and how many candidates a size lacks since
    the time was over. Only a plan that is fast enough is checked for the target, or one that may be
    needed since none is within the limit of blocks: the check takes longer than a simulation."""
    between, limit = _between(sorted(fastest)), compiler.limit
    beside = _beside(fastest, between)
    all_timed, fit, keys = list[_Timed](), list[_Timed](), list[bytes]()
    for one in made:
        keys.append(key := digest(one.plan))
        all_timed.append(_Timed(one, {}, {}))
        if key not in known and one.plan.blocks_per_rank <= limit(one.options):
            known.add(key)
            fit.append(all_timed[-1])
    cut = set[Position]()
    for size in sorted(fastest, key=between.__contains__):
        cut |= _compare_at(size, fit, fastest, beside.get(size, 0.0), until)
    found = list[_Compared]()
    for key, timed in zip(keys, all_timed, strict=True):
        one, is_near = timed.candidate, timed.is_near(fastest)
        plan, blocks = one.plan if is_near else None, one.plan.blocks_per_rank
        is_cut = one.position in cut and not timed.times_us
        if is_cut or ((timed.times_us or not _is_any(fastest)) and not one.runs):
            known.discard(key)
            continue
        found.append(_Compared(one.position, one.options, key, blocks, timed.times_us, plan))
    return found, len(cut)


def _compare_at(
    size: int, candidates: list[_Timed], fastest: _Fastest, beside_us: float, until: float
) -> set[Position]:
    """Simulates every candidate at a size at which it can still be second, or within MARGIN of the
    fastest, by its lower bound; up to that time, or to `beside_us`. Updates `fastest`. Returns what
    is left since the time is over."""
    cut, (first, second) = set[Position](), fastest[size]
    # By ascending lower bound: the first bound that is too high rules out all that follow.
    for least, timed in sorted(((t.least(size), t) for t in candidates), key=lambda one: one[0]):
        limit = _limit(first, second)
        if least >= limit:
            break
        if first < float("inf") and time.time() > until:
            cut.add(timed.candidate.position)
            continue
        time_us = timed.simulate(size, max(limit, beside_us))
        if time_us < float("inf") and not timed.candidate.runs:
            candidates.remove(timed)
            continue
        first, second = sorted((first, second, time_us))[:2]
    fastest[size] = (first, second)
    return cut


def _limit(first: float, second: float) -> float:
    """The time above which a candidate is neither second nor within MARGIN of the fastest."""
    return max(first * (1 + MARGIN), second)


def _beside(fastest: _Fastest, between: dict[int, tuple[int, int]]) -> _Times:
    """By size, the time up to which a candidate is simulated for what that says of other sizes:
    above it, it isn't worth comparing at larger ones, as far as a little more time tells that; nor
    at the size in between, which one of its two neighbours tells: the one that needs less for it.
    """
    limits, found = {size: _limit(*two) for size, two in fastest.items()}, _Times()
    whole = sorted(limits.keys() - between.keys())
    for size, *larger in (whole[at:] for at in range(len(whole))):
        found[size] = max([0.0, *(limits[s] for s in larger if limits[s] <= limits[size] * _NEAR)])
    for size, (before, after) in between.items():
        # A little more than the bound that `least` gets from it needs, against rounding.
        below = limits[size] * (1 + 1e-9)
        above = below * after / size * _STEEP
        if below / limits[before] <= above / limits[after]:
            found[before] = max(found[before], below)
        else:
            found[after] = max(found[after], above)
    return found


def _between(sizes: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Sizes with their neighbours, of which no two are neighbours: without them the others are
    still at most a factor of STRIDE apart."""
    found: dict[int, tuple[int, int]] = {}
    for before, size, after in zip(sizes, sizes[1:], sizes[2:], strict=False):
        if before not in found and after <= STRIDE * before:
            found[size] = (before, after)
    return found


_THREAD = threading.local()
"""The compiler of an executor's thread: it keeps results of passes, so no two threads share one."""


def _run_there(made: bytes, task: _Task) -> _Result:
    """A turn of a task, in a thread of an executor. made: the compiler, pickled. Ctrl-C ends the
    turn of a process that ignores it between turns; then all of the task is left."""
    if getattr(_THREAD, "made", b"") != made:
        _THREAD.made, _THREAD.compiler = made, pickle.loads(made)
    try:
        with interruptible():
            return _run(_THREAD.compiler, task)
    except TurnInterrupted:
        _THREAD.made = b""  # a half-made result of a pass may be among those that it keeps
        if _is_any(task.fastest):
            return _Result([], None, 0, [], task.series)
        return _run(pickle.loads(made), task)  # there must be a plan
