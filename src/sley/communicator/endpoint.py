"""A rank's end of a communicator: calls on memory (ResCCL's control plane, section 4)."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from sley.communicator.arrays import is_in_place, memory_of
from sley.communicator.calls import (
    DONE,
    OWN,
    VARYING_COUNT,
    Call,
    CallWork,
    Work,
    describe_record,
)
from sley.communicator.failures import closed
from sley.communicator.loading import LoadedPlan
from sley.communicator.memory import COPY_METHODS, Memory
from sley.communicator.messages import Messages
from sley.communicator.opening import Core, open_core
from sley.communicator.ready import PreparedCall
from sley.communicator.rendezvous.bootstrap import bootstrap, check_place
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.stores import Store
from sley.communicator.settings import Settings
from sley.communicator.stats import OPEN, OPEN_LOCK, CallStats, log_to_stderr, opened
from sley.communicator.tuner import Tuner
from sley.engine import native
from sley.engine.limits import instance, whole
from sley.engine.outcomes import Outcome, Report
from sley.engine.varying import check_count
from sley.errors import Place, SleyError
from sley.errors.calls import N627, N632
from sley.ir.plan import Plan
from sley.ir.tables import by_key

_LEFT_LOOK_S = 0.0005


class Endpoint:
    """A rank's end of a communicator: calls on memory. `Communicator` has the same calls on arrays,
    and explains the arguments."""

    def __init__(
        self,
        store: Store,
        rank: int,
        ranks: int,
        *,
        name: str = "sley",
        settings: Settings | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        log_to_stderr()
        check_place(rank, ranks)
        rank, ranks = int(rank), int(ranks)
        settings = Settings.from_environment() if settings is None else settings
        instance(settings, Settings, "settings")
        self.rank, self.ranks, self.name, self.settings = rank, ranks, name, settings
        tuner = Tuner(settings)
        with (
            contextlib.closing(Memory(rank, ranks, settings)) as memory,
            contextlib.ExitStack() as opened,
        ):
            rendezvous = bootstrap(
                store,
                rank,
                ranks,
                name=name,
                timeout_s=settings.patience_s,
                segments=memory.make,
                attach=memory.attach,
                agreed=settings.agreement(),
                offered=tuner.words,
                environ=environ,
            )
            self.hosts: Hosts = rendezvous.hosts
            core = open_core(rendezvous, memory, tuner, settings, name, opened)
            rendezvous.drop_store()
            self._closing = opened.pop_all()
        self._core: Core | None = core
        self.plans = core.plans
        self._is_closed = self._is_inherited = False
        with OPEN_LOCK:
            OPEN.add(self)

    def submit(
        self, call: Call, *, async_op: bool = False, owners: tuple[object, ...] = ()
    ) -> Work:
        """Makes a call. All ranks make the same calls in the same order.

        async_op: the communicator's thread runs it; otherwise it has ended on return. owners: of
        the call's memory, kept alive until it has ended. Errors: N62x, N65x; `Work.wait` raises
        those of an asynchronous call."""
        core = self._open_core()
        prepared, made = self._prepare(core, call)
        if async_op:
            work = CallWork(
                core.calls,
                core.calls.submit(prepared.runner, made, self.settings.patience_s),
                lambda report: self._error(core, prepared, call, report),
                owners,
            )
            core.failures.latest = work
            return work
        report = self._run(core, prepared, made, 1)
        if report is not None:
            core.failures.look_at_latest()
            error = self._error(core, prepared, call, report)
            if error is not None:
                raise error
        return DONE

    def describe(self, call: Call) -> str:
        """A call in words, with the plan that runs it. Errors: as `submit`."""
        prepared = self._open_core().ready.find(call, is_in_place(call, self.rank))
        count = call.count if call.parts is None else VARYING_COUNT
        return f"{describe_record(prepared.record, count)}, by {prepared.plan.current.plan.name}"

    def load(self, plan: Plan) -> None:
        """Loads a plan that its caller has proven, for calls that bring it. Errors: N651, N652,
        R507, V201."""
        core = self._open_core()
        core.loader.load(OWN, core.plans.given(plan, is_proven=True))

    def time_us(self, call: Call, iterations: int) -> float:
        """The time of `repeat`. Errors: as `submit`."""
        time_us, report = self.repeat(call, iterations)
        if report is not None:
            error = self.error_of(call, is_in_place(call, self.rank), report)
            if error is not None:
                raise error
        return time_us

    def repeat(self, call: Call, iterations: int) -> tuple[float, Report | None]:
        """Makes equal calls back to back, without Python between them, once all ranks have come to
        it: the mean time of one on this rank, in microseconds; and the engine's report, if they
        failed. Errors: as `submit`, but of a call that fails."""
        core = self._open_core()
        prepared, made = self._prepare(core, call)
        before = prepared.plan.seconds()
        number = whole(iterations, "iterations", 1)
        report = self._run(core, prepared, made, number, meet=True)
        return (prepared.plan.seconds() - before) / number * 1e6, report

    @property
    def ready(self) -> native.ReadyCalls:
        """The calls that the engine runs without Python."""
        return self._open_core().ready.native

    @property
    def messages(self) -> Messages:
        """The point-to-point messages of this rank, on memory. Errors: N623."""
        return self._open_core().messages

    def error_of(self, call: Call, in_place: bool, report: Report) -> SleyError | None:
        """The error of a call that `ready` or `repeat` has run, as `submit` would raise it. call:
        its memory doesn't matter."""
        core = self._open_core()
        core.failures.look_at_latest()
        return self._error(core, core.ready.find(call, in_place), call, report)

    def set_timeout(self, timeout_s: float) -> None:
        """Sets `Settings.timeout_s` for all later calls."""
        self.settings = replace(self.settings, timeout_s=timeout_s)
        core = self._core
        if core is not None:
            core.messages.timeout_s = timeout_s
            core.ready.native.set_timeout(timeout_s)

    def stats(self) -> list[CallStats]:
        """Statistics of this rank's calls: a row for each plan that has run; none after closing."""
        core = self._core
        if core is None:
            return []
        runs = by_key(((kind, of, one.digest), one) for kind, of, one in core.loader.runs())
        rows = [self._row(kind, origin, plans) for (kind, origin, _), plans in runs.items()]
        return [row for row in rows if row.calls]

    def _row(self, kind: str, origin: str, plans: list[LoadedPlan]) -> CallStats:
        """The statistics of one plan, which may have several engines."""
        plan, sizes = plans[0].plan, plans[0].row.sizes
        tallies = [loaded.engine.tally for loaded in plans]
        calls = sum(tally.calls for tally in tallies)
        size_bytes = sum(tally.block_bytes for tally in tallies) * plan.collective.blocks
        seconds = sum(tally.seconds for tally in tallies)
        by_method = [sum(n) for n in zip(*(tally.ways for tally in tallies), strict=True)]
        copied = {one.value: n for one, n in zip(COPY_METHODS, by_method, strict=True)}
        return CallStats(
            communicator=self.name,
            rank=self.rank,
            kind=kind,
            plan=plan.name,
            origin=origin,
            protocol=plan.protocol.value,
            in_place=plan.collective.in_place,
            begin_bytes=sizes.begin_bytes,
            end_bytes=sizes.end_bytes,
            calls=calls,
            size_bytes=size_bytes,
            time_us=seconds / max(calls, 1) * 1e6,
            algbw_GBps=size_bytes / seconds / 1e9 if seconds > 0 else 0.0,
            **copied,
        )

    def wait_until_left(self, rank: int, timeout_s: float) -> None:
        """Waits until a rank has closed its end, or its process has ended; not beyond the time."""
        core, end = self._core, time.monotonic() + timeout_s
        while core is not None and not core.fabric.has_left(rank) and time.monotonic() < end:
            time.sleep(_LEFT_LOOK_S)

    def abort(self) -> None:
        """Ends every call in progress, on all ranks; all further calls fail."""
        core = self._core
        if core is not None and not self._is_closed:
            core.fabric.abort()

    def close(self) -> None:
        """Leaves the communicator; closing twice does nothing. Calls in progress end with N623."""
        core = self._core
        if core is None or self._is_closed:
            return
        self._check_thread(core)
        self._is_closed = True
        core.ready.close()
        with OPEN_LOCK:
            OPEN.discard(self)
        try:
            self._closing.close()
        finally:
            core.failures.latest = None
            self._core = None

    def _prepare(self, core: Core, call: Call) -> tuple[PreparedCall, native.Call]:
        """What runs a call, and the call for the engine."""
        in_place = is_in_place(call, self.rank)
        prepared = core.ready.find(call, in_place)
        plan, dtype, op = prepared.plan, call.dtype.number, int(call.op)
        if call.parts is not None:
            collective = plan.current.plan.collective
            check_count(collective, call.parts.most, f"rank {self.rank}", N627)
            return prepared, native.Call.varying(call.parts.native, dtype)
        if (call.input_is_read_only and plan.writes_input) or (
            call.output_is_read_only and plan.writes_memory
        ):
            raise N627.error(
                expected=f"an array that {call.kind} may write to, as the plan "
                f"{plan.current.plan.name} does",
                found="a read-only one",
            )
        if call.blocks is not None:
            return prepared, native.Call.in_blocks(call.count, dtype, op, call.blocks.native)
        return prepared, native.Call.create(call.count, dtype, op, *memory_of(call, in_place))

    def _error(
        self, core: Core, prepared: PreparedCall, call: Call, report: Report | None
    ) -> SleyError | None:
        if report is None:
            return None
        count, counts = call.count, tuple[int, ...]()
        if call.parts is not None:
            count, counts = VARYING_COUNT, call.parts.output
        elif prepared.varying is not None and Outcome.of(report).varied:
            prepared, count = prepared.varying, VARYING_COUNT
            counts = (call.count,) * self.ranks
        words = describe_record(prepared.record, count)
        return core.failures.error(
            report, words, self.settings.patience_s, plan=prepared.plan.current, counts=counts
        )

    def _run(
        self,
        core: Core,
        prepared: PreparedCall,
        made: native.Call,
        iterations: int,
        *,
        meet: bool = False,
    ) -> Report | None:
        """Runs a call in this thread, to its end. Returns the engine's report of one that failed,
        or of an AllToAll that ran as an AllToAllV."""
        self._check_thread(core)
        timeout_s = self.settings.patience_s
        return core.calls.run(prepared.runner, made, timeout_s, iterations, meet)

    def _open_core(self) -> Core:
        core = self._core
        if core is None or self._is_closed:
            raise closed(self.name, self.rank, is_inherited=self._is_inherited)
        return core

    def _check_thread(self, core: Core) -> None:
        if core.calls.is_own_thread():
            raise N632.error(
                at=Place(detail=f"{self.name}, rank {self.rank}"),
                expected="a thread of the caller's",
                found="the communicator's own thread, which runs the functions given to on_done",
            )


def _leave_to_parent() -> None:
    for endpoint in opened(Endpoint):
        endpoint._is_closed = endpoint._is_inherited = True
        if endpoint._core is not None:
            endpoint._core.ready.native.close()
    OPEN.clear()


# A forked child has its parent's memory, but not its threads, and is not a rank.
os.register_at_fork(after_in_child=_leave_to_parent)


def _leave_all() -> None:
    for endpoint in opened(Endpoint):
        with contextlib.suppress(SleyError):
            endpoint.close()


# At exit, communicators are closed while their threads can still run Python.
atexit.register(_leave_all)
