"""Places: plans out of place that are right in place, too. Where callers give both buffers of a
call, as in NCCL, only a rank itself knows whether they are the same memory, so the ranks can't
choose a plan by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.communicator.selection.ready_plans import check_input
from sley.errors import SleyError
from sley.errors.verifier import V204
from sley.ir.collectives import STANDARD
from sley.ir.graph import levels
from sley.ir.plan import Plan
from sley.ir.tables import NONE, LongArray, spans
from sley.ir.words import READS_SOURCE, Buffer, Protocol
from sley.verification import verify
from sley.verification.direct import pulls
from sley.verification.flagged import needed_waits
from sley.verification.verifier import messages_of


def in_either_place(plan: Plan) -> Plan:
    """A proven plan out of place of a standard collective, proven for calls in which any of the
    ranks have input and output where the collective has them in place; with what that needs:
    waits, and Simple instead of Direct if other messages can be pulled there.

    The same instructions are verified with both buffers as one. This proves calls in which all
    ranks or none are in place. Of the others, a race is one rank's matter; and since a rank reads
    its input before its output is written there, each instruction finds what it finds out of
    place. Errors: F454 for a plan that writes to its input, V2xx.
    """
    check_input(plan, plan.name)
    c = plan.collective
    as_one = replace(plan, collective=STANDARD[c.name].like(c, in_place=True))
    before, after = messages_of(as_one).happens_before(as_one)
    reads, writes = _reads_before_writes(as_one)
    level = levels(len(plan.instructions), np.append(before, reads), np.append(after, writes))
    if (level == NONE).any():
        raise V204.error(
            at=as_one.places(np.flatnonzero(level == NONE)[:1]),
            expected="reads of the input before the output, in the same memory, is written",
            found="a read that comes after a write",
        )
    waits = needed_waits(as_one, level)
    if plan.protocol not in (Protocol.LL, Protocol.LL128):
        try:  # messages may order what waits needn't
            verify(as_one)
            waits = plan.waits
        except SleyError:
            pass
    as_one = replace(as_one, waits=waits)
    verify(as_one)
    plan = replace(plan, waits=waits)
    return plan if pulls(as_one) == pulls(plan) else replace(plan, protocol=Protocol.SIMPLE)


def _reads_before_writes(as_one: Plan) -> tuple[LongArray, LongArray]:
    """(read, write), instructions that read an input chunk, and others that write there."""
    t = as_one.instructions
    reads = np.flatnonzero(READS_SOURCE[t.op] & (t.src_buffer == Buffer.INPUT))
    writes = np.flatnonzero(as_one.overwrites)
    owner, read = spans(as_one.source_cells(reads), t.count[reads])
    reads = reads[owner]
    owner, written = spans(as_one.destination_cells(writes), t.count[writes])
    order = np.argsort(written, kind="stable")
    writes, written = writes[owner][order], written[order]
    first, end = (np.searchsorted(written, read, side) for side in ("left", "right"))
    owner, at = spans(first, end - first)
    apart = reads[owner] != writes[at]
    return reads[owner[apart]], writes[at[apart]]
