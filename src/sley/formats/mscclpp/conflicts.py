"""Conflicts: a plan's conflicting accesses to memory, and what orders them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir import happens_before
from sley.ir.connections import Messages
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import IntArray, LongArray


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
        level = levels(len(plan.instructions), before, after)
        first, second, *_ = happens_before.hazards(plan, level)
        pairs = np.unique(np.stack([first, second], axis=1), axis=0)
        order = happens_before.HappensBefore(plan, messages, level)
        return cls(level, pairs[:, 0], pairs[:, 1], order)
