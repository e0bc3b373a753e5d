"""LinkLayout: what is derived from a communicator's plans, the same in every process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from sley.engine import native
from sley.engine.devices import tables
from sley.engine.devices.device_ranks import DeviceRanks
from sley.engine.devices.mailboxes import Mailboxes, kind_of_slots
from sley.engine.devices.settings import Settings
from sley.engine.devices.tables import symbol
from sley.engine.devices.windows import Lanes, single_messages
from sley.engine.kernels import Kernels
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.engine.program import Loaded, load
from sley.errors.aside import fork_safe
from sley.errors.devices import K507
from sley.errors.runtime import R514
from sley.ir.plan import Plan
from sley.ir.tables import IntArray
from sley.ir.words import LoopOrder, Protocol

_LAYOUTS, _KEPT_INSTRUCTIONS = 8, 1 << 17
"""How many layouts a process keeps, of the sets of plans that it used last, and the most
instructions of each, which take 0.4 KB each: those of a communicator of 8 ranks have 30,000."""


@dataclass(eq=False)
class LinkLayout:
    """Plans as kernels run them over links that they share, and where in the links' memory their
    connections, slots and lanes are.

    plans, single_messages (see there), kernels, loaded, tables: of each plan. slots_bytes: of all
    slots of a connection, for each kind. lanes: of each plan, in windows of all of them. boxes: the
    ranks' mailboxes.
    """

    plans: tuple[Plan, ...]
    single_messages: tuple[str, ...]
    kernels: tuple[Kernels, ...]
    loaded: tuple[Loaded, ...]
    slots_bytes: Mapping[Protocol, int]
    lanes: tuple[Lanes, ...]
    boxes: Mailboxes
    tables: tuple[native.PlanTables, ...]

    def number_of(self, plan: Plan) -> int:
        """The number of a plan among those of the links; R514 if it is none of them."""
        if not isinstance(plan, Plan) or plan not in self.plans:
            raise R514.error(
                expected="one of the plans from which the links were made",
                found=plan.name if isinstance(plan, Plan) else f"{type(plan).__name__}",
            )
        return self.plans.index(plan)


_LOCK = fork_safe(threading.Lock())
"""So that of the ranks that are threads one lays out the links, and not each."""


def laid_out(
    plans: Sequence[Plan],
    settings: Settings,
    ranks: DeviceRanks,
    largest_bytes: Sequence[int | None],
) -> LinkLayout:
    """The layout of links; all processes call this together. Errors: K507, K514, K521, R514."""
    with ranks.telling():
        single = tuple(
            single_messages(plan, ranks.devices, is_one_process=ranks.is_one_process)
            for plan in plans
        )
    places = ranks.places_of_all()
    instructions = sum(len(plan.instructions) for plan in plans)
    make = layout_of if instructions <= _KEPT_INSTRUCTIONS else layout_of.__wrapped__
    with ranks.telling(), _LOCK:
        return make(tuple(plans), single, settings, places, tuple(largest_bytes))


@lru_cache(maxsize=_LAYOUTS)
def layout_of(
    plans: tuple[Plan, ...],
    single: tuple[str, ...],
    settings: Settings,
    places: tuple[int, ...],
    largest_bytes: tuple[int | None, ...],
) -> LinkLayout:
    """The layout of plans, of which those with groups send `single` messages (see there). places:
    the number of each rank's device. Errors: K507, K521, R514."""
    kernels = tuple(
        Kernels.of(plan, switches=not why) for plan, why in zip(plans, single, strict=True)
    )
    receivers = _receivers(kernels)
    most = {
        kind: int(np.bincount(np.array(places)[dst]).max(initial=0))
        for kind, dst in receivers.items()
    }
    loaded = tuple(
        _load(
            k,
            *settings.slots_of(
                k.plan,
                most[kind_of_slots(k.plan)],
                largest,
                is_pulled=bool(k.operands.stays[k.plan.sends].all()),
            ),
        )
        for k, largest in zip(kernels, largest_bytes, strict=True)
    )
    slots_bytes = {
        kind: _room([own for own in loaded if kind_of_slots(own.plan) is kind], dst)
        for kind, dst in receivers.items()
    }
    operands = [k.operands for k in kernels]
    lanes = tuple(Lanes.of(operands, slots_bytes.get(Protocol.SIMPLE, 0)))
    boxes = Mailboxes.of(operands, lanes, slots_bytes)
    made = tuple(
        plan_tables(k, own, settings, boxes, in_lanes, slots_bytes, len(set(places)) == 1)
        for k, own, in_lanes in zip(kernels, loaded, lanes, strict=True)
    )
    return LinkLayout(plans, single, kernels, loaded, slots_bytes, lanes, boxes, made)


def _load(kernels: Kernels, slots: int, slot_bytes: int) -> Loaded:
    return replace(load(kernels.plan, slots, slot_bytes), homes=kernels.operands.homes)


def _receivers(kernels: Sequence[Kernels]) -> dict[Protocol, IntArray]:
    """The receiver of each connection with slots of a kind, by kind."""
    found = {}
    for kind in Protocol:
        own = [k.operands.connections for k in kernels if kind_of_slots(k.plan) is kind]
        if own:
            _, first = np.unique(np.concatenate([c.keys for c in own]), return_index=True)
            found[kind] = np.concatenate([c.dst for c in own])[first]
    return found


def _room(loaded: Sequence[Loaded], receivers: IntArray) -> int:
    """The bytes of all slots of a connection, for any of the plans of a kind. K507 if those of all
    connections exceed the memory of any device."""
    room = max(own.wiring.slots * own.wiring.slot_bytes for own in loaded)
    if len(receivers) * room > LARGEST:
        raise K507.error(expected=f"{len(receivers) * room:,} bytes of slots", found=BEYOND)
    return room


def plan_tables(
    kernels: Kernels,
    loaded: Loaded,
    settings: Settings,
    boxes: Mailboxes,
    lanes: Lanes,
    slots_bytes: dict[Protocol, int],
    is_one_device: bool,
) -> native.PlanTables:
    """A plan's tables, and the numbers that its calls need. slots_bytes: as for `Mailboxes.of`.
    is_one_device: whether all ranks share one."""
    plan, blocks = kernels.plan, tables.blocks(kernels)
    threads = settings.threads_of(plan.protocol, is_one_device=is_one_device)
    rank = blocks["rank"].astype(np.int64)
    blocks["cells"], blocks["first_cell"] = boxes.cells[rank], symbol(rank, 0)
    blocks["progress"] = symbol(rank, boxes.progress[rank])
    rows = {
        "blocks": blocks,
        "peers": boxes.peers(kernels.operands, lanes),
        "instructions": tables.instructions(kernels),
        "conditions": tables.conditions(kernels),
        "divisions": tables.divisions(kernels),
        "homes": kernels.operands.homes.scratch,
        "scratch_chunks": plan.scratch_chunks.astype(np.int32),
    }
    numbers = {
        "protocol": list(Protocol).index(plan.protocol),
        "tile_major": plan.loop_order is LoopOrder.TILE,
        "misplaced": loaded.homes.misplaced,
        "chunks": plan.collective.chunks,
        "max_count": loaded.max_count,
        "steps": int(blocks["steps"].max(initial=1)),
        "slots": loaded.wiring.slots,
        "slices": settings.slices_of(plan),
        "slot_bytes": loaded.wiring.slot_bytes,
        "slots_bytes": slots_bytes[kind_of_slots(plan)],
        "data_chunks": int(plan.collective.data_chunks.max()),
        **dict(zip(("small_bytes", "medium_bytes", "most_threads"), threads, strict=True)),
    }
    data = {name: table.tobytes() for name, table in rows.items()}
    return native.PlanTables(data, numbers)
