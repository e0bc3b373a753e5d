"""Averages: where AVG divides (docs/machine.md, "Reductions").

A reduction whose result no other reduction takes makes final values: it divides them itself, before
anything stores or sends them. So the sums are in no memory, and need no pass of their own. Only
output chunks whose value is an operand of another reduction, too, are divided at the end of the
call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import (
    NONE,
    BoolArray,
    IntArray,
    LongArray,
    neighbouring_writes,
    ordered_by,
    spans,
)
from sley.ir.words import READS_SOURCE, RECEIVES, REDUCES, WRITES_DESTINATION, Op
from sley.verification.hangs import run_abstractly


@dataclass(frozen=True)
class Averages:
    """The divisors of AVG; 1 where nothing is divided.

    by_instruction: int32 (instructions,), of the results of each instruction.
    at_end: int32 (output chunks of all ranks,), of each output chunk at the end of a call.
    """

    by_instruction: IntArray
    at_end: IntArray

    @classmethod
    def of(cls, plan: Plan, messages: Messages) -> Averages:
        """The divisors of a plan without groups. One that hangs has no final values."""
        t, divisors = plan.instructions, plan.collective.divisors
        all_at_end = cls(np.ones(len(t), np.int32), divisors)
        if not plan.reduces or (divisors == 1).all():
            return all_at_end
        run = run_abstractly(plan, messages, plan.slots, per_chunk=plan.per_chunk)
        if run.diagnostics:
            return all_at_end
        row, is_operand, held = _results(plan, messages, run.level)
        # Of each result that an output chunk holds in the end: what divides it there.
        promised = np.flatnonzero((divisors > 1) & (held != NONE))
        final = np.ones(len(row), np.int32)
        final[held[promised]] = divisors[promised]
        final[is_operand] = 1
        least, most = np.full(len(t), np.iinfo(np.int32).max), np.zeros(len(t), np.int32)
        np.minimum.at(least, row, final)
        np.maximum.at(most, row, final)
        by_instruction = np.where(least == most, most, 1).astype(np.int32)
        is_done = np.zeros(len(divisors), bool)
        is_done[promised] = by_instruction[row[held[promised]]] > 1
        return cls(by_instruction, np.where(is_done, 1, divisors).astype(np.int32))


def _results(
    plan: Plan, messages: Messages, level: IntArray
) -> tuple[LongArray, BoolArray, LongArray]:
    """The results of a plan's instructions, one for each of their chunks: the instruction of each;
    whether a reduction takes it as an operand; and for each output chunk of all ranks the result of
    a reduction that it holds in the end, NONE for one that holds none."""
    t = plan.instructions
    count = t.count.astype(np.int64)
    row, chunk = spans(np.zeros(len(t), np.int64), count)
    first = np.cumsum(count) - count
    op, rows = t.op[row], np.arange(len(row))
    source, target, last = _writers(plan, level, row, chunk)
    sent = messages.send_of[row]
    arrived = np.where(sent == NONE, NONE, first[sent] + chunk)
    combines = REDUCES[op]
    # Everything else hands on its message or its source. Row NONE stands for no result.
    taken = np.where(RECEIVES[op], arrived, source)
    origin = np.append(np.where(combines, rows, taken), NONE)
    while ((following := origin[origin]) != origin).any():
        origin = following
    is_operand = np.zeros(len(row) + 1, bool)
    for operand in (arrived, source, np.where(op == Op.REDUCE, target, NONE)):
        is_operand[origin[operand[combines]]] = True
    return row, is_operand[:-1], origin[last]


def _writers(
    plan: Plan, level: IntArray, row: LongArray, chunk: LongArray
) -> tuple[LongArray, LongArray, LongArray]:
    """The results last written, before a result's instruction, to its source and to its
    destination; and the ones last written to each output chunk. NONE where nothing was written.

    level: int32 (instructions,), of an abstract run. row, chunk: int64 (results,), the instruction
    of each, and its number among that's chunks.
    """
    op = plan.instructions.op
    reads = np.flatnonzero(READS_SOURCE[op[row]])
    writes = np.flatnonzero(WRITES_DESTINATION[op[row]])
    outputs = plan.collective.output_cells(plan.layout)
    result = np.concatenate([reads, writes, np.full(len(outputs), NONE)])
    cell = np.concatenate(
        [
            plan.source_cells(row[reads]) + chunk[reads],
            plan.destination_cells(row[writes]) + chunk[writes],
            outputs,
        ]
    )
    is_write = np.zeros(len(result), bool)
    is_write[len(reads) : len(reads) + len(writes)] = True
    at = np.append(level[row], level.max(initial=0) + 1)[result]  # outputs after everything
    order = ordered_by(cell, at, is_write)
    before, _ = neighbouring_writes(cell[order], is_write[order])
    found = np.full(len(result), NONE)
    found[order] = np.where(before == NONE, NONE, result[order][before])
    source, target = np.full(len(row), NONE), np.full(len(row), NONE)
    source[reads], target[writes] = found[: len(reads)], found[len(reads) :][: len(writes)]
    return source, target, found[len(reads) + len(writes) :]
