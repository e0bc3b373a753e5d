"""A rank's end of a communicator: calls on memory (ResCCL's control plane, section 4)."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

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
from sley.communicator.failures import (
    Failure,
    caused,
    closed,
    cut_short,
    failed_before,
    with_reason,
)
from sley.communicator.loading import LoadedPlan
from sley.communicator.memory import COPY_METHODS
from sley.communicator.messages import Messages
from sley.communicator.opening import Core, Opening
from sley.communicator.ready import PreparedCall
from sley.communicator.rendezvous.bootstrap import check_place
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.rendezvous.stores import Store
from sley.communicator.selection.kinds import BARRIER, CALLS
from sley.communicator.settings import Settings
from sley.communicator.stats import OPEN, OPEN_LOCK, CallStats, added_up, log_to_stderr, opened
from sley.communicator.turns import Cut, Meeting, Standing, Turns, Why
from sley.engine import native
from sley.engine.limits import instance, whole
from sley.engine.outcomes import Outcome, Report
from sley.engine.varying import check_count
from sley.errors import Place, SleyError
from sley.errors.calls import N622, N627, N632
from sley.errors.runtime import R514
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
        self._opening = Opening(store, rank, ranks, name, settings, environ)
        self._core: Core | None = self._opening.open()
        self.hosts: Hosts = self._opening.hosts
        self.plans = self._opening.plans
        self._turns = Turns() if settings.replan else None
        self._past: list[CallStats] = []
        self._left: Core | None = None
        self._failed: SleyError | None = None
        self._is_closed = self._is_inherited = self._is_aborted = False
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
        if self._turns is not None:
            if async_op:
                return self._turns.submit(partial(self._run_or_repeat, call, owners))
            self._check_thread(core)
            self._turns.run(lambda: self._run_or_repeat(call))
            return DONE
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
        number = whole(iterations, "iterations", 1)
        if self._turns is not None:
            self._check_thread(self._open_core())
            return self._turns.run(lambda: self._repeat(call, number))
        return self._repeat(call, number)

    def _repeat(self, call: Call, number: int) -> tuple[float, Report | None]:
        core = self._open_core()
        prepared, made = self._prepare(core, call)
        before = prepared.plan.seconds()
        report = self._run(core, prepared, made, number, meet=True)
        if self._turns is not None and report is None:
            self._turns.finished += 1
        return (prepared.plan.seconds() - before) / number * 1e6, report

    @property
    def has_failed(self) -> bool:
        """Whether a call has failed on some rank, as this one knows; False after closing."""
        core = self._core
        return core is not None and core.has_failed

    @property
    def ready(self) -> native.ReadyCalls:
        """The calls that the engine runs without Python."""
        return self._open_core().ready.native

    @property
    def messages(self) -> Messages:
        """The point-to-point messages of this rank, on memory. Errors: N623; where it meets the
        other ranks first, as of `replan`."""
        core, turns = self._open_core(), self._turns
        if turns is None or core.reason is None or turns.is_own_thread():
            return core.messages
        turns.run(self._meet_after_failure)
        return self._open_core().messages

    def error_of(self, call: Call, in_place: bool, report: Report) -> SleyError | None:
        """The error of a call that `ready` or `repeat` has run, as `submit` would raise it. call:
        its memory doesn't matter."""
        core = self._open_core()
        core.failures.look_at_latest()
        return self._error(core, core.ready.find(call, in_place), call, report)

    def set_timeout(self, timeout_s: float) -> None:
        """Sets `Settings.timeout_s` for all later calls."""
        self.settings = self._opening.settings = replace(self.settings, timeout_s=timeout_s)
        core = self._core
        if core is not None:
            core.messages.timeout_s = timeout_s
            core.ready.native.set_timeout(timeout_s)

    def replan(self) -> None:
        """Fits the plans to the rates of the interfaces between hosts, which it measures, and takes
        those that are back; on one host nothing. A collective call. Errors: R514 without
        `Settings.replan`; N601, N622, N628, N635."""
        if self._turns is None:
            raise R514.error(
                expected="a communicator with replan=True in its settings (SLEY_REPLAN=1)",
                found="one without",
                remedy="Make it so on all ranks.",
            )
        self._check_thread(self._open_core())
        if self.hosts.count > 1:
            self._turns.run(self._replan)

    def stats(self) -> list[CallStats]:
        """Statistics of this rank's calls: a row for each plan that has run; none after closing."""
        core = self._core
        if core is None:
            return []
        return added_up([*self._past, *([] if core is self._left else self._rows(core))])

    def _rows(self, core: Core) -> list[CallStats]:
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
            self._is_aborted = True
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
            core.closing.close()
            if self._turns is not None:
                self._turns.close()
        finally:
            core.failures.latest = None
            self._core = None
            self._opening.drop_store()

    def _run_or_repeat(self, call: Call, owners: tuple[object, ...] = ()) -> None:
        """Runs a call in its turn; again if the network has changed and the ranks agree on it.
        owners: kept meanwhile. Errors: N635, and as of `submit`."""
        turns = self._in_turns()

        def run() -> Cut | None:
            core = self._open_core()
            prepared, made = self._prepare(core, call)
            has_begun = not core.has_failed
            report = self._run(core, prepared, made, 1)
            error = self._error(core, prepared, call, report)
            if error is None:
                return None
            if core.reason is None:
                raise error
            is_spoiled = has_begun and not self._is_intact(call, prepared)
            return Cut(core.reason, is_spoiled, error)

        if turns.make(run, self._meet):
            return
        is_finished = turns.finished <= turns.elsewhere
        if call.kind == BARRIER and is_finished:
            return  # all ranks had come to it
        place = Place(detail=f"{self.name}, rank {self.rank}, {self.describe(call)}")
        raise cut_short(place, is_finished=is_finished)

    def _meet(self, cut: Cut, standing: Standing) -> Meeting:
        """Meets the other ranks, and goes on with what is left of the network. Errors: of the cut,
        with the reason if the ranks don't meet."""
        core = self._open_core()
        if cut.why is not Why.PLANNED:
            self._leave(core)
        try:
            made, standings = self._opening.open_again(
                standing, lambda: self._leave(core), cut.error
            )
        except BaseException as failed:  # also Ctrl-C
            self._leave(core)
            self._failed = cut.error
            if isinstance(failed, SleyError) and failed is not cut.error:
                self._failed = with_reason(cut.error, failed)
                raise self._failed from None
            raise
        self._core = made
        # Another thread may have asked for either meanwhile.
        if self._is_aborted:
            made.fabric.abort()
        if self._is_closed:
            made.leave()
        return standings

    def _meet_after_failure(self) -> None:
        """Meets the other ranks if a call of theirs, or a message, has failed by the network."""
        core = self._open_core()
        if core.reason is not None:
            at = Place(detail=f"{self.name}, rank {self.rank}")
            error = caused(Failure.CUT, self.rank, core.fabric.failure[1], at)
            self._in_turns().meet(Cut(core.reason, False, error), self._meet)

    def _replan(self) -> None:
        """Meets all ranks that replan; those that come after a failure make this call next, or
        another one, and stall."""
        at = Place(detail=f"{self.name}, rank {self.rank}, replan")
        error = N622.error(at=at, expected="replan on every rank", found="another call on some")
        cut, met = Cut(Why.PLANNED, False, error), list[Meeting]()

        def run() -> Cut | None:
            has_met = bool(met) and all(one.why is Why.PLANNED for one in met[-1])
            return None if has_met else cut

        def meet(cut: Cut, standing: Standing) -> Meeting:
            met.append(self._meet(cut, standing))
            return met[-1]

        if not self._in_turns().make(run, meet):
            raise cut_short(at, is_finished=False)

    def _in_turns(self) -> Turns:
        assert self._turns is not None  # those who ask have seen it
        return self._turns

    def _is_intact(self, call: Call, prepared: PreparedCall) -> bool:
        """Whether a call that has begun can be repeated: this rank's input is as it was, or doesn't
        matter."""
        plan = prepared.plan
        is_input_of_root = call.kind in CALLS and bool(CALLS[call.kind].input_of)
        return (
            call.kind == BARRIER
            or (is_input_of_root and self.rank != call.root)
            or not plan.writes_memory
            or not (plan.current.plan.collective.in_place or plan.writes_input)
        )

    def _leave(self, core: Core) -> None:
        """Leaves what is open before it is opened again."""
        if self._left is not core:
            self._left, self._past = core, added_up([*self._past, *self._rows(core)])
        core.leave()

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
        if self._turns is None:  # where calls take turns, they may be in the thread that runs them
            self._check_thread(core)
        timeout_s = self.settings.patience_s
        return core.calls.run(prepared.runner, made, timeout_s, iterations, meet)

    def _open_core(self) -> Core:
        core = self._core
        if self._failed is not None:
            place = Place(detail=f"{self.name}, rank {self.rank}")
            raise failed_before(place, self._failed.diagnostics[0])
        if core is None or self._is_closed:
            raise closed(self.name, self.rank, is_inherited=self._is_inherited)
        return core

    def _check_thread(self, core: Core) -> None:
        is_own = core.calls.is_own_thread()
        if is_own if self._turns is None else self._turns.is_own_thread():
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
