"""sley run: runs a plan on processes of this machine or on devices; checks and times it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import click

from sley.cli.engines import compare_engines
from sley.cli.measuring import (
    DeviceOptions,
    Measuring,
    device_options,
    measuring_options,
    row_json,
    timing_json,
    without_none,
)
from sley.cli.options import (
    PlanCommand,
    Selection,
    common_options,
    plan_options,
    size_options,
)
from sley.cli.output import Phases, echo, print_json, print_note, progress_bar
from sley.cli.sources import choosing_for, has_sizes, plan_of, supports_both_places, takes
from sley.communicator import Settings
from sley.communicator.jobs import Job
from sley.engine import devices
from sley.engine.devices import Engine
from sley.engine.measure import Measurement, Sweep, measure
from sley.errors import counted
from sley.ir.plan import Plan
from sley.report.tables import RUN_HEADER, Row, run_footer, run_head, run_row

BOTH = "both"
"""The value of --engine that compares all engines."""


@click.command("run", cls=PlanCommand)
@plan_options
@device_options
@click.option(
    "--engine",
    type=click.Choice([*(engine.value for engine in Engine), BOTH]),
    help="On devices: generated code, or an interpreter; or both in turn, with the ratio of their "
    "times. [generated]",
)
@size_options("1K")
@measuring_options
@common_options
def run_command(
    selection: Selection,
    where: DeviceOptions,
    engine: str | None,
    sizes: list[int],
    measuring: Measuring,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run WHAT, check every element, and print a table like that of nccl-tests.

    WHAT runs on processes of this machine, or with --device as kernels: on GPUs (cuda), or on
    threads of this machine, to test the kernels. By default, algorithms of the library run both
    out of place and in place, with --engine both in place.
    """
    phases = Phases(verbose, quiet=as_json)
    if where.is_processes:
        _refuse_on_processes(where, engine)
    if engine == BOTH:
        is_right = compare_engines(selection, where, sizes, measuring, phases)
        phases.report()
        sys.exit(not is_right)
    plans = _plans(choosing_for(_with_ranks(selection), sizes), phases)
    with contextlib.ExitStack() as opened:
        one = None if engine is None else Engine(engine)
        words, runs = _place(plans, where, one, measuring, opened)
        if where.is_processes:
            _note_sharing(plans[-1].collective.ranks)
        if not as_json:
            echo(run_head(plans[-1], f"{words}; time is the average of the iterations"))
            echo(RUN_HEADER)
        with phases("running"):
            rows = _measure(plans, runs, measuring.sweep(sizes), quiet=as_json)
    wrong = sum(max(m.wrong, 0) for row in rows for m in row.sides)
    if as_json:
        table = [_json(row) for row in rows]
        print_json({"ok": not wrong, "where": words, "rows": table, "seconds": phases.seconds})
    else:
        echo(run_footer(rows))
    phases.report()
    if wrong:
        sys.exit(1)


def _refuse_on_processes(where: DeviceOptions, engine: str | None) -> None:
    """Refuses options that processes don't have. Errors: click's usage error."""
    values = {"ranks-per-gpu": where.ranks_per_gpu, "threads": where.threads, "engine": engine}
    for word, value in values.items():
        if value is not None:
            raise click.UsageError(f"--{word} needs --device cuda or --device threads")


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
    plans: Sequence[Plan],
    where: DeviceOptions,
    engine: Engine | None,
    measuring: Measuring,
    opened: contextlib.ExitStack,
) -> tuple[str, list[Callable[..., object]]]:
    """The place where plans run, in words, and the functions that measure each there: their
    parameters are the sweep and `progress`. `opened` closes the place."""
    plan = plans[-1]
    limits = without_none(slot_bytes=measuring.slot_bytes, timeout_s=measuring.timeout_s)
    if where.is_processes:
        words = f"{plan.collective.ranks} processes on this machine"
        job = opened.enter_context(Job(plans, Settings.from_environment(**limits)))
        return words, [partial(measure, one.loaded.plan, one) for one in job.plans]
    places = where.devices(plan)
    settings = devices.Settings(**limits, **without_none(engine=engine, threads=where.threads))
    code = "generated code" if settings.engine is Engine.GENERATED else "interpreted"
    words = f"{where.words(plan, places, measuring)}, {code}"
    return words, [partial(devices.run, one, devices=places, settings=settings) for one in plans]


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


def _json(row: Row) -> dict[str, object]:
    return {
        **row_json(row.sides[0]),
        "out_of_place": row.out_of_place and timing_json(row.out_of_place),
        "in_place": row.in_place and timing_json(row.in_place),
    }
