"""Plans: the plan for each call of a communicator, compiled or loaded on first use."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import (
    ALL_TO_ALL,
    BARRIER,
    CALLS,
    Request,
    check_call,
    kinds_of,
)
from sley.communicator.selection.ready_plans import (
    Capacity,
    PlanFolder,
    ReadyPlan,
    check_input,
    check_order,
    prove,
)
from sley.communicator.stats import logger
from sley.errors import Diagnostic, Place, SleyError, counted
from sley.errors.aside import fork_safe
from sley.errors.policy import D904
from sley.errors.runtime import R514
from sley.errors.selection import N651
from sley.errors.simulation import S702
from sley.ir.collectives import STANDARD
from sley.ir.orders import SameBits, wanted_order
from sley.ir.plan import Plan
from sley.ir.plan_digest import digest
from sley.ir.plan_table import PlanRow, Recipe
from sley.ir.sizes import SizeRange, borders, size_text
from sley.ir.words import is_integer

if TYPE_CHECKING:
    from sley.communicator.selection.device_rules import DeviceLimits
    from sley.communicator.selection.policy import Policy
    from sley.communicator.selection.user_plans import UserSource
    from sley.compiler import Options

# What needs the compiler is imported in the methods that do: a job, which brings its plans, starts
# four times as fast without it.

_NO_END = float("inf")


class PlanChange(NamedTuple):
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


@dataclass(eq=False)
class _RangePlan:
    """A range of sizes of one kind of call: the row that runs, the library's own, the policy's row
    if that chose it, and the plan when it is ready."""

    row: PlanRow
    default: PlanRow
    tuned: PlanRow | None
    ready: ReadyPlan | None = None


_Made: TypeAlias = tuple[Plan, str, bytes]
"""A plan, its origin and its digest."""

_OF_DEVICES: dict[str, _Made] = {}
"""The library's plans for devices, by recipe: communicators of a process all need some hundred."""
_MOST_PLANS = 4096
_MAKING = fork_safe(threading.Lock())
"""So that of the ranks that are threads one makes each plan."""

_KindTable: TypeAlias = tuple[list[float], list[_RangePlan]]
"""The ranges of one kind of call, after the last size of each; infinity for the last range."""


class Plans:
    """The plans of one communicator.

    hosts: which ranks share a host.
    devices: for ranks on devices; None for ranks on processors.
    slots, channels: those of its connections; user plans that need more are refused.
    plan_dir: a folder of user plans (SLEY_PLAN_DIR), or None.
    cache: whether compiled plans are kept on disk.
    policy: what a tuner has learned on these hosts, or None. All ranks have the same.
    same_bits: whether all plans that sum have one order, and which (`wanted_order`); only a plan
        that a call brings may have another.

    problems: problems of the files of `plan_dir`, of the cache and of the policy, which are then
    not used. Those of the policy's plans are added when a call needs the plan.
    on_registration: called after `register` or `replan`, if it isn't None.
    changes: of plans that the policy chose, in the order in which they were made.

    Within their sizes, user plans take precedence over the policy and the library's algorithms:
    first registered ones, the latest first, then those of the folder in the order of its table, and
    of the names of other files. The policy takes precedence over the library's choice, for kinds of
    calls without a root. Threads may share it.
    """

    def __init__(
        self,
        hosts: Hosts,
        *,
        devices: DeviceLimits | None = None,
        slots: int | None = None,
        channels: int | None = None,
        plan_dir: str | os.PathLike[str] | None = None,
        cache: bool = True,
        policy: Policy | None = None,
        problems: Sequence[Diagnostic] = (),
        same_bits: SameBits = False,
    ) -> None:
        self._hosts = hosts
        self._devices = devices
        self._policy = policy
        self._same_bits = same_bits
        order = wanted_order(same_bits, hosts.members)
        self._capacity = Capacity(len(hosts.host), slots, channels, order)
        self._lock = threading.RLock()
        self._tables: dict[tuple[str, bool | None, int], _KindTable] = {}
        self._plans = dict[str, _Made]() if devices is None else _OF_DEVICES
        self._in_order: set[str] = set()
        self._making = nullcontext() if devices is None else _MAKING
        self.on_registration: Callable[[], None] | None = None
        self._replanned: Mapping[str, Sequence[PlanRow]] = {}
        self._given: dict[int, ReadyPlan] = {}
        self._registered: list[ReadyPlan] = []
        self._folder, refused = PlanFolder(), None
        if plan_dir is not None:
            from sley.communicator.selection.user_plans import read_folder

            self._folder = read_folder(plan_dir, self._capacity)
            for other in self._folder.others:
                logger.info("%d ranks don't run %s, in %s", self._capacity.ranks, other, plan_dir)
        if cache:
            from sley.communicator.selection.plan_cache import refusal

            refused = refusal()
        self._use_cache = cache and refused is None
        self.problems: tuple[Diagnostic, ...] = (
            *self._folder.problems,
            *((refused,) if refused else ()),
            *problems,
        )
        self.changes: list[PlanChange] = []

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
        found = self._range(kind, size_bytes, in_place, root)
        return found.ready or self._ready(found)

    def table(
        self, kind: str, *, in_place: bool | None = False, root: int = 0
    ) -> list[tuple[SizeRange, ReadyPlan]]:
        """What `find` gives for all sizes: ranges without gaps from 0 on, ascending, each with its
        plan; the last has no end. in_place: None for the library's plans out of place that are
        right whether or not a rank is in place (`places`); an all_to_all's are as for False.
        Errors: as of `find`."""
        check_call(kind, self._capacity.ranks, 0, root)
        _, ranges = self._kind_table(kind, in_place, root)
        return [(one.row.sizes, one.ready or self._ready(one)) for one in ranges]

    @property
    def own(self) -> tuple[ReadyPlan, ...]:
        """The user's plans: those that come first take precedence."""
        return (*self._registered, *self._folder.plans)

    def places(self, kind: str) -> tuple[bool | None, ...]:
        """The places of a kind's calls on devices that have plans of their own: in place, out of
        place, or None for either."""
        row = CALLS[kind]
        if row.roles and not row.has_place_of_rank:
            return (True,)  # one array
        if kind == ALL_TO_ALL:  # in place its plans need scratch
            return False, True
        if not any(kind in kinds_of(one.plan.collective) for one in self.own):
            return (None,)
        # The user's plans are for one place. Only the root sees whether a gather or a scatter is in
        # place, so none is; nor is a barrier out of place.
        return (False,) if row.roles else (True,) if kind == BARRIER else (False, True)

    def library(
        self, kind: str, size_bytes: int, *, in_place: bool = False, root: int = 0
    ) -> ReadyPlan:
        """The library's plan for a call: the default, without user plans and policy. Arguments and
        errors as of `find`."""
        check_call(kind, self._capacity.ranks, size_bytes, root)
        with self._lock:
            return self._made(self._range(kind, size_bytes, in_place, root).default)

    def alternatives(self, chosen: ReadyPlan) -> list[ReadyPlan]:
        """The plans of a policy's alternatives to a plan that it chose. `problems` tells why others
        can't run."""
        if chosen.tuned is None:
            return []
        found: list[ReadyPlan] = []
        with self._lock:
            # All ranks skip the same ones, since they have the same policy and connections.
            for recipe in chosen.tuned.alternatives:
                try:
                    # The measured times and their note are the chosen recipe's, not this one's.
                    row = replace(chosen.tuned, recipe=recipe, note="", measured=())
                    found.append(self._tuned(row, chosen.row))
                except SleyError as error:
                    self._note(error)
        return found

    def refuse(self, ready: ReadyPlan, error: SleyError) -> None:
        """Replaces a plan that the policy chose by the default, since no rank can load it; `error`
        tells why."""
        with self._lock:
            self._note(error)
            for one in self._ranges():
                if one.ready is ready:
                    self._drop(one, error)

    def register(
        self,
        source: UserSource,
        *,
        min_bytes: int | str | None = None,
        max_bytes: int | str | None = None,
        options: Options | Mapping[str, Any] | None = None,
        in_place: bool | None = None,
        root: int | None = None,
    ) -> list[str]:
        """Proves a user plan, and uses it for calls of its collective, of sizes from `min_bytes` to
        `max_bytes`, both included. Every rank must register the same.

        source: a plan, a program, or what `sley.load` opens: an algorithm's name, FILE.py:NAME, or
        a file with a plan, a program or a schedule. options: how a program is compiled
        (`sley.Options`, or a dict of them); by default large data pass through slots (Protocol
        SIMPLE), while DIRECT reads them in place. in_place, root: for sources that don't define
        them; by default such a source is used in place and out of place if it can be.

        Returns a line for each plan. Errors: F404, F550, N651 (always on devices), N652, N654,
        N658, S702, F454, R514, and those of the source, the compiler and the proof; then nothing
        changes.
        """
        from sley.communicator.selection.user_plans import user_plans
        from sley.compiler import Options

        if self._devices is not None:  # its communicator has loaded all plans when it is made
            raise N651.error(
                expected="a communicator of processors",
                found="one on devices, which has got its plans",
                remedy="Put the plan into a folder, and name that in SLEY_PLAN_DIR, or in plan_dir "
                "of the settings, when the communicator is made.",
            )
        if in_place not in (None, True, False):
            expected = "in_place as True, False or None"
            raise R514.error(expected=expected, found=f"in_place={in_place!r}")
        if not (root is None or is_integer(root)):
            raise R514.error(expected="root as a rank or None", found=f"root={root!r}")
        if not isinstance(options, Options):
            options = Options.of(None, {} if options is None else options)
        row = PlanRow(
            Recipe("", options=options.given()),
            SizeRange.of(min_bytes, max_bytes, S702),
            in_place=in_place,
            root=None if root is None else int(root),
        )
        found = user_plans(source, row, self._capacity)
        # Proven before the lock: a proof takes long, and calls go on meanwhile. The tables are made
        # again at the next calls; what was compiled stays in `_plans`.
        with self._lock:
            self._registered = [*found, *self._registered]
            self._tables = {}
        if self.on_registration is not None:
            self.on_registration()
        return [str(user_plan) for user_plan in found]

    def replan(self, rows: Mapping[str, Sequence[PlanRow]]) -> None:
        """Takes these rows of kinds of calls before the library's, in place of earlier ones. All
        ranks give the same."""
        with self._lock:
            self._replanned, self._tables = rows, {}
        if self.on_registration is not None:
            self.on_registration()

    def given(self, plan: Plan, *, is_proven: bool = False) -> ReadyPlan:
        """A plan that a call brings; proves it, once. Errors: N651, N652, V2xx."""
        with self._lock:
            if id(plan) not in self._given:
                started = time.perf_counter()
                prove(plan, self._capacity, plan.name, is_proven=is_proven)
                row = PlanRow(Recipe(plan.name), note="given with the call")
                # It keeps the plan, so that no other gets its id.
                self._given[id(plan)] = ReadyPlan.of(plan, row, "given", started)
            return self._given[id(plan)]

    def considered(self, request: Request) -> list[str]:
        """Which plan runs for a call and why, and why others don't, a line for each. Errors: as
        `find`."""
        check_call(request.kind, request.ranks, request.size_bytes, request.root)
        found = self._range(request.kind, request.size_bytes, request.in_place, request.root)
        ready = found.ready or self._ready(found)
        lines = [
            f"{request.kind} of {size_text(request.size_bytes)} on "
            f"{counted(request.ranks, 'rank')}: "
            f"{ready.plan.name} ({ready.plan.protocol.value}, {ready.origin}), "
            f"{found.row.sizes}: {found.row.note}"
        ]
        lines += [
            str(change)
            for change in list(self.changes)
            if change[1:4] == (request.kind, request.size_bytes, request.in_place)
        ]
        lines += [f"not {line}" for line in found.row.refused]
        for user_plan in self.own:
            if user_plan.plan is not ready.plan:
                lines.append(f"not {user_plan.row.recipe.name}: {_why_not(user_plan, request)}")
        return [*lines, *(f"not {line}" for line in self._folder.others)]

    def stats(self) -> list[ReadyPlan]:
        """The plans that calls have used, on devices all, a plan for each range of sizes."""
        with self._lock:
            return [one.ready for one in self._ranges() if one.ready is not None]

    def _ranges(self) -> Iterator[_RangePlan]:
        return chain.from_iterable(ranges for _, ranges in self._tables.values())

    def _range(self, kind: str, size_bytes: int, in_place: bool, root: int) -> _RangePlan:
        is_either = self._devices is not None and None in self.places(kind)
        ends, ranges = self._kind_table(kind, None if is_either else in_place, root)
        return ranges[bisect_left(ends, size_bytes)]

    def _kind_table(self, kind: str, in_place: bool | None, root: int) -> _KindTable:
        """The ranges of a kind of call. Errors: N650."""
        root = int(root)  # a small integer of NumPy would overflow in what is computed from it
        key = kind, in_place, root
        # The lock is taken only if the table isn't there: calls of all threads come by here.
        return self._tables.get(key) or self._new_table(*key)

    def _new_table(self, kind: str, in_place: bool | None, root: int) -> _KindTable:
        """The ranges of a kind of call: of the first user plan that is for a size, else of the
        policy's row, else of the library's. Errors: N650."""
        with self._lock:
            if (kind, in_place, root) in self._tables:  # another thread was first
                return self._tables[kind, in_place, root]
            user = [
                one
                for one in self.own
                if in_place is not None and one.is_for(kind, in_place=in_place, root=root)
            ]
            tuned = self._tuned_rows(kind) if in_place is not None else ()
            from sley.communicator.selection.rules import default_rows

            library = default_rows(
                kind,
                self._hosts,
                in_place=in_place,
                root=root,
                limits=self._devices,
                disk=self._use_cache,
                same_bits=self._same_bits,
            )
            before = [] if in_place is None else self._replanned.get(kind, ())
            placed = (
                replace(row, recipe=row.recipe.given(in_place=in_place), in_place=in_place)
                for row in before
            )
            library = (*placed, *library)
            rows = (*(one.row for one in user), *tuned, *library)
            # Between two borders of any of them the same one comes first, so it tells for all.
            # At 1 data begin: without data there is nothing to tune.
            pieces: list[tuple[int, PlanRow, ReadyPlan | None, PlanRow | None]] = []
            for begin in sorted({1, *borders(row.sizes for row in rows)}):
                own = next(row for row in library if row.sizes.covers(begin))
                by_user = next((one for one in user if one.row.sizes.covers(begin)), None)
                rest = tuned if begin and by_user is None else ()
                by_tuner = next((row for row in rest if row.sizes.covers(begin)), None)
                same = pieces and pieces[-1][2] is by_user and pieces[-1][3] is by_tuner
                if not (same and (by_user or pieces[-1][1] is own)):
                    pieces.append((begin, own, by_user, by_tuner))
            ends = [begin - 1 for begin, *_ in pieces[1:]]
            ranges = [
                self._range_of(SizeRange(begin, end), own, by_user, by_tuner)
                for (begin, own, by_user, by_tuner), end in zip(pieces, [*ends, None], strict=True)
            ]
            self._tables[kind, in_place, root] = table = [*ends, _NO_END], ranges
        return table

    def _range_of(
        self, sizes: SizeRange, own: PlanRow, by_user: ReadyPlan | None, by_tuner: PlanRow | None
    ) -> _RangePlan:
        default = replace(own, sizes=sizes)
        if by_user is None:
            row = self._row_of(by_tuner, default) if by_tuner else default
            return _RangePlan(row, default, by_tuner)
        row = replace(
            default,
            recipe=by_user.row.recipe,
            note=f"a user plan, {by_user.row.recipe.name}, for {by_user.row.sizes}",
            refused=(f"{default.recipe.name}: a user plan takes precedence",),
        )
        return _RangePlan(row, default, None, replace(by_user, row=row))

    def _tuned_rows(self, kind: str) -> Sequence[PlanRow]:
        """The policy's rows for a kind of call."""
        row = CALLS[kind]
        if self._policy is None or kind == BARRIER or row.roles or self._capacity.ranks == 1:
            return ()
        return self._policy.of(row.name)

    def _row_of(self, tuned: PlanRow, default: PlanRow) -> PlanRow:
        """The policy's row, for the sizes and the place of the default."""
        assert self._policy is not None
        machine, agent = self._policy.machine, self._policy.agent
        reason = f"the tuner's policy{f' (agent {agent})' if agent else ''}"
        return replace(
            default,
            recipe=tuned.recipe.given(
                nodes=machine.nodes, gpus=machine.gpus, in_place=default.in_place
            ),
            note=f"{reason}, {tuned.reason}" if tuned.reason else reason,
            refused=(f"{default.recipe.name}: the tuner's policy takes precedence",),
        )

    def _ready(self, of: _RangePlan) -> ReadyPlan:
        """Compiles or loads the plan of a range, once."""
        with self._lock:
            if of.ready is None and of.tuned is not None:
                try:
                    of.ready = self._tuned(of.tuned, of.default)
                except SleyError as error:
                    self._drop(of, error)
            if of.ready is None:
                of.ready = self._made(of.row)
        return of.ready

    def _tuned(self, tuned: PlanRow, default: PlanRow) -> ReadyPlan:
        """The plan of a policy's row. Errors: D904 if it can't run: on all ranks, which have the
        same policy and connections."""
        try:
            ready = self._made(self._row_of(tuned, default), tuned)
            call, in_place = STANDARD[default.collective].call, bool(default.in_place)
            if not ready.is_for(call, in_place=in_place, root=0):
                expected = f"an algorithm for {call}, {'in place' if in_place else 'out of place'}"
                raise N651.error(expected=expected, found=str(ready.plan.collective))
            prove(ready.plan, self._capacity, tuned.recipe.name, is_proven=True)
            check_input(ready.plan, tuned.recipe.name)
        except SleyError as error:
            raise D904.error(
                at=Place(detail=f"{tuned.recipe}, for {tuned.sizes}"),
                expected=error.diagnostics[0].expected,
                found=f"{error.code}: {_found(error)}",
            ) from error
        return ready

    def _drop(self, of: _RangePlan, error: SleyError) -> None:
        """Replaces the policy's choice for a range by the default."""
        self._note(error)
        refused = f"{of.row.recipe.name}, the tuner's policy: {_found(error)}"
        of.row = replace(of.default, refused=(refused, *of.default.refused))
        of.tuned = of.ready = None

    def _note(self, error: SleyError) -> None:
        """Adds an error to the problems, once."""
        self.problems += tuple(d for d in error.diagnostics if d not in self.problems)

    def _made(self, row: PlanRow, tuned: PlanRow | None = None) -> ReadyPlan:
        """The plan of a row's recipe, compiled or loaded once, whatever the tile is."""
        started, recipe = time.perf_counter(), row.recipe
        key = replace(recipe, tile=1.0).key
        if row.in_place is None:
            key += " in either place"
        with self._making:
            made = self._plans.get(key)
            if made is None:
                plan, is_cached = self._compiled(row, key, is_own=tuned is None)
                made = plan, "disk" if is_cached else "compiled", digest(plan)
                if len(self._plans) >= _MOST_PLANS:
                    self._plans.clear()
                self._plans[key] = made
            if key not in self._in_order:  # of devices, another communicator has made it
                check_order(made[0], self._capacity, recipe.name)
                self._in_order.add(key)
        plan, origin, own = made
        if recipe.tile != 1:  # the ranks must agree on the tile too
            own = hashlib.sha256(own + repr(recipe.tile).encode()).digest()[: len(own)]
        took = (time.perf_counter() - started) * 1e3
        return ReadyPlan(plan, row, origin, own, took, tuned)

    def _compiled(self, row: PlanRow, key: str, *, is_own: bool) -> tuple[Plan, bool]:
        """is_own: whether the rules made the recipe. One from a policy's file reaches only the
        algorithms of the library."""
        from sley.algorithms import build
        from sley.communicator.selection.places import in_either_place
        from sley.communicator.selection.plan_cache import cached_plan
        from sley.communicator.selection.rules import default_program
        from sley.compiler import Options, compile

        recipe = row.recipe

        def make() -> Plan:
            own = default_program(recipe) if is_own else build(recipe.name, **recipe.arguments)
            # Some programs name the cluster that they are for, which the runtime doesn't need.
            plan = replace(compile(own, Options.of(None, recipe.options)), topology=None)
            return in_either_place(plan) if row.in_place is None else plan

        if not self._use_cache:
            return make(), False
        return cached_plan(key, self._capacity.ranks, make)


def _found(error: SleyError) -> str:
    return error.diagnostics[0].found


def _why_not(user_plan: ReadyPlan, request: Request) -> str:
    """Why a user plan doesn't run for a call."""
    if not user_plan.is_for(request.kind, in_place=request.in_place, root=request.root):
        return f"it is for {user_plan.plan.collective}"
    if not user_plan.row.sizes.covers(request.size_bytes):
        return f"it is for {user_plan.row.sizes}"
    return "another user plan takes precedence"
