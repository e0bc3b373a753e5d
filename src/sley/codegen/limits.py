"""Limits: requirements of kernels that a correct plan may violate."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic, SleyError
from sley.errors.devices import K520, K521
from sley.ir.plan import Plan
from sley.ir.tables import LongArray
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION

_STEPS = 1 << 20
_WAITS = 1 << 11
_CHUNKS = 1 << 30


def check_limits(plan: Plan) -> None:
    """K520 for local operations with overlapping operands, K521 for numbers beyond the bits of the
    kernels' records."""
    found = [_overlap(plan, int(row)) for row in _overlapping(plan)]
    found += _too_many(plan)
    if found:
        raise SleyError(found)


def check_conditions(offset: LongArray) -> None:
    """K521 for an instruction with too many conditions. offset: the conditions' CSR offsets."""
    most = int(np.diff(offset).max(initial=0))
    if most >= _WAITS:
        raise SleyError([_too_large(most, _WAITS, "waits of an instruction")])


def _overlapping(plan: Plan) -> np.ndarray:
    """Rows whose source and destination overlap in some chunks, but not in all."""
    t, layout = plan.instructions, plan.layout
    both = np.flatnonzero(READS_SOURCE[t.op] & WRITES_DESTINATION[t.op])
    source, destination = (
        layout.cell(plan.rank[both], buffer[both], index[both])
        for buffer, index in ((t.src_buffer, t.src_index), (t.dst_buffer, t.dst_index))
    )
    apart = np.abs(source - destination)
    rows: np.ndarray = both[(apart > 0) & (apart < t.count[both])]
    return rows


def _overlap(plan: Plan, row: int) -> Diagnostic:
    t = plan.instructions
    return K520.diagnostic(
        at=plan.place(row),
        expected="a source and a destination that are apart, or the same",
        found=f"{t.count[row]} chunks from {t.src_index[row]} to {t.dst_index[row]}",
    )


def _too_many(plan: Plan) -> list[Diagnostic]:
    t = plan.instructions
    sizes = [
        (np.diff(plan.block_offset).max(initial=0), _STEPS, "steps in a thread block"),
        (max(t.src_index.max(initial=0), t.dst_index.max(initial=0)), _CHUNKS, "chunks"),
    ]
    return [_too_large(number, limit, what) for number, limit, what in sizes if number >= limit]


def _too_large(number: int, limit: int, what: str) -> Diagnostic:
    return K521.diagnostic(expected=f"fewer than {limit} {what}", found=f"{number} {what}")
