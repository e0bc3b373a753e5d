"""Loading: plans on this rank, as the engine loads them, alone or watched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sley.communicator.calls import AGREEMENT, record_of
from sley.communicator.memory import stride, tile_bytes
from sley.communicator.settings import Settings
from sley.communicator.watch import DEFAULT, POLICY, Watch
from sley.direct import pulls
from sley.engine import native
from sley.engine.limits import SLOT_BYTES
from sley.engine.program import Loaded, Pullable, load
from sley.engine.types import DATA_TYPES
from sley.errors import Place
from sley.errors.policy import D904
from sley.ir.plan import Plan
from sley.ir.words import WRITES_DESTINATION, Buffer, Protocol, ReduceOp
from sley.rendezvous.hosts import Hosts
from sley.selection.plans import ReadyPlan

SUM_BYTES = 256
"""The bytes of the AllReduce that adds up times, `native.Choice.most_turns` of float64."""

_LARGEST_ELEMENT_BYTES = 8
_LEAST_TILE_BYTES = 64


@dataclass(frozen=True)
class LoadedPlan:
    """A plan on this rank: as the engine loads it, and the engine.

    writes_input: whether any rank writes to its input where that isn't its output, too.
    writes_memory: whether this rank writes to its input or output.
    """

    ready: ReadyPlan
    loaded: Loaded
    engine: native.Engine
    writes_input: bool
    writes_memory: bool

    @property
    def current(self) -> LoadedPlan:
        """The plan that runs."""
        return self

    @property
    def origin(self) -> str:
        """Where the plan comes from: "default" (the library), "policy" or "user"."""
        if self.ready.range is not None:
            return "policy"
        return "user" if self.ready.origin in ("registered", "given") else "default"

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
        if number != POLICY and number != self.watch.current:
            return "trial"
        return "default" if number == DEFAULT else "policy"

    def seconds(self) -> float:
        """The time of all calls so far."""
        return sum(plan.seconds() for plan in self.plans)


def load_plan(
    ready: ReadyPlan, fabric: native.Fabric, rank: int, hosts: Hosts, settings: Settings
) -> LoadedPlan:
    """The rank's part of a plan, on connections of the communicator. Errors: R507, R510; D904 for a
    policy's plan whose messages don't fit its slots."""
    plan = ready.plan
    loaded = load(plan, None, SLOT_BYTES, _pullable(plan))
    wiring = loaded.wiring
    index = (wiring.dst * stride(settings) + wiring.channel).astype(np.int32)
    tile = _tile_bytes(ready, loaded, hosts, settings)
    loaded = replace(loaded, wiring=replace(wiring, index=index, slot_bytes=tile))
    program = loaded.programs[rank]
    return LoadedPlan(
        ready,
        loaded,
        program.engine(fabric, loaded.wiring),
        writes_input=bool(plan.input_writes.size),
        writes_memory=bool(
            (WRITES_DESTINATION[program.op] & (program.dst_buffer != Buffer.SCRATCH)).any()
        ),
    )


def watch_plans(
    plans: Sequence[LoadedPlan],
    sums: LoadedPlan,
    watch: Watch,
    record: Callable[[ReadyPlan], int],
) -> WatchedPlan:
    """Watches plans of equal calls: the policy's, the default, alternatives. sums: an AllReduce in
    place. record: that of a plan's calls."""
    choice = native.Choice.create(
        [(plan.engine, record(plan.ready)) for plan in plans],
        sums.engine,
        record_of(AGREEMENT, DATA_TYPES["float64"], ReduceOp.SUM, 0, sums.ready.digest),
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
    if ready.range is None:
        return tile
    message = loaded.max_count * _LARGEST_ELEMENT_BYTES
    if message > tile:
        raise D904.error(
            at=Place(detail=ready.plan.name),
            expected=f"messages of at most {tile} bytes for one element of each chunk",
            found=f"{message} bytes",
        )
    share = int(tile * ready.tile) // _LEAST_TILE_BYTES * _LEAST_TILE_BYTES
    return min(tile, max(message, share, _LEAST_TILE_BYTES))


def _pullable(plan: Plan) -> Pullable | None:
    if plan.protocol is not Protocol.DIRECT:
        return None
    found = pulls(plan)
    return Pullable(found.pulled, found.holds)
