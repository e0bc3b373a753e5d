"""sley run: a plan on processes of this machine or on devices, checked and timed as nccl-tests
does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from sley import running
from sley.cli.devices import PROCESSES, Where, device_options
from sley.cli.measuring import Measuring, measuring_options
from sley.cli.options import (
    Member,
    Selection,
    common_options,
    plan_options,
)
from sley.cli.output import Command, Phases, print_json, progress_bar
from sley.cli.sizes import size_options
from sley.cli.sources import goes_both_ways, plan_of
from sley.codegen import Engine
from sley.ir.plan import Plan
from sley.jobs import Measurement
from sley.report.tables import RUN_HEADER, Row, Timing, run_footer, run_head, run_row


@click.command("run", cls=Command)
@plan_options
@device_options(PROCESSES)
@click.option(
    "--engine", type=Member(Engine), help="On devices: code made for the plan, or none. [generated]"
)
@size_options("1K")
@measuring_options(
    "Runs that are timed.",
    "Room of a slot, which bounds a tile. [64K; on devices what 24M give each]",
)
@common_options
def run_command(
    selection: Selection,
    where: Where,
    engine: Engine | None,
    sizes: list[int],
    measuring: Measuring,
    as_json: bool,
    verbose: bool,
) -> None:
    """Run WHAT, check every element, print nccl-tests' table.

    It runs on processes of this machine, or with --device as kernels: on GPUs (cuda), or on threads
    of this machine, which is for tests of the kernels. Algorithms of the library run out of place
    and in place, unless one is asked for.
    """
    phases = Phases(quiet=as_json)
    if where.is_processes:
        _refuse_on_processes(where, engine)
    plans = _plans(selection, phases)
    words, settings = _place(plans[-1], where, engine)
    settings |= measuring.settings
    if not as_json:
        click.echo(run_head(plans[-1], f"{words}; time is the average of the iterations"))
        click.echo(RUN_HEADER)
    with phases("running"):
        rows = _measure(plans, sizes, settings, measuring.reduce_op, quiet=as_json)
    wrong = sum(t.wrong or 0 for r in rows for t in (r.out_of_place, r.in_place) if t)
    if as_json:
        table = [_json(row) for row in rows]
        print_json({"ok": not wrong, "where": words, "rows": table, "seconds": phases.seconds})
    else:
        click.echo(run_footer(rows))
    if verbose:
        phases.report()
    if wrong:
        sys.exit(1)


def _refuse_on_processes(where: Where, engine: Engine | None) -> None:
    """click's usage error for what processes don't have."""
    given = {"ranks-per-gpu": where.ranks_per_gpu, "threads": where.threads, "engine": engine}
    for word, value in given.items():
        if value is not None:
            raise click.UsageError(f"--{word} goes with --device cuda or --device threads")


def _place(plan: Plan, where: Where, engine: Engine | None) -> tuple[str, dict[str, Any]]:
    """Where a plan runs: in words, and as settings of `sley.run`."""
    if where.is_processes:
        return f"{plan.collective.ranks} processes on this machine", {}
    devices, engine = where.devices(plan), engine or Engine.GENERATED
    code = "generated code" if engine is Engine.GENERATED else "interpreted"
    settings = {"devices": devices, "engine": engine, **where.settings}
    return f"{where.words(plan, devices)}, {code}", settings


def _measure(
    plans: list[Plan], sizes: list[int], settings: dict[str, Any], reduce_op: str, *, quiet: bool
) -> list[Row]:
    """Runs each plan over all sizes; the rows are printed as the last plan completes them."""
    sides: list[list[Measurement]] = [[] for _ in plans]
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task("running", total=len(plans) * len(sizes))

        def record(measurement: Measurement) -> None:
            bar.advance(task)
            number = next(k for k, side in enumerate(sides) if len(side) < len(sizes))
            sides[number].append(measurement)
            if number == len(plans) - 1 and not quiet:
                click.echo(run_row(_row(plans, sides, len(sides[-1]) - 1, reduce_op)))

        for plan in plans:
            running.run(plan, sizes, proven=True, progress=record, **settings)
    return [_row(plans, sides, k, reduce_op) for k in range(len(sizes))]


def _plans(selection: Selection, phases: Phases) -> list[Plan]:
    """The plans of a table, out of place first."""
    if goes_both_ways(selection) and selection.in_place is None:
        places = [selection.with_place(False), selection.with_place(True)]
        return [plan_of(s, phases, verify=True) for s in places]
    return [plan_of(selection, phases, verify=True)]


def _row(plans: list[Plan], sides: Sequence[Sequence[Measurement]], k: int, reduce_op: str) -> Row:
    in_place: Timing | None = None
    out_of_place: Timing | None = None
    for plan, side in zip(plans, sides, strict=False):
        m = side[k]
        timing = Timing(m.time_us, m.algbw_GBps, m.busbw_GBps, None if m.wrong < 0 else m.wrong)
        if plan.collective.in_place:
            in_place = timing
        else:
            out_of_place = timing
    m = sides[0][k]
    return Row(m.size_bytes, m.count, m.dtype, reduce_op, m.root, out_of_place, in_place)


def _json(row: Row) -> dict[str, object]:
    sides = {"out_of_place": row.out_of_place, "in_place": row.in_place}
    return {
        "size_bytes": row.size_bytes,
        "count": row.count,
        "dtype": row.dtype,
        "reduce_op": row.reduce_op,
        "root": row.root,
        **{side: vars(t) if t else None for side, t in sides.items()},
    }
