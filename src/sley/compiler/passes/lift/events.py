"""Events: the memory accesses of a plan and their order; the first part of lifting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sley.errors import SleyError
from sley.errors.compiler import C320
from sley.ir.connections import Messages, connection_faults
from sley.ir.faults import LIMIT, Fault, diagnostics, faults, overlap_faults, own_operands
from sley.ir.graph import find_cycle, levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, LongArray, inverse, neighbouring_writes, spans
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, SENDS_SOURCE, WRITES_DESTINATION, Op


@dataclass(frozen=True, eq=False)
class PlanEvents:
    """The events of a plan: instruction i receives, or copies or reduces locally, in event 2 i, and
    sends in event 2 i + 1.

    send, receive: int64 (messages,), the sending and receiving instruction of each message.
    in_place: bool (instructions,), whether it is a `recv_reduce_send` whose operand the result may
        overwrite.
    position: int64 (events,), the place in one order in which the plan can run.
    order: Edges, event -> events that must come after it, by accesses to memory and by the values
        that a fused instruction sends on; not from sends to receives.
    """

    send: LongArray
    receive: LongArray
    in_place: BoolArray
    position: LongArray
    order: Edges


def trace_events(plan: Plan) -> PlanEvents:
    """The events of a checked plan. Errors: C320."""
    messages = Messages.of(plan)
    _refuse(plan, connection_faults(plan, messages))
    position = _positions(plan, messages)
    accesses = _EventAccesses.of(plan, position)
    in_place = _reduced_in_place(plan, accesses)
    before, after = accesses.with_results(plan, in_place, position).conflicts()
    op = plan.instructions.op
    fused = np.flatnonzero(SENDS[op] & RECEIVES[op])
    order = Edges.from_pairs(
        len(position), np.concatenate([before, 2 * fused]), np.concatenate([after, 2 * fused + 1])
    )
    return PlanEvents(messages.send, messages.receive, in_place, position, order)


def check_plan(plan: Plan) -> None:
    """Refuses tables that contradict one another, and overlapping operands, which a program can't
    have. Errors: C320."""
    _refuse(plan, faults(plan))
    doubled = [
        Fault((row,), "a source and a destination that share no chunk", "one range for both")
        for row in own_operands(plan, Op.REDUCE)[:LIMIT].tolist()
    ]
    _refuse(plan, overlap_faults(plan) + doubled)


def _refuse(plan: Plan, found: list[Fault]) -> None:
    if found:
        raise SleyError(diagnostics(C320, plan, found))


def _positions(plan: Plan, messages: Messages) -> LongArray:
    """int64 (events,): see `PlanEvents.position`. Errors: C320."""
    rows = len(plan.instructions)
    before, after = messages.happens_before(plan)
    level = levels(rows, before, after)
    if (level == NONE).any():
        cycle = find_cycle(Edges.from_pairs(rows, after, before), level == NONE)
        raise C320.error(
            at=plan.places(cycle[:LIMIT]),
            expected="a plan that runs to its end",
            found=f"{len(cycle)} instructions that wait for one another",
        )
    place = inverse(np.argsort(level, kind="stable"))
    return (2 * place[:, None] + np.arange(2)).ravel()


@dataclass(frozen=True, eq=False)
class _EventAccesses:
    """One row an access to one cell; sorted by cell, at a cell by position, reads first."""

    cell: LongArray
    event: LongArray
    write: BoolArray

    @classmethod
    def of(cls, plan: Plan, position: LongArray) -> _EventAccesses:
        """The accesses of all instructions, without the results of `recv_reduce_send`, which are
        not stored."""
        t = plan.instructions
        passes_on = SENDS[t.op] & WRITES_DESTINATION[t.op] & ~SENDS_SOURCE[t.op]
        source, target = plan.source_cells, plan.destination_cells
        return cls._sorted(
            position,
            [
                _ranges(plan, READS_SOURCE[t.op] & (t.op != Op.SEND), source, 0, write=False),
                _ranges(plan, SENDS_SOURCE[t.op], source, 1, write=False),
                _ranges(plan, t.op == Op.REDUCE, target, 0, write=False),
                _ranges(plan, WRITES_DESTINATION[t.op], target, 0, write=True),
                _ranges(plan, passes_on, target, 1, write=False),
            ],
        )

    def with_results(self, plan: Plan, in_place: BoolArray, position: LongArray) -> _EventAccesses:
        """These, and accesses to the results of `recv_reduce_send` that overwrite an operand."""
        return self._sorted(
            position,
            [
                self,
                _ranges(plan, in_place, plan.source_cells, 0, write=True),
                _ranges(plan, in_place, plan.source_cells, 1, write=False),
            ],
        )

    @classmethod
    def _sorted(cls, position: LongArray, parts: list[_EventAccesses]) -> _EventAccesses:
        cell, event, write = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("cell", "event", "write")
        )
        order = np.lexsort((write, position[event], cell))
        return cls(cell[order], event[order], write[order])

    def conflicts(self) -> tuple[LongArray, LongArray]:
        """Pairs of events, the first of which must come before the second; they imply all other
        such pairs."""
        last, following = neighbouring_writes(self.cell, self.write)
        late = np.flatnonzero(last != NONE)
        early = np.flatnonzero((following != NONE) & ~self.write)
        before = np.concatenate([self.event[last[late]], self.event[early]])
        after = np.concatenate([self.event[late], self.event[following[early]]])
        different = before != after
        return before[different], after[different]


def _ranges(
    plan: Plan,
    chosen: BoolArray,
    cells_of: Callable[[LongArray], LongArray],
    part: int,
    *,
    write: bool,
) -> _EventAccesses:
    """The accesses of the `chosen` instructions to one operand, in their event 0 or 1 (`part`).
    cells_of: its first cells, of instructions."""
    rows = np.flatnonzero(chosen)
    owner, cell = spans(cells_of(rows), plan.instructions.count[rows])
    return _EventAccesses(cell, 2 * rows[owner] + part, np.full(len(cell), write))


def _reduced_in_place(plan: Plan, accesses: _EventAccesses) -> BoolArray:
    """See `PlanEvents.in_place`: no chunk of the operand is read later, before it is
    overwritten, or is part of the result."""
    lost = plan.instructions.op == Op.RECV_REDUCE_SEND
    promised = plan.collective.promised_cells(plan.layout)
    last = np.ones(len(accesses.cell), bool)
    last[:-1] = accesses.cell[1:] != accesses.cell[:-1]
    overwritten = np.append(accesses.write[1:], False)[: len(last)] & ~last
    free = overwritten | (last & ~promised[accesses.cell])
    lost[accesses.event[~free] // 2] = False
    return np.asarray(lost)
