"""Job: worker processes, one for each rank, that run a plan repeatedly."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike

from sley.communicator.jobs.commands import Allocate, Attach, CountWrong, Fill, Raised, Run, Setup
from sley.communicator.jobs.group import Death, WorkerGroup
from sley.engine import native
from sley.engine.arguments import Inputs, check_inputs
from sley.engine.check import Promise
from sley.engine.limits import SLOT_BYTES, TIMEOUT_S, check_slot, check_timeout, whole
from sley.engine.measure import Sweep
from sley.engine.memory import BEYOND, allocate, no_memory
from sley.engine.native import LARGEST
from sley.engine.outcomes import Outcome, Status, describe, failure
from sley.engine.program import buffer_sizes, load, scratch_bytes
from sley.engine.types import Array, DataType
from sley.engine.varying import check_count
from sley.errors import Place, SleyError, counted
from sley.errors.closing import Closing
from sley.errors.runtime import R501, R508, R509, R511, R513, R514
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp

_START_S = 120.0
"""How long the workers may take to start, and to fill or check their buffers."""

_GRACE_S = 2.0
"""How much longer than its timeout a rank may take to report it, and how long to wait for the
reports of the other ranks when one has died."""


@dataclass(frozen=True)
class Settings:
    """How a plan runs on processes of this machine.

    slots: messages that a connection holds, by default the plan's number. slot_bytes: size of a
    slot. timeout_s: time without progress on any rank after which a call fails with R502.
    Errors: R514.
    """

    slots: int | None = None
    slot_bytes: int = SLOT_BYTES
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.slots is not None:
            whole(self.slots, "slots", 1)
        whole(self.slot_bytes, "slot_bytes", 1)
        check_timeout(self.timeout_s)


class Job(Closing):
    """Worker processes on this machine that run `plan`, over shared memory.

    Use it as a context manager, or `close` it; its workers also end when the job is collected or
    its process is killed. After an error in a call the job is unusable (R508).
    """

    def __init__(self, plan: Plan, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        self.timeout_s = settings.timeout_s
        self._loaded = load(plan, settings.slots, settings.slot_bytes)
        self.plan = self._loaded.plan
        memory = self._loaded.wiring.memory()
        self._fabric = self._loaded.wiring.fabric(memory, 0)  # to watch the ranks' progress
        self._lock = threading.Lock()
        self._unusable = ""
        self._requested = ("the connections", memory.size)
        self._group = WorkerGroup(plan.collective.ranks, memory_fd=memory.fd)
        try:
            self.pids: tuple[int, ...] = tuple(self._start())
        except BaseException:
            self._group.close()
            raise

    def close(self) -> None:
        """End the workers. Closing twice does nothing."""
        self._unusable = self._unusable or "it was closed"
        self._group.close()

    def execute(
        self,
        inputs: Sequence[Array],
        *,
        dtype: str | None = None,
        count: int | None = None,
        reduce_op: ReduceOp = ReduceOp.SUM,
        counts: ArrayLike | None = None,
    ) -> list[Array]:
        """Run the plan once on `inputs`; arguments and result as for `jobs.execute`."""
        checked = check_inputs(self.plan, inputs, dtype, count, reduce_op, counts)
        return self.execute_checked(checked)

    def execute_checked(self, inputs: Inputs) -> list[Array]:
        """Run the plan once on validated inputs."""
        check_slot(self._loaded, inputs.dtype, varies=inputs.counts is not None)
        with self._call():
            return self._execute(inputs)

    def time_us(self, count: int, sweep: Sweep) -> float:
        """See `sley.engine.measure.Bench`: each rank's average time after a barrier, averaged over
        the ranks."""
        with self._test_data(count, sweep):
            if sweep.warmup:
                self._run(count, sweep.kind, sweep.reduce_op, sweep.warmup)
            outcomes = self._run(count, sweep.kind, sweep.reduce_op, sweep.iterations)
            seconds = [o.seconds for o in outcomes.values()]
            return sum(seconds) / len(seconds) / sweep.iterations * 1e6

    def count_wrong(self, count: int, sweep: Sweep) -> int:
        """See `sley.engine.measure.Bench`."""
        with self._test_data(count, sweep):
            self._run(count, sweep.kind, sweep.reduce_op, 1)
            return sum(self._ask_all(CountWrong(), _START_S).values())

    @property
    def _patience_s(self) -> float:
        """How long a rank may be silent. It times out by itself after at most 1.25 times its
        timeout."""
        return 1.25 * self.timeout_s + _GRACE_S

    def _start(self) -> list[int]:
        for program in self._loaded.programs:
            promise = Promise.of(self.plan, program.rank)
            self._group.send(program.rank, Setup(self._loaded.wiring, program, promise))
        pids = self._collect(_START_S)
        return [pids[rank] for rank in sorted(pids)]

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        """Guards a call: one at a time, none after a failure; any exception ends the job."""
        if not self._lock.acquire(blocking=False):
            raise R509.error(expected="one call at a time", found="a second one")
        try:
            if self._unusable:
                raise R508.error(expected="a job that runs", found=f"a dead one: {self._unusable}")
            yield
        except BaseException as error:
            code = error.code if isinstance(error, SleyError) else type(error).__name__
            self._unusable = self._unusable or f"a call ended with {code}"
            self._group.close()
            raise
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def _test_data(self, count: int, sweep: Sweep) -> Iterator[None]:
        """A context for a call of `count` elements a block on fresh test data."""
        check_slot(self._loaded, sweep.kind)
        with self._call():
            self._allocate(whole(count, "count", 0), sweep.kind, sweep.reduce_op)
            self._ask_all(Fill(), _START_S)
            yield

    def _allocate(self, count: int, dtype: DataType, reduce_op: ReduceOp) -> None:
        ranks, in_place = self.plan.collective.ranks, self.plan.collective.in_place
        check_count(self.plan.collective, count, self.plan.name, R514)
        sizes = [buffer_sizes(self.plan, rank, count) for rank in range(ranks)]
        elements = sum(s.data if in_place else s.input + s.output for s in sizes)
        scratch = scratch_bytes(self.plan, count, dtype.size_bytes)
        self._request(elements * dtype.size_bytes + scratch)
        for rank in range(ranks):
            self._group.send(rank, Allocate(sizes[rank], count, dtype.name, reduce_op, in_place))
        self._collect(self._patience_s)

    def _request(self, size_bytes: int) -> None:
        """Record the memory that the ranks will allocate; R507 if its size overflows."""
        ranks = counted(self.plan.collective.ranks, "rank")
        self._requested = (f"buffers and scratch of {ranks}", size_bytes)
        if size_bytes > LARGEST:
            raise no_memory(*self._requested, BEYOND)

    def _ask_all(self, command: Any, patience_s: float) -> dict[int, Any]:
        for rank in range(self.plan.collective.ranks):
            self._group.send(rank, command)
        return self._collect(patience_s)

    def _execute(self, inputs: Inputs) -> list[Array]:
        spans, total = inputs.spans()
        scratch = scratch_bytes(self.plan, inputs.count, inputs.dtype.size_bytes)
        self._request(total + scratch)
        segment = allocate(lambda: native.Segment.create(total), "the buffers", total)
        memory = segment.array
        inputs.store(memory)
        for rank, pair in enumerate(spans):
            self._group.send(rank, Attach(total, pair, inputs.counts_of(rank)), segment.fd)
        self._collect(self._patience_s)
        self._run(inputs.count, inputs.dtype, inputs.reduce_op, 1)
        return inputs.outputs(memory)

    def _run(
        self, count: int, dtype: DataType, reduce_op: ReduceOp, iterations: int
    ) -> dict[int, Outcome]:
        command = Run(count, dtype.name, reduce_op, iterations, self.timeout_s)
        reports = self._ask_all(command, self._patience_s)
        outcomes = {rank: Outcome.of(report) for rank, report in reports.items()}
        error = failure(self._loaded, outcomes, self.timeout_s)
        if error is not None:
            raise error
        return outcomes

    def _collect(self, patience_s: float) -> dict[int, Any]:
        """Every rank's answer; an error as soon as a rank died or failed, or when no rank answers
        or makes progress for `patience_s`."""
        answers: dict[int, Any] = {}
        waiting = set(range(self.plan.collective.ranks))
        quiet_since, beats = time.monotonic(), -1
        while waiting:
            news = self._group.receive(waiting, min(patience_s / 4, 1.0))
            answers |= news.answers
            waiting -= news.answers.keys()
            if news.death is not None:
                raise self._death_error(news.death, waiting, answers)
            for rank, answer in sorted(news.answers.items()):
                if isinstance(answer, Raised):
                    self._fabric.fail(rank)  # so that the others don't wait for it
                    raise self._worker_error(rank, answer)
            if news.answers or beats != self._fabric.beats:
                quiet_since, beats = time.monotonic(), self._fabric.beats
            elif time.monotonic() - quiet_since > patience_s:
                raise _no_answer(waiting, patience_s)
        return answers

    def _worker_error(self, rank: int, answer: Raised) -> SleyError:
        """The error for an exception in a worker."""
        lines = answer.text.strip().splitlines()
        if answer.out_of_memory:
            return no_memory(*self._requested, f"rank {rank}: {lines[-1]}")
        return R511.error(
            at=Place(detail=f"rank {rank}"),
            expected="a worker without errors",
            found=lines[-1],
            notes=lines[:-1],
        )

    def _death_error(self, death: Death, waiting: set[int], answers: dict[int, Any]) -> SleyError:
        """The error for a death, after the other ranks have stopped and reported."""
        if death.rank is None:
            notes = self._group.stderr().splitlines()
            return R511.error(expected="worker processes", found=death.how, notes=notes)
        self._fabric.fail(death.rank)
        deadline = time.monotonic() + _GRACE_S
        waiting = waiting - {death.rank}
        while waiting and time.monotonic() < deadline:
            news = self._group.receive(waiting, 0.1)
            answers |= news.answers
            waiting -= news.answers.keys()
            if news.death is not None:
                waiting = waiting - {news.death.rank} if news.death.rank is not None else set()
        reports = {r: Outcome.of(a) for r, a in answers.items() if isinstance(a, tuple)}
        aborted = {r: o for r, o in reports.items() if o.status is not Status.DONE}
        _, lines = describe(self._loaded, aborted)
        return R501.error(
            at=Place(detail=f"rank {death.rank}"),
            expected="every rank's process to live until the job ends",
            found=f"the process of rank {death.rank} {death.how}",
            notes=[*lines, *self._group.stderr().splitlines()],
        )


def _no_answer(ranks: set[int], patience_s: float) -> SleyError:
    return R513.error(
        at=Place(detail=f"rank {min(ranks)}"),
        expected=f"an answer from every rank within {patience_s:g} s",
        found=f"none from rank {', '.join(map(str, sorted(ranks)))}",
    )
