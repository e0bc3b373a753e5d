"""Races: conflicting accesses to a chunk that nothing orders."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V204
from sley.ir.faults import LIMIT
from sley.ir.happens_before import HappensBefore, conflicts
from sley.ir.plan import Plan


def check_races(plan: Plan, match: np.ndarray, level: np.ndarray) -> list[Diagnostic]:
    """V204 for conflicting instructions that the happens-before order leaves unordered.

    level: of an abstract run (`hangs`), a linear extension of that order.
    """
    first, second, cell = conflicts(plan, level)
    order = HappensBefore(plan, match, level)
    unordered = ~order.direct(first, second)
    first, second, cell = first[unordered], second[unordered], cell[unordered]
    pairs, example = np.unique(first * len(plan.instructions) + second, return_index=True)
    layout, found = plan.layout, []
    for pair, k in zip(pairs.tolist(), example.tolist(), strict=True):
        a, b = divmod(pair, len(plan.instructions))
        if order.reaches(a, b):
            continue
        found.append(
            V204.diagnostic(
                at=[plan.place(b), plan.place(a)],
                expected=f"an order between two accesses to {layout.name(int(cell[k]))}",
                found="nothing orders them: no wait, no message, not the same block",
            )
        )
        if len(found) == LIMIT:
            break
    return found
