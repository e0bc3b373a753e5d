"""Ready calls: the plans of calls that a rank has made before, in Python and in the engine."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from sley.communicator.calls import Call, kind_number, record_of
from sley.communicator.loading import AnyPlan, Loader
from sley.communicator.rendezvous.gather import name_ranks
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import Request, size_of
from sley.communicator.selection.plans import Plans
from sley.communicator.selection.ready_plans import ReadyPlan
from sley.communicator.stats import logger
from sley.engine import native
from sley.engine.limits import check_slot
from sley.errors import Diagnostic
from sley.ir.tables import NONE

Key: TypeAlias = tuple[str | int, int, int, int, bool, int, int]
"""A call's kind, or the id of its own plan; count, type, operation, whether in place, root or
division, and the number of the caller's type."""


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """What runs equal calls.

    record: of the calls, by `record_of`. runner: plan and record for the engine. varying: what runs
    an AllToAll that other ranks make as an AllToAllV; None if none may.
    """

    plan: AnyPlan
    record: int
    runner: native.Runner
    varying: PreparedCall | None


_MOST_KEYS = 4096
"""Different calls whose plans are remembered; after more, all are looked up again."""


def who_tells(problems: Sequence[Sequence[str]], rank: int) -> str:
    """Which ranks this one tells of, as the first one with its problems; empty if it isn't.
    problems: of each rank."""
    same = [other for other, one in enumerate(problems) if one == problems[rank]]
    if same[0] != rank:
        return ""
    return "all ranks" if len(same) == len(problems) else name_ranks(same)


def log_problems(name: str, who: str, problems: Iterable[Diagnostic]) -> None:
    """Logs plans that can't be used on some ranks of a communicator."""
    for problem in problems:
        words = "%s, %s: a plan can't be used, so sley's default ones run: %s"
        logger.warning(words, name, who, problem)


class ReadyCalls:
    """What runs a rank's calls. The first call of its kind, count, type, operation, place and root
    finds and loads the plan, equal ones take it from here.

    native: the same for the engine, for calls without Python. are_alone: whether it has any. told:
    how many problems of the plans were told at the start.
    """

    def __init__(
        self,
        plans: Plans,
        loader: Loader,
        calls: native.Calls,
        hosts: Hosts,
        *,
        rank: int,
        name: str,
        timeout_s: float,
        are_alone: bool,
        told: int,
    ) -> None:
        self._are_alone = are_alone
        self._plans, self._loader, self._hosts = plans, loader, hosts
        self._rank, self._name = rank, name
        self._found: dict[Key, PreparedCall] = {}
        self._problems = told
        self.native = native.ReadyCalls.create(calls, timeout_s)
        plans.on_registration = self.clear

    def find(self, call: Call, in_place: bool) -> PreparedCall:
        """What runs a call. Errors: N65x, R507, V201, V2xx."""
        which = call.kind if call.plan is None else id(call.plan)
        root = call.root or call.division
        key = (which, call.count, call.dtype.number, int(call.op), in_place, root, call.element)
        return self._found.get(key) or self._make(key, call, in_place)

    def clear(self) -> None:
        """Forgets all plans: others may take precedence from now on."""
        self._found.clear()
        self.native.clear()

    def close(self) -> None:
        """Forgets all plans, for good."""
        self._plans.on_registration = None
        self._found.clear()
        self.native.close()

    def log_problems(self) -> None:
        """Logs the problems of the plans that are new."""
        problems = self._plans.problems
        log_problems(self._name, f"rank {self._rank}", problems[self._problems :])
        self._problems = len(problems)

    def _make(self, key: Key, call: Call, in_place: bool) -> PreparedCall:
        ready = self._plan_for(call, in_place)
        loaded: AnyPlan
        if ready.tuned is None:
            loaded = self._loader.load(call.kind, ready)
        else:
            loaded = self._loader.watch(
                key,
                ready,
                self._request(call, in_place),
                lambda one: _record(call, one),
                may_vary=call.may_vary,
            )
        self.log_problems()
        if len(self._found) >= _MOST_KEYS:
            self.clear()
        varying = None
        if call.may_vary:
            unequal = Call("all_to_all_v", 0, 0, 0, 0, 0, call.dtype, call.op, element=call.element)
            varying = self.find(unequal, False)
        current = loaded.current
        varies = current.plan.collective.varies
        check_slot(current.loaded, call.dtype, varies=varies)
        engine = current.engine if varies else loaded.engine
        record = _record(call, current.digest)
        runner = native.Runner.create(engine, record, None if varying is None else varying.runner)
        found = self._found[key] = PreparedCall(loaded, record, runner, varying)
        is_equal = call.plan is None and call.parts is None and not call.division
        if is_equal and self._are_alone:
            kind, dtype, op = kind_number(call.kind), call.dtype.number, int(call.op)
            element = _element(call)
            made = native.CallKey(kind, dtype, op, in_place, call.root, call.count, element)
            self.native.put(made, runner)
        return found

    def _request(self, call: Call, in_place: bool) -> Request:
        ranks = len(self._hosts.host)
        size_bytes = size_of(call.kind, ranks, call.count, call.dtype.size_bytes)
        return Request(call.kind, self._hosts, size_bytes, in_place, call.root)

    def _plan_for(self, call: Call, in_place: bool) -> ReadyPlan:
        """The plan for a call; rank 0 logs why it was chosen."""
        if call.plan is not None:
            return self._plans.given(call.plan)
        request = self._request(call, in_place)
        ready = self._plans.find(call.kind, request.size_bytes, in_place=in_place, root=call.root)
        if self._rank == 0 and logger.isEnabledFor(logging.INFO):
            for line in self._plans.considered(request):
                logger.info("%s: %s", self._name, line)
        return ready


def _record(call: Call, digest: bytes) -> int:
    return record_of(call.kind, _element(call), call.op, call.root or call.division, digest)


def _element(call: Call) -> int:
    """The number of the type of the caller's elements."""
    return call.dtype.number if call.element == NONE else call.element
