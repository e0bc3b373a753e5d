"""LinkLayout: what is derived from a communicator's plans, the same in every process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sley.engine.devices.device_ranks import DeviceRanks
from sley.engine.devices.device_state import plan_tables
from sley.engine.devices.mailboxes import Mailboxes, kind_of_slots
from sley.engine.devices.settings import Settings
from sley.engine.devices.windows import Lanes, single_messages
from sley.engine.kernels import Kernels
from sley.engine.memory import BEYOND
from sley.engine.native import LARGEST
from sley.engine.program import Loaded, load
from sley.errors.devices import K507
from sley.errors.runtime import R514
from sley.ir.plan import Plan
from sley.ir.tables import IntArray
from sley.ir.words import Protocol


class LinkLayout:
    """Plans as kernels run them over links that they share, and where in the links' memory their
    connections, slots and lanes are.

    plans, single_messages (see there), kernels, loaded, tables: of each plan. slots_bytes: of all
    slots of a connection, for each kind. lanes: of each plan, in windows of all of them. boxes: the
    ranks' mailboxes. All processes make it together.
    """

    def __init__(self, plans: Sequence[Plan], settings: Settings, ranks: DeviceRanks) -> None:
        self.plans = list(plans)
        with ranks.telling():
            self.single_messages = [
                single_messages(plan, ranks.devices, is_one_process=ranks.is_one_process)
                for plan in plans
            ]
            self.kernels = [
                Kernels.of(plan, switches=not why)
                for plan, why in zip(plans, self.single_messages, strict=True)
            ]
        receivers = _receivers(self.kernels)
        most = {
            kind: ranks.most_on_a_device(np.bincount(dst, minlength=ranks.count).tolist())
            for kind, dst in receivers.items()
        }
        with ranks.telling():
            self.loaded = [_load(k, settings, most[kind_of_slots(k.plan)]) for k in self.kernels]
            self.slots_bytes = {
                kind: _room([own for own in self.loaded if kind_of_slots(own.plan) is kind], dst)
                for kind, dst in receivers.items()
            }
        operands = [k.operands for k in self.kernels]
        self.lanes = Lanes.of(operands, self.slots_bytes.get(Protocol.SIMPLE, 0))
        self.boxes = Mailboxes.of(operands, self.lanes, self.slots_bytes)
        self.tables = [
            plan_tables(k, own, settings, self.boxes, lanes, self.slots_bytes)
            for k, own, lanes in zip(self.kernels, self.loaded, self.lanes, strict=True)
        ]

    def number_of(self, plan: Plan) -> int:
        """The number of a plan among those of the links; R514 if it is none of them."""
        if not isinstance(plan, Plan) or plan not in self.plans:
            raise R514.error(
                expected="one of the plans from which the links were made",
                found=plan.name if isinstance(plan, Plan) else f"{type(plan).__name__}",
            )
        return self.plans.index(plan)


def _load(kernels: Kernels, settings: Settings, received: int) -> Loaded:
    loaded = load(kernels.plan, *settings.slots_of(kernels.plan, received))
    return replace(loaded, homes=kernels.operands.homes)


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
