"""LeastTime: a lower bound of a plan's simulated time, without simulating it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.model.simulation.inputs import LoopInputs


@dataclass(frozen=True)
class LeastTime:
    """A lower bound of the simulated time of a plan, from the load of its blocks and links.

    The simulator moves no byte faster than the block's own rate, and no link carries more than its
    capacity; so a plan takes at least the time of its busiest block and of its busiest link without
    any waiting. This is linear in the size, and exact enough to save most simulations of large
    sizes.

    launch_us: the time before any byte moves. us_per_byte: the time for each byte of the size.
    """

    launch_us: float
    us_per_byte: float

    def __call__(self, size_bytes: float) -> float:
        """Microseconds for a size."""
        return self.launch_us + self.us_per_byte * size_bytes

    @classmethod
    def of(cls, plan: Plan, inputs: LoopInputs, efficiency: float) -> LeastTime:
        """Of a plan. efficiency: the share of data in the bytes that cross a link."""
        c, collective = inputs, plan.collective
        chunks = c.messages.astype(float) * c.chunks  # that an instruction moves
        kinds = len(c.class_cap)
        moving = c.kind != NONE
        moved = np.bincount(c.kind[moving], chunks[moving], minlength=kinds)
        if len(c.wire):
            wire = c.wire[c.send_target]
            sent = np.repeat(chunks, np.diff(c.send_offset))
            second = wire != NONE
            moved += np.bincount(wire[second], sent[second], minlength=kinds)
        each = np.repeat(moved, np.diff(c.class_first)) * c.class_weight
        load = np.bincount(c.class_resource, each, minlength=len(c.capacity))
        work = np.bincount(plan.block, np.where(moving, chunks / c.class_cap[c.kind], 0.0))
        busiest = max(float(work.max(initial=0.0)), float((load / c.capacity).max(initial=0.0)))
        return cls(c.launch_us, busiest / (collective.blocks * collective.chunks * efficiency))
