"""Structure: the consistency of a plan's tables and of its connections."""

from __future__ import annotations

from sley.errors import Diagnostic, Place, SleyError
from sley.errors.verifier import V201, V202, V208, V209
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD, standard
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import diagnostics, faults, overlap_faults
from sley.ir.plan import Plan


def check_name(collective: Collective, at: list[Place]) -> list[Diagnostic]:
    """V209 for a collective that differs from the standard one of its name."""
    if collective.name not in STANDARD or standard(collective) is not None:
        return []
    build = STANDARD[collective.name].build.__name__
    expected = f"the buffers and results of sley.{build}"
    return [V209.diagnostic(at=at, expected=expected, found=f"{collective} with others")]


def check_rows(plan: Plan) -> list[Diagnostic]:
    """V209 for a collective that differs from the standard one of its name, V201 for tables that
    contradict one another, V208 for operands that overlap."""
    if found := check_name(plan.collective, plan.places([])):
        return found
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
