"""Plans: the plan for each call of a communicator, compiled or loaded on first use."""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from sley.compiler import Options, compile
from sley.errors import Diagnostic
from sley.errors.runtime import R514
from sley.formats.plan_bytes import digest
from sley.ir.plan import Plan
from sley.ir.sizes import size_text, sizes_text
from sley.ir.words import is_integer
from sley.rendezvous.hosts import Hosts
from sley.selection.kinds import Request, check_call
from sley.selection.plan_cache import cached_plan, refusal
from sley.selection.rules import Selection, ladder
from sley.selection.user_plans import (
    Capacity,
    PlanFolder,
    PlanRequest,
    Source,
    UserPlan,
    prove,
    read_folder,
    size_of_request,
    user_plans,
)

_NO_END = float("inf")


@dataclass(frozen=True, eq=False)
class ReadyPlan:
    """A plan that is ready to run.

    selection: its sizes, and the reason for it.
    origin: "compiled", "disk" (from the cache), "registered" or "given" with the call.
    digest: 16 bytes, equal on all ranks that chose the same plan.
    ready_ms: how long compiling or loading took.
    """

    plan: Plan
    selection: Selection
    origin: str
    digest: bytes
    ready_ms: float


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


@dataclass(eq=False)
class _Rung:
    """A range of sizes: its selection, the user plan if that is one, and the plan when ready."""

    selection: Selection
    user_plan: UserPlan | None
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

    problems: problems of the files of `plan_dir` and of the cache, which are then not used.
    registrations: how many times `register` has succeeded.

    Within their sizes, user plans take precedence over the library's algorithms: first registered
    ones, the latest first, then those of the folder in the order of their names. Threads may share
    it.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        slots: int | None = None,
        channels: int | None = None,
        plan_dir: str | os.PathLike[str] | None = None,
        cache: bool = True,
    ) -> None:
        self._hosts = hosts
        self._capacity = Capacity(len(hosts.host), slots, channels)
        self._lock = threading.RLock()
        self._tables: dict[tuple[str, bool, int], _Table] = {}
        self._made: dict[tuple[object, ...], tuple[Plan, str, bytes]] = {}
        self.registrations = 0
        self._given: dict[int, ReadyPlan] = {}
        self._registered: list[UserPlan] = []
        self._folder = PlanFolder() if plan_dir is None else read_folder(plan_dir, self._capacity)
        refused = refusal() if cache else None
        self._use_cache = cache and refused is None
        self.problems: tuple[Diagnostic, ...] = (
            *self._folder.problems,
            *((refused,) if refused else ()),
        )

    def find(
        self, kind: str, size_bytes: int, *, in_place: bool = False, root: int = 0
    ) -> ReadyPlan:
        """The plan for a call; `Request` explains the arguments. After the first call of a range
        it is a lookup in a table. Errors: N650, and those of the compiler."""
        check_call(kind, self._capacity.ranks, size_bytes, root)
        rung = self._rung(kind, size_bytes, in_place, root)
        return rung.ready or self._ready(rung)

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

        source: a plan, a program, or a file with one: MSCCL XML, ResCCLang, Python. options: how a
        program is compiled (`sley.Options`, or a dict of them); by default large data pass through
        slots (Protocol SIMPLE), while DIRECT reads them in place. in_place, root: for files that
        don't define them; by default such a file is used in place and out of place if it can be.

        Returns a line for each plan. Errors: N651, N652, N654, N656, N657, R514, and those of the
        file, the compiler and the proof; then nothing changes.
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
            self.registrations += 1
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
            f"{request.kind} of {size_text(request.size_bytes)} on {request.ranks} ranks: "
            f"{ready.plan.name} ({ready.plan.protocol.value}, {ready.origin}), "
            f"{sizes_text(rung.selection.begin_bytes, rung.selection.end_bytes)}: "
            f"{rung.selection.reason}"
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
            rungs = _overlay(fitting, library)
            ends = [
                _NO_END if r.selection.end_bytes is None else r.selection.end_bytes for r in rungs
            ]
            table = _Table(ends, rungs)
            self._tables[kind, in_place, root] = table
        return table

    def _ready(self, rung: _Rung) -> ReadyPlan:
        """Compiles or loads the plan of a range, once."""
        with self._lock:
            if rung.ready is None:
                started = time.perf_counter()
                if rung.user_plan is not None:
                    plan, origin = rung.user_plan.plan, "registered"
                    plan_digest = digest(plan)
                else:
                    plan, origin, plan_digest = self._library_plan(rung.selection)
                took = (time.perf_counter() - started) * 1e3
                rung.ready = ReadyPlan(plan, rung.selection, origin, plan_digest, took)
        return rung.ready

    def _library_plan(self, selection: Selection) -> tuple[Plan, str, bytes]:
        """The plan of a selection, its origin and digest; made once."""
        key = (selection.name, selection.arguments, selection.options)
        if key not in self._made:
            plan, origin = self._compile(selection)
            self._made[key] = plan, origin, digest(plan)
        return self._made[key]

    def _compile(self, selection: Selection) -> tuple[Plan, str]:
        def build() -> Plan:
            return compile(selection.program(), selection.options)

        if not self._use_cache:
            return build(), "compiled"
        plan, is_cached = cached_plan(selection, self._capacity.ranks, build)
        return plan, "disk" if is_cached else "compiled"


def _overlay(user: Sequence[UserPlan], library: Sequence[Selection]) -> list[_Rung]:
    """Ranges without gaps: the first user plan that covers a size, else the library's selection."""
    begins = {s.begin_bytes for s in library} | {u.min_bytes for u in user}
    begins |= {u.max_bytes + 1 for u in user if u.max_bytes is not None}
    pieces: list[tuple[int, UserPlan | None, Selection]] = []
    for begin in sorted(begins):
        first = next((u for u in user if u.covers(begin)), None)
        selected = next(s for s in library if s.end_bytes is None or begin <= s.end_bytes)
        if not pieces or first is not pieces[-1][1] or not (first or selected is pieces[-1][2]):
            pieces.append((begin, first, selected))
    ends = [begin - 1 for begin, _, _ in pieces[1:]]
    return [
        _Rung(replace(_selection_of(first, selected), begin_bytes=begin, end_bytes=end), first)
        for (begin, first, selected), end in zip(pieces, [*ends, None], strict=True)
    ]


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


def _why_not(user_plan: UserPlan, request: Request) -> str:
    """Why a user plan doesn't run for a call."""
    if not user_plan.is_for(request.kind, in_place=request.in_place, root=request.root):
        return f"it is for {user_plan.plan.collective}"
    if not user_plan.covers(request.size_bytes):
        return f"it is for {user_plan.sizes}"
    return "another user plan takes precedence"
