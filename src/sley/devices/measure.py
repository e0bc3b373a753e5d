"""Measuring plans on devices over sizes, with the conventions of nccl-tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sley.codegen import Engine
from sley.devices.bench import Bench, CheckedData
from sley.devices.device import Device
from sley.devices.settings import THREADS
from sley.engine.limits import TIMEOUT_S, whole
from sley.engine.types import data_type, reduction
from sley.ir.plan import Plan
from sley.ir.words import ReduceOp
from sley.jobs.measure import Measurement


@dataclass(frozen=True)
class Comparison:
    """The engines at one size: what the fields of a Measurement say, where they are the same for
    all, and its measurement by engine. `time_us` there is the median of `times_us`, which has one
    time for each round."""

    size_bytes: int
    count: int
    dtype: str
    reduce_op: ReduceOp
    root: int
    engines: Mapping[Engine, Measurement]
    times_us: Mapping[Engine, tuple[float, ...]]

    @property
    def ratio(self) -> float:
        """How much longer the interpreter takes than generated code."""
        generated, interpreted = (self.engines[e].time_us for e in Engine)
        return interpreted / generated


def run(
    plan: Plan,
    sizes_bytes: Sequence[int],
    *,
    devices: Sequence[Device],
    engine: Engine = Engine.GENERATED,
    dtype: str = "float32",
    reduce_op: ReduceOp = ReduceOp.SUM,
    iterations: int = 20,
    warmup: int = 5,
    check: bool = True,
    slots: int | None = None,
    slot_bytes: int | None = None,
    threads: int = THREADS,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[Measurement], None] | None = None,
) -> list[Measurement]:
    """Run `plan` on devices, once for each size, and measure it.

    devices: of each rank, as `devices_named` gives them. engine, slots, slot_bytes, threads,
    timeout_s: as `Executor` has them. The rest is as for `sley.jobs.run`; all memory is
    asked for before the first size runs.

    Calls are started from Python one after the other, in no graph. On a GPU that takes as long as
    a small call does: the times of small sizes are those of starting.

    Raises SleyError with the rules K5xx and R5xx.
    """
    iterations, warmup = whole(iterations, "iterations", 1), whole(warmup, "warmup", 0)
    counts = _counts(plan, sizes_bytes, dtype)
    data = _data(plan, devices, dtype, reduce_op, counts)
    bench = Bench(
        data,
        devices,
        engine,
        slots=slots,
        slot_bytes=slot_bytes,
        threads=threads,
        timeout_s=timeout_s,
    )
    measurements = []
    for count in counts:
        data.fill(count)
        time_us = bench.time_us(count, warmup=warmup, iterations=iterations)
        wrong = bench.count_wrong(count) if check else -1
        measurement = data.measurement(count, time_us, wrong)
        measurements.append(measurement)
        if progress is not None:
            progress(measurement)
    return measurements


def compare(
    plan: Plan,
    sizes_bytes: Sequence[int],
    *,
    devices: Sequence[Device],
    dtype: str = "float32",
    reduce_op: ReduceOp = ReduceOp.SUM,
    rounds: int = 5,
    iterations: int = 20,
    warmup: int = 5,
    check: bool = True,
    slots: int | None = None,
    slot_bytes: int | None = None,
    threads: int = THREADS,
    timeout_s: float = TIMEOUT_S,
    progress: Callable[[], None] | None = None,
) -> list[Comparison]:
    """Run `plan` with each engine, and compare their times at each size.

    Both have the same plan, arrays, thread blocks, threads and slots. Each is checked once at each
    size; then, in each of `rounds` rounds, every size is timed with one engine after the other, so
    that what else happens on the machine hits them alike. progress: called (rounds + 1) x sizes x
    engines times. The rest is as for `run`.

    Raises SleyError with the rules K5xx and R5xx.
    """
    iterations, warmup = whole(iterations, "iterations", 1), whole(warmup, "warmup", 0)
    rounds = whole(rounds, "rounds", 1)
    counts = _counts(plan, sizes_bytes, dtype)
    data = _data(plan, devices, dtype, reduce_op, counts)
    benches = {
        engine: Bench(
            data,
            devices,
            engine,
            slots=slots,
            slot_bytes=slot_bytes,
            threads=threads,
            timeout_s=timeout_s,
        )
        for engine in Engine
    }
    done = progress or (lambda: None)
    wrong = dict.fromkeys(_turns(counts), -1)
    for place, engine in wrong:
        if check:
            wrong[place, engine] = benches[engine].count_wrong(counts[place])
        done()
    data.fill(max(counts, default=0))
    times = _times(benches, counts, rounds, iterations, warmup, done)
    return [
        _comparison(
            data,
            count,
            {engine: times[place, engine] for engine in Engine},
            {engine: wrong[place, engine] for engine in Engine},
        )
        for place, count in enumerate(counts)
    ]


def _turns(counts: Sequence[int]) -> Iterable[tuple[int, Engine]]:
    """Every size with every engine, in the order of a round."""
    return [(place, engine) for place in range(len(counts)) for engine in Engine]


def _times(
    benches: Mapping[Engine, Bench],
    counts: Sequence[int],
    rounds: int,
    iterations: int,
    warmup: int,
    done: Callable[[], None],
) -> dict[tuple[int, Engine], list[float]]:
    """The times of each turn, in microseconds, one for each round."""
    times: dict[tuple[int, Engine], list[float]] = {turn: [] for turn in _turns(counts)}
    for _ in range(rounds):
        for place, engine in times:
            time_us = benches[engine].time_us(counts[place], warmup=warmup, iterations=iterations)
            times[place, engine].append(time_us)
            done()
    return times


def _counts(plan: Plan, sizes_bytes: Sequence[int], dtype: str) -> list[int]:
    """Elements of a block of the collective, rounded down as nccl-tests does."""
    block_bytes = plan.collective.blocks * data_type(dtype).size_bytes
    return [whole(size, "size", 0) // block_bytes for size in sizes_bytes]


def _data(
    plan: Plan,
    devices: Sequence[Device],
    dtype: str,
    reduce_op: ReduceOp,
    counts: Sequence[int],
) -> CheckedData:
    most = max(counts, default=0)
    return CheckedData(plan, devices, data_type(dtype), reduction(reduce_op), most)


def _comparison(
    data: CheckedData,
    count: int,
    times_us: Mapping[Engine, Sequence[float]],
    wrong: Mapping[Engine, int],
) -> Comparison:
    engines = {e: data.measurement(count, float(np.median(times_us[e])), wrong[e]) for e in Engine}
    one = engines[Engine.GENERATED]
    return Comparison(
        size_bytes=one.size_bytes,
        count=count,
        dtype=one.dtype,
        reduce_op=one.reduce_op,
        root=one.root,
        engines=engines,
        times_us={engine: tuple(times) for engine, times in times_us.items()},
    )
