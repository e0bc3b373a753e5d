"""Plans: the plan for each call of a communicator, found, compiled or loaded on first use."""

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
from sley.formats.plan_bytes import digest
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.rendezvous.hosts import Hosts
from sley.selection.kinds import Request, check_call
from sley.selection.ladder import Selection, ladder
from sley.selection.plan_cache import kept, refusal
from sley.selection.plan_folder import Found, read_folder
from sley.selection.rules import Limits
from sley.selection.user_plans import (
    OwnPlan,
    Room,
    Source,
    Wanted,
    check,
    own_plans,
    size_wanted,
)

_NO_END = float("inf")


@dataclass(frozen=True, eq=False)
class Chosen:
    """A plan that is ready to run.

    selection: for which sizes, and why.
    origin: "compiled", "disk" (it was in the cache), "registered" or "given" with the call.
    digest: 16 bytes, equal on all ranks that chose the same.
    ready_ms: how long it took to make it ready.
    """

    plan: Plan
    selection: Selection
    origin: str
    digest: bytes
    ready_ms: float


class PlanRow(NamedTuple):
    """A plan that was made ready, for people. The bytes are the sizes that it is for; root is 0
    where it makes no difference."""

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
    """A range of sizes: what is selected for it, or the own plan, and the plan once it is ready."""

    selection: Selection
    own: OwnPlan | None
    chosen: Chosen | None = None


@dataclass(eq=False)
class _Table:
    """The ranges of one kind of call. ends: the last size of each; the last one has none."""

    ends: list[float]
    rungs: list[_Rung] = field(default_factory=list)


class Plans:
    """The plans of one communicator.

    hosts: where its ranks are. limits: the thresholds of the selection.
    slots, channels: what its connections have; own plans that need more are refused.
    plan_dir: a folder of own plans (SLEY_PLAN_DIR), None for none.
    cache: whether compiled plans are kept on disk.

    problems: what is wrong with files of `plan_dir` and with the cache; none of it stops anything.
    registrations: how often `register` has taken something.

    Own plans win over the library's algorithms within their sizes: those registered, the latest
    first, then those of the folder in the order of their names. Threads may share it.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        limits: Limits | None = None,
        slots: int | None = None,
        channels: int | None = None,
        plan_dir: str | os.PathLike[str] | None = None,
        cache: bool = True,
    ) -> None:
        self._hosts, self._limits = hosts, limits or Limits()
        self._room = Room(len(hosts.host), slots, channels)
        self._lock = threading.RLock()
        self._tables: dict[tuple[str, bool, int], _Table] = {}
        self._made: dict[tuple[object, ...], Chosen] = {}
        self.registrations = 0
        self._given: dict[int, Chosen] = {}
        self._registered: list[OwnPlan] = []
        self._folder = Found() if plan_dir is None else read_folder(plan_dir, self._room)
        refused = refusal() if cache else None
        self._use_cache = cache and refused is None
        self.problems: tuple[Diagnostic, ...] = (
            *self._folder.problems,
            *((refused,) if refused else ()),
        )

    def find(self, kind: str, size_bytes: int, *, in_place: bool = False, root: int = 0) -> Chosen:
        """The plan for a call; `Request` says what the arguments mean. After the first call of a
        range it costs a look into a table.

        Errors: N650, and those of the compiler.
        """
        table = self._tables.get((kind, in_place, root))
        if table is None:
            table = self._table(kind, in_place, root)
        rung = table.rungs[bisect_left(table.ends, size_bytes)]
        return rung.chosen or self._ready(rung)

    def plan_for(self, request: Request) -> Plan:
        """The plan for a call. Errors: as `find`."""
        check_call(request.kind, request.ranks, request.size_bytes, request.root)
        return self.find(
            request.kind, request.size_bytes, in_place=request.in_place, root=request.root
        ).plan

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
        """Takes an own plan for calls that do what it does, of sizes from `min_bytes` to
        `max_bytes`, both included. It is proven first. Every rank must register the same.

        source: a plan, a program, or a file with one: MSCCL XML, ResCCLang, Python. options: how a
        program is compiled (`sley.Options`, or a dict of them); without, large data go through
        slots (Protocol SIMPLE), where DIRECT reads them in place. in_place, root: what a file
        leaves open; without in_place a file is taken both ways, as far as it can run.

        Gives a line for each plan taken. Errors: N651, N652, N654, N656, and what the file, the
        compiler or the proof say; then nothing changes.
        """
        wanted = Wanted(
            size_wanted("min_bytes", min_bytes),
            size_wanted("max_bytes", max_bytes),
            in_place,
            root,
            Options.of(options) if isinstance(options, Mapping) else options,
        )
        found = own_plans(source, wanted, self._room)
        with self._lock:
            self._registered = [*found, *self._registered]
            self._tables = {}
            self.registrations += 1
        return [str(own) for own in found]

    def proven(self, plan: Plan) -> Chosen:
        """A plan that comes with a call, once it is proven. Errors: N651, N652, V2xx."""
        with self._lock:
            if id(plan) not in self._given:
                started = time.perf_counter()
                check(plan, self._room, plan.name)
                took = (time.perf_counter() - started) * 1e3
                selection = Selection(plan.name, (), Options(), "it came with the call")
                chosen = Chosen(plan, selection, "given", digest(plan), took)
                self._given[id(plan)] = chosen  # which keeps it, so that no other has its id
            return self._given[id(plan)]

    def considered(self, request: Request) -> list[str]:
        """Which plan runs for a call and why, and why others don't, a line each. Errors: as
        `find`."""
        table = self._tables.get((request.kind, request.in_place, request.root))
        if table is None:
            table = self._table(request.kind, request.in_place, request.root)
        rung = table.rungs[bisect_left(table.ends, request.size_bytes)]
        chosen = rung.chosen or self._ready(rung)
        lines = [
            f"{request.kind} of {size_text(request.size_bytes)} on {request.ranks} ranks: "
            f"{chosen.plan.name} ({chosen.plan.protocol.value}, {chosen.origin}), "
            f"{_range_text(rung.selection)}: {rung.selection.reason}"
        ]
        lines += [f"not {line}" for line in rung.selection.refused]
        for own in (*self._registered, *self._folder.plans):
            if own is not rung.own:
                lines.append(f"not {own.origin}: {_why_not(own, request)}")
        return [*lines, *(f"not {line}" for line in self._folder.others)]

    def stats(self) -> list[PlanRow]:
        """A row for each range of sizes of which a call has come."""
        with self._lock:
            tables = list(self._tables.items())
        return [
            PlanRow(
                kind,
                in_place,
                root,
                rung.selection.begin_bytes,
                rung.selection.end_bytes,
                rung.chosen.plan.name,
                rung.chosen.plan.protocol.value,
                rung.chosen.origin,
                rung.chosen.ready_ms,
            )
            for (kind, in_place, root), table in tables
            for rung in table.rungs
            if rung.chosen is not None
        ]

    def _table(self, kind: str, in_place: bool, root: int) -> _Table:
        """The ranges of a kind of call, own plans laid over the library's. Errors: N650."""
        with self._lock:
            if (kind, in_place, root) in self._tables:  # another thread was first
                return self._tables[kind, in_place, root]
            library = ladder(kind, self._hosts, in_place=in_place, root=root, limits=self._limits)
            fitting = [
                own
                for own in (*self._registered, *self._folder.plans)
                if own.is_for(kind, in_place=in_place, root=root)
            ]
            rungs = _laid_over(fitting, library)
            ends = [
                _NO_END if r.selection.end_bytes is None else r.selection.end_bytes for r in rungs
            ]
            table = _Table(ends, rungs)
            self._tables[kind, in_place, root] = table
        return table

    def _ready(self, rung: _Rung) -> Chosen:
        """The plan of a range, made ready."""
        with self._lock:
            if rung.chosen is None:
                started = time.perf_counter()
                chosen = (
                    self._own(rung.own, rung.selection)
                    if rung.own
                    else self._made_of(rung.selection)
                )
                took = (time.perf_counter() - started) * 1e3
                rung.chosen = replace(chosen, selection=rung.selection, ready_ms=took)
        return rung.chosen

    def _own(self, own: OwnPlan, selection: Selection) -> Chosen:
        return Chosen(own.plan, selection, "registered", digest(own.plan), 0.0)

    def _made_of(self, selection: Selection) -> Chosen:
        """The plan of a selection: made before, from the cache, or compiled."""
        key = (selection.name, selection.arguments, selection.options)
        if key not in self._made:
            plan, origin = self._compiled(selection)
            self._made[key] = Chosen(plan, selection, origin, digest(plan), 0.0)
        return self._made[key]

    def _compiled(self, selection: Selection) -> tuple[Plan, str]:
        def build() -> Plan:
            return compile(selection.program(), **selection.options.arguments())

        if not self._use_cache:
            return build(), "compiled"
        plan, was_there = kept(selection, self._room.ranks, build)
        return plan, "disk" if was_there else "compiled"


def _laid_over(own: Sequence[OwnPlan], library: Sequence[Selection]) -> list[_Rung]:
    """Ranges without gaps: the first own plan that covers a size, else the library's selection."""
    begins = {s.begin_bytes for s in library} | {o.min_bytes for o in own}
    begins |= {o.max_bytes + 1 for o in own if o.max_bytes is not None}
    pieces: list[tuple[int, OwnPlan | None, Selection]] = []
    for begin in sorted(begins):
        mine = next((o for o in own if o.covers(begin)), None)
        selected = next(s for s in library if s.end_bytes is None or begin <= s.end_bytes)
        if not pieces or mine is not pieces[-1][1] or not (mine or selected is pieces[-1][2]):
            pieces.append((begin, mine, selected))
    ends = [begin - 1 for begin, _, _ in pieces[1:]]
    return [
        _Rung(replace(_of_own(mine, selected), begin_bytes=begin, end_bytes=end), mine)
        for (begin, mine, selected), end in zip(pieces, [*ends, None], strict=True)
    ]


def _of_own(own: OwnPlan | None, selected: Selection) -> Selection:
    """What is selected: the library's choice, unless an own plan comes before it."""
    if own is None:
        return selected
    return Selection(
        name=own.plan.name,
        arguments=(),
        options=Options(),
        reason=f"an own plan, {own.origin}, for {own.sizes}",
        refused=(f"{selected.name}: an own plan comes before it",),
    )


def _why_not(own: OwnPlan, request: Request) -> str:
    """Why an own plan does not run for a call."""
    if not own.is_for(request.kind, in_place=request.in_place, root=request.root):
        return f"it is for {own.plan.collective}"
    if not own.covers(request.size_bytes):
        return f"it is for {own.sizes}"
    return "another own plan comes before it"


def _range_text(selection: Selection) -> str:
    begin, end = selection.begin_bytes, selection.end_bytes
    if end is None:
        return f"{size_text(begin)} and more" if begin else "all sizes"
    return f"{size_text(begin)} to {size_text(end)}"
