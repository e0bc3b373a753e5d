"""The calls by which engines that serve models agree on each step, over sley and over gloo.

    torchrun --nproc-per-node 8 benchmarks/control_plane.py [--skew-us 0,1000,10000] [--steps 100]

SGLang gathers six int64 of each rank at every step of its schedulers. vLLM sums a table of int32,
four for each rank, to pad the batches of data-parallel ranks. In each step, every rank first sleeps
for a random time up to the skew, as if its GPU worked; then it makes the call. The latency of a
step is the time from the arrival of the last rank to the return of the last; the CPU time is that
of all threads of a rank's process. The backends take turns, in rounds of STEPS steps.

The ranks may be on several hosts if these share a clock: network namespaces of one machine do.
Rank 0 prints the table, and writes it as JSON to benchmarks/results.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from common.ranks import print_table, ranks
from common.results import RESULTS, save
from cpu_peers import machine

import sley.torch  # noqa: F401 - registers the backend

Step = Callable[[], object]
BACKENDS = ("sley", "gloo")


@dataclass(frozen=True)
class Row:
    """What one call takes over one backend, in microseconds. cpu_us: of a rank, for each step."""

    call: str
    skew_us: float
    backend: str
    median_us: float
    p99_us: float
    cpu_us: float


def gather(group: dist.ProcessGroup) -> Step:
    """SGLang's call."""
    mine = torch.arange(6)
    table = torch.empty(group.size(), 6, dtype=torch.int64)
    # Newer releases of PyTorch warn at the older name.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    return lambda: all_gather(table.flatten(), mine, group=group)


def pad(group: dist.ProcessGroup) -> Step:
    """vLLM's call."""
    table = torch.zeros(4, group.size(), dtype=torch.int32)
    return lambda: dist.all_reduce(table, group=group)


CALLS = {"SGLang's gather": gather, "vLLM's padding": pad}


def measure(step: Step, steps: int, skew_us: float, seed: int) -> tuple[np.ndarray, float]:
    """The latencies of `steps` steps, and the CPU time of this rank for each of them, in us."""
    naps = np.random.default_rng([seed, dist.get_rank()]).uniform(0, skew_us / 1e6, steps).tolist()
    times = np.empty((steps, 2))
    dist.barrier()
    cpu = time.process_time()
    for index, nap in enumerate(naps):
        if nap:
            time.sleep(nap)
        arrival = time.monotonic()
        step()
        times[index] = arrival, time.monotonic()
    cpu_us = 1e6 * (time.process_time() - cpu) / steps
    dist.all_reduce(torch.from_numpy(times), dist.ReduceOp.MAX)
    return 1e6 * (times[:, 1] - times[:, 0]), cpu_us


def rows(steps: int, rounds: int, skew_us: float) -> list[Row]:
    """Both calls over both backends, with this skew."""
    groups = {name: dist.new_group(backend=name) for name in BACKENDS}
    found = []
    for call, make in CALLS.items():
        ways = {name: make(group) for name, group in groups.items()}
        latencies: dict[str, list[np.ndarray]] = {name: [] for name in ways}
        cpu: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(-1, rounds):  # the first round makes plans and connections
            for name in ways if turn % 2 else reversed(ways):
                latency, cpu_us = measure(ways[name], steps, skew_us, turn + 1)
                if turn >= 0:
                    latencies[name].append(latency)
                    cpu[name].append(cpu_us)
        for name in ways:
            half, most = np.percentile(np.concatenate(latencies[name]), [50, 99])
            mean = torch.tensor([np.mean(cpu[name])])
            dist.all_reduce(mean)
            row = Row(call, skew_us, name, half, most, float(mean) / dist.get_world_size())
            found.append(row)
    for group in groups.values():
        dist.destroy_process_group(group)
    return found


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--skew-us", default="0,1000,10000", help="the longest sleep of a rank")
    made.add_argument("--steps", type=int, default=100, help="of a round")
    made.add_argument("--rounds", type=int, default=5)
    made.add_argument("--hosts", type=int, default=1, help="kept with the results")
    made.add_argument("--note", default="", help="kept with the results")
    made.add_argument("--output", type=Path, default=RESULTS)
    options = made.parse_args()
    with ranks():
        found = []
        for skew in options.skew_us.split(","):
            found += rows(options.steps, options.rounds, float(skew))
        head = ("call", "skew, us", "backend", "p50, us", "p99, us", "CPU of a rank, us a step")
        cells = [(r.call, f"{r.skew_us:.0f}", r.backend, *_texts(r)) for r in found]
        print_table(head, cells)
        if dist.get_rank() == 0:
            results = {
                "machine": machine.facts(),
                "options": {k: str(v) for k, v in vars(options).items()},
                "ranks": dist.get_world_size(),
                "rows": [asdict(row) for row in found],
            }
            name = f"control-plane-{options.hosts}x{dist.get_world_size() // options.hosts}"
            print(f"\n{save(results, options.output, name)}")


def _texts(row: Row) -> list[str]:
    return [f"{us:.0f}" for us in (row.median_us, row.p99_us, row.cpu_us)]


if __name__ == "__main__":
    main()
