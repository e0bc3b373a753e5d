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
from sley.ir.happens_before import HappensBefore, hazards
from sley.ir.plan import Plan

_NOTHING = "nothing orders them: no wait, no message, not the same block"
_COUNTS_VARY = "only messages order them, and the counts vary: short chunks have none"
_OWN_WORDS = "only messages order them, and with LL and LL128 a message shows its own words alone"
_BY_PIECES = (
    "only messages order them, which engines may pass on in pieces: the first ones can come back "
    "before the last ones are sent"
)


def check_races(
    plan: Plan, messages: Messages, level: np.ndarray, *, flagged: bool = False
) -> list[Diagnostic]:
    """V204 for conflicting instructions that the happens-before order leaves unordered; if the
    counts vary, or messages are flagged, for those that blocks and waits leave unordered.

    level: of an abstract run (`hangs`), a linear extension of that order. flagged: whether a
        message shows its own words alone.
    """
    order, layout, varies = (
        HappensBefore(plan, messages, level),
        plan.layout,
        plan.collective.varies,
    )
    first, second, cell, aligned = hazards(plan, level, unordered=True)
    # Of the cells of a pair one that isn't aligned decides: it needs the stronger order.
    sort = np.lexsort((cell, aligned, second, first))
    _, one = np.unique(np.stack([first, second])[:, sort], axis=1, return_index=True)
    found = []
    # One after another: nearly all pairs were left out, and a plan with races needs only a few.
    for k in sort[one].tolist():
        a, b = int(first[k]), int(second[k])
        if order.reaches(a, b, whole=not aligned[k], within_rank=varies or flagged):
            continue
        by_message = _COUNTS_VARY if varies else _OWN_WORDS if flagged else _BY_PIECES
        found.append(
            V204.diagnostic(
                at=[plan.place(b), plan.place(a).labelled("the other access")],
                expected=f"an order between two accesses to {layout.name(int(cell[k]))}",
                found=by_message if order.reaches(a, b) else _NOTHING,
            )
        )
        if len(found) == LIMIT:
            break
    return found
