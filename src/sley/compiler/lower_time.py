"""LeastTime: what a plan takes at least, from what its blocks and links have to carry.

The simulator moves no byte faster than the block's own rate, and no link carries more than its
capacity; so a plan takes no less than its busiest block and its busiest link need when nothing
ever waits. That is a line over the size, and exact enough to leave most simulations of large
sizes out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.simulate.inputs import Inputs


@dataclass(frozen=True)
class LeastTime:
    """A time that a simulation of a plan never falls below.

    launch_us: before anything moves. us_per_byte: for each byte of the size.
    """

    launch_us: float
    us_per_byte: float

    def __call__(self, size_bytes: int) -> float:
        """Microseconds for a size."""
        return self.launch_us + self.us_per_byte * size_bytes

    @classmethod
    def of(cls, plan: Plan, topology: Topology, *, interpreter: bool) -> LeastTime:
        """Errors: C301, C305."""
        model = topology.model
        c = Inputs.of(plan, topology, interpreter=interpreter)
        chunks = c.messages.astype(float) * c.chunks  # that an instruction moves
        kinds = len(c.class_cap)
        moved = np.bincount(c.kind, chunks, minlength=kinds)
        wire = np.where(c.send == NONE, NONE, c.wire[c.send]) if len(c.wire) else None
        if wire is not None:
            second = wire != NONE
            moved += np.bincount(wire[second], chunks[second], minlength=kinds)
        each = np.repeat(moved, np.diff(c.class_first)) * c.class_weight
        load = np.bincount(c.class_resource, each, minlength=len(c.capacity))
        work = np.bincount(plan.block, chunks / c.class_cap[c.kind])
        us_per_chunk_byte = max(
            float(work.max(initial=0.0)), float((load / c.capacity).max(initial=0.0))
        )
        collective = plan.collective
        data = collective.blocks * collective.chunks * model.wire_efficiency[plan.protocol]
        return cls(model.launch_us[plan.protocol], us_per_chunk_byte / data)
