"""Steps of MSCCLang's two end-to-end workloads, simulated with NCCL's choices and with a tuner's.

    python benchmarks/workloads.py [--only inference moe] [--samples N] [--seed N] [--json]

Inference of a language model on 8 A100 (ndv4:1) at several batch sizes, and training of mixtures of
experts on 256 A100 (ndv4:32) at several dimensions (`sley.tuning.workloads.models`). A row has
the time of a step with NCCL's default, the share of it in which calls are waited for, and the
speed-ups with the static table of `sley.choose`, with the default agent after N measurements of
each size (with 3 % noise), and with the oracle. On 256 GPUs NCCL's AllToAll is simulated twice: with a thread block
for every pair of GPUs, of which a GPU can't run as many at once, and in at most 32 blocks.
AllReduces of gradients have NCCL's own choice alone, its trees: no plan of the library that was
tried there and fits on a GPU was faster.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from common.tables import ratio_text, table

from sley import topologies
from sley.algorithms import CATALOG
from sley.compiler import Options, choose, compile
from sley.errors import SleyError
from sley.ir.topology import Topology
from sley.ir.words import FIFO_PROTOCOLS, Allocation, Protocol, Schedule
from sley.model.simulation import Simulator
from sley.tuning.arms import IN_PLACE, Arms, grid_of
from sley.tuning.policy import Decision
from sley.tuning.steps import Key, Runs, step_time, table_times
from sley.tuning.training import DEFAULT_AGENT
from sley.tuning.workloads import Group, Workload
from sley.tuning.workloads.models import inference, moe_training
from sley.tuning.workloads.workload import Cell

PAPER = {"inference": "1.22-1.29x", "moe": "1.10-1.89x"}
"""MSCCLang, section 7.6; GC3, section 7.5."""

CHANNELS = 32
"""NCCL's most channels, each of which is a thread block."""

ALLTOALLS = {"two-step-alltoall": (1,), "three-step-alltoall": (1, 2)}
"""The arms for 256 GPUs: algorithms with numbers of instances. More instances of two-step need more
blocks than a GPU runs at once."""


@dataclass(frozen=True)
class Result:
    """A row: the times of a step in microseconds with NCCL's default, the static table, the agent
    and the oracle. waits: the share of the default's time in which calls are waited for. calls: the
    times of each call with the default and the oracle."""

    workload: str
    default_us: float
    waits: float
    table_us: float
    learned_us: float
    best_us: float
    calls: str


def inferences() -> list[Workload]:
    """Decoding at several batch sizes, and filling in a prompt."""
    return [
        *(inference(batch) for batch in (1, 2, 4, 8, 16, 32)),
        *(inference(batch, tokens=512) for batch in (1, 8)),
    ]


def trainings() -> list[Workload]:
    """Trainings with several dimensions."""
    return [
        moe_training(1024, tokens=2048),
        moe_training(1024),
        moe_training(1024, top=2),
        moe_training(2048),
        moe_training(2048, top=2),
    ]


def tables_of(
    keys: Sequence[Key], sizes: dict[Key, list[int]], topology: Topology
) -> Callable[[Cell], float]:
    """The times of calls with the static tables."""
    found = {}
    for collective, group in keys:
        names = [n for n, a in CATALOG.items() if a.collective == collective]
        # With the schedules and allocations of the arms; all of them take minutes to hours.
        options: dict[str, Any] = {"schedule": "msccl", "allocate": "connection"}
        if topology.ranks > 64:
            names = list(ALLTOALLS)
            options |= {"channels": 1, "instances": 1}
        programs = []
        for name in names:
            try:
                grid, in_place = grid_of(topology), IN_PLACE[collective]
                programs.append(Decision(name).program(*grid, in_place=in_place))
            except SleyError:
                continue  # some need more than one node
        ends = [min(sizes[collective, group]), max(sizes[collective, group])]
        found[collective, group] = choose(programs, ends, topology, **options)
    return table_times(found)


def decisions() -> list[Decision]:
    """The arms of AllToAll for 256 GPUs."""
    return [
        Decision(name, Options(protocol=protocol, channels=1, instances=instances), tile)
        for name, several in ALLTOALLS.items()
        for instances in several
        for protocol in FIFO_PROTOCOLS
        for tile in ((1.0, 0.25) if protocol is not Protocol.LL else (1.0,))
    ]


def in_few_blocks(runs: Runs, topology: Topology) -> Runs:
    """The same with NCCL's AllToAll in at most CHANNELS blocks, which take turns at the pairs."""
    few_us = alltoall_in_few_blocks(topology)
    sweeps = dict(runs.sweeps)
    for key, sweep in runs.sweeps.items():
        if key[0] == "alltoall":
            time_us = sweep.time_us.copy()
            for row, size_bytes in enumerate(sweep.sizes.tolist()):
                time_us[row, sweep.default[row]] = few_us(size_bytes)
            sweeps[key] = replace(sweep, time_us=time_us)
    return Runs(sweeps)


def alltoall_in_few_blocks(topology: Topology) -> Callable[[int], float]:
    """The time of a size."""
    program = Decision("all-pairs-alltoall").program(*grid_of(topology), in_place=False)
    options = Options(schedule=Schedule.HPDS, allocate=Allocation.STATE, max_blocks=CHANNELS)
    simulator = Simulator(compile(program, options, topology=topology, verify=False), topology)
    return lambda size_bytes: simulator(size_bytes).time_us


def results(
    workloads: Sequence[Workload],
    runs: Runs,
    table_us: Callable[[Cell], float],
    samples: int,
    seed: int,
) -> list[Result]:
    """A row for each workload."""
    learned = runs.learned(DEFAULT_AGENT, samples, seed=seed)
    rows = []
    for workload in workloads:
        default = runs.step(workload, runs.default)
        calls = [
            f"{cell.collective} {cell.size_bytes / 2**20:.3g}M: "
            f"{runs.time_us(cell, runs.default(cell)):.0f} us to "
            f"{runs.time_us(cell, best):.0f} us with {runs.decision(cell, best)}"
            for cell in workload.cells()
            for best in [runs.best(cell)]
        ]
        rows.append(
            Result(
                workload.name,
                default.time_us,
                default.waits_us / default.time_us,
                step_time(workload, table_us).time_us,
                runs.step(workload, learned).time_us,
                runs.step(workload, runs.best).time_us,
                "; ".join(calls),
            )
        )
    return rows


def measure_inference(samples: int, seed: int) -> dict[str, list[Result]]:
    topology, workloads = topologies.ndv4(1), inferences()
    key = "allreduce", Group.CLUSTER
    runs = Runs.of(workloads, {key: Arms.of("allreduce", topology)}, progress=tell)
    table_us = tables_of([key], sizes_of(workloads), topology)
    rows = results(workloads, runs, table_us, samples, seed)
    return {f"Inference on 8 A100; the paper: {PAPER['inference']}": rows}


def measure_moe(samples: int, seed: int) -> dict[str, list[Result]]:
    topology, workloads = topologies.ndv4(32), trainings()
    sizes = sizes_of(workloads)
    arms = {
        (name, group): Arms.among(
            name, topology, decisions() if name == "alltoall" else [], sizes[name, group]
        )
        for name, group in sizes
    }
    runs = Runs.of(workloads, arms, progress=tell)
    key = "alltoall", Group.CLUSTER
    of_table_us = tables_of([key], sizes, topology)

    def table_us(cell: Cell) -> float:
        is_own = cell.collective == "alltoall"
        return of_table_us(cell) if is_own else runs.time_us(cell, runs.default(cell))

    title = f"MoE training on 256 A100; the paper: {PAPER['moe']}"
    few = in_few_blocks(runs, topology)
    return {
        f"{title}; NCCL's AllToAll with a block for each pair": results(
            workloads, runs, table_us, samples, seed
        ),
        f"{title}; NCCL's AllToAll in at most {CHANNELS} blocks": results(
            workloads, few, table_us, samples, seed
        ),
    }


def sizes_of(workloads: Sequence[Workload]) -> dict[Key, list[int]]:
    """The sizes of each collective and group."""
    found: dict[Key, set[int]] = {}
    for workload in workloads:
        for cell in workload.cells():
            found.setdefault((cell.collective, cell.group), set()).add(cell.size_bytes)
    return {key: sorted(sizes) for key, sizes in found.items()}


def tell(done: int, of: int) -> None:
    print(f"{done} of {of} sizes", end="\r", file=sys.stderr)


def text(rows: Sequence[Result]) -> str:
    """The table of rows, and below it what the calls take."""
    head = ("step", "NCCL, ms", "waits", "table", "learned", "oracle")
    lines = [
        (
            row.workload,
            f"{row.default_us / 1e3:.2f}",
            f"{row.waits:.0%}",
            *(
                f"{ratio_text(row.default_us / us)}x"
                for us in (row.table_us, row.learned_us, row.best_us)
            ),
        )
        for row in rows
    ]
    return "\n".join([table(head, lines), "", *(f"- {row.workload}: {row.calls}" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(PAPER), default=tuple(PAPER))
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found: dict[str, list[Result]] = {}
    for name, run in (("inference", measure_inference), ("moe", measure_moe)):
        if name in options.only:
            found |= run(options.samples, options.seed)
    if options.json:
        plain = {title: [asdict(row) for row in rows] for title, rows in found.items()}
        json.dump(plain, sys.stdout, indent=1)
        return
    for title, rows in found.items():
        print(f"\n{title}\n\n{text(rows)}")


if __name__ == "__main__":
    main()
