"""Limits: requirements of kernels that a correct plan may violate."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic, SleyError
from sley.errors.devices import K520, K521
from sley.ir.faults import diagnostics, overlap_faults
from sley.ir.plan import Plan
from sley.ir.tables import LongArray

_STEPS = 1 << 20
_WAITS = 1 << 11
_CHUNKS = 1 << 30


def check_limits(plan: Plan) -> None:
    """K520 for local operations with overlapping operands, K521 for numbers beyond the bits of the
    kernels' records."""
    found = diagnostics(K520, plan, overlap_faults(plan)) + _too_many(plan)
    if found:
        raise SleyError(found)


def check_conditions(offset: LongArray) -> None:
    """K521 for an instruction with too many conditions. offset: the conditions' CSR offsets."""
    most = int(np.diff(offset).max(initial=0))
    if most >= _WAITS:
        raise SleyError([_too_large(most, _WAITS, "waits of an instruction")])


def _too_many(plan: Plan) -> list[Diagnostic]:
    t = plan.instructions
    sizes = [
        (np.diff(plan.block_offset).max(initial=0), _STEPS, "steps in a thread block"),
        (max(t.src_index.max(initial=0), t.dst_index.max(initial=0)), _CHUNKS, "chunks"),
    ]
    return [_too_large(number, limit, what) for number, limit, what in sizes if number >= limit]


def _too_large(number: int, limit: int, what: str) -> Diagnostic:
    return K521.diagnostic(expected=f"fewer than {limit} {what}", found=f"{number} {what}")
