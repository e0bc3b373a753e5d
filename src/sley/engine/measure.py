"""Measurement: a plan over sizes, with the conventions of nccl-tests; one loop for every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, Protocol, TypeVar

from sley.engine.limits import whole
from sley.engine.types import DATA_TYPES, DataType, data_type, reduction
from sley.ir.collectives import bus_factor
from sley.ir.plan import Plan
from sley.ir.sizes import size_text
from sley.ir.words import ReduceOp

K = TypeVar("K")

REDUCE_OPS = {
    "sum": ReduceOp.SUM,
    "prod": ReduceOp.PRODUCT,
    "min": ReduceOp.MIN,
    "max": ReduceOp.MAX,
    "avg": ReduceOp.AVG,
    "band": ReduceOp.BAND,
    "bor": ReduceOp.BOR,
    "bxor": ReduceOp.BXOR,
}
"""The reductions by their names in nccl-tests, which lacks the last three."""


class Bench(Protocol):
    """An engine with a plan and memory for test data: it times and checks calls of any size."""

    def time_us(self, count: int, sweep: Sweep) -> float:
        """Time of one call of `count` elements a block: the average over the sweep's iterations,
        back to back, after its warm-up."""

    def count_wrong(self, count: int, sweep: Sweep) -> int:
        """Runs once on fresh test data; returns the number of wrong elements on all ranks, with
        those written outside the buffers."""


@dataclass(frozen=True)
class Sweep:
    """The calls to measure: their sizes, type, reduction, and number.

    sizes_bytes: of the larger of a rank's two buffers, rounded down to a whole number of elements a
        block, as nccl-tests does.
    iterations: timed calls at each size, after `warmup` calls that aren't timed. In its first calls
        a communicator tries its ways of copying.
    check: whether the plan runs once more at each size, on fresh data, to compare its result with
        the collective's promise.

    Errors: R504, R514.
    """

    sizes_bytes: Sequence[int]
    dtype: str = "float32"
    reduce_op: ReduceOp = ReduceOp.SUM
    iterations: int = 20
    warmup: int = 12
    check: bool = True

    def __post_init__(self) -> None:
        sizes = tuple(whole(size, "size", 0) for size in self.sizes_bytes)
        object.__setattr__(self, "sizes_bytes", sizes)
        data_type(self.dtype)
        object.__setattr__(self, "reduce_op", reduction(self.reduce_op))
        object.__setattr__(self, "iterations", whole(self.iterations, "iterations", 1))
        object.__setattr__(self, "warmup", whole(self.warmup, "warmup", 0))

    @property
    def kind(self) -> DataType:
        """The type of the elements."""
        return DATA_TYPES[self.dtype]

    def counts(self, plan: Plan) -> list[int]:
        """For each size, the elements of a block of the plan's collective."""
        block_bytes = plan.collective.blocks * self.kind.size_bytes
        return [size // block_bytes for size in self.sizes_bytes]

    def measurement(self, plan: Plan, count: int, time_us: float, wrong: int) -> Measurement:
        """The measurement of a call of `count` elements a block that took `time_us`."""
        c = plan.collective
        size_bytes = count * c.blocks * self.kind.size_bytes
        algbw_GBps = size_bytes / time_us / 1e3 if time_us > 0 else 0.0  # noqa: N806 - a unit
        return Measurement(
            size_bytes=size_bytes,
            count=count,
            dtype=self.dtype,
            reduce_op=self.reduce_op,
            root=c.root,
            time_us=time_us,
            algbw_GBps=algbw_GBps,
            busbw_GBps=algbw_GBps * bus_factor(c),
            wrong=wrong,
        )


@dataclass(frozen=True, repr=False)
class Measurement:
    """One line of the table of nccl-tests.

    size_bytes: the larger of a rank's two buffers (of an AllGather the output, of a ReduceScatter
    the input). count: elements of one block of the collective. root: NONE (-1) without a root.
    time_us: of one call; on processes, averaged over the ranks, too. algbw_GBps: size / time in
    10^9 bytes a second; busbw_GBps: algbw times `ir.collectives.bus_factor`. wrong: the number of
    wrong elements; -1 if unchecked.
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

    def __repr__(self) -> str:
        wrong = "unchecked" if self.wrong < 0 else f"{self.wrong} wrong"
        return (
            f"Measurement({size_text(self.size_bytes)} of {self.dtype}, {self.redop}: "
            f"{self.time_us:.1f} us, {self.algbw_GBps:.2f} GB/s, {wrong})"
        )

    @property
    def redop(self) -> str:
        """nccl-tests' name of the reduction."""
        return next(name for name, op in REDUCE_OPS.items() if op is self.reduce_op)


def measure(
    plan: Plan,
    bench: Bench,
    sweep: Sweep,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Times and checks a plan on a bench at each size. progress: called with each measurement as it
    is made."""
    measurements = []
    for count in sweep.counts(plan):
        time_us = bench.time_us(count, sweep)
        wrong = bench.count_wrong(count, sweep) if sweep.check else -1
        measurement = sweep.measurement(plan, count, time_us, wrong)
        measurements.append(measurement)
        if progress is not None:
            progress(measurement)
    return measurements


@dataclass(frozen=True)
class Comparison(Generic[K]):
    """Several benches at one size: the measurement of each, whose `time_us` is the median of its
    `times_us`, one time for each round."""

    measurements: Mapping[K, Measurement]
    times_us: Mapping[K, tuple[float, ...]]


def compare(
    plan: Plan,
    benches: Mapping[K, Bench],
    sweep: Sweep,
    rounds: int,
    progress: Callable[[], None] | None = None,
) -> list[Comparison[K]]:
    """Times and checks a plan on several benches, and compares their times at each size.

    Each is checked once at each size; then, in each of `rounds` rounds, every size is timed on one
    bench after the other, so that other load on the machine affects all benches alike. progress:
    called (rounds + 1) x sizes x benches times.
    """
    rounds = whole(rounds, "rounds", 1)
    done = progress or (lambda: None)
    counts = sweep.counts(plan)
    wrong = [dict[K, int]() for _ in counts]
    for count, of_size in zip(counts, wrong, strict=True):
        for key, bench in benches.items():
            of_size[key] = bench.count_wrong(count, sweep) if sweep.check else -1
            done()
    times_us = [{key: list[float]() for key in benches} for _ in counts]
    for _ in range(rounds):
        for count, lists in zip(counts, times_us, strict=True):
            for key, bench in benches.items():
                lists[key].append(bench.time_us(count, sweep))
                done()
    return [
        Comparison(
            {
                key: sweep.measurement(plan, count, median(times), of_size[key])
                for key, times in lists.items()
            },
            {key: tuple(times) for key, times in lists.items()},
        )
        for count, of_size, lists in zip(counts, wrong, times_us, strict=True)
    ]
