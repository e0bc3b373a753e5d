"""Time and memory of compiling millions of transfers, by phase, as in ResCCL's figure 10(a).

    python benchmarks/scale.py [--gpus N ...] [--runs N] [--schedule S] [--cold] [--json]

HM AllReduce on nodes of 8 GPUs, from ResCCLang's text to a verified plan: whole transfers scheduled
by HPDS, thread blocks by state, instruction order. Every run is a separate process; times are
medians over the runs, memory is the highest peak until the end of the phase. Numba compiles its
loops before the runs, as on any machine after the first use; with --cold each process compiles them
again, into an empty folder, and the times include this.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, TypeVar

from common import machine
from common.processes import measure_apart, peak_MB

T = TypeVar("T")

GPUS = (256, 512, 1024)
NODE = 8
PAPER = {
    "order": "scheduling",
    "pipelines": "scheduling",
    "blocks": "allocation",
    "allocate": "allocation",
    "emit": "lowering",
}
"""The names of ResCCL 5.3 for passes; the others are its analysis."""
STAGES = ("parsing", "analysis", "scheduling", "allocation", "lowering", "verification")
TARGETS = {256: (5.0, None), 1024: (60.0, 6144)}
"""The aims in seconds and MB for each number of GPUs."""


def measure(gpus: int, schedule: str) -> dict[str, Any]:
    """One run in this process: seconds and peak memory of each phase."""
    import sley
    from sley.compiler import compile_in_phases
    from sley.compiler.pipeline import PASSES

    stages = {name: PAPER.get(name, "analysis") for name in PASSES}
    seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
    memory: dict[str, float] = {}

    def phase(name: str, work: Callable[[], T], /) -> T:
        start = time.perf_counter()
        value = work()
        stage = stages.get(name, name)
        seconds[stage] += time.perf_counter() - start
        memory[stage] = peak_MB()
        return value

    text = sley.algorithms.resccl_text("hm-allreduce")
    start = time.perf_counter()
    program = phase(
        "parsing",
        lambda: sley.rescclang.parse(
            text, in_place=True, nRanks=gpus, GPUPerNode=NODE, NICPerNode=NODE // 2
        ),
    )
    plan = compile_in_phases(program, sley.Options(schedule=schedule, allocate="state"), phase)
    seconds["total"] = time.perf_counter() - start
    memory["total"] = peak_MB()
    return {
        "transfers": len(program.transfers),
        "instructions": len(plan.instructions),
        "waits": len(plan.waits),
        "sub_pipelines": plan.pipelines,
        "blocks_per_rank": plan.blocks_per_rank,
        "seconds": seconds,
        "peak_MB": memory,
    }


def run(gpus: int, schedule: str, *, cold: bool) -> dict[str, Any]:
    """One run in a separate process."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {"NUMBA_CACHE_DIR": empty} if cold else {}
        return measure_apart(__file__, str(gpus), "--schedule", schedule, **environment)


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over runs of one size."""
    joined = {k: v for k, v in results[0].items() if not isinstance(v, dict)}
    for word in ("seconds", "peak_MB"):
        joined[word] = {k: statistics.median(r[word][k] for r in results) for k in results[0][word]}
    return joined


def table(rows: dict[int, dict[str, Any]]) -> list[str]:
    """The rows of all sizes, a column for each."""
    lines = [
        f"{'':18}" + "".join(f"{f'{gpus} GPUs':>20}" for gpus in rows),
        f"{'transfers':18}" + "".join(f"{row['transfers']:>20,}" for row in rows.values()),
        f"{'sub-pipelines':18}" + "".join(f"{row['sub_pipelines']:>20,}" for row in rows.values()),
        f"{'blocks a rank':18}"
        + "".join(f"{row['blocks_per_rank']:>20,}" for row in rows.values()),
    ]
    for name in (*STAGES, "total"):
        lines.append(
            f"{name:18}"
            + "".join(
                f"{row['seconds'][name]:>10.2f} s{row['peak_MB'][name]:>5.0f} MB"
                for row in rows.values()
            )
        )
    lines.append(
        f"{'us a transfer':18}"
        + "".join(
            f"{row['seconds']['total'] * 1e6 / row['transfers']:>20.2f}" for row in rows.values()
        )
    )
    for gpus, (limit_s, limit_MB) in TARGETS.items():  # noqa: N806 - a unit
        if gpus in rows:
            row = rows[gpus]
            met = row["seconds"]["total"] <= limit_s and (
                limit_MB is None or row["peak_MB"]["total"] <= limit_MB
            )
            limits = f"{limit_s:g} s" + ("" if limit_MB is None else f", {limit_MB:g} MB")
            lines.append(f"{gpus} GPUs below {limits}: {'met' if met else 'missed'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=GPUS, help="multiples of 8")
    parser.add_argument("--runs", type=int, default=3, help="processes for each size (default 3)")
    parser.add_argument("--schedule", default="hpds", choices=("hpds", "round-robin"))
    parser.add_argument("--cold", action="store_true", help="compile the loops in each process")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure, options.schedule)))
        return
    if not options.cold:
        run(max(options.gpus), options.schedule, cold=False)
    rows = {
        gpus: medians(
            [run(gpus, options.schedule, cold=options.cold) for _ in range(max(options.runs, 1))]
        )
        for gpus in options.gpus
    }
    if options.json:
        found = {"machine": machine.facts(), "schedule": options.schedule, "rows": rows}
        print(json.dumps(found, indent=2))
        return
    print(machine.text(machine.facts()))
    print(f"HM AllReduce, {NODE} GPUs a node, {options.schedule}, thread blocks by state")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
