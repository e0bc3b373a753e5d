"""Places: plans out of place that are right in place, too. Where callers give both buffers of a
call, as in NCCL, only a rank itself knows whether they are the same memory, so the ranks can't
choose a plan by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.communicator.selection.ready_plans import check_input
from sley.errors.verifier import V204
from sley.ir.collectives import STANDARD
from sley.ir.plan import Plan
from sley.ir.tables import spans
from sley.ir.words import READS_SOURCE, Buffer, Protocol
from sley.verification import verify
from sley.verification.direct import pulls
from sley.verification.flagged import needed_waits
from sley.verification.hangs import run_of
from sley.verification.verifier import messages_of

_NEVER = np.iinfo(np.int32).max


def in_either_place(plan: Plan) -> Plan:
    """A proven plan out of place of a standard collective, proven for calls in which any of the
    ranks have input and output where the collective has them in place; with the waits that LL and
    LL128 need there, and Simple instead of Direct if other messages can be pulled there.

    The same instructions are verified with both buffers as one. This proves calls in which all
    ranks or none are in place. Of the others, a race is one rank's matter; and since a rank reads
    its input before its output is written there, each instruction finds what it finds out of
    place. Errors: F454 for a plan that writes to its input, V2xx.
    """
    check_input(plan, plan.name)
    c = plan.collective
    as_one = replace(plan, collective=STANDARD[c.name].like(c, in_place=True))
    verify(as_one)
    _check_reads(as_one)
    if plan.protocol in (Protocol.LL, Protocol.LL128):
        return replace(plan, waits=needed_waits(as_one))
    return plan if pulls(as_one) == pulls(plan) else replace(plan, protocol=Protocol.SIMPLE)


def _check_reads(as_one: Plan) -> None:
    """Refuses reads of the input after the output at their place was written. Errors: V204."""
    t, level = as_one.instructions, run_of(as_one, messages_of(as_one)).level
    writes = np.flatnonzero(as_one.overwrites)
    owner, cell = spans(as_one.destination_cells(writes), t.count[writes])
    written = np.full(as_one.layout.cells, _NEVER)
    np.minimum.at(written, cell, level[writes[owner]])
    reads = np.flatnonzero(READS_SOURCE[t.op] & (t.src_buffer == Buffer.INPUT))
    owner, cell = spans(as_one.source_cells(reads), t.count[reads])
    # Conflicting accesses have different levels, and an instruction reads before it writes.
    late = np.flatnonzero(level[reads[owner]] > written[cell])
    if len(late):
        raise V204.error(
            at=as_one.place(reads[owner[late[0]]]),
            expected="reads of the input before the output, in the same memory, is written",
            found=f"a read of {as_one.layout.name(int(cell[late[0]]))} after a write",
        )
