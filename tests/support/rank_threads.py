"""Plans on ranks that are threads of this process, which start faster than processes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sley.communicator.jobs import Settings
from sley.engine import native
from sley.engine.arguments import check_inputs
from sley.engine.limits import check_slot
from sley.engine.outcomes import Outcome, Report, failure
from sley.engine.program import RankProgram, load
from sley.engine.varying import places_in
from sley.ir.cut import longest_chunk
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp


def execute(
    plan: Plan,
    inputs: Sequence[Any],
    settings: Settings | None = None,
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    counts: ArrayLike | None = None,
) -> list[Any]:
    """Like `sley.communicator.jobs.execute`."""
    settings = settings or Settings()
    call = check_inputs(plan, inputs, dtype, count, reduce_op, counts)
    loaded = load(plan, settings.slots, settings.slot_bytes)
    check_slot(loaded, call.dtype, varies=call.counts is not None)
    # Slots no larger than the longest message; this doesn't change the cut into tiles.
    item = call.dtype.size_bytes
    longest = max(longest_chunk(plan.collective.chunks, call.count, item), 1)
    room = min(loaded.wiring.slot_bytes, loaded.max_count * longest * item)
    if call.counts is not None:
        room = loaded.wiring.slot_bytes
    wiring = replace(loaded.wiring, slot_bytes=room)
    memory = wiring.memory()
    engines = [p.engine(wiring.fabric(memory, p.rank), wiring) for p in loaded.programs]
    spans, total = call.spans()
    buffers = np.zeros(total, np.uint8)
    call.store(buffers)

    def run(program: RankProgram) -> Report:
        (a, b), (c, d) = spans[program.rank]
        numbers = (call.count, call.dtype.number, int(call.reduce_op))
        arrays = (buffers[a:b], buffers[c:d])
        counts = call.counts_of(program.rank)
        if counts is not None:
            places = [
                places_in(array, own, call.dtype.size_bytes)
                for array, own in zip(arrays, counts, strict=True)
            ]
            parts = native.Parts.create(*places)
            last = 1, settings.timeout_s
            return engines[program.rank].run_varying(parts, call.dtype.number, *last)
        return engines[program.rank].run(*numbers, *arrays, 1, settings.timeout_s)

    with ThreadPoolExecutor(len(engines)) as threads:
        reports = list(threads.map(run, loaded.programs))
    outcomes = {rank: Outcome.of(report) for rank, report in enumerate(reports)}
    error = failure(loaded, outcomes, settings.timeout_s)
    if error is not None:
        raise error
    return call.outputs(buffers)
