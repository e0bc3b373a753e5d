"""Lift: from a Plan back to a Program that means the same.

What other tools made (MSCCL XML) and what sley compiled becomes transfers again, which can be
compiled anew: with another schedule, for another protocol, or written down as Python.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors.compiler import C307
from sley.ir.faults import own_operands
from sley.ir.plan import Plan
from sley.ir.program import Program
from sley.ir.words import Op
from sley.passes.lift.events import check_plan, trace_events
from sley.passes.lift.rows import write_rows
from sley.passes.lift.times import find_times

__all__ = ["lift"]


def lift(plan: Plan) -> Program:
    """The program that means what `plan` means; the plan must be verified before.

    Fused instructions are taken apart, and every message becomes one transfer, from where it is
    read to where it is put. A plan's message may lie in its connection for a while; a transfer
    happens at one time. So each gets a time at which it stands right to every other access to its
    two places. Where there is none (two ranks that swap a chunk, each sending before it receives),
    the message lands in scratch of its own, and a local transfer takes it from there. Chunks of
    scratch that nothing uses are left out.

    Channels, thread blocks and schedule are the plan's own business and don't come along. What is
    read, written and combined, and in which order, does. About linear in the chunks moved, up to a
    sort; each landing costs a walk along the cycle that it breaks.

    Errors: C307; C320 for a plan whose tables contradict one another or that cannot run to its
    end. Races and wrong results are the verifier's to find: what becomes of such a plan is as
    wrong as the plan is.
    """
    if not isinstance(plan, Plan):
        raise C307.error(expected="a Plan", found=type(plan).__name__)
    check_plan(plan)
    plan = _without_idle_copies(plan)
    events = trace_events(plan)
    return write_rows(plan, events, find_times(plan, events))


def _without_idle_copies(plan: Plan) -> Plan:
    """The plan with nops in place of copies of chunks onto themselves."""
    rows = own_operands(plan, Op.COPY)
    if not len(rows):
        return plan
    op, count = plan.instructions.op.copy(), plan.instructions.count.copy()
    op[rows], count[rows] = np.int8(Op.NOP), 0
    return replace(plan, instructions=replace(plan.instructions, op=op, count=count))
