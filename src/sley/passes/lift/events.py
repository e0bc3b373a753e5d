"""Events: what a plan does to memory, and in which order; the first half of lifting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.errors import Diagnostic, SleyError
from sley.errors.compiler import C320
from sley.ir.faults import LIMIT, faults, overlapping_operands, own_operands
from sley.ir.graph import find_cycle, levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, BoolArray, Edges, LongArray, neighbouring_writes, spans
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op


@dataclass(frozen=True, eq=False)
class Events:
    """The events of a plan: instruction i receives, or works locally, as event 2 i, and sends as
    event 2 i + 1.

    send, receive: int64 (messages,), the instructions that put and take each message.
    in_place: bool (instructions,), for `recv_reduce_send` whether its operand may be overwritten
        by the result; false for others.
    position: int64 (events,), a place in one order in which the plan can run.
    order: Edges, event -> events that must come after it for the sake of memory and of the values
        that a fused instruction passes on. Not from sends to receives.
    """

    send: LongArray
    receive: LongArray
    in_place: BoolArray
    position: LongArray
    order: Edges


def trace_events(plan: Plan) -> Events:
    """The events of a checked plan. Errors: C320."""
    send, receive = _match(plan)
    position = _positions(plan, send, receive)
    accesses = _Accesses.of(plan, position)
    in_place = _reduced_in_place(plan, accesses)
    before, after = accesses.with_results(plan, in_place, position).conflicts()
    fused = np.flatnonzero(SENDS[plan.instructions.op] & RECEIVES[plan.instructions.op])
    order = Edges.from_pairs(
        len(position),
        np.concatenate([before, 2 * fused]),
        np.concatenate([after, 2 * fused + 1]),
    )
    return Events(send, receive, in_place, position, order)


def check_plan(plan: Plan) -> None:
    """Refuses tables that contradict one another, and operands that overlap: in a program they are
    apart. Errors: C320."""
    found = [
        C320.diagnostic(
            at=plan.sources.whole if fault.row == NONE else plan.place(fault.row),
            expected=fault.expected,
            found=fault.found,
        )
        for fault in faults(plan)
    ]
    if found:
        raise SleyError(found)
    doubled = own_operands(plan, Op.REDUCE)
    for row in [*overlapping_operands(plan), *doubled][:LIMIT]:
        found.append(
            C320.diagnostic(
                at=plan.place(int(row)),
                expected="a source and a destination that share no chunk",
                found="operands that overlap",
            )
        )
    if found:
        raise SleyError(found)


def _match(plan: Plan) -> tuple[LongArray, LongArray]:
    """The instructions that put and take each message: on a connection the k-th receive takes
    what the k-th send puts there. Errors: C320."""
    send_key, receive_key = plan.connection_keys()
    by_send = np.argsort(send_key, kind="stable")
    by_receive = np.argsort(receive_key, kind="stable")
    send, receive = plan.sends[by_send].astype(np.int64), plan.receives[by_receive].astype(np.int64)
    for key, rows, word in (
        (send_key[by_send], send, "sends"),
        (receive_key[by_receive], receive, "receives"),
    ):
        several = (key[1:] == key[:-1]) & (plan.block[rows[1:]] != plan.block[rows[:-1]])
        if several.any():
            row = int(rows[1:][several][0])
            raise _refused(plan, row, f"one block that {word} on a connection", "two")
    sent, taken = send_key[by_send], receive_key[by_receive]
    if not np.array_equal(sent, taken):
        keys, both = np.unique(np.concatenate([sent, taken])), []
        for key in (sent, taken):
            both.append(np.searchsorted(key, keys, "right") - np.searchsorted(key, keys, "left"))
        k = int(np.argmax(both[0] != both[1]))
        rows, key = (send, sent) if both[0][k] else (receive, taken)
        row = int(rows[np.argmax(key == keys[k])])
        found = f"{both[0][k]} sends, {both[1][k]} receives"
        raise _refused(plan, row, "as many receives as sends on a connection", found)
    counts = plan.instructions.count
    uneven = np.flatnonzero(counts[send] != counts[receive])
    if len(uneven):
        k = int(uneven[0])
        found = f"{counts[send[k]]} chunks sent, {counts[receive[k]]} received"
        raise _refused(plan, int(receive[k]), "the same count at both ends of a message", found)
    return send, receive


def _refused(plan: Plan, row: int, expected: str, found: str) -> SleyError:
    return C320.error(at=plan.place(row), expected=expected, found=found)


def _positions(plan: Plan, send: LongArray, receive: LongArray) -> LongArray:
    """int64 (events,): places in an order that blocks, waits and messages allow. Errors: C320."""
    rows = len(plan.instructions)
    starts = np.zeros(rows, bool)
    starts[plan.block_offset[:-1][np.diff(plan.block_offset) > 0]] = True
    follows = np.flatnonzero(~starts)
    graph = Edges.from_pairs(
        rows,
        np.concatenate([follows - 1, plan.waits.target, send]),
        np.concatenate([follows, plan.waits.source, receive]),
    )
    level = levels(graph)
    if (level == NONE).any():
        circle = find_cycle(graph.reversed(), level == NONE)
        found: list[Diagnostic] = [
            C320.diagnostic(
                at=[plan.place(row) for row in circle[:LIMIT]],
                expected="a plan that runs to its end",
                found=f"{len(circle)} instructions that wait for one another",
            )
        ]
        raise SleyError(found)
    place = np.empty(rows, np.int64)
    place[np.argsort(level, kind="stable")] = np.arange(rows)
    return (2 * place[:, None] + np.arange(2)).ravel()


@dataclass(frozen=True, eq=False)
class _Accesses:
    """One row an access to one cell; sorted by cell, at a cell by position, reads first."""

    cell: LongArray
    event: LongArray
    write: BoolArray

    @classmethod
    def of(cls, plan: Plan, position: LongArray) -> _Accesses:
        """The accesses of all instructions; the results of `recv_reduce_send`, which are stored
        nowhere, are left out."""
        t = plan.instructions
        passes_on = np.isin(t.op, [Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY_SEND])
        source, target = (t.src_buffer, t.src_index), (t.dst_buffer, t.dst_index)
        return cls._sorted(
            position,
            [
                _ranges(plan, READS_SOURCE[t.op] & (t.op != Op.SEND), source, 0, write=False),
                _ranges(plan, t.op == Op.SEND, source, 1, write=False),
                _ranges(plan, t.op == Op.REDUCE, target, 0, write=False),
                _ranges(plan, WRITES_DESTINATION[t.op], target, 0, write=True),
                _ranges(plan, passes_on, target, 1, write=False),
            ],
        )

    def with_results(self, plan: Plan, in_place: BoolArray, position: LongArray) -> _Accesses:
        """These, and the accesses to the results of `recv_reduce_send` that take the place of an
        operand."""
        t = plan.instructions
        source = (t.src_buffer, t.src_index)
        return self._sorted(
            position,
            [
                self,
                _ranges(plan, in_place, source, 0, write=True),
                _ranges(plan, in_place, source, 1, write=False),
            ],
        )

    @classmethod
    def _sorted(cls, position: LongArray, parts: list[_Accesses]) -> _Accesses:
        cell, event, write = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("cell", "event", "write")
        )
        order = np.lexsort((write, position[event], cell))
        return cls(cell[order], event[order], write[order])

    def conflicts(self) -> tuple[LongArray, LongArray]:
        """Pairs of events, the first of which must come before the second; all others follow."""
        last, following = neighbouring_writes(self.cell, self.write)
        late, early = (
            np.flatnonzero(last != NONE),
            np.flatnonzero((following != NONE) & ~self.write),
        )
        before = np.concatenate([self.event[last[late]], self.event[early]])
        after = np.concatenate([self.event[late], self.event[following[early]]])
        different = before != after
        return before[different], after[different]


def _ranges(
    plan: Plan,
    chosen: BoolArray,
    operand: tuple[np.ndarray, np.ndarray],
    part: int,
    *,
    write: bool,
) -> _Accesses:
    """The accesses of the `chosen` instructions to one operand, in their first or second event."""
    rows = np.flatnonzero(chosen)
    buffer, index = operand
    start = plan.layout.cell(plan.rank[rows], buffer[rows], index[rows])
    owner, cell = spans(start, plan.instructions.count[rows])
    return _Accesses(cell, 2 * rows[owner] + part, np.full(len(cell), write))


def _reduced_in_place(plan: Plan, accesses: _Accesses) -> BoolArray:
    """See `Events.in_place`: nobody reads any chunk of the operand afterwards, before it is
    overwritten, and no chunk of it is promised to be there at the end."""
    lost = plan.instructions.op == Op.RECV_REDUCE_SEND
    promised = plan.collective.promised_cells(plan.layout)
    last = np.ones(len(accesses.cell), bool)
    last[:-1] = accesses.cell[1:] != accesses.cell[:-1]
    overwritten = np.append(accesses.write[1:], False)[: len(last)] & ~last
    free = overwritten | (last & ~promised[accesses.cell])
    lost[accesses.event[~free] // 2] = False
    return np.asarray(lost)
