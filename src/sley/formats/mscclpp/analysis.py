"""Analysis: what a plan's messages, switches and conflicting accesses are, before their data have
places."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.formats.mscclpp.conflicts import Conflicts
from sley.formats.mscclpp.switching import Switching
from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, IntArray


@dataclass(frozen=True)
class Analysis:
    """A plan with everything that its placing and its blocks are derived from.

    ports: bool (instructions,), the sends through ports.
    """

    plan: Plan
    messages: Messages
    switching: Switching
    conflicts: Conflicts
    ports: BoolArray

    @classmethod
    def of(cls, plan: Plan, messages: Messages, switching: Switching, nodes: IntArray) -> Analysis:
        """nodes: int32 (ranks,), the host of each rank. Messages between hosts go through
        ports."""
        rank, ports = plan.rank, np.zeros(len(plan.instructions), bool)
        ports[messages.send] = nodes[rank[messages.send]] != nodes[rank[messages.receive]]
        return cls(plan, messages, switching, Conflicts.of(plan, messages), ports)
