"""Scratch: without the chunks that no instruction touches. A program names a place for every sum
that passes through a rank; fused, most sums are stored nowhere (`recv_reduce_send`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.ir.plan import Plan
from sley.ir.tables import BoolArray, IntArray, offsets_of, spans
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Buffer


def without_untouched(plan: Plan) -> Plan:
    """The plan with the chunks of scratch that an instruction reads or writes, in their order."""
    t, first = plan.instructions, offsets_of(plan.scratch_chunks)[plan.rank]
    read = READS_SOURCE[t.op] & (t.src_buffer == Buffer.SCRATCH)
    written = WRITES_DESTINATION[t.op] & (t.dst_buffer == Buffer.SCRATCH)
    touched = np.zeros(plan.scratch_chunks.sum(dtype=np.int64), bool)
    for rows, index in ((read, t.src_index), (written, t.dst_index)):
        touched[spans((first + index)[rows], t.count[rows])[1]] = True
    number = offsets_of(touched)

    def renumbered(index: IntArray, rows: BoolArray) -> IntArray:
        # All chunks of an operand are touched, so they remain neighbours.
        return np.where(rows, number[np.where(rows, first + index, 0)] - number[first], index)

    return replace(
        plan,
        instructions=replace(
            t, src_index=renumbered(t.src_index, read), dst_index=renumbered(t.dst_index, written)
        ),
        scratch_chunks=np.diff(number[offsets_of(plan.scratch_chunks)]),
    )
