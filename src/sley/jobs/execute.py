"""Running a plan once on given arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sley.engine import native
from sley.engine.arguments import Inputs, check_inputs
from sley.engine.limits import SLOT_BYTES, TIMEOUT_S, check_settings, check_slot
from sley.engine.memory import allocate, no_memory
from sley.engine.outcomes import Outcome, failure
from sley.engine.program import load, scratch_elements
from sley.engine.types import Array
from sley.errors.runtime import R511
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.jobs.job import Job


def execute(
    plan: Plan,
    inputs: Sequence[Array],
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    slots: int | None = None,
    slot_bytes: int = SLOT_BYTES,
    timeout_s: float = TIMEOUT_S,
    processes: bool = True,
) -> list[Array]:
    """Run `plan` once on `inputs` and return each rank's output.

    inputs: one 1-D array a rank with the elements of its input buffer; a rank without input gets
        an empty one. In place: all of the rank's data, input and output together, with the input
        where it lies. They stay as they are.
    dtype: the elements' type, that of the arrays without; "bfloat16" for uint16 arrays of its bits.
    count: elements of one block of the collective, told from the inputs without.
    slots, slot_bytes: messages that a connection holds (the plan's own number without), and the
        room of each. timeout_s: how long nothing may move before the call gives up.
    processes: False runs the ranks as threads of this process, over the same engine. A Ctrl-C is
        then noticed only when the plan ends.

    Raises SleyError with the rules R5xx.
    """
    check_settings(slots, slot_bytes, timeout_s)
    checked = check_inputs(plan, inputs, dtype, count, reduce_op)
    if not processes:
        return _on_threads(plan, checked, slots, slot_bytes, timeout_s)
    with Job(plan, slots=slots, slot_bytes=slot_bytes, timeout_s=timeout_s) as job:
        return job.execute(
            checked.arrays, dtype=checked.dtype.name, count=checked.count, reduce_op=reduce_op
        )


def _on_threads(
    plan: Plan, inputs: Inputs, slots: int | None, slot_bytes: int, timeout_s: float
) -> list[Array]:
    loaded = load(plan, slots, slot_bytes)
    check_slot(loaded, inputs.dtype)
    # No more room than the longest message needs: the cut into tiles is the same.
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
            timeout_s,
        )
    except MemoryError as problem:
        scratch = scratch_elements(plan, inputs.count) * inputs.dtype.size_bytes
        raise no_memory("buffers and scratch", total + scratch, "less") from problem
    except OSError as problem:
        raise R511.error(expected="a thread for each rank", found=str(problem)) from problem
    outcomes = {rank: Outcome.of(report) for rank, report in enumerate(reports)}
    error = failure(loaded, outcomes, timeout_s)
    if error is not None:
        raise error
    return inputs.outputs(buffers)
