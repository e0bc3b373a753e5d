"""Measuring a plan over sizes, with the conventions of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sley.engine.limits import SLOT_BYTES, TIMEOUT_S, check_settings, whole
from sley.engine.types import DataType, data_type, reduction
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.jobs.job import Job


@dataclass(frozen=True)
class Measurement:
    """One line of the table of nccl-tests.

    size_bytes: the larger of a rank's two buffers: what is gathered, what is scattered. count:
    elements of one block of the collective. root: NONE (-1) without. time_us: of one run, the
    average over `iterations` back to back, averaged over the ranks. algbw_GBps: size / time in
    10^9 bytes a second; busbw_GBps: that times the collective's `bus_factor`. wrong: elements that
    are not what the collective promises; -1 unchecked.
    """

    size_bytes: int
    count: int
    dtype: str
    reduce_op: ReduceOp
    root: int
    time_us: float
    algbw_GBps: float  # noqa: N815
    busbw_GBps: float  # noqa: N815
    wrong: int

    @classmethod
    def of(
        cls,
        plan: Plan,
        count: int,
        dtype: DataType,
        reduce_op: ReduceOp,
        time_us: float,
        wrong: int,
    ) -> Measurement:
        """The line of a call of `count` elements a block that took `time_us`."""
        c = plan.collective
        moved = count * c.blocks * dtype.size_bytes
        algbw = moved / time_us / 1e3 if time_us > 0 else 0.0
        return cls(
            size_bytes=moved,
            count=count,
            dtype=dtype.name,
            reduce_op=reduce_op,
            root=c.root,
            time_us=time_us,
            algbw_GBps=algbw,
            busbw_GBps=algbw * c.bus_factor,
            wrong=wrong,
        )


def run(
    plan: Plan,
    sizes_bytes: Sequence[int],
    *,
    dtype: str = "float32",
    reduce_op: ReduceOp = ReduceOp.SUM,
    iterations: int = 20,
    warmup: int = 5,
    check: bool = True,
    slots: int | None = None,
    slot_bytes: int = SLOT_BYTES,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Run `plan` on processes of this machine, once for each size, and measure it.

    A size is rounded down to a whole number of elements a block, as nccl-tests does. With `check`
    the plan runs once more on fresh data, which is compared with what the collective promises.
    progress: called with each measurement as it is made.

    Raises SleyError with the rules R5xx.
    """
    kind, op = data_type(dtype), reduction(reduce_op)
    check_settings(slots, slot_bytes, timeout_s)
    iterations, warmup = whole(iterations, "iterations", 1), whole(warmup, "warmup", 0)
    sizes = [whole(size, "size", 0) for size in sizes_bytes]
    block_bytes = plan.collective.blocks * kind.size_bytes
    measurements = []
    with Job(plan, slots=slots, slot_bytes=slot_bytes, timeout_s=timeout_s) as job:
        for size in sizes:
            count = size // block_bytes
            time_us = job.time_us(count, kind, op, warmup=warmup, iterations=iterations)
            wrong = job.count_wrong(count, kind, op) if check else -1
            measurement = Measurement.of(plan, count, kind, op, time_us, wrong)
            measurements.append(measurement)
            if progress is not None:
                progress(measurement)
    return measurements
