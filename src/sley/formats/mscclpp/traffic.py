"""Traffic: a plan, the order of its instructions, and the ways of its messages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.formats.mscclpp.switching import Switching
from sley.ir import happens_before
from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, Edges, IntArray, LongArray


@dataclass(frozen=True)
class Conflicts:
    """The conflicting accesses of a plan, and the order of its instructions.

    level: int32 (instructions,), a linear extension of the order.
    first, second: pairs of instructions with conflicting, adjacent accesses.
    order: which instruction happens before which.
    """

    level: IntArray
    first: LongArray
    second: LongArray
    order: happens_before.HappensBefore

    @classmethod
    def of(cls, plan: Plan, messages: Messages) -> Conflicts:
        before, after = messages.happens_before(plan)
        level = levels(Edges.from_pairs(len(plan.instructions), before, after))
        first, second, _ = happens_before.conflicts(plan, level)
        pairs = np.unique(np.stack([first, second], axis=1), axis=0)
        order = happens_before.HappensBefore(plan, messages, level)
        return cls(level, pairs[:, 0], pairs[:, 1], order)


@dataclass(frozen=True)
class Traffic:
    """A plan, and the ways of its messages.

    ports: bool (instructions,), the sends through ports.
    """

    plan: Plan
    messages: Messages
    conflicts: Conflicts
    switching: Switching
    ports: BoolArray

    @classmethod
    def of(cls, plan: Plan, messages: Messages, switching: Switching, nodes: IntArray) -> Traffic:
        """nodes: int32 (ranks,), the host of each rank. Messages between hosts go through
        ports."""
        rank, ports = plan.rank, np.zeros(len(plan.instructions), bool)
        ports[messages.send] = nodes[rank[messages.send]] != nodes[rank[messages.receive]]
        return cls(plan, messages, Conflicts.of(plan, messages), switching, ports)
