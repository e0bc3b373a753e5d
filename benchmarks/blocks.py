"""Thread blocks of synthesised and vendors' plans, before and after HPDS schedules them again.

    python benchmarks/blocks.py FILE.xml ... [--cluster TOPOLOGY] [--json]

Each MSCCL XML file is verified, lifted to a program, and scheduled by HPDS as whole tasks: with
thread blocks for each connection, by state (ResCCL 4.4), and with the smallest number of blocks
whose estimated time is not above that with a block for each connection. All plans are verified.
`idle` is the average idle share of the estimated time; nothing is measured on GPUs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import sley


def idle(plan: sley.Plan) -> float:
    """The average idle share of the estimated time."""
    assert plan.estimate is not None
    return 1 - float(plan.estimate.busy_us.mean()) / plan.estimate.time_us


def fewest(program: sley.Program, most: int, topology: sley.Topology | None) -> sley.Plan | None:
    """The plan with the fewest blocks whose estimate is not larger; None if there is none."""
    found = None
    for limit in range(most - 1, 0, -1):
        plan = sley.compile(
            program, schedule="hpds", allocate="state", max_blocks=limit, topology=topology
        )
        assert plan.estimate is not None
        if plan.estimate.time_us <= plan.estimate.unmerged_us * (1 + 1e-9):
            found = plan
    return found


def measure(path: Path, topology: sley.Topology | None) -> dict[str, Any]:
    """One row of the table."""
    imported = sley.load(path)
    sley.verify(imported)
    program = sley.lift(imported)
    topology = topology if topology and topology.ranks == imported.collective.ranks else None
    options: dict[str, Any] = {"schedule": "hpds", "topology": topology}
    connection = sley.compile(program, **options)
    state = sley.compile(program, allocate="state", **options)
    least = fewest(program, state.blocks_per_rank, topology) or state
    return {
        "file": path.stem,
        "ranks": imported.collective.ranks,
        "transfers": len(program.transfers),
        "before": imported.blocks_per_rank,
        "connection": connection.blocks_per_rank,
        "state": state.blocks_per_rank,
        "idle_state": idle(state),
        "fewest": least.blocks_per_rank,
        "idle_fewest": idle(least),
        "growth": 0.0
        if least.estimate is None
        else least.estimate.time_us / least.estimate.unmerged_us - 1,
    }


HEAD = (
    f"{'file':26}{'ranks':>6}{'transfers':>11}{'before':>8}{'connection':>12}{'state':>7}"
    f"{'idle':>7}{'fewest':>8}{'idle':>7}{'time':>8}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--cluster",
        type=sley.topologies.find,
        help="the cluster of files with as many ranks; else one node",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [measure(path, options.cluster) for path in options.files]
    if options.json:
        json.dump({"rows": rows}, sys.stdout, indent=2)
        return
    print(HEAD)
    for row in rows:
        print(
            f"{row['file']:26}{row['ranks']:>6}{row['transfers']:>11}{row['before']:>8}"
            f"{row['connection']:>12}{row['state']:>7}{row['idle_state']:>7.0%}"
            f"{row['fewest']:>8}{row['idle_fewest']:>7.0%}{row['growth']:>+8.1%}"
        )


if __name__ == "__main__":
    main()
