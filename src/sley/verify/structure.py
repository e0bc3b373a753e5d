"""Structure: whether a plan's rows make sense by themselves."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic
from sley.errors.verifier import V201, V208
from sley.ir.faults import LIMIT, faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import READS_SOURCE, RECEIVES, WRITES_DESTINATION


def check_rows(plan: Plan) -> list[Diagnostic]:
    """V201 for tables that contradict one another, V208 for operands that overlap."""
    found = [
        V201.diagnostic(
            at=plan.sources.whole if fault.row == NONE else plan.place(fault.row),
            expected=fault.expected,
            found=fault.found,
        )
        for fault in faults(plan)
    ]
    return found or _check_overlaps(plan)


def _check_overlaps(plan: Plan) -> list[Diagnostic]:
    """V208 for instructions whose source and destination overlap. A receive that reduces in place
    reads and writes one range, element by element; a local operation has no use for that."""
    t, layout = plan.instructions, plan.layout
    both = np.flatnonzero(READS_SOURCE[t.op] & WRITES_DESTINATION[t.op])
    source = layout.cell(plan.rank[both], t.src_buffer[both], t.src_index[both])
    target = layout.cell(plan.rank[both], t.dst_buffer[both], t.dst_index[both])
    same = (source == target) & RECEIVES[t.op[both]]
    overlap = (np.abs(source - target) < t.count[both]) & ~same
    return [
        V208.diagnostic(
            at=plan.place(row),
            expected="a source and a destination that share no chunk",
            found=f"{layout.name(int(a))} and {layout.name(int(b))}, {t.count[row]} chunks each",
        )
        for row, a, b in zip(
            both[overlap][:LIMIT].tolist(), source[overlap], target[overlap], strict=False
        )
    ]
