"""sley run --engine both: compares generated code with the interpreter, on devices."""

from __future__ import annotations

from typing import Any

from sley.cli.measuring import DeviceOptions, Measuring, row_json, timing_json, without_none
from sley.cli.options import Selection
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

ROUNDS = 5


def compare_engines(
    selection: Selection,
    where: DeviceOptions,
    sizes: list[int],
    measuring: Measuring,
    phases: Phases,
) -> bool:
    """Runs the same plan with both engines on devices, and prints a table; whether all elements are
    right. Each round times both engines at every size; the table has the median of the rounds.
    Without a choice of place the plan is in place."""
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
        task = bar.add_task("running", total=(ROUNDS + 1) * len(sizes) * len(Engine))
        rows = compare(
            plan,
            measuring.sweep(sizes),
            devices,
            settings,
            rounds=ROUNDS,
            progress=lambda: bar.advance(task),
        )
    wrong = sum(max(m.wrong, 0) for row in rows for m in row.measurements.values())
    if phases.quiet:
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
        times = f"time is the median of {counted(ROUNDS, 'round')} of {runs}"
        echo(run_head(plan, f"{words}; {times}"))
        echo("\n".join([COMPARISON_HEADER, *map(comparison_row, rows)]))
        echo(comparison_footer(rows))
    return not wrong


def _json(row: Comparison[Engine]) -> dict[str, Any]:
    sides = {
        engine.value: {**timing_json(m), "times_us": list(row.times_us[engine])}
        for engine, m in row.measurements.items()
    }
    return {**row_json(row.measurements[Engine.GENERATED]), **sides, "ratio": ratio(row)}
