"""DeviceState: a plan on a device. Its tables, which are the same on all devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sley.engine import native
from sley.engine.devices import tables
from sley.engine.devices.device import Device
from sley.engine.devices.mailboxes import Mailboxes, kind_of_slots
from sley.engine.devices.settings import Settings
from sley.engine.devices.tables import symbol
from sley.engine.devices.windows import Lanes
from sley.engine.kernels import Kernels
from sley.engine.program import Loaded
from sley.ir.words import LoopOrder, Protocol


def plan_tables(
    kernels: Kernels,
    loaded: Loaded,
    settings: Settings,
    boxes: Mailboxes,
    lanes: Lanes,
    slots_bytes: dict[Protocol, int],
) -> native.PlanTables:
    """A plan's tables, and the numbers that its calls need. slots_bytes: as for `Mailboxes.of`."""
    plan, blocks = kernels.plan, tables.blocks(kernels)
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
    }
    data = {name: table.tobytes() for name, table in rows.items()}
    return native.PlanTables(data, numbers)


@dataclass(frozen=True)
class DeviceState:
    """A plan on a device of this process. streams: of the launches, by default."""

    device: Device
    plan: native.DevicePlan
    streams: list[Any]
