"""Job: worker processes with a communicator, which check plans and time their calls. `execute` and
`run` are jobs of one plan.

A command goes to all ranks, and each rank answers when it has carried it out. Within a command the
ranks make the same calls one after the other, without a word from the launcher.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sley.communicator import Settings
from sley.communicator.jobs.commands import (
    BenchCall,
    CountWrong,
    Execute,
    FailedCallError,
    Load,
    Raised,
    Setup,
    Time,
    Turn,
)
from sley.communicator.jobs.group import Death, WorkerGroup
from sley.communicator.rendezvous.gather import name_ranks
from sley.engine import native
from sley.engine.arguments import Inputs, check_inputs
from sley.engine.limits import SLOT_BYTES, whole
from sley.engine.measure import Measurement, Sweep, measure
from sley.engine.memory import BEYOND, allocate, no_memory
from sley.engine.native import LARGEST
from sley.engine.outcomes import Outcome, Status, describe, failure
from sley.engine.program import Loaded, buffer_sizes, load, scratch_bytes
from sley.engine.types import Array
from sley.engine.varying import check_count
from sley.errors import Place, SleyError, counted
from sley.errors.runtime import R501, R508, R511, R513, R514
from sley.ir.plan import Plan
from sley.ir.tables import FloatArray
from sley.ir.words import ReduceOp

_SILENT_S = 120.0
"""How long the workers may take to start; and how much longer than the timeout of calls a rank may
take for a command that another one has carried out."""

_GRACE_S = 2.0
"""How much longer than its timeout a rank may take to report it, and how long to wait for the
reports of the other ranks when one has died."""

_Failures = dict[int, FailedCallError]
"""The ranks on which a call failed."""


class Job(contextlib.AbstractContextManager["Job"]):
    """Processes of this machine that make calls of plans together, in a communicator.

    plans: proven plans, which all ranks load. settings: of the communicator, by default those of
    the environment; without user plans and policies in any case, and with the slots and channels
    that the plans need. Use it as a context manager, or `close` it; its workers also end when the
    job is collected or its process is killed. After an error in a call the job is unusable (R508).

    pids: of the ranks. Errors: R501, R507, V201, R511, R513, and the communicator's.
    """

    def __init__(self, plans: Sequence[Plan], settings: Settings | None = None) -> None:
        settings = Settings.from_environment() if settings is None else settings
        loaded = [_checked(plan) for plan in plans]  # before any process starts
        self.ranks = plans[0].collective.ranks
        self.timeout_s = settings.patience_s
        self._loaded: list[Loaded] = []
        self._lock = threading.Lock()
        self._unusable = ""
        self._requested = ("the connections", 0)
        self._group = WorkerGroup(self.ranks)
        try:
            self.pids: tuple[int, ...] = tuple(self._start(_room_for(plans, settings)))
            for one in loaded:
                self._load(one)
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers. Closing twice does nothing."""
        self._unusable = self._unusable or "it was closed"
        self._group.close()

    @property
    def plans(self) -> list[JobPlan]:
        """The plans that the ranks have loaded, by number."""
        return [JobPlan(self, number, one) for number, one in enumerate(self._loaded)]

    def load(self, plan: Plan) -> JobPlan:
        """Give all ranks another proven plan on as many ranks."""
        self._load(_checked(plan))
        return self.plans[-1]

    def times_us(self, turns: Sequence[Turn], count: int, sweep: Sweep) -> FloatArray:
        """float64 (ranks, turns): the mean time of the timed calls of each turn on each rank. A
        turn begins when all ranks have come to it. All plans have the same buffers."""
        plan = self.plans[turns[0].plan]
        command = Time(plan.call(count, sweep), tuple(turns))
        return np.array(self._ask(plan.loaded, [command] * self.ranks), np.float64)

    def _load(self, loaded: Loaded) -> None:
        # The topology, on which a plan's calls don't depend, may be larger than the plan.
        content = pickle.dumps(replace(loaded.plan, topology=None), pickle.HIGHEST_PROTOCOL)
        self._ask(loaded, [Load(len(self._loaded), content)] * self.ranks)
        self._loaded.append(loaded)

    def _start(self, settings: Settings) -> list[int]:
        with TemporaryDirectory(prefix="sley-job-", ignore_cleanup_errors=True) as folder:
            for rank in range(self.ranks):
                setup = Setup(rank, self.ranks, folder, settings, self.timeout_s)
                self._group.send(rank, setup)
            return self._collect(None, _SILENT_S)

    def _ask(self, plan: Loaded, commands: Sequence[Any], fd: int | None = None) -> list[Any]:
        """The ranks' answers to a command for each: one call at a time, none after a failure; any
        exception ends the job."""
        if not self._lock.acquire(blocking=False):
            raise R508.error(expected="one call at a time", found="a second one")
        try:
            if self._unusable:
                raise R508.error(expected="a job that runs", found=f"a dead one: {self._unusable}")
            for rank, command in enumerate(commands):
                self._group.send(rank, command, fd)
            return self._collect(plan)
        except BaseException as error:
            code = error.code if isinstance(error, SleyError) else type(error).__name__
            self._unusable = self._unusable or f"a call ended with {code}"
            self.close()
            raise
        finally:
            self._lock.release()

    def _request(self, what: str, size_bytes: int) -> None:
        """Record the memory that the ranks will allocate; R507 if its size overflows."""
        self._requested = (f"{what} of {counted(self.ranks, 'rank')}", size_bytes)
        if size_bytes > LARGEST:
            raise no_memory(*self._requested, BEYOND)

    def _collect(self, plan: Loaded | None, patience_s: float | None = None) -> list[Any]:
        """Every rank's answer, or the error of a rank that died, failed, or doesn't answer.

        Calls may take any time, and ranks whose call doesn't move end it by themselves. So there is
        no limit for the first answer, unless `patience_s` is one; the others must follow.
        """
        answers: dict[int, Any] = {}
        failed: _Failures = {}
        waiting = set(range(self.ranks))
        end = None if patience_s is None else time.monotonic() + patience_s
        while waiting:
            left_s = 1.0 if end is None else end - time.monotonic()
            news = self._group.receive(waiting, min(1.0, max(0.0, left_s)))
            answers |= news.answers
            waiting -= news.answers.keys()
            failed |= {r: a for r, a in news.answers.items() if isinstance(a, FailedCallError)}
            if news.death is not None:
                raise self._death_error(news.death, plan, waiting, failed)
            for rank, answer in sorted(news.answers.items()):
                if isinstance(answer, Raised):
                    raise self._worker_error(rank, answer)
            if news.answers:
                patience_s = 1.25 * self.timeout_s + (_GRACE_S if failed else _SILENT_S)
                end = time.monotonic() + patience_s
            elif waiting and end is not None and time.monotonic() >= end:
                raise R513.error(
                    at=Place(detail=f"rank {min(waiting)}"),
                    expected=f"an answer from every rank within {patience_s:g} s",
                    found=f"none from {name_ranks(sorted(waiting))}",
                )
        if failed:
            raise self._call_error(plan, failed)
        return [answers[rank] for rank in range(self.ranks)]

    def _call_error(self, plan: Loaded | None, failed: _Failures) -> SleyError:
        """The error of a call that failed on some ranks."""
        outcomes = {rank: Outcome.of(one.report) for rank, one in sorted(failed.items())}
        for rank, outcome in outcomes.items():
            if outcome.status is Status.NO_MEMORY:
                return no_memory(*self._requested, f"rank {rank}: less")
        is_known = any(outcome.status is not Status.ABORTED for outcome in outcomes.values())
        error = failure(plan, outcomes, self.timeout_s) if plan is not None and is_known else None
        return error or failed[min(failed)].error

    def _worker_error(self, rank: int, answer: Raised) -> SleyError:
        """The error for an exception in a worker."""
        if answer.error is not None:
            return answer.error
        lines = answer.text.strip().splitlines()
        if answer.out_of_memory:
            return no_memory(*self._requested, f"rank {rank}: {lines[-1]}")
        return R511.error(
            at=Place(detail=f"rank {rank}"),
            expected="a worker without errors",
            found=lines[-1],
            notes=lines[:-1],
        )

    def _death_error(
        self, death: Death, plan: Loaded | None, waiting: set[int], failed: _Failures
    ) -> SleyError:
        """The error for a death, after the other ranks have stopped and reported."""
        if death.rank is None:
            notes = self._group.stderr().splitlines()
            return R511.error(expected="worker processes", found=death.how, notes=notes)
        deadline = time.monotonic() + _GRACE_S
        waiting = waiting - {death.rank}
        while waiting and time.monotonic() < deadline:
            news = self._group.receive(waiting, 0.1)
            waiting -= news.answers.keys()
            failed |= {r: a for r, a in news.answers.items() if isinstance(a, FailedCallError)}
            if news.death is not None:
                waiting = waiting - {news.death.rank} if news.death.rank is not None else set()
        outcomes = {rank: Outcome.of(one.report) for rank, one in failed.items()}
        lines = [] if plan is None else describe(plan, outcomes)[1]
        return R501.error(
            at=Place(detail=f"rank {death.rank}"),
            expected="every rank's process to live until the job ends",
            found=f"the process of rank {death.rank} {death.how}",
            notes=[*lines, *self._group.stderr().splitlines()],
        )


@dataclass(frozen=True, eq=False)
class JobPlan:
    """A plan that the ranks of a job have loaded. number: of the plan in the job."""

    job: Job
    number: int
    loaded: Loaded

    def time_us(self, count: int, sweep: Sweep) -> float:
        """See `sley.engine.measure.Bench`: each rank's average time after a barrier, averaged over
        the ranks."""
        turn = Turn(self.number, sweep.warmup, sweep.iterations)
        return float(self.job.times_us([turn], count, sweep).mean())

    def count_wrong(self, count: int, sweep: Sweep) -> int:
        """See `sley.engine.measure.Bench`."""
        command = CountWrong(self.call(count, sweep))
        return sum(self.job._ask(self.loaded, [command] * self.job.ranks))

    def call(self, count: int, sweep: Sweep) -> BenchCall:
        """A call on test data, for which there may be enough memory."""
        count, plan, dtype = whole(count, "count", 0), self.loaded.plan, sweep.kind
        check_count(plan.collective, count, plan.name, R514)
        sizes = [buffer_sizes(plan, rank, count) for rank in range(plan.collective.ranks)]
        in_place = plan.collective.in_place
        elements = sum(sum(one.lengths(in_place)) for one in sizes)
        scratch = scratch_bytes(plan, count, dtype.size_bytes)
        self.job._request("buffers and scratch", elements * dtype.size_bytes + scratch)
        return BenchCall(self.number, count, dtype.name, sweep.reduce_op)

    def execute(self, inputs: Inputs) -> list[Array]:
        """Each rank's output of a call on `inputs`."""
        spans, total = inputs.spans()
        scratch = scratch_bytes(self.loaded.plan, inputs.count, inputs.dtype.size_bytes)
        self.job._request("buffers and scratch", total + scratch)
        segment = allocate(lambda: native.Segment.create(total), "the buffers", total)
        inputs.store(segment.array)
        call = BenchCall(self.number, inputs.count, inputs.dtype.name, inputs.reduce_op)
        commands = [
            Execute(call, total, pair, inputs.counts_of(rank)) for rank, pair in enumerate(spans)
        ]
        self.job._ask(self.loaded, commands, segment.fd)
        return inputs.outputs(segment.array)


def _checked(plan: Plan) -> Loaded:
    """The plan without its groups, as the ranks will load it. Errors: V201."""
    return load(plan, None, SLOT_BYTES)


def _room_for(plans: Sequence[Plan], settings: Settings) -> Settings:
    """The settings of the communicator. A start takes longer than a call may stand still."""
    return replace(
        settings,
        timeout_s=max(_SILENT_S, settings.patience_s),
        slots=max(settings.slots, *(plan.slots for plan in plans)),
        channels=max(settings.channels, *(plan.channels for plan in plans)),
        plan_dir=None,
        use_cache=False,
        tuner=None,
        explore=0.0,
    )


def execute(
    plan: Plan,
    inputs: Sequence[Array],
    settings: Settings | None = None,
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    counts: ArrayLike | None = None,
) -> list[Array]:
    """Run `plan` once on `inputs` and return each rank's output.

    inputs: one 1-D array a rank with the elements of its input buffer; a rank without input gets
        an empty one. In place: all of the rank's data, input and output together, with the input
        at its position. They aren't changed.
    dtype: the elements' type, by default the arrays'; types that NumPy lacks take their bits.
    count: elements of one block of the collective, by default derived from the inputs.
    counts: the elements of each part of the inputs, if they vary: integers (ranks, parts), of
        AllToAllV what rank s sends to rank r in row s, column r. The parts of an array follow one
        another, in inputs and outputs.

    settings: as for `Job`. Raises SleyError with the rules R5xx.
    """
    # Before any process starts.
    checked = check_inputs(plan, inputs, dtype, count, reduce_op, counts)
    with Job([plan], settings) as job:
        return job.plans[0].execute(checked)


def run(
    plan: Plan,
    sweep: Sweep,
    settings: Settings | None = None,
    *,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Run `plan` on processes, once for each size, timed and checked as `sweep` says.

    settings: as for `Job`. progress: called with each measurement as it is made. Raises SleyError
    with the rules R5xx.
    """
    with Job([plan], settings) as job:
        return measure(plan, job.plans[0], sweep, progress)
