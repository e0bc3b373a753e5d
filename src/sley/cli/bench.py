"""sley bench: generated code against the interpreter, on devices."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click
import numpy as np

from sley.cli.devices import Where, device_options
from sley.cli.measuring import Measuring, measuring_options
from sley.cli.options import (
    Selection,
    common_options,
    plan_options,
)
from sley.cli.output import Command, Phases, print_json, progress_bar
from sley.cli.sizes import size_options
from sley.cli.sources import in_place_by_default, plan_of
from sley.codegen import Engine
from sley.devices import measure
from sley.errors import counted
from sley.jobs import Measurement
from sley.report.tables import (
    COMPARISON_HEADER,
    ComparisonRow,
    Timing,
    comparison_footer,
    comparison_row,
    run_head,
)

_POSITIVE = click.IntRange(min=1)


@click.command("bench", cls=Command)
@plan_options
@device_options()
@size_options("1K", "1M")
@click.option("-r", "--rounds", type=_POSITIVE, default=5, show_default=True, help="Rounds.")
@measuring_options(
    "Timed runs of a size and an engine in a round.",
    "Room of a slot, which bounds a tile. [what 24M give each]",
)
@common_options
def bench_command(
    selection: Selection,
    where: Where,
    sizes: list[int],
    rounds: int,
    measuring: Measuring,
    as_json: bool,
    verbose: bool,
) -> None:
    """Compare generated code with the interpreter, on devices.

    Both run the same plan of WHAT, with the same thread blocks, threads, slots and arrays. Each is
    checked once at each size. Then, in each round, every size is timed with one after the other;
    the table has the median of the rounds, and how much longer the interpreter takes. An algorithm
    of the library runs in place, unless --out-of-place asks for the other.
    """
    phases = Phases(quiet=as_json)
    plan = plan_of(in_place_by_default(selection), phases, verify=True)
    devices = where.devices(plan)
    words = where.words(plan, devices)
    with progress_bar(quiet=as_json) as bar, phases("running"):
        task = bar.add_task("running", total=(rounds + 1) * len(sizes) * len(Engine))
        found = measure.compare(
            plan,
            sizes,
            devices=devices,
            rounds=rounds,
            progress=lambda: bar.advance(task),
            **measuring.settings,
            **where.settings,
        )
    rows = [_row(comparison, measuring.reduce_op) for comparison in found]
    mean = float(np.exp(np.mean(np.log([row.ratio for row in rows]))))
    wrong = sum(t.wrong or 0 for row in rows for t in (row.generated, row.interpreted))
    if as_json:
        document = {
            "ok": not wrong,
            "where": words,
            "rows": [_json(row, c) for row, c in zip(rows, found, strict=True)],
            "mean_ratio": mean,
            "seconds": phases.seconds,
        }
        print_json(document)
    else:
        runs = counted(measuring.iterations, "run")
        times = f"time is the median of {counted(rounds, 'round')} of {runs}"
        click.echo(run_head(plan, f"{words}; {times}"))
        click.echo("\n".join([COMPARISON_HEADER, *map(comparison_row, rows)]))
        click.echo(comparison_footer(rows, mean))
    if verbose:
        phases.report()
    if wrong:
        sys.exit(1)


def _row(found: measure.Comparison, reduce_op: str) -> ComparisonRow:
    timings = {engine: _timing(m) for engine, m in found.engines.items()}
    return ComparisonRow(
        size_bytes=found.size_bytes,
        count=found.count,
        dtype=found.dtype,
        reduce_op=reduce_op,
        root=found.root,
        generated=timings[Engine.GENERATED],
        interpreted=timings[Engine.INTERPRETED],
        ratio=found.ratio,
    )


def _timing(m: Measurement) -> Timing:
    return Timing(m.time_us, m.algbw_GBps, m.busbw_GBps, None if m.wrong < 0 else m.wrong)


def _json(row: ComparisonRow, found: measure.Comparison) -> dict[str, Any]:
    def side(timing: Timing, times_us: Sequence[float]) -> dict[str, Any]:
        return {**vars(timing), "times_us": list(times_us)}

    values = {**vars(row)}
    for engine in Engine:
        values[engine.value] = side(values[engine.value], found.times_us[engine])
    return values
