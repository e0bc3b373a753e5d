"""The verifier: all checks on a plan, in the order in which one relies on another."""

from __future__ import annotations

from dataclasses import dataclass

from sley.errors import Place, SleyError, counted
from sley.errors.compiler import C307
from sley.errors.verifier import V207
from sley.ir.plan import Plan
from sley.verify.hangs import run_abstractly
from sley.verify.messages import match_messages
from sley.verify.races import check_races
from sley.verify.result import check_result
from sley.verify.structure import check_rows


@dataclass(frozen=True)
class Proof:
    """What a verified plan was shown to do.

    slots: with so many slots a connection, or more, it never hangs.
    per_chunk: whether every chunk of a message took a slot, or the message one.
    steps: length of the longest chain of instructions that wait for one another, for one tile.
    """

    plan: Plan
    slots: int
    per_chunk: bool
    steps: int

    def __str__(self) -> str:
        c = self.plan.collective
        return (
            f"proven: {self.plan.name} is a correct {c.name} on {counted(c.ranks, 'rank')}; "
            f"no race; no hang with {counted(self.slots, 'slot')} or more"
            + (", one for each chunk of a message" if self.per_chunk else "")
        )


def verify(plan: Plan, slots: int | None = None, *, per_chunk: bool | None = None) -> Proof:
    """Proves a plan right, or raises SleyError with everything that it found (V2xx).

    per_chunk: whether every chunk of a message takes a slot; by default what the plan says.

    In this order, each relying on those before: rows and connections (V209, V201, V202), hangs with
    `slots` slots, by default the plan's own (V203), races (V204), the result (V205, V206).
    """
    if not isinstance(plan, Plan):
        raise C307.error(expected="a Plan", found=type(plan).__name__)
    if slots is None:
        slots = plan.slots
    if per_chunk is None:
        per_chunk = plan.per_chunk
    if slots < 1:
        raise V207.error(at=Place(detail=plan.name), expected="1 slot or more", found=str(slots))
    found = check_rows(plan)
    if not found:
        messages, found = match_messages(plan)
    if not found:
        run = run_abstractly(plan, messages, slots, per_chunk=per_chunk)
        found = run.diagnostics
    if not found:
        found = check_races(plan, messages.receive_of, run.level)
    if not found:
        found = check_result(plan, messages.receive_of, run.level)
    if found:
        raise SleyError(found)
    return Proof(plan, slots, per_chunk, int(run.level.max(initial=-1)) + 1)
