"""Races: conflicting accesses to a chunk that nothing orders.

The unit of order is the element, so that a proof holds for engines that move messages in pieces. If
the counts of a collective vary, messages order nothing: a message is left out where its chunks are
short.
"""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V204
from sley.ir.connections import Messages
from sley.ir.faults import LIMIT
from sley.ir.happens_before import HappensBefore, conflicts
from sley.ir.plan import Plan
from sley.ir.tables import NONE

_BY_PIECES = (
    "only messages order them, which engines may pass on in pieces: the first ones can come back "
    "before the last ones are sent"
)


def check_races(plan: Plan, messages: Messages, level: np.ndarray) -> list[Diagnostic]:
    """V204 for conflicting instructions that the happens-before order leaves unordered; if the
    counts vary, for those that blocks and waits leave unordered.

    level: of an abstract run (`hangs`), a linear extension of that order.
    """
    first, second, cell, aligned = conflicts(plan, level)
    order = HappensBefore(plan, messages, level)
    unordered = ~order.direct(first, second)
    first, second, cell, aligned = (c[unordered] for c in (first, second, cell, aligned))
    key = (first * len(plan.instructions) + second) * 2 + aligned
    layout, found, varies, refused = plan.layout, [], plan.collective.varies, NONE
    for number, k in zip(*(c.tolist() for c in np.unique(key, return_index=True)), strict=True):
        a, b = divmod(number // 2, len(plan.instructions))
        is_ordered = (
            order.reaches_within_rank(a, b)
            if varies
            else order.reaches(a, b, aligned=bool(aligned[k]))
        )
        if is_ordered or refused == number // 2:
            continue
        refused = number // 2
        text = "nothing orders them: no wait, no message, not the same block"
        if varies and order.reaches(a, b):
            text = "only messages order them, and the counts vary: short chunks have none"
        elif order.reaches(a, b):
            text = _BY_PIECES
        found.append(
            V204.diagnostic(
                at=[plan.place(b), plan.place(a).labelled("the other access")],
                expected=f"an order between two accesses to {layout.name(int(cell[k]))}",
                found=text,
            )
        )
        if len(found) == LIMIT:
            break
    return found
