"""Execution of a plan on this machine: once on given arrays, or over sizes, timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sley.engine import native
from sley.engine.arguments import Inputs, check_inputs
from sley.engine.limits import check_slot
from sley.engine.measure import Measurement, Sweep, measure
from sley.engine.memory import allocate, no_memory
from sley.engine.outcomes import Outcome, failure
from sley.engine.program import load, scratch_elements
from sley.engine.types import Array
from sley.errors.runtime import R511
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.jobs.job import Job, Settings


def execute(
    plan: Plan,
    inputs: Sequence[Array],
    settings: Settings | None = None,
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    processes: bool = True,
) -> list[Array]:
    """Run `plan` once on `inputs` and return each rank's output.

    inputs: one 1-D array a rank with the elements of its input buffer; a rank without input gets
        an empty one. In place: all of the rank's data, input and output together, with the input
        at its position. They aren't changed.
    dtype: the elements' type, by default the arrays'; "bfloat16" for uint16 arrays of its bits.
    count: elements of one block of the collective, by default derived from the inputs.
    processes: False runs the ranks as threads of this process, on the same engine. Ctrl-C then
        takes effect only when the plan ends.

    Raises SleyError with the rules R5xx.
    """
    settings = settings or Settings()
    checked = check_inputs(plan, inputs, dtype, count, reduce_op)
    if not processes:
        return _run_on_threads(plan, checked, settings)
    with Job(plan, settings) as job:
        return job.execute(
            checked.arrays, dtype=checked.dtype.name, count=checked.count, reduce_op=reduce_op
        )


def run(
    plan: Plan,
    sweep: Sweep,
    settings: Settings | None = None,
    *,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Run `plan` on processes, once for each size, timed and checked as `sweep` says.

    progress: called with each measurement as it is made. Raises SleyError with the rules R5xx.
    """
    with Job(plan, settings) as job:
        return measure(plan, job, sweep, progress)


def _run_on_threads(plan: Plan, inputs: Inputs, settings: Settings) -> list[Array]:
    loaded = load(plan, settings.slots, settings.slot_bytes)
    check_slot(loaded, inputs.dtype)
    # Slots no larger than the longest message; this doesn't change the cut into tiles.
    longest = loaded.max_count * max(inputs.count // plan.collective.chunks, 1)
    room = min(loaded.wiring.slot_bytes, longest * inputs.dtype.size_bytes)
    wiring = replace(loaded.wiring, slot_bytes=room)
    memory = wiring.memory(shared=False)
    engines = [p.engine(wiring.fabric(memory, p.rank), wiring) for p in loaded.programs]
    spans, total = inputs.spans()
    buffers = allocate(lambda: np.zeros(total, np.uint8), "the buffers", total)
    inputs.store(buffers)
    try:
        reports = native.run_threads(
            engines,
            inputs.count,
            inputs.dtype.number,
            int(inputs.reduce_op),
            [buffers[start:end] for (start, end), _ in spans],
            [buffers[start:end] for _, (start, end) in spans],
            settings.timeout_s,
        )
    except MemoryError as problem:
        scratch = scratch_elements(plan, inputs.count) * inputs.dtype.size_bytes
        raise no_memory("buffers and scratch", total + scratch, "less") from problem
    except OSError as problem:
        raise R511.error(expected="a thread for each rank", found=str(problem)) from problem
    outcomes = {rank: Outcome.of(report) for rank, report in enumerate(reports)}
    error = failure(loaded, outcomes, settings.timeout_s)
    if error is not None:
        raise error
    return inputs.outputs(buffers)
