"""Structure: the consistency of a plan's tables."""

from __future__ import annotations

from sley.errors import Diagnostic
from sley.errors.verifier import V201, V208, V209
from sley.ir.collectives import STANDARD, standard
from sley.ir.faults import LIMIT, faults, overlapping_operands
from sley.ir.plan import Plan
from sley.ir.tables import NONE


def check_rows(plan: Plan) -> list[Diagnostic]:
    """V209 for a collective that differs from the standard one of its name, V201 for tables that
    contradict one another, V208 for operands that overlap."""
    c = plan.collective
    if c.name in STANDARD and standard(c) is None:
        return [
            V209.diagnostic(
                at=plan.sources.whole,
                expected=f"what sley.{STANDARD[c.name].build.__name__} promises",
                found=f"{c} with other buffers or other promises",
            )
        ]
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
    """V208 for instructions whose source and destination overlap."""
    t, layout, found = plan.instructions, plan.layout, []
    for row in overlapping_operands(plan)[:LIMIT].tolist():
        rank = int(plan.rank[row])
        source = layout.cell(rank, int(t.src_buffer[row]), int(t.src_index[row]))
        target = layout.cell(rank, int(t.dst_buffer[row]), int(t.dst_index[row]))
        found.append(
            V208.diagnostic(
                at=plan.place(row),
                expected="a source and a destination that share no chunk",
                found=f"{layout.name(int(source))} and {layout.name(int(target))}, "
                f"{t.count[row]} chunks each",
            )
        )
    return found
