"""Time and memory of simulations: a row for each case.

    python benchmarks/simulate.py [--case NAME ...] [--runs N] [--json]

HM AllReduce on nodes of 8 GPUs, scheduled by HPDS with thread blocks by state, for one size; and a
ring over 32 GPUs for 20 sizes. Every run is a separate process. Times are medians over the runs:
the compilation, the preparation for a plan and topology (including the bounds), and the
simulations; memory is the highest peak.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from typing import Any

from common import machine
from common.processes import measure_apart, peak_MB

NODE = 8
SIZE = "256M"
SWEEP = [2**k for k in range(10, 30)]
TIMES = ("compile", "prepare", "simulate", "total")


@dataclass(frozen=True)
class Case:
    """A case. gpus: number of GPUs, in nodes of 8. sizes: bytes of each call. target_s: the aim for
    preparing and simulating."""

    algorithm: str
    gpus: int
    sizes: tuple[str | int, ...]
    target_s: float


CASES = {
    "hm-64": Case("hm-allreduce", 64, (SIZE,), 10.0),
    "hm-1024": Case("hm-allreduce", 1024, (SIZE,), 300.0),
    "ring-32-sweep": Case("ring-allreduce", 32, tuple(SWEEP), 20.0),
}


def measure(case: Case) -> dict[str, Any]:
    """One run in this process."""
    import sley
    from sley.model.simulation import Simulator

    nodes = case.gpus // NODE
    topology = sley.topologies.ndv4(nodes)
    start = time.perf_counter()
    program = sley.algorithms.build(case.algorithm, nodes=nodes, gpus=NODE, in_place=True)
    if case.algorithm == "hm-allreduce":
        plan = sley.compile(program, schedule="hpds", allocate="state", verify=False)
    else:
        plan = sley.compile(program, verify=False)
    compiled = time.perf_counter()
    simulator = Simulator(plan, topology)
    prepared = time.perf_counter()
    results = [simulator(size) for size in case.sizes]
    done = time.perf_counter()
    return {
        "instructions": len(plan.instructions),
        "executions": sum(len(plan.instructions) * r.tiles for r in results),
        "algbw_GBps": results[-1].algbw_GBps,
        "peak_MB": peak_MB(),
        "seconds": {
            "compile": compiled - start,
            "prepare": prepared - compiled,
            "simulate": done - prepared,
            "total": done - compiled,
        },
    }


def medians(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over runs of one case."""
    joined = dict(results[0])
    joined["peak_MB"] = statistics.median(r["peak_MB"] for r in results)
    joined["seconds"] = {t: statistics.median(r["seconds"][t] for r in results) for t in TIMES}
    return joined


def line(name: str, row: dict[str, Any]) -> str:
    seconds, limit = row["seconds"], CASES[name].target_s
    times = "".join(f"{seconds[t]:>12.2f}" for t in TIMES)
    met = "met" if seconds["total"] <= limit else "missed"
    return (
        f"{name:15}{row['instructions']:>11,}{row['executions']:>13,}{times}"
        f"{row['peak_MB']:>8.0f}  below {limit:g} s: {met}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--runs", type=int, default=3, help="processes a case (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--measure", choices=list(CASES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(CASES[options.measure])))
        return
    if not options.json:
        print(machine.text(machine.facts()))
        heads = "".join(f"{f'{t} s':>12}" for t in TIMES)
        print(f"{'case':15}{'instructions':>11}{'executions':>13}{heads}{'MB':>8}")
    rows = {}
    for name in options.case:
        rows[name] = medians([measure_apart(__file__, name) for _ in range(max(options.runs, 1))])
        if not options.json:
            print(line(name, rows[name]), flush=True)
    if options.json:
        print(json.dumps({"machine": machine.facts(), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
