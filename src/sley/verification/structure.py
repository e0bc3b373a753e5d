"""Structure: the consistency of a plan's tables and of its connections."""

from __future__ import annotations

import numpy as np

from sley.errors import Diagnostic, Place, SleyError
from sley.errors.compiler import C314
from sley.errors.language import L118, L119
from sley.errors.verifier import V201, V202, V208
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD, standard
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import LIMIT, diagnostics, faults, overlap_faults
from sley.ir.one_sided import OneSidedPlan
from sley.ir.plan import Plan
from sley.ir.words import GROUP_PROTOCOLS, REDUCES, Op


def check_name(collective: Collective, at: list[Place]) -> list[Diagnostic]:
    """L118 for a collective that differs from the standard one of its name, L119 for varying counts
    of a collective without a standard name."""
    if standard(collective) is not None:
        return []
    if collective.name not in STANDARD:
        return _refuse_varying(collective, at) if collective.varies else []
    build = STANDARD[collective.name].title
    expected = f"the buffers and results of sley.{build}"
    return [L118.diagnostic(at=at, expected=expected, found=f"{collective} with others")]


def check_rows(plan: Plan) -> list[Diagnostic]:
    """L118 and L119 for the collective, V201 for tables that contradict one another, V208 for
    operands that overlap, C314 for groups that no switch serves, L119 for reductions of chunks
    with varying counts too."""
    if found := check_name(plan.collective, plan.places([])):
        return found
    found = diagnostics(V201, plan, faults(plan))
    found = found or diagnostics(V208, plan, overlap_faults(plan)) or _check_groups(plan)
    return found or (_check_reductions(plan) if plan.collective.varies else [])


def _check_groups(plan: Plan) -> list[Diagnostic]:
    """C314 for groups where no switch serves them."""
    if plan.protocol in GROUP_PROTOCOLS and not plan.collective.varies:
        return []
    varies = "varying counts" if plan.collective.varies else f"protocol {plan.protocol.value}"
    return [
        C314.diagnostic(
            at=plan.place(row),
            expected="one rank at the other end of a message",
            found=f"a group, with {varies}",
        )
        for row in plan.grouped[:LIMIT].tolist()
    ]


def check_one_sided_name(plan: OneSidedPlan) -> list[Diagnostic]:
    """`check_name` for a one-sided plan, whose counts can't vary: L119."""
    at = plan.places([])
    return check_name(plan.collective, at) or (
        _refuse_varying(plan.collective, at) if plan.collective.varies else []
    )


def _refuse_varying(collective: Collective, at: list[Place]) -> list[Diagnostic]:
    expected = "counts that vary only in AllToAllV and AllGatherV, with messages"
    return [L119.diagnostic(at=at, expected=expected, found=str(collective))]


def _check_reductions(plan: Plan) -> list[Diagnostic]:
    """L119 for every reduction."""
    op = plan.instructions.op
    return [
        L119.diagnostic(
            at=plan.place(row),
            expected="copies and messages only: the counts of the chunks vary",
            found=f"{Op(op[row]).name.lower()}",
        )
        for row in np.flatnonzero(REDUCES[op])[:LIMIT].tolist()
    ]


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
