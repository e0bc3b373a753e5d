"""sley bench: compares generated code with the interpreter, on devices."""

from __future__ import annotations

import sys
from typing import Any

import click

from sley.cli.measuring import (
    Measuring,
    Where,
    device_options,
    measuring_options,
    row_json,
    timing_json,
    without_none,
)
from sley.cli.options import (
    POSITIVE,
    PlanCommand,
    Selection,
    common_options,
    plan_options,
    size_options,
)
from sley.cli.output import Phases, echo, print_json
from sley.cli.sources import plan_of, prefer_in_place
from sley.engine.devices import Engine, Settings, compare
from sley.engine.measure import Comparison
from sley.errors import counted
from sley.report.tables import (
    COMPARISON_HEADER,
    comparison_footer,
    comparison_row,
    mean_ratio,
    ratio,
    run_head,
)


@click.command("bench", cls=PlanCommand)
@plan_options
@device_options()
@size_options("1K", "1M")
@click.option("-r", "--rounds", type=POSITIVE, default=5, show_default=True, help="Rounds.")
@measuring_options(
    "Timed runs of each size and engine in a round.",
    "Size of a slot, which limits a tile. [all slots share 24M]",
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

    Both run the same plan of WHAT, with the same thread blocks, threads, slots and arrays. First
    sley checks the results of both at each size. Then each round times both at every size; the
    table shows the median of the rounds, and the interpreter's time over the generated code's.
    Algorithms of the library run in place by default.
    """
    phases = Phases(verbose, quiet=as_json)
    plan = plan_of(prefer_in_place(selection), phases, verify=True)
    devices = where.devices(plan)
    words = where.words(plan, devices, measuring)
    settings = Settings(
        **without_none(
            slot_bytes=measuring.slot_bytes,
            timeout_s=measuring.timeout_s,
            threads=where.threads,
        )
    )
    with phases.bar() as bar, phases("running"):
        task = bar.add_task("running", total=(rounds + 1) * len(sizes) * len(Engine))
        rows = compare(
            plan,
            measuring.sweep(sizes),
            devices,
            settings,
            rounds=rounds,
            progress=lambda: bar.advance(task),
        )
    wrong = sum(max(m.wrong, 0) for row in rows for m in row.measurements.values())
    if as_json:
        print_json(
            {
                "ok": not wrong,
                "where": words,
                "rows": [_json(row) for row in rows],
                "mean_ratio": mean_ratio(rows),
                "seconds": phases.seconds,
            }
        )
    else:
        runs = counted(measuring.iterations, "run")
        times = f"time is the median of {counted(rounds, 'round')} of {runs}"
        echo(run_head(plan, f"{words}; {times}"))
        echo("\n".join([COMPARISON_HEADER, *map(comparison_row, rows)]))
        echo(comparison_footer(rows))
    phases.report()
    if wrong:
        sys.exit(1)


def _json(row: Comparison[Engine]) -> dict[str, Any]:
    sides = {
        engine.value: {**timing_json(m), "times_us": list(row.times_us[engine])}
        for engine, m in row.measurements.items()
    }
    return {**row_json(row.measurements[Engine.GENERATED]), **sides, "ratio": ratio(row)}
