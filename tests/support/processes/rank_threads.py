"""Plans on ranks that are threads of this process, which start faster than processes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sley.engine import native
from sley.engine.arguments import check_inputs
from sley.engine.limits import SLOT_BYTES, check_slot
from sley.engine.outcomes import Outcome, Report, failure
from sley.engine.program import RankProgram, Wiring, load
from sley.engine.varying import places_in
from sley.ir.cut import longest_chunk
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp


@dataclass(frozen=True)
class Limits:
    """The slots of a connection (None: the plan's), their bytes, and the timeout of a call."""

    slots: int | None = None
    slot_bytes: int = SLOT_BYTES
    timeout_s: float = 30.0


def fabrics(wiring: Wiring) -> list[native.Fabric]:
    """Each rank's view of memory with the connections of one plan."""
    fifos = np.bincount(wiring.src, minlength=wiring.ranks).astype(np.int32)
    shape = native.FabricShape.create(fifos, wiring.slots, wiring.slot_bytes, wiring.slots)
    fd = os.memfd_create("sley-test", os.MFD_CLOEXEC)
    heaps = [native.Heap()] * wiring.ranks
    try:
        return [native.Fabric.join(shape, fd, heaps, rank) for rank in range(wiring.ranks)]
    finally:
        os.close(fd)


def execute(
    plan: Plan,
    inputs: Sequence[Any],
    limits: Limits | None = None,
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    counts: ArrayLike | None = None,
) -> list[Any]:
    """Like `sley.communicator.jobs.execute`."""
    limits = limits or Limits()
    call = check_inputs(plan, inputs, dtype, count, reduce_op, counts)
    loaded = load(plan, limits.slots, limits.slot_bytes)
    check_slot(loaded, call.dtype, varies=call.counts is not None)
    # Slots no larger than the longest message; this doesn't change the cut into tiles.
    item = call.dtype.size_bytes
    longest = max(longest_chunk(plan.collective.chunks, call.count, item), 1)
    room = min(loaded.wiring.slot_bytes, loaded.max_count * longest * item)
    if call.counts is not None:
        room = loaded.wiring.slot_bytes
    wiring = replace(loaded.wiring, slot_bytes=room)
    ends = fabrics(wiring)
    spans, total = call.spans()
    buffers = np.zeros(total, np.uint8)
    call.store(buffers)

    def run(program: RankProgram) -> Report | None:
        arrays = [buffers[start:end] for start, end in spans[program.rank]]
        own = call.counts_of(program.rank)
        if own is not None:
            places = [places_in(a, counts, item) for a, counts in zip(arrays, own, strict=True)]
            made = native.Call.varying(native.Parts.create(*places), call.dtype.number)
        else:
            memory = [word for a in arrays for word in (a.ctypes.data, a.nbytes)]
            made = native.Call.create(call.count, call.dtype.number, int(call.reduce_op), *memory)
        return run_met(program.engine(ends[program.rank], wiring), made, ends[program.rank], limits)

    with ThreadPoolExecutor(wiring.ranks) as threads:
        reports = dict(enumerate(threads.map(run, loaded.programs)))
    outcomes = {rank: Outcome.of(one) for rank, one in reports.items() if one is not None}
    error = failure(loaded, outcomes, limits.timeout_s)
    if error is None:
        return call.outputs(buffers)
    if error.code != "R513" or limits.timeout_s > Limits.timeout_s:
        raise error
    # On a busy machine a thread comes to the call late, where a test wants to see a stall.
    later = replace(limits, timeout_s=4 * limits.timeout_s)
    return execute(
        plan, inputs, later, dtype=dtype, count=count, reduce_op=reduce_op, counts=counts
    )


def run_met(
    engine: native.Engine, call: native.Call, fabric: native.Fabric, limits: Limits
) -> Report | None:
    """Runs a call once, after a barrier of all ranks; the report of a failure."""
    calls = native.Calls(fabric)
    try:
        return calls.run(native.Runner.create(engine, 0, None), call, limits.timeout_s, 1, True)
    finally:
        calls.close()
