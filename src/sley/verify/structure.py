"""Structure: the consistency of a plan's tables and of its connections."""

from __future__ import annotations

from sley.errors import Diagnostic, SleyError
from sley.errors.verifier import V201, V202, V208, V209
from sley.ir.collectives import STANDARD, standard
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import diagnostics, faults, overlap_faults
from sley.ir.plan import Plan


def check_rows(plan: Plan) -> list[Diagnostic]:
    """V209 for a collective that differs from the standard one of its name, V201 for tables that
    contradict one another, V208 for operands that overlap."""
    c = plan.collective
    if c.name in STANDARD and standard(c) is None:
        return [
            V209.diagnostic(
                at=plan.places([]),
                expected=f"the buffers and results of sley.{STANDARD[c.name].build.__name__}",
                found=f"{c} with others",
            )
        ]
    found = diagnostics(V201, plan, faults(plan))
    return found or diagnostics(V208, plan, overlap_faults(plan))


def match_messages(plan: Plan) -> tuple[Messages, list[Diagnostic]]:
    """The messages of a plan, and V202 findings; with findings, the messages are meaningless."""
    messages = Messages.of(plan)
    return messages, diagnostics(V202, plan, connection_faults(plan, messages))


def messages_of(plan: Plan) -> Messages:
    """The messages of a plan; SleyError (V202) if the ends of a connection don't agree."""
    messages, found = match_messages(plan)
    if found:
        raise SleyError(found)
    return messages
