"""sley run: runs a plan on processes of this machine or on devices; checks and times it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import click
import numpy as np

from sley.cli.options import (
    POSITIVE,
    BlockThreads,
    DType,
    PlanCommand,
    Selection,
    SizeType,
    Whole,
    common_options,
    flag,
    gather_options,
    option,
    plan_options,
    size_options,
)
from sley.cli.output import Phases, attributes, echo, print_note, progress_bar
from sley.cli.sources import (
    choosing_for,
    has_sizes,
    plan_of,
    prefer_in_place,
    supports_both_places,
    takes,
)
from sley.communicator import Settings
from sley.communicator.jobs import Job
from sley.engine import devices
from sley.engine.devices import THREADS, Device, Engine, compare, open_devices
from sley.engine.devices.windows import single_messages, way_of_groups
from sley.engine.kernels import refuse_varying_plan
from sley.engine.limits import TIMEOUT_S
from sley.engine.measure import REDUCE_OPS, Comparison, Measurement, Sweep, measure
from sley.engine.types import data_type
from sley.errors import counted
from sley.ir.plan import Plan
from sley.report.tables import (
    COMPARISON_HEADER,
    RUN_HEADER,
    Row,
    comparison_footer,
    comparison_row,
    mean_ratio,
    ratio,
    run_footer,
    run_head,
    run_row,
)

BOTH = "both"
"""The value of --engine that compares all engines."""

ROUNDS = 5
"""The rounds of a comparison of engines: the median of five bears two that were disturbed."""

PROCESSES = "processes"


@dataclass(frozen=True)
class DeviceOptions:
    """Where plans run, and what runs them there. Errors: click's usage error for options that
    processes don't have."""

    device: str = option(
        "--device",
        metavar="DEVICE",
        default=PROCESSES,
        help=f"Where to run: {PROCESSES}, threads or cuda; cuda:0,1 for only these GPUs.",
    )
    ranks_per_gpu: int | None = option(
        "--ranks-per-gpu",
        type=POSITIVE,
        help="Ranks on each device, on as many devices as needed. [evenly on all]",
    )
    threads: int | None = option(
        "--threads", type=BlockThreads(), help="Threads of a thread block, on GPUs. [by size]"
    )
    engine: str | None = option(
        "--engine",
        type=click.Choice([*(engine.value for engine in Engine), BOTH]),
        help="On devices: generated code, or an interpreter; or both in turn, with the ratio of "
        "their times. [generated]",
    )

    def __post_init__(self) -> None:
        for own in fields(self):
            if self.is_processes and own.name != "device" and getattr(self, own.name) is not None:
                raise click.UsageError(f"{flag(own.name)} needs --device cuda or --device threads")

    @property
    def is_processes(self) -> bool:
        """Whether the plan runs on processes of this machine, not on devices."""
        return self.device == PROCESSES

    def devices(self, plan: Plan) -> list[Device]:
        """The device of each rank of a plan. Errors: K501, K502, K510, F437."""
        refuse_varying_plan(plan)
        return open_devices(self.device, plan.collective.ranks, self.ranks_per_gpu)


@dataclass(frozen=True)
class Measuring:
    """How plans are measured, as by nccl-tests. reduce_op: nccl-tests' name."""

    iterations: int = option("-n", "--iterations", type=POSITIVE, default=20, help="Timed runs.")
    warmup: int = option(
        "-w", "--warmup", type=Whole(0), default=12, help="Untimed runs before them."
    )
    check: bool = option("-c", "--check", type=Whole(0, 1), default=1, help="Check results.")
    dtype: str = option("-d", "--dtype", type=DType(), default="float32", help="Element type.")
    reduce_op: str = option(
        "-o", "--op", type=click.Choice(list(REDUCE_OPS)), default="sum", help="Reduction."
    )
    slot_bytes: int | None = option(
        "--slot-bytes",
        type=SizeType(),
        help="Size of a slot, which limits a tile. [by ranks; on devices all slots share 24M]",
    )
    timeout_s: float = option(
        "--timeout",
        type=click.FloatRange(min=0.1),
        default=TIMEOUT_S,
        help="Seconds without progress after which the run fails.",
    )

    def sweep(self, sizes_bytes: Sequence[int]) -> Sweep:
        """The measurements to make at these sizes."""
        op = REDUCE_OPS[self.reduce_op]
        return Sweep(sizes_bytes, self.dtype, op, self.iterations, self.warmup, bool(self.check))


@click.command("run", cls=PlanCommand)
@plan_options
@gather_options(DeviceOptions, "where")
@size_options("1K")
@gather_options(Measuring, "measuring")
@common_options
def run_command(
    selection: Selection,
    where: DeviceOptions,
    sizes: list[int],
    measuring: Measuring,
    phases: Phases,
) -> None:
    """Run WHAT, check every element, and print a table like that of nccl-tests.

    WHAT runs on processes of this machine, or with --device as kernels: on GPUs (cuda), or on
    threads of this machine, to test the kernels. By default, algorithms of the library run both
    out of place and in place, with --engine both in place.
    """
    work = _compare_engines if where.engine == BOTH else _run
    wrong = work(selection, where, sizes, measuring, phases)
    phases.report()
    if wrong:
        sys.exit(1)


def _run(
    selection: Selection,
    where: DeviceOptions,
    sizes: list[int],
    measuring: Measuring,
    phases: Phases,
) -> int:
    """Runs each plan, and prints a table; the number of wrong elements."""
    plans = _plans(choosing_for(_with_ranks(selection), sizes), phases)
    with contextlib.ExitStack() as opened:
        words, runs = _place(plans, where, measuring, opened)
        if where.is_processes:
            _note_sharing(plans[-1].collective.ranks)
        if not phases.quiet:
            echo(run_head(plans[-1], f"{words}; time is the average of the iterations"))
            echo(RUN_HEADER)
        with phases("running"):
            rows = _measure(plans, runs, measuring.sweep(sizes), quiet=phases.quiet)
    wrong = _count_wrong(m for row in rows for m in row.sides)
    if phases.quiet:
        phases.print_json(not wrong, where=words, rows=[_json(row) for row in rows])
    else:
        echo(run_footer(rows))
    return wrong


def _compare_engines(
    selection: Selection,
    where: DeviceOptions,
    sizes: list[int],
    measuring: Measuring,
    phases: Phases,
) -> int:
    """Runs the same plan with both engines on devices, and prints a table; the number of wrong
    elements. Each round times both engines at every size; the table has the median of the rounds.
    Without a choice of place the plan is in place."""
    plan = plan_of(prefer_in_place(selection), phases, verify=True)
    places = where.devices(plan)
    words = _device_words(plan, places, where, measuring)
    settings = devices.Settings(**_limits(measuring), **_without_none(threads=where.threads))
    sweep = measuring.sweep(sizes)
    with progress_bar(quiet=phases.quiet) as bar, phases("running"):
        # The results are checked once at each size, before the rounds.
        task = bar.add_task("running", total=(ROUNDS + 1) * len(sizes) * len(Engine))
        advance = partial(bar.advance, task)
        rows = compare(plan, sweep, places, settings, rounds=ROUNDS, progress=advance)
    wrong = _count_wrong(m for row in rows for m in row.measurements.values())
    if phases.quiet:
        table = [_comparison_json(row) for row in rows]
        phases.print_json(not wrong, where=words, rows=table, mean_ratio=mean_ratio(rows))
    else:
        runs = counted(measuring.iterations, "run")
        times = f"time is the median of {counted(ROUNDS, 'round')} of {runs}"
        echo(run_head(plan, f"{words}; {times}"))
        echo("\n".join([COMPARISON_HEADER, *map(comparison_row, rows)]))
        echo(comparison_footer(rows))
    return wrong


def _without_none(**values: Any) -> dict[str, Any]:
    """The values that are not None, so that the others keep their defaults."""
    return {name: value for name, value in values.items() if value is not None}


def _limits(measuring: Measuring) -> dict[str, Any]:
    return _without_none(slot_bytes=measuring.slot_bytes, timeout_s=measuring.timeout_s)


def _with_ranks(selection: Selection) -> Selection:
    """The selection; an algorithm on N ranks without sizes gets as many as this process has cores,
    at least 2."""
    if has_sizes(selection) or selection.topology is not None or not takes(selection, "ranks"):
        return selection
    ranks = max(2, len(os.sched_getaffinity(0)))
    print_note(f"{ranks} ranks, since --ranks is not given")
    return replace(selection, ranks=ranks)


def _note_sharing(ranks: int) -> None:
    """Says if ranks share cores: their times have little to do with the plan."""
    cores = len(os.sched_getaffinity(0))
    if ranks > cores:
        print_note(f"{ranks} ranks share {counted(cores, 'core')}, and wait for one another to run")


def _place(
    plans: Sequence[Plan], where: DeviceOptions, measuring: Measuring, opened: contextlib.ExitStack
) -> tuple[str, list[Callable[..., object]]]:
    """The place where plans run, in words, and the functions that measure each there: their
    parameters are the sweep and `progress`. `opened` closes the place."""
    plan, limits = plans[-1], _limits(measuring)
    if where.is_processes:
        words = f"{plan.collective.ranks} processes on this machine"
        job = opened.enter_context(Job(plans, Settings.from_environment(**limits)))
        return words, [partial(measure, one.loaded.plan, one) for one in job.plans]
    places = where.devices(plan)
    engine = Engine.GENERATED if where.engine is None else Engine(where.engine)
    settings = devices.Settings(engine, **limits, **_without_none(threads=where.threads))
    code = "generated code" if engine is Engine.GENERATED else "interpreted"
    words = f"{_device_words(plan, places, where, measuring)}, {code}"
    return words, [partial(devices.run, one, devices=places, settings=settings) for one in plans]


def _device_words(
    plan: Plan, places: Sequence[Device], where: DeviceOptions, measuring: Measuring
) -> str:
    """The devices and thread blocks of a plan, and the way of its groups, for a table's head."""
    names = list(dict.fromkeys(device.name for device in places))
    on = " and ".join(names)
    if len(names) > 2:
        on = f"{len(names)} devices, {names[0]} to {names[-1]}"
    blocks = counted(int(np.count_nonzero(np.diff(plan.block_offset))), "thread block")
    if places[0].platform == "cuda":
        blocks += f" of {where.threads or f'up to {THREADS}'} threads"
    single = single_messages(plan, dict(enumerate(places)), is_one_process=True)
    way = way_of_groups(plan, single, data_type(measuring.dtype), REDUCE_OPS[measuring.reduce_op])
    groups = f", groups {way}" if way else ""
    return f"{counted(plan.collective.ranks, 'rank')} on {on}, {blocks}{groups}"


def _measure(
    plans: list[Plan], runs: Sequence[Callable[..., object]], sweep: Sweep, *, quiet: bool
) -> list[Row]:
    """Runs each plan over all sizes; prints each row when the last plan completes it."""
    sides: list[list[Measurement]] = [[] for _ in plans]
    sizes = len(sweep.sizes_bytes)
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("running", total=len(plans) * sizes)

        def record(measurement: Measurement) -> None:
            bar.advance(task)
            # The plans run one after another, so the first that lacks sizes is at work.
            number = next(k for k, side in enumerate(sides) if len(side) < sizes)
            sides[number].append(measurement)
            if number == len(plans) - 1 and not quiet:
                echo(run_row(_row(plans, sides, len(sides[-1]) - 1)))

        for run in runs:
            run(sweep, progress=record)
    return [_row(plans, sides, k) for k in range(sizes)]


def _plans(selection: Selection, phases: Phases) -> list[Plan]:
    """The plans to run, out of place first."""
    if supports_both_places(selection) and selection.in_place is None:
        both = [replace(selection, in_place=place) for place in (False, True)]
        return [plan_of(one, phases, verify=True) for one in both]
    return [plan_of(selection, phases, verify=True)]


def _row(plans: list[Plan], sides: Sequence[Sequence[Measurement]], k: int) -> Row:
    by_place = {p.collective.in_place: side[k] for p, side in zip(plans, sides, strict=True)}
    return Row(by_place.get(False), by_place.get(True))


def _count_wrong(measurements: Iterable[Measurement]) -> int:
    """The wrong elements of all; those of one without a check are -1, and count as none."""
    return sum(max(m.wrong, 0) for m in measurements)


def _json(row: Row) -> dict[str, object]:
    return {
        **_call_json(row.sides[0]),
        "out_of_place": row.out_of_place and _timing_json(row.out_of_place),
        "in_place": row.in_place and _timing_json(row.in_place),
    }


def _comparison_json(row: Comparison[Engine]) -> dict[str, object]:
    sides = {
        engine.value: {**_timing_json(m), "times_us": list(row.times_us[engine])}
        for engine, m in row.measurements.items()
    }
    return {**_call_json(row.measurements[Engine.GENERATED]), **sides, "ratio": ratio(row)}


def _timing_json(m: Measurement) -> dict[str, object]:
    """The JSON of a table's cell; `wrong` is None without a check."""
    return {
        **attributes(m, "time_us", "algbw_GBps", "busbw_GBps"),
        "wrong": None if m.wrong < 0 else m.wrong,
    }


def _call_json(m: Measurement) -> dict[str, object]:
    """The JSON that all cells of a table's row share."""
    return {**attributes(m, "size_bytes", "count", "dtype"), "reduce_op": m.redop, "root": m.root}
