"""Loading: plans on this rank, as the engine loads them, alone or watched under a policy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from sley.communicator.calls import AGREEMENT, record_of
from sley.communicator.memory import stride, tile_bytes
from sley.communicator.rendezvous.hosts import Hosts
from sley.communicator.selection.kinds import Request
from sley.communicator.selection.plans import PlanChange, Plans
from sley.communicator.selection.ready_plans import ReadyPlan
from sley.communicator.settings import Settings
from sley.communicator.stats import logger
from sley.communicator.watch import DEFAULT, OnChange, Watch
from sley.engine import native
from sley.engine.limits import SLOT_BYTES
from sley.engine.program import Loaded, load
from sley.engine.types import DATA_TYPES
from sley.errors import Place, SleyError
from sley.errors.policy import D904
from sley.ir.groups import without_groups
from sley.ir.plan import Plan
from sley.ir.plan_table import PlanRow
from sley.ir.words import WRITES_DESTINATION, Buffer, Protocol, ReduceOp

_LARGEST_ELEMENT_BYTES = 8
_LEAST_TILE_BYTES = 64


@dataclass(frozen=True)
class LoadedPlan:
    """A plan on this rank, and the engine that runs it.

    plan, row, digest: as selected. origin: "default" (the library), "policy" or "user".
    loaded: the plan as the engine loads it.
    writes_input: whether any rank writes to its input where that isn't its output, too.
    writes_memory: whether this rank writes to its input or output.
    """

    plan: Plan
    row: PlanRow
    digest: bytes
    origin: str
    loaded: Loaded
    engine: native.Engine
    writes_input: bool
    writes_memory: bool

    @property
    def current(self) -> LoadedPlan:
        """The plan that runs."""
        return self

    def seconds(self) -> float:
        """The time of all calls so far."""
        return self.engine.tally.seconds


@dataclass(frozen=True)
class WatchedPlan:
    """Plans of equal calls under a policy: its plan, the default, alternatives; and the watch that
    decides which one runs."""

    plans: tuple[LoadedPlan, ...]
    watch: Watch
    engine: native.Choice
    writes_input: bool
    writes_memory: bool

    @property
    def current(self) -> LoadedPlan:
        """The plan that runs the next call, or that failed."""
        return self.plans[self.engine.current]

    def origin(self, number: int) -> str:
        """Where a plan comes from: "default", "policy"; "trial" if it has only been tried."""
        if number not in self.watch.ran:
            return "trial"
        return "default" if number == DEFAULT else "policy"

    def seconds(self) -> float:
        """The time of all calls so far."""
        return sum(plan.seconds() for plan in self.plans)


AnyPlan: TypeAlias = LoadedPlan | WatchedPlan

_MOST_WATCHED = 1024
"""Different calls that are watched; further ones run the default."""

_MOST_BITS = 6
"""The significant bits of the sizes that are watched of calls that some ranks may make with varying
counts. Such a rank doesn't know these calls, so their number would differ between ranks. There are
32 sizes in each factor of two."""


class Loader:
    """The plans that a rank of an open communicator has loaded.

    name: of the communicator. Threads may share it.
    """

    def __init__(
        self,
        fabric: native.Fabric,
        rank: int,
        hosts: Hosts,
        settings: Settings,
        plans: Plans,
        name: str,
    ) -> None:
        self._fabric, self._rank, self._hosts, self._settings = fabric, rank, hosts, settings
        self._plans, self._name = plans, name
        self._ranks = len(hosts.host)
        self._loaded: dict[tuple[str, bytes], LoadedPlan] = {}
        self._bound: dict[tuple[bytes, bool], Loaded] = {}
        self._watched: dict[Hashable, tuple[str, WatchedPlan]] = {}
        self._counted = 0
        self._is_full = False
        self._lock = threading.Lock()

    def load(self, kind: str, ready: ReadyPlan) -> LoadedPlan:
        """A plan for calls of a kind, loaded once. Errors: R507, V201."""
        loaded = self._loaded.get((kind, ready.digest))
        if loaded is None:
            loaded = self._load(ready)
            self._loaded[kind, ready.digest] = loaded
        return loaded

    def watch(
        self,
        key: Hashable,
        ready: ReadyPlan,
        request: Request,
        record: Callable[[bytes], int],
        *,
        may_vary: bool,
    ) -> AnyPlan:
        """A plan that the policy has chosen for equal calls, with their watch.

        The default alone, if that is the same plan, if no rank can load the policy's, or if too
        many calls are watched. Each watch has its own engines, so their times have only its calls.

        key: equal for equal calls. request: these calls. record: a plan's record, by its digest.
        may_vary: other ranks may make the call as an AllToAllV. Errors: R507, V201.
        """
        with self._lock:  # so that equal calls have one watch
            if key in self._watched:
                return self._watched[key][1]
            kind, size_bytes, in_place = request.kind, request.size_bytes, request.in_place
            default = self._plans.library(kind, size_bytes, in_place=in_place)
            is_short = _significant_bits(size_bytes) <= _MOST_BITS
            has_room = is_short if may_vary else self._has_room()
            loaded = self._candidates(ready, default) if has_room else []
            if not loaded:
                return self.load(kind, default)
            self._counted += not may_vary
            watch = Watch(
                self._ranks,
                len(loaded),
                self._settings.explore,
                self._log_of(request, [str(one.row.recipe) for one in loaded]),
            )
            sum_bytes = native.Choice.most_turns * DATA_TYPES["float64"].size_bytes
            small = self._plans.library("all_reduce", sum_bytes, in_place=True)
            watched = _watch_plans(loaded, self.load(AGREEMENT, small), watch, record)
            self._watched[key] = kind, watched
        return watched

    def runs(self) -> Iterator[tuple[str, str, LoadedPlan]]:
        """The kind of calls and the origin of every loaded plan, and the plan."""
        for (kind, _), loaded in list(self._loaded.items()):  # other threads may add plans
            yield kind, loaded.origin, loaded
        for kind, watched in list(self._watched.values()):
            for number, loaded in enumerate(watched.plans):
                yield kind, watched.origin(number), loaded

    def _candidates(self, ready: ReadyPlan, default: ReadyPlan) -> list[LoadedPlan]:
        """The policy's plan, the default, and alternatives if they may be tried; nothing if the
        first two are the same, or if the first can't be loaded."""
        if ready.digest == default.digest:
            return []
        others = self._plans.alternatives(ready) if self._settings.explore > 0 else ()
        loaded: dict[bytes, LoadedPlan] = {}
        for one in (ready, default, *others):
            if one.digest in loaded:
                continue
            try:
                loaded[one.digest] = self._load(one)
            except SleyError as error:
                if error.code != D904.code:  # of this rank alone
                    raise
                self._plans.refuse(one, error)
                if one is ready:
                    return []
        return list(loaded.values())

    def _has_room(self) -> bool:
        if self._counted < _MOST_WATCHED:
            return True
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "%s: %d different calls use the policy; further ones use the default",
                self._name,
                _MOST_WATCHED,
            )
        return False

    def _load(self, ready: ReadyPlan) -> LoadedPlan:
        key = ready.digest, ready.tuned is None
        if key not in self._bound:
            self._bound[key] = _bind(ready, self._hosts, self._settings)
        return _with_engine(ready, self._bound[key], self._fabric, self._rank)

    def _log_of(self, request: Request, words: Sequence[str]) -> OnChange:
        """A function that keeps and logs the changes of equal calls. words: the plans. It doesn't
        refer to the loader, which the engine would keep alive."""
        changes, name, is_first = self._plans.changes, self._name, self._rank == 0
        calls = request.kind, request.size_bytes, request.in_place

        def log(call: int, before: int, after: int, before_us: float, after_us: float) -> None:
            change = PlanChange(call, *calls, words[before], words[after], before_us, after_us)
            changes.append(change)
            if is_first:
                level = logging.WARNING if after == DEFAULT else logging.INFO
                logger.log(level, "%s: %s", name, change)

        return log


def _significant_bits(size_bytes: int) -> int:
    """The bits from the first to the last one."""
    # x & -x is the lowest bit; 0 has none.
    return (size_bytes // (size_bytes & -size_bytes or 1)).bit_length()


def _bind(ready: ReadyPlan, hosts: Hosts, settings: Settings) -> Loaded:
    """A plan on connections of the communicator. Errors: V201; D904 for a policy's plan whose
    messages don't fit its slots."""
    plan = without_groups(ready.plan)
    direct = None
    if plan.protocol is Protocol.DIRECT:
        from sley.verification.direct import pulls  # late: no other plan needs the verifier

        direct = pulls(plan)
    loaded = load(plan, None, SLOT_BYTES, direct)
    wiring = loaded.wiring
    index = (wiring.dst * stride(settings) + wiring.channel).astype(np.int32)
    tile = _tile_bytes(ready, loaded, hosts, settings)
    return replace(loaded, wiring=replace(wiring, index=index, slot_bytes=tile))


def _with_engine(ready: ReadyPlan, loaded: Loaded, fabric: native.Fabric, rank: int) -> LoadedPlan:
    """The rank's part of a plan with an engine of its own. Errors: R507, V201."""
    plan, program = ready.plan, loaded.programs[rank]
    by_user = ready.origin in ("registered", "given")
    origin = "policy" if ready.tuned else "user" if by_user else "default"
    return LoadedPlan(
        plan,
        ready.row,
        ready.digest,
        origin,
        loaded,
        program.engine(fabric, loaded.wiring),
        writes_input=bool(plan.input_writes.size),
        writes_memory=bool(
            (WRITES_DESTINATION[program.op] & (program.dst_buffer != Buffer.SCRATCH)).any()
        ),
    )


def _watch_plans(
    plans: Sequence[LoadedPlan],
    sums: LoadedPlan,
    watch: Watch,
    record: Callable[[bytes], int],
) -> WatchedPlan:
    """Watches plans of equal calls: the policy's, the default, alternatives. sums: an AllReduce in
    place. record: of their calls, by a plan's digest."""
    choice = native.Choice.create(
        [(plan.engine, record(plan.digest)) for plan in plans],
        sums.engine,
        record_of(AGREEMENT, DATA_TYPES["float64"].number, ReduceOp.SUM, 0, sums.digest),
        watch.turns,
        watch.decide,
    )
    return WatchedPlan(
        tuple(plans),
        watch,
        choice,
        any(plan.writes_input for plan in plans),
        any(plan.writes_memory for plan in plans),
    )


def _tile_bytes(ready: ReadyPlan, loaded: Loaded, hosts: Hosts, settings: Settings) -> int:
    """The bytes of a slot that a plan uses. Errors: D904."""
    tile = tile_bytes(loaded, hosts, settings)
    if ready.tuned is None:
        return tile
    message = loaded.max_count * _LARGEST_ELEMENT_BYTES
    if message > tile:
        raise D904.error(
            at=Place(detail=ready.plan.name),
            expected=f"messages of at most {tile} bytes for one element of each chunk",
            found=f"{message} bytes",
        )
    share = int(tile * ready.row.recipe.tile) // _LEAST_TILE_BYTES * _LEAST_TILE_BYTES
    return min(tile, max(message, share, _LEAST_TILE_BYTES))
