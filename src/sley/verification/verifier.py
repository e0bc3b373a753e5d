"""The verifier: all checks of a plan; each relies on those before it. The first ones are of the
plan's tables and its connections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from sley.errors import Diagnostic, Place, SleyError, counted, without_inner_frames
from sley.errors.compiler import C314
from sley.errors.language import L118, L119
from sley.errors.runtime import R514
from sley.errors.verifier import V201, V202, V208, V210, V221
from sley.ir.collective import Collective
from sley.ir.collectives import MAX_COUNT, STANDARD, standard
from sley.ir.conditions import INPUT_KEPT, Choice, Condition, contradiction, place_condition
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import LIMIT, diagnostics, faults, overlap_faults, own_operands
from sley.ir.one_sided import OneSidedPlan
from sley.ir.plan import Plan, check_kind
from sley.ir.tables import NONE
from sley.ir.words import GROUP_PROTOCOLS, REDUCES, Op, Protocol, is_integer
from sley.verification.hangs import run_abstractly
from sley.verification.one_sided import check_one_sided
from sley.verification.order import SumOrder
from sley.verification.races import check_races
from sley.verification.result import check_result


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


_FIRST = {about: k for k, about in enumerate(("place", "root", "counts", "sizes", "chunks"))}
"""The subjects of conditions that come first, in their order."""


@dataclass(frozen=True, repr=False)
class Proof:
    """The proven properties of a plan.

    slots: with this number of slots a connection, or more, it never hangs; None for a one-sided
        plan, which has no connections.
    per_chunk: whether every chunk of a message took a slot, or every message one slot.
    steps: length of the longest chain of instructions that wait for one another, for one tile; of a
        one-sided plan, the longest chain of joins, barriers and waits of a call.
    conditions: the circumstances under which the properties hold.
    remarks: findings that do no harm but may be mistakes (V210).
    """

    plan: Plan | OneSidedPlan
    slots: int | None
    per_chunk: bool
    steps: int
    conditions: tuple[Condition, ...]
    remarks: tuple[Diagnostic, ...] = ()

    def __repr__(self) -> str:
        return f"Proof({str(self).removeprefix('proven: ')})"

    def __str__(self) -> str:
        c = self.plan.collective
        slots = "" if self.slots is None else f" with {counted(self.slots, 'slot')} or more"
        return (
            f"proven: {self.plan.name} is a correct {c.name} on {counted(c.ranks, 'rank')}; "
            f"no race; no hang{slots}"
            + (", one for each chunk of a message" if self.per_chunk else "")
        )

    @cached_property
    def order(self) -> SumOrder:
        """The order in which the plan adds up."""
        return SumOrder.of(self.plan)

    @property
    def holds(self) -> str:
        """The conditions for people, a line each: places, roots, counts and sizes first."""
        by_subject = sorted(self.conditions, key=lambda one: _FIRST.get(one.about, len(_FIRST)))
        return "\n  ".join(["the proof holds for:", *map(str, by_subject)])

    def under(self, conditions: Iterable[Condition]) -> Proof:
        """The proof, which holds only under these conditions as well. Errors: V221 if no call meets
        all of its conditions."""
        proof = replace(self, conditions=(*self.conditions, *conditions))
        collective = self.plan.collective
        if found := contradiction(proof.conditions, collective):
            raise V221.error(
                at=self.plan.sources.whole,
                expected=f"a call of {collective} that meets all conditions of the proof",
                found="none: " + ", and ".join(f'"{one}"' for one in found),
            )
        return proof


@without_inner_frames
def verify(
    plan: Plan | OneSidedPlan,
    slots: int | None = None,
    *,
    per_chunk: bool | None = None,
    one_slot_bytes: int | None = None,
    flagged: bool = False,
) -> Proof:
    """Proves a plan correct, or raises SleyError with all findings (V2xx).

    slots, per_chunk: the slots of a connection, and whether every chunk of a message takes one; by
        default the plan's own. A one-sided plan has neither.
    one_slot_bytes: the largest call in which the runtime takes one slot for every message, if in
        larger ones it takes one for every chunk: a hang names it if smaller calls have none.
    flagged: whether a message of LL or LL128 shows its receiver its own words alone, as in runtimes
        that add no waits (docs/machine.md, "Order, races and hangs").

    Checks, each relying on those before: rows and connections (L118, L119, V201, V208, C314,
    V202), hangs with `slots` slots (V203), races (V204), the result (V205, V206, V219); of
    one-sided plans those of `check_one_sided`.

    If the counts of the collective vary, the proof holds for all of them.
    """
    if isinstance(plan, OneSidedPlan):
        return _verify_one_sided(plan, slots)
    check_kind(plan)
    slots = plan.slots if slots is None else slots
    per_chunk = plan.per_chunk if per_chunk is None else per_chunk
    if not is_integer(slots) or slots < 1:
        raise R514.error(at=Place(detail=plan.name), expected="1 slot or more", found=repr(slots))
    found = check_rows(plan)
    if not found:
        messages, found = match_messages(plan)
    if not found:
        # Later checks take a level as a linear extension, which there is only without a cycle.
        run = run_abstractly(
            plan, messages, slots, per_chunk=per_chunk, one_slot_bytes=one_slot_bytes
        )
        found = run.diagnostics
    if not found:
        flagged = flagged and plan.protocol in (Protocol.LL, Protocol.LL128)
        found = check_races(plan, messages, run.level, flagged=flagged)
    if not found:
        result = check_result(plan, messages, run.level)
        found = result.diagnostics
    if found:
        raise SleyError(found)
    steps = int(run.level.max(initial=-1)) + 1
    unit = "chunk" if per_chunk else "message"
    conditions = (
        *_place(plan.collective),
        *_counts(plan.collective),
        Condition("slots", f"{counted(slots, 'slot')} or more, one for each {unit}"),
        *_input(plan.collective, bool(plan.input_writes.size)),
    )
    return Proof(plan, slots, per_chunk, steps, conditions, _remarks(plan, result.empty_reads))


def _verify_one_sided(plan: OneSidedPlan, slots: int | None) -> Proof:
    """`verify` of a one-sided plan."""
    if slots is not None:
        at, expected = Place(detail=plan.name), "no slots: a one-sided plan has no connections"
        raise R514.error(at=at, expected=expected, found=str(slots))
    found, steps = check_one_sided_name(plan), 0
    if not found:
        found, steps = check_one_sided(plan)
    if found:
        raise SleyError(found)
    c = plan.collective
    conditions = (*_place(c), *_input(c, plan.writes_input))
    return Proof(plan, None, False, steps, conditions)


def _place(c: Collective) -> list[Condition]:
    """The placement and the root for which a plan is proven."""
    place = [place_condition(c.in_place)]
    root = Condition("root", f"root {c.root}", Choice.one_of("root", c.root))
    return place if c.root == NONE else [*place, root]


def _counts(c: Collective) -> list[Condition]:
    """The counts for which a plan is proven, if they vary."""
    if not c.varies:
        return []
    most = "" if c.max_count == MAX_COUNT else f", up to {counted(c.max_count, 'element')}"
    return [Condition("counts", f"parts of any counts{most}")]


def _input(c: Collective, overwritten: bool) -> list[Condition]:
    """What becomes of the caller's input; nothing is said of an input in place that is kept."""
    if overwritten:
        return [Condition("input", "the input may be overwritten")]
    return [] if c.in_place else [INPUT_KEPT]


def _remarks(plan: Plan, empty_reads: list[tuple[int, int]]) -> tuple[Diagnostic, ...]:
    """V210 for copies of chunks onto themselves, and for reads of cells without data that reach no
    promised chunk."""
    found = [
        (row, "copies its chunks onto themselves")
        for row in own_operands(plan, Op.COPY)[:LIMIT].tolist()
    ]
    found += [
        (row, f"reads {plan.layout.name(cell)}, which holds nothing; the value is unused")
        for row, cell in empty_reads
    ]
    expected = "an instruction that the result needs"
    return tuple(
        V210.diagnostic(at=plan.place(row), expected=expected, found=text) for row, text in found
    )
