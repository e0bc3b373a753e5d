"""Execution of a plan on this machine: once on given arrays, or over sizes, timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numpy.typing import ArrayLike

from sley.communicator import Settings
from sley.communicator.jobs.job import Job
from sley.engine.arguments import check_inputs
from sley.engine.measure import Measurement, Sweep, measure
from sley.engine.types import Array
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp


def execute(
    plan: Plan,
    inputs: Sequence[Array],
    settings: Settings | None = None,
    *,
    dtype: str | None = None,
    count: int | None = None,
    reduce_op: ReduceOp = ReduceOp.SUM,
    counts: ArrayLike | None = None,
) -> list[Array]:
    """Run `plan` once on `inputs` and return each rank's output.

    inputs: one 1-D array a rank with the elements of its input buffer; a rank without input gets
        an empty one. In place: all of the rank's data, input and output together, with the input
        at its position. They aren't changed.
    dtype: the elements' type, by default the arrays'; types that NumPy lacks take their bits.
    count: elements of one block of the collective, by default derived from the inputs.
    counts: the elements of each part of the inputs, if they vary: integers (ranks, parts), of
        AllToAllV what rank s sends to rank r in row s, column r. The parts of an array follow one
        another, in inputs and outputs.

    settings: as for `Job`. Raises SleyError with the rules R5xx.
    """
    # Before any process starts.
    checked = check_inputs(plan, inputs, dtype, count, reduce_op, counts)
    with Job([plan], settings) as job:
        return job.plans[0].execute(checked)


def run(
    plan: Plan,
    sweep: Sweep,
    settings: Settings | None = None,
    *,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Run `plan` on processes, once for each size, timed and checked as `sweep` says.

    settings: as for `Job`. progress: called with each measurement as it is made. Raises SleyError
    with the rules R5xx.
    """
    with Job([plan], settings) as job:
        return measure(plan, job.plans[0], sweep, progress)
