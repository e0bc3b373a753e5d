"""Times of plans that share thread blocks, with the topology's costs against A100s' constants.

    python benchmarks/allocation.py [--clusters CLUSTER ...]

Every algorithm of the library that fits a cluster and shares blocks is compiled by state and within
four blocks a rank, with hpds and msccl, and simulated. The other times are in
results/allocation-a100-costs.json: plans of commit eddd98f, which took the times for sharing blocks
from constants of A100s on every machine, and tried no way by simulation. For each cluster the table
has the median and the extremes of new / old, at both sizes; below it are the plans that became
slower by more than 1 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common.tables import table

import sley

BEFORE = Path(__file__).parent / "results" / "allocation-a100-costs.json"
SIZES = ("1M", "64M")
WAYS: dict[str, dict[str, Any]] = {
    "hpds state": {"schedule": "hpds", "allocate": "state"},
    "hpds 4": {"schedule": "hpds", "max_blocks": 4},
    "msccl state": {"allocate": "state"},
    "msccl 4": {"max_blocks": 4},
}
SLOWER = 1.01
"""The ratio from which on a plan is listed."""


def ratios(cluster: str, way: str, before: dict[str, list[float]]) -> Iterator[tuple[str, Any]]:
    """Each algorithm with its plan's times at SIZES over those before.

    before: for each algorithm, the largest number of blocks on a rank, and the times in
    microseconds.
    """
    topology = sley.topologies.find(cluster)
    gpus = topology.ranks // topology.nodes
    for name, (_, *times) in before.items():
        program = sley.algorithms.build(name, nodes=topology.nodes, gpus=gpus, in_place=True)
        plan = sley.compile(program, topology=topology, verify=False, **WAYS[way])
        yield name, np.array([s.time_us for s in sley.simulate(plan, SIZES)]) / times


def main() -> None:
    before = json.loads(BEFORE.read_text())
    clusters = list(dict.fromkeys(key.split()[0] for key in before))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clusters", nargs="+", default=clusters, choices=clusters)
    every: list[Any] = []
    rows, slower = [], []
    for cluster in parser.parse_args().clusters:
        here: list[Any] = []
        for way in WAYS:
            found = dict(ratios(cluster, way, before[f"{cluster} {way}"]))
            here += found.values()
            slower += [
                (cluster, way, name, *(f"{ratio:.3f}" for ratio in pair))
                for name, pair in found.items()
                if max(pair) > SLOWER
            ]
        rows.append((cluster, len(here), *_summary(here)))
        every += here
    rows.append(("all", len(every), *_summary(every)))
    numbers = [f"{what} {size}" for size in SIZES for what in ("median", "least", "most")]
    print(table(("cluster", "plans", *numbers), rows, align_numbers=True))
    print(f"\nslower by more than 1 %: {len(slower)} of {len(every)}\n")
    print(table(("cluster", "way", "algorithm", *SIZES), slower, align_numbers=True))


def _summary(found: list[Any]) -> list[str]:
    """The median, least and most ratio at each size."""
    return [
        f"{statistic(column):.3f}"
        for column in np.transpose(found)
        for statistic in (np.median, np.min, np.max)
    ]


if __name__ == "__main__":
    main()
