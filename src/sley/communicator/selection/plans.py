"""Plans: the plan for each call of a communicator, compiled or loaded on first use."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import BARRIER, CALLS, Request, check_call
from sley.communicator.selection.plan_cache import cached_plan, refusal
from sley.communicator.selection.rules import Selection, ladder
from sley.communicator.selection.user_plans import (
    Capacity,
    PlanFolder,
    PlanRequest,
    Source,
    UserPlan,
    check_capacity,
    check_input,
    prove,
    read_folder,
    size_of_request,
    user_plans,
)
from sley.compiler import Options, compile
from sley.errors import Diagnostic, Place, SleyError, counted
from sley.errors.policy import D904
from sley.errors.runtime import R514
from sley.formats.plan_file import digest
from sley.ir.plan import Plan
from sley.ir.sizes import size_text, sizes_text
from sley.ir.words import is_integer
from sley.tuning.policy import Decision, Policy, Range

_NO_END = float("inf")


@dataclass(frozen=True, eq=False)
class ReadyPlan:
    """A plan that is ready to run.

    selection: its sizes, and the reason for it.
    origin: "compiled", "disk" (from the cache), "registered" or "given" with the call.
    digest: 16 bytes, equal on all ranks that chose the same plan and tile.
    ready_ms: how long compiling or loading took.
    tile: the tile's size as a share of the runtime's own.
    range: of the tuner's policy, if that chose the plan.
    """

    plan: Plan
    selection: Selection
    origin: str
    digest: bytes
    ready_ms: float
    tile: float = 1.0
    range: Range | None = None


class Change(NamedTuple):
    """A change of the plan of equal calls under a policy.

    call: how many of these calls ran before it. kind, size_bytes, in_place: the calls. before,
    after: the plans, with their options. before_us, after_us: the times of a call that led to it,
    measured in turns: medians of the means over all ranks, in microseconds.
    """

    call: int
    kind: str
    size_bytes: int
    in_place: bool
    before: str
    after: str
    before_us: float
    after_us: float

    def __str__(self) -> str:
        return (
            f"{self.kind} of {size_text(self.size_bytes)}, since call {self.call}: {self.after} "
            f"({self.after_us:.1f} us) instead of {self.before} ({self.before_us:.1f} us)"
        )


class PlanRow(NamedTuple):
    """A ready plan as a row. begin_bytes, end_bytes: its sizes. root: 0 for kinds without one."""

    kind: str
    in_place: bool
    root: int
    begin_bytes: int
    end_bytes: int | None
    name: str
    protocol: str
    origin: str
    ready_ms: float

    def __repr__(self) -> str:
        place = "in place" if self.in_place else "out of place"
        root = f", root {self.root}" if CALLS[self.kind].roles else ""
        return (
            f"PlanRow({self.kind} {place}{root}, "
            f"{sizes_text(self.begin_bytes, self.end_bytes)}: {self.name}, {self.protocol}, "
            f"{self.origin}, ready after {self.ready_ms:.1f} ms)"
        )


@dataclass(eq=False)
class _Rung:
    """A range of sizes: its selection, the user plan if that is one, the policy's range if that
    chose it, what the library selects, and the plan when ready."""

    selection: Selection
    user_plan: UserPlan | None
    range: Range | None
    default: Selection
    ready: ReadyPlan | None = None


@dataclass(eq=False)
class _Table:
    """The ranges of one kind of call. ends: the last size of each; infinity for the last range."""

    ends: list[float]
    rungs: list[_Rung] = field(default_factory=list)


class Plans:
    """The plans of one communicator.

    hosts: which ranks share a host.
    slots, channels: those of its connections; user plans that need more are refused.
    plan_dir: a folder of user plans (SLEY_PLAN_DIR), or None.
    cache: whether compiled plans are kept on disk.
    policy: what a tuner has learned on these hosts, or None. All ranks have the same.

    problems: problems of the files of `plan_dir`, of the cache and of the policy, which are then
    not used. Those of the policy's plans are added when a call needs the plan.
    on_registration: called after `register` has succeeded, if it isn't None.
    changes: of plans that the policy chose, in the order in which they were made.

    Within their sizes, user plans take precedence over the policy and the library's algorithms:
    first registered ones, the latest first, then those of the folder in the order of their names.
    The policy takes precedence over the library's choice, for kinds of calls without a root.
    Threads may share it.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        slots: int | None = None,
        channels: int | None = None,
        plan_dir: str | os.PathLike[str] | None = None,
        cache: bool = True,
        policy: Policy | None = None,
        problems: Sequence[Diagnostic] = (),
    ) -> None:
        self._hosts = hosts
        self._policy = policy
        self._capacity = Capacity(len(hosts.host), slots, channels)
        self._lock = threading.RLock()
        self._tables: dict[tuple[str, bool, int], _Table] = {}
        self._made: dict[tuple[object, ...], tuple[Plan, str, bytes]] = {}
        self.on_registration: Callable[[], None] | None = None
        self._given: dict[int, ReadyPlan] = {}
        self._registered: list[UserPlan] = []
        self._folder = PlanFolder() if plan_dir is None else read_folder(plan_dir, self._capacity)
        refused = refusal() if cache else None
        self._use_cache = cache and refused is None
        self.problems: tuple[Diagnostic, ...] = (
            *self._folder.problems,
            *((refused,) if refused else ()),
            *problems,
        )
        self.changes: list[Change] = []

    @property
    def folder_problems(self) -> tuple[Diagnostic, ...]:
        """The problems of the files in the folder of user plans."""
        return self._folder.problems

    def find(
        self, kind: str, size_bytes: int, *, in_place: bool = False, root: int = 0
    ) -> ReadyPlan:
        """The plan for a call; `Request` explains the arguments. After the first call of a range
        it is a lookup in a table. Errors: N650, and those of the compiler."""
        check_call(kind, self._capacity.ranks, size_bytes, root)
        rung = self._rung(kind, size_bytes, in_place, root)
        return rung.ready or self._ready(rung)

    def library(
        self, kind: str, size_bytes: int, *, in_place: bool = False, root: int = 0
    ) -> ReadyPlan:
        """The library's plan for a call: the default, without user plans and policy. Arguments and
        errors as of `find`."""
        check_call(kind, self._capacity.ranks, size_bytes, root)
        with self._lock:
            return self._default(self._rung(kind, size_bytes, in_place, int(root)).default)

    def alternatives(self, chosen: ReadyPlan, *, in_place: bool) -> list[ReadyPlan]:
        """The plans of a policy's alternatives to a plan that it chose. `problems` tells why others
        can't run."""
        if chosen.range is None:
            return []
        found: list[ReadyPlan] = []
        with self._lock:
            for decision in chosen.range.alternatives:
                try:
                    found.append(self._tuned(chosen.range, decision, chosen.selection, in_place))
                except SleyError as error:
                    self._note(error)
        return found

    def refuse(self, ready: ReadyPlan, error: SleyError) -> None:
        """Replaces a plan that the policy chose by the default, since no rank can load it; `error`
        tells why."""
        with self._lock:
            self._note(error)
            for table in self._tables.values():
                for rung in table.rungs:
                    if rung.ready is ready:
                        self._drop(rung, error)

    def register(
        self,
        source: Source,
        *,
        min_bytes: int | str | None = None,
        max_bytes: int | str | None = None,
        options: Options | Mapping[str, Any] | None = None,
        in_place: bool | None = None,
        root: int | None = None,
    ) -> list[str]:
        """Proves a user plan, and uses it for calls of its collective, of sizes from `min_bytes` to
        `max_bytes`, both included. Every rank must register the same.

        source: a plan, a program, or a file with one: MSCCL XML, ResCCLang, Python, or a schedule
        of a synthesiser. options: how a program is compiled (`sley.Options`, or a dict of them); by
        default large data pass through slots (Protocol SIMPLE), while DIRECT reads them in place.
        in_place, root: for files that don't define them; by default such a file is used in place
        and out of place if it can be.

        Returns a line for each plan. Errors: F550, N651, N652, N654, N656, N657, R514, and those of
        the file, the compiler and the proof; then nothing changes.
        """
        if in_place not in (None, True, False):
            expected = "in_place as True, False or None"
            raise R514.error(expected=expected, found=f"in_place={in_place!r}")
        if not (root is None or is_integer(root)):
            raise R514.error(expected="root as a rank or None", found=f"root={root!r}")
        plan_request = PlanRequest(
            size_of_request("min_bytes", min_bytes),
            size_of_request("max_bytes", max_bytes),
            in_place,
            root,
            Options.of(None, options) if isinstance(options, Mapping) else options,
        )
        found = user_plans(source, plan_request, self._capacity)
        with self._lock:
            self._registered = [*found, *self._registered]
            self._tables = {}
        if self.on_registration is not None:
            self.on_registration()
        return [str(user_plan) for user_plan in found]

    def prove(self, plan: Plan) -> ReadyPlan:
        """Proves a plan that a call brings, once. Errors: N651, N652, V2xx."""
        with self._lock:
            if id(plan) not in self._given:
                started = time.perf_counter()
                prove(plan, self._capacity, plan.name)
                took = (time.perf_counter() - started) * 1e3
                selection = Selection(plan.name, (), Options(), "given with the call")
                ready = ReadyPlan(plan, selection, "given", digest(plan), took)
                self._given[id(plan)] = ready  # keeps the plan, so that no other gets its id
            return self._given[id(plan)]

    def considered(self, request: Request) -> list[str]:
        """Which plan runs for a call and why, and why others don't, a line for each. Errors: as
        `find`."""
        check_call(request.kind, request.ranks, request.size_bytes, request.root)
        rung = self._rung(request.kind, request.size_bytes, request.in_place, request.root)
        ready = rung.ready or self._ready(rung)
        lines = [
            f"{request.kind} of {size_text(request.size_bytes)} on "
            f"{counted(request.ranks, 'rank')}: "
            f"{ready.plan.name} ({ready.plan.protocol.value}, {ready.origin}), "
            f"{sizes_text(rung.selection.begin_bytes, rung.selection.end_bytes)}: "
            f"{rung.selection.reason}"
        ]
        lines += [
            str(change)
            for change in list(self.changes)
            if change[1:4] == (request.kind, request.size_bytes, request.in_place)
        ]
        lines += [f"not {line}" for line in rung.selection.refused]
        for user_plan in (*self._registered, *self._folder.plans):
            if user_plan is not rung.user_plan:
                lines.append(f"not {user_plan.origin}: {_why_not(user_plan, request)}")
        return [*lines, *(f"not {line}" for line in self._folder.others)]

    def stats(self) -> list[PlanRow]:
        """A row for each range of sizes that a call has used."""
        with self._lock:
            tables = list(self._tables.items())
        return [
            PlanRow(
                kind,
                in_place,
                root,
                rung.selection.begin_bytes,
                rung.selection.end_bytes,
                rung.ready.plan.name,
                rung.ready.plan.protocol.value,
                rung.ready.origin,
                rung.ready.ready_ms,
            )
            for (kind, in_place, root), table in tables
            for rung in table.rungs
            if rung.ready is not None
        ]

    def _rung(self, kind: str, size_bytes: int, in_place: bool, root: int) -> _Rung:
        root = int(root)  # a small integer of NumPy would overflow in what is computed from it
        table = self._tables.get((kind, in_place, root)) or self._table(kind, in_place, root)
        return table.rungs[bisect_left(table.ends, size_bytes)]

    def _table(self, kind: str, in_place: bool, root: int) -> _Table:
        """The ranges of a kind of call, user plans before the library's. Errors: N650."""
        with self._lock:
            if (kind, in_place, root) in self._tables:  # another thread was first
                return self._tables[kind, in_place, root]
            library = ladder(kind, self._hosts, in_place=in_place, root=root)
            fitting = [
                user_plan
                for user_plan in (*self._registered, *self._folder.plans)
                if user_plan.is_for(kind, in_place=in_place, root=root)
            ]
            rungs = _overlay(fitting, self._ranges(kind), library)
            for rung in rungs:
                if rung.range is not None:
                    rung.selection = self._selection(
                        rung.range, rung.range.decision, rung.selection, in_place
                    )
            ends = [
                _NO_END if r.selection.end_bytes is None else r.selection.end_bytes for r in rungs
            ]
            table = _Table(ends, rungs)
            self._tables[kind, in_place, root] = table
        return table

    def _ranges(self, kind: str) -> Sequence[Range]:
        """The policy's ranges for a kind of call."""
        row = CALLS[kind]
        if self._policy is None or kind == BARRIER or row.roles or self._capacity.ranks == 1:
            return ()
        return self._policy.ranges.get(row.name, ())

    def _selection(
        self, found: Range, decision: Decision, default: Selection, in_place: bool
    ) -> Selection:
        """The selection of a decision, of the sizes of the default."""
        assert self._policy is not None
        machine, agent = self._policy.machine, self._policy.agent
        speedup = found.speedup()
        reason = f"the tuner's policy{f' (agent {agent})' if agent else ''}"
        if speedup is not None and decision == found.decision:
            reason += f", measured {speedup:.2f} times as fast as the default"
        arguments: dict[str, Any] = {"nodes": machine.nodes, "gpus": machine.gpus}
        arguments["in_place"] = in_place
        if decision.orders:
            arguments["orders"] = decision.orders
        return Selection(
            name=decision.algorithm,
            arguments=tuple(sorted(arguments.items())),
            options=decision.options,
            reason=reason,
            begin_bytes=default.begin_bytes,
            end_bytes=default.end_bytes,
            refused=(f"{default.name}: the tuner's policy takes precedence",),
        )

    def _ready(self, rung: _Rung) -> ReadyPlan:
        """Compiles or loads the plan of a range, once."""
        with self._lock:
            if rung.ready is None and rung.range is not None:
                in_place = dict(rung.selection.arguments)["in_place"]
                decision, default = rung.range.decision, _default_of(rung)
                try:
                    rung.ready = self._tuned(rung.range, decision, default, in_place)
                except SleyError as error:
                    self._drop(rung, error)
            if rung.ready is None:
                if rung.user_plan is not None:
                    started = time.perf_counter()
                    plan = rung.user_plan.plan
                    plan_digest = digest(plan)
                    took = (time.perf_counter() - started) * 1e3
                    rung.ready = ReadyPlan(plan, rung.selection, "registered", plan_digest, took)
                else:
                    rung.ready = self._default(rung.selection)
        return rung.ready

    def _default(self, selection: Selection) -> ReadyPlan:
        started = time.perf_counter()
        plan, origin, plan_digest = self._library_plan(selection)
        took = (time.perf_counter() - started) * 1e3
        return ReadyPlan(plan, selection, origin, plan_digest, took)

    def _tuned(
        self, found: Range, decision: Decision, default: Selection, in_place: bool
    ) -> ReadyPlan:
        """The plan of a policy's decision. Errors: D904 if it can't run: on all ranks, which have
        the same policy and connections."""
        selection = self._selection(found, decision, default, in_place)
        started = time.perf_counter()
        try:
            plan, origin, plan_digest = self._library_plan(selection)
            check_capacity(plan, self._capacity, selection.name)
            check_input(plan, selection.name)
        except SleyError as error:
            raise D904.error(
                at=Place(detail=f"{decision}, for {found.sizes}"),
                expected=error.diagnostics[0].expected,
                found=f"{error.code}: {_found(error)}",
            ) from error
        if decision.tile != 1:
            words = plan_digest + repr(decision.tile).encode()
            plan_digest = hashlib.sha256(words).digest()[: len(plan_digest)]
        took = (time.perf_counter() - started) * 1e3
        return ReadyPlan(plan, selection, origin, plan_digest, took, decision.tile, found)

    def _drop(self, rung: _Rung, error: SleyError) -> None:
        """Replaces the policy's choice for a range by the default."""
        self._note(error)
        default = _default_of(rung)
        refused = f"{rung.selection.name}, the tuner's policy: {_found(error)}"
        rung.selection = replace(default, refused=(refused, *default.refused))
        rung.range = rung.ready = None

    def _note(self, error: SleyError) -> None:
        """Adds an error to the problems, once."""
        self.problems += tuple(d for d in error.diagnostics if d not in self.problems)

    def _library_plan(self, selection: Selection) -> tuple[Plan, str, bytes]:
        """The plan of a selection, its origin and digest; made once."""
        key = (selection.name, selection.arguments, selection.options)
        if key not in self._made:
            plan, origin = self._compile(selection)
            self._made[key] = plan, origin, digest(plan)
        return self._made[key]

    def _compile(self, selection: Selection) -> tuple[Plan, str]:
        def build() -> Plan:
            # Some programs name the cluster that they are for, which the runtime doesn't need.
            return replace(compile(selection.program(), selection.options), topology=None)

        if not self._use_cache:
            return build(), "compiled"
        plan, is_cached = cached_plan(selection, self._capacity.ranks, build)
        return plan, "disk" if is_cached else "compiled"


def _overlay(
    user: Sequence[UserPlan], tuned: Sequence[Range], library: Sequence[Selection]
) -> list[_Rung]:
    """Ranges without gaps: the first user plan that covers a size, else the policy's range, else
    the library's selection."""
    begins = {s.begin_bytes for s in library} | {u.min_bytes for u in user}
    begins |= {u.max_bytes + 1 for u in user if u.max_bytes is not None}
    begins |= {max(one.begin_bytes, 1) for one in tuned}
    begins |= {one.end_bytes + 1 for one in tuned if one.end_bytes is not None}
    pieces: list[tuple[int, UserPlan | None, Range | None, Selection]] = []
    for begin in sorted(begins):
        first = next((u for u in user if u.covers(begin)), None)
        selected = next(s for s in library if s.end_bytes is None or begin <= s.end_bytes)
        # Without data there is nothing to tune.
        ranges = () if first or begin == 0 else tuned
        found = next((one for one in ranges if one.covers(begin)), None)
        is_same = bool(pieces) and first is pieces[-1][1] and found is pieces[-1][2]
        if not is_same or not (first or selected is pieces[-1][3]):
            pieces.append((begin, first, found, selected))
    ends = [begin - 1 for begin, *_ in pieces[1:]]
    return [
        _Rung(
            replace(_selection_of(first, selected), begin_bytes=begin, end_bytes=end),
            first,
            found,
            selected,
        )
        for (begin, first, found, selected), end in zip(pieces, [*ends, None], strict=True)
    ]


def _default_of(rung: _Rung) -> Selection:
    """The library's selection, for the sizes of the range."""
    sizes = rung.selection.begin_bytes, rung.selection.end_bytes
    return replace(rung.default, begin_bytes=sizes[0], end_bytes=sizes[1])


def _selection_of(user_plan: UserPlan | None, selected: Selection) -> Selection:
    """The selection of a user plan if there is one, else the library's."""
    if user_plan is None:
        return selected
    return Selection(
        name=user_plan.plan.name,
        arguments=(),
        options=Options(),
        reason=f"a user plan, {user_plan.origin}, for {user_plan.sizes}",
        refused=(f"{selected.name}: a user plan takes precedence",),
    )


def _found(error: SleyError) -> str:
    return error.diagnostics[0].found


def _why_not(user_plan: UserPlan, request: Request) -> str:
    """Why a user plan doesn't run for a call."""
    if not user_plan.is_for(request.kind, in_place=request.in_place, root=request.root):
        return f"it is for {user_plan.plan.collective}"
    if not user_plan.covers(request.size_bytes):
        return f"it is for {user_plan.sizes}"
    return "another user plan takes precedence"
