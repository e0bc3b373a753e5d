"""Time and memory of compilation.

    python benchmarks/compile.py [--case NAME] [--runs N] [--json]

Every run of a case is a separate process, so that its peak memory is its own; a row has the medians
over the runs. The times are those of tracing the program, of the passes, and of the verifier; the
import of sley is measured separately.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from common import machine
from common.processes import peak_MB, run_apart

if TYPE_CHECKING:
    import sley

TIMES = ("trace", "passes", "verify", "total")
TIMEOUT_S = 1800


@dataclass(frozen=True)
class Case:
    """A program to compile, made by `build`.

    target_s, target_MB: the aims for the total time and the peak memory; with None the case must
        only succeed.
    """

    build: Callable[[], sley.Program]
    target_s: float | None = None
    target_MB: float | None = None  # noqa: N815 - the unit's own spelling


def _library(name: str, **parameters: int) -> Callable[[], sley.Program]:
    def build() -> sley.Program:
        import sley

        # As in the paper, AllReduce is in place and AllToAll out of place.
        return sley.algorithms.build(name, **parameters, in_place=name.endswith("allreduce"))

    return build


def diamonds() -> sley.Program:
    """A chain of nine diamonds: each is two local copies and two reductions, on two ranks."""
    import sley

    def body(p: Any) -> None:
        for turn in range(9):
            here, there = turn % 2, (turn + 1) % 2
            base = p.chunk(here, "in", 0)
            left = base.copy(here, "scratch", 0)
            right = base.copy(here, "scratch", 1)
            both = left.reduce(right)
            p.chunk(there, "in", 0).reduce(both)

    collective = sley.Custom("diamonds", 2, 1, 1, lambda rank, index: None, in_place=True)
    return sley.trace(collective, body)


def chain() -> sley.Program:
    """One chunk that 2,000 ranks pass on."""
    import sley

    def body(p: Any) -> None:
        c = p.chunk(0, "in", 0).copy(0, "out", 0)
        for rank in range(1, 2000):
            c = c.copy(rank, "out", 0)

    return sley.trace(sley.Broadcast(2000), body)


CASES = {
    "all-pairs-allreduce-32": Case(_library("all-pairs-allreduce", ranks=32), 3),
    "ring-allreduce-256": Case(_library("ring-allreduce", ranks=256), 3),
    "hierarchical-allreduce-128x8": Case(_library("hierarchical-allreduce", nodes=128, gpus=8), 15),
    "two-step-alltoall-64x8": Case(_library("two-step-alltoall", nodes=64, gpus=8), 20, 2048),
    "nine-diamonds": Case(diamonds, 0.1),
    "copy-chain-2000": Case(chain),
}


def measure(name: str) -> dict[str, float]:
    """One run of a case in this process: sizes, seconds, peak memory."""
    start = time.perf_counter()
    import sley

    imported = time.perf_counter()
    program = CASES[name].build()
    traced = time.perf_counter()
    plan = sley.compile(program, verify=False)
    compiled = time.perf_counter()
    sley.verify(plan)
    verified = time.perf_counter()
    return {
        "ranks": program.collective.ranks,
        "transfers": len(program.transfers),
        "instructions": len(plan.instructions),
        "import": imported - start,
        "trace": traced - imported,
        "passes": compiled - traced,
        "verify": verified - compiled,
        "total": verified - imported,
        "peak_MB": peak_MB(),
    }


def run_case(name: str, runs: int) -> dict[str, Any]:
    """The medians over `runs` processes, or the error."""
    results = []
    for _ in range(runs):
        try:
            done = run_apart(__file__, "--measure", name, timeout_s=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return {"case": name, "error": f"more than {TIMEOUT_S} s"}
        if done.returncode:
            reason = (done.stderr.strip() or "no message").splitlines()[-1]
            return {"case": name, "error": f"exit code {done.returncode}: {reason}"}
        results.append(json.loads(done.stdout))
    row: dict[str, Any] = {k: statistics.median(r[k] for r in results) for k in results[0]}
    case = CASES[name]
    limits = (("total", case.target_s), ("peak_MB", case.target_MB))
    met = all(limit is None or row[word] <= limit for word, limit in limits)
    targets = {"target_s": case.target_s, "target_MB": case.target_MB}
    return {"case": name, **row, **targets, "met": met}


HEAD = (
    f"{'case':30}{'ranks':>6}{'transfers':>11}{'instr.':>9}"
    f"{'trace':>8}{'passes':>8}{'verify':>8}{'total':>8}{'MB':>7}  target"
)


def line(row: dict[str, Any]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"{row['case']:30}{row['error']}"
    limits = ((row["target_s"], "s"), (row["target_MB"], "MB"))
    target = ", ".join(f"{limit:g} {unit}" for limit, unit in limits if limit) or "no crash"
    times = "".join(f"{row[k]:8.3f}" for k in TIMES)
    return (
        f"{row['case']:30}{row['ranks']:6.0f}{row['transfers']:11.0f}{row['instructions']:9.0f}"
        f"{times}{row['peak_MB']:7.0f}  {target}: {'met' if row['met'] else 'missed'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="only this case")
    parser.add_argument("--runs", type=int, default=3, help="processes a case (default 3)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--measure", choices=CASES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(options.measure)))
        return 0
    rows, facts = [], machine.facts()
    if not options.json:
        print(machine.text(facts))
        print("times in seconds")
        print(HEAD)
    for name in [options.case] if options.case else CASES:
        rows.append(run_case(name, max(options.runs, 1)))
        if not options.json:
            print(line(rows[-1]), flush=True)
    imports = [row["import"] for row in rows if "import" in row]
    if options.json:
        print(json.dumps({"machine": facts, "cases": rows}, indent=2))
    elif imports:
        print(f"import sley: {statistics.median(imports):.3f} s")
    return 0 if all("error" not in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
