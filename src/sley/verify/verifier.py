"""The verifier: all checks of a plan; each relies on those before it."""

from __future__ import annotations

from dataclasses import dataclass

from sley.errors import Diagnostic, Place, SleyError, counted
from sley.errors.compiler import C307
from sley.errors.verifier import V207, V210
from sley.ir.conditions import Condition
from sley.ir.faults import LIMIT, own_operands
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import Op
from sley.verify.hangs import run_abstractly
from sley.verify.races import check_races
from sley.verify.result import check_result
from sley.verify.structure import check_rows, match_messages


@dataclass(frozen=True)
class Proof:
    """The proven properties of a plan.

    slots: with this number of slots a connection, or more, it never hangs.
    per_chunk: whether every chunk of a message took a slot, or every message one slot.
    steps: length of the longest chain of instructions that wait for one another, for one tile.
    conditions: the circumstances under which the properties hold.
    remarks: findings that do no harm but may be mistakes (V210).
    """

    plan: Plan
    slots: int
    per_chunk: bool
    steps: int
    conditions: tuple[Condition, ...]
    remarks: tuple[Diagnostic, ...] = ()

    def __str__(self) -> str:
        c = self.plan.collective
        return (
            f"proven: {self.plan.name} is a correct {c.name} on {counted(c.ranks, 'rank')}; "
            f"no race; no hang with {counted(self.slots, 'slot')} or more"
            + (", one for each chunk of a message" if self.per_chunk else "")
        )


def verify(plan: Plan, slots: int | None = None, *, per_chunk: bool | None = None) -> Proof:
    """Proves a plan correct, or raises SleyError with all findings (V2xx).

    per_chunk: whether every chunk of a message takes a slot; by default the plan's `per_chunk`.

    Checks, each relying on those before: rows and connections (V209, V201, V202), hangs with
    `slots` slots, by default the plan's own (V203), races (V204), the result (V205, V206).
    """
    if not isinstance(plan, Plan):
        raise C307.error(expected="a Plan", found=type(plan).__name__)
    slots = plan.slots if slots is None else slots
    per_chunk = plan.per_chunk if per_chunk is None else per_chunk
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
        result = check_result(plan, messages.receive_of, run.level)
        found = result.diagnostics
    if found:
        raise SleyError(found)
    steps = int(run.level.max(initial=-1)) + 1
    conditions = _conditions(plan, slots, per_chunk=per_chunk)
    return Proof(plan, slots, per_chunk, steps, conditions, _remarks(plan, result.empty_reads))


def _conditions(plan: Plan, slots: int, *, per_chunk: bool) -> tuple[Condition, ...]:
    """The circumstances under which a plan runs as proven."""
    c = plan.collective
    found = [Condition("place", "in place" if c.in_place else "out of place")]
    if c.root != NONE:
        found.append(Condition("root", f"root {c.root}"))
    unit = "chunk" if per_chunk else "message"
    found.append(Condition("slots", f"{counted(slots, 'slot')} or more, one for each {unit}"))
    if plan.input_writes.size:
        found.append(Condition("input", "the input may be overwritten"))
    elif not c.in_place:
        found.append(Condition("input", "the input is kept"))
    return tuple(found)


def _remarks(plan: Plan, empty_reads: list[tuple[int, int]]) -> tuple[Diagnostic, ...]:
    """V210 for copies of chunks onto themselves, and for reads of cells without data that reach no
    promised chunk."""
    found = [
        (row, "copies its chunks onto themselves")
        for row in own_operands(plan, Op.COPY)[:LIMIT].tolist()
    ]
    found += [
        (
            row,
            f"reads {plan.layout.name(cell)}, which holds nothing; the value is unused",
        )
        for row, cell in empty_reads
    ]
    expected = "an instruction that the result needs"
    return tuple(
        V210.diagnostic(at=plan.place(row), expected=expected, found=text) for row, text in found
    )
