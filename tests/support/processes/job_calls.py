"""Calls of the first plan of a job on given arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sley.communicator.jobs import Job
from sley.engine.arguments import check_inputs
from sley.ir.words import ReduceOp


def call(job: Job, inputs: Sequence[Any], count: int | None = None) -> list[Any]:
    """Each rank's output, of sums."""
    plan = job.plans[0]
    return plan.execute(check_inputs(plan.loaded.plan, inputs, None, count, ReduceOp.SUM))
