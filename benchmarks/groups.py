"""Groups at once: tensor, and data or expert groups of a cluster, whose collectives share links.

    python benchmarks/groups.py [TOPOLOGY ...] [--tensor N ...]

For each topology, size of tensor groups, and pair of calls: the simulated ms until all have ended,
with the library's plans and with trees that are each the fastest alone, and with trees that are
planned together; the least time of trees along paths; and processor seconds of planning.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from common import machine
from synthesis import library

CALLS = (
    ("allreduce", "64M", "reducescatter", "1G"),
    ("allreduce", "1G", "allreduce", "256M"),
    ("allreduce", "64M", "alltoall", "256M"),
)
"""The collective and size of tensor groups, then of data or expert groups."""


def library_us(calls: Sequence[Any], name: str, most_blocks: int) -> float:
    """Until calls of the library's fastest plans without trees have ended."""
    import sley
    from sley import topologies
    from sley.model.simulation import GroupRun, simulate_at_once
    from sley.topologies import Group

    cluster, runs = topologies.find(name), []
    for call in calls:
        groups = [Group.of(cluster, ranks) for ranks in call.groups]  # alike
        choice = sley.choose(
            library(groups[0].topology, call.collective),
            call.size,
            groups[0].topology,
            schedule="hpds",
            protocol="Simple",
            channels=1,
            instances=[1, 2, 4, 8, 16],
            most_blocks=most_blocks,
        ).at(call.size)
        runs += [GroupRun(choice.plan, group, call.size) for group in groups]
    return float(simulate_at_once(runs, cluster).max())


def main() -> None:
    import sley
    from sley import topologies

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("topology", nargs="*")
    parser.add_argument("--tensor", type=int, nargs="+", default=[2, 4, 8], metavar="N")
    given = parser.parse_args()
    print(machine.text(machine.facts()))
    form = "{:<13}{:>7}  {:<44}" + "{:>10}" * 5
    print(form.format("topology", "tensor", "calls", "library", "apart", "together", "best", "s"))
    for name in given.topology or ("ndv4:2", "dgx-h100:2", "dgx-h100:4", "mi250x:2"):
        cluster = topologies.find(name)
        ranks, most = cluster.ranks, int(cluster.model.multiprocessors)
        for tensor in given.tensor:
            grid = topologies.grid_groups(ranks, {"tp": tensor, "dp": ranks // tensor})
            for of_tp, tp_size, of_dp, dp_size in CALLS:
                calls = [
                    sley.GroupCall(of_tp, tp_size, grid["tp"]),
                    sley.GroupCall(of_dp, dp_size, grid["dp"]),
                ]
                start = time.process_time()
                found = sley.plan_groups(calls, name, in_place=True)
                seconds = time.process_time() - start
                times = [
                    library_us(calls, name, most // len(calls)),
                    *(found.apart_us.max(), found.time_us.max(), found.bound_us),
                ]
                text = f"{of_tp} {tp_size}, {of_dp} {dp_size}"
                cells = [*(f"{one / 1e3:.2f}" for one in times), f"{seconds:.1f}"]
                print(form.format(name, tensor, text, *cells), flush=True)


if __name__ == "__main__":
    main()
