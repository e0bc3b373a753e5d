"""Lift: from a Plan back to a Program that means the same.

Plans of other tools (MSCCL XML) and of sley become transfers again, which can be compiled with
another schedule or for another protocol, or be written as Python. In order: `events` (accesses and
their order), `times` (when each transfer happens), `rows` (the transfers).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.compiler.passes.lift.events import check_plan, trace_events
from sley.compiler.passes.lift.rows import write_rows
from sley.compiler.passes.lift.times import find_times
from sley.errors import without_inner_frames
from sley.ir.faults import own_operands
from sley.ir.groups import without_groups
from sley.ir.plan import Plan, check_kind
from sley.ir.program import Program
from sley.ir.words import Op

__all__ = ["lift"]


@without_inner_frames
def lift(plan: Plan) -> Program:
    """The program that means what `plan` means; the plan must be verified before.

    Fused instructions are split, and each message becomes one transfer from its source to its
    destination. A message may stay in its connection for a while, but a transfer happens at one
    time. So each transfer gets a time that has the right order to all other accesses of its source
    and destination. If there is none (two ranks that swap a chunk, each sending before it
    receives), the message lands in scratch of its own, and a local transfer moves it from there.
    Unused chunks at the end of scratch are left out. Messages that a switch combines or copies
    become transfers of their own.

    The program keeps the topology, and what is read, written and combined, and in which order, but
    not channels, thread blocks and schedule. About linear in the chunks moved, up to a sort; each
    landing costs a walk along the cycle that it breaks.

    Errors: C307; C320 for a plan whose tables contradict one another or that cannot run to its
    end. Races and wrong results are left to the verifier: they make the program wrong as well.
    """
    check_kind(plan)
    check_plan(plan)
    plan = without_groups(plan)
    plan = _without_idle_copies(plan)
    events = trace_events(plan)
    return write_rows(plan, events, find_times(plan, events))


def _without_idle_copies(plan: Plan) -> Plan:
    """The plan with nops instead of copies of chunks onto themselves."""
    rows = own_operands(plan, Op.COPY)
    if not len(rows):
        return plan
    op, count = plan.instructions.op.copy(), plan.instructions.count.copy()
    op[rows], count[rows] = np.int8(Op.NOP), 0
    return replace(plan, instructions=replace(plan.instructions, op=op, count=count))
