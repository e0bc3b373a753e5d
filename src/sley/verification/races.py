"""Races: conflicting accesses to a chunk that nothing orders.

If the counts of a collective vary, messages order nothing: a message is left out where its chunks
are short.
"""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V204
from sley.ir.connections import Messages
from sley.ir.faults import LIMIT
from sley.ir.happens_before import HappensBefore, conflicts
from sley.ir.plan import Plan


def check_races(plan: Plan, messages: Messages, level: np.ndarray) -> list[Diagnostic]:
    """V204 for conflicting instructions that the happens-before order leaves unordered; if the
    counts vary, for those that blocks and waits leave unordered.

    level: of an abstract run (`hangs`), a linear extension of that order.
    """
    first, second, cell = conflicts(plan, level)
    order = HappensBefore(plan, messages, level)
    unordered = ~order.direct(first, second)
    first, second, cell = first[unordered], second[unordered], cell[unordered]
    pairs, example = np.unique(first * len(plan.instructions) + second, return_index=True)
    layout, found, varies = plan.layout, [], plan.collective.varies
    reaches = order.reaches_within_rank if varies else order.reaches
    for pair, k in zip(pairs.tolist(), example.tolist(), strict=True):
        a, b = divmod(pair, len(plan.instructions))
        if reaches(a, b):
            continue
        only_messages = varies and order.reaches(a, b)
        found.append(
            V204.diagnostic(
                at=[plan.place(b), plan.place(a).labelled("the other access")],
                expected=f"an order between two accesses to {layout.name(int(cell[k]))}",
                found="only messages order them, and the counts vary: short chunks have none"
                if only_messages
                else "nothing orders them: no wait, no message, not the same block",
            )
        )
        if len(found) == LIMIT:
            break
    return found
