"""Agents of `sley tune train` against the exhaustive oracle, NCCL's default and a static table.

    python benchmarks/tuner.py --sweeps FOLDER [--only CLUSTER-COLLECTIVE ...] [--jobs N]
        [--network FILE]

Five clusters, five collectives, 1 KB to 1 GB by factors of 4, in the simulator with 3 % of noise.
Every agent is behind the safety gate and gets equally many samples of each size. Two sizes of each
sweep are kept aside and never measured. Sweeps that are in FOLDER are not repeated.

The static table is that of `sley choose`: the fastest plans by the simulator's model. On a cluster
that is as the model says, it is the oracle; so the second table shows other worlds, in which the
model is wrong: slower latencies and blocks, and contention.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from common import machine
from common.results import RESULTS, save
from common.tables import table
from common.tuner_agents import WORSE, Curve, Default, Descent, Table, Ucb, curve, curve_of

from sley import Topology, topologies
from sley.errors import SleyError
from sley.ir.cost_model import ByProtocol
from sley.tuning import Arms, ArmTimes, Checkpoint, Recurrent, Site, Thompson, sweep
from sley.tuning.agents import Agent
from sley.tuning.arms import COLLECTIVES
from sley.tuning.backends import Backend

CLUSTERS = {
    "ndv4x1": ("ndv4", 1),
    "dgx2x1": ("dgx2", 1),
    "ndv4x2": ("ndv4", 2),
    "ndv5x2": ("ndv5", 2),
    "rescclx4": ("resccl", 4),
}
SIZES = tuple(1 << exponent for exponent in range(10, 31, 2))
ASIDE = (3, 7)
"""The sizes that are kept aside: 64 KB and 16 MB."""

BLIND = "thompson, no estimate"
"""Thompson sampling without the rough estimates of the arms' times, which the simulator's model
gives: a fairer peer of the bandits, which don't have them."""

AGENTS = {kind.name: kind for kind in (Thompson, Ucb, Descent, Table, Default)}
LOOKS = (20, 40, 50, 80)
SEEDS = (0, 1)
OTHER = ("ndv4x1-allreduce", "ndv4x2-allreduce", "ndv4x2-allgather", "rescclx4-alltonext")
"""The cases in another world."""


def other_world(topology: Topology) -> Topology:
    """The cluster with another model: latencies and waits 1.6 times as long, blocks with 3/4 of
    their rate, links that lose a quarter under double load, and a network with 4/5 of its rate."""
    m = topology.model

    def longer(us: ByProtocol) -> ByProtocol:
        return ByProtocol(*(value * 1.6 for value in (us.ll, us.ll128, us.simple)))

    model = replace(
        m,
        nvlink_latency_us=longer(m.nvlink_latency_us),
        network_latency_us=longer(m.network_latency_us),
        nvlink_block_GBps=m.nvlink_block_GBps * 0.75,
        network_block_GBps=m.network_block_GBps * 0.75,
        local_block_GBps=m.local_block_GBps * 0.75,
        wait_us=m.wait_us * 1.6,
        contention=0.3,
    )
    return replace(topology, name=f"{topology.name}, another world", model=model)


@dataclass(frozen=True)
class Case:
    """A collective on a cluster."""

    cluster: str
    collective: str

    @property
    def name(self) -> str:
        return f"{self.cluster}-{self.collective}"

    def arms(self) -> Arms:
        name, nodes = CLUSTERS[self.cluster]
        return Arms.of(self.collective, topologies.machine(name, nodes))


def swept(arms: Arms, path: Path, executor: Executor | None) -> ArmTimes:
    """The sweep of a file, or a new one, which is written there."""
    try:
        return ArmTimes.load(path, arms)
    except SleyError:
        found = sweep(arms, SIZES, executor=executor)
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
        return found


def curves(found: ArmTimes, agent: str, network: Path | None = None) -> list[Curve]:
    """The curves of an agent with all seeds. network: of the agent "recurrent"."""

    def recurrent(backend: Backend, seed: int) -> Agent:
        assert network is not None
        site = Site.of(backend, found.arms.topology)
        return Recurrent(site, Checkpoint.load(network), seed)

    def blind(backend: Backend, seed: int) -> Agent:
        backend.expected[:] = 0
        return Thompson(backend, seed)

    make = {**AGENTS, Recurrent.name: recurrent, BLIND: blind}[agent]
    return [curve(found, make, LOOKS, aside=ASIDE, seed=seed) for seed in SEEDS]


def static(found: ArmTimes, table: Sequence[int]) -> Curve:
    """The curve of an arm for each size, fixed before any measurement."""
    trained = np.setdiff1d(np.arange(len(SIZES)), ASIDE)
    return curve_of(found, [table] * len(LOOKS), trained)


def summary(name: str, rows: list[Curve]) -> list[dict[str, Any]]:
    """For each look at an agent: regret at trained sizes and at those kept aside, regressions."""
    made = []
    for place, samples in enumerate(LOOKS):
        regret = np.concatenate([c.regret[place, c.is_trained] for c in rows])
        aside = np.concatenate([c.regret[place, ~c.is_trained] for c in rows])
        slower = np.concatenate([c.slower[place] for c in rows])
        made.append(
            {
                "agent": name,
                "samples": samples,
                "mean": float(regret.mean()),
                "worst": float(regret.max()),
                "aside": float(aside.mean()),
                "regressions": int((slower > WORSE).sum()),
                "choices": len(slower),
            }
        )
    return made


HEAD = ("agent", "samples", "mean regret", "worst", "mean aside", "regressions")


def printed(rows: list[dict[str, Any]]) -> str:
    return table(
        HEAD,
        [
            (
                row["agent"],
                row["samples"],
                f"{row['mean']:.1%}",
                f"{row['worst']:.1%}",
                f"{row['aside']:.1%}",
                f"{row['regressions']} of {row['choices']}",
            )
            for row in rows
        ],
        align_numbers=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--network", type=Path, help="a trained recurrent policy, to compare it, too"
    )
    options = parser.parse_args()
    print(machine.text(machine.facts(("sley", "numpy", "scikit-learn"))))
    cases = [Case(c, k) for k in reversed(COLLECTIVES) for c in CLUSTERS]
    cases = [c for c in cases if options.only is None or c.name in options.only]
    results: dict[str, Any] = {"machine": machine.facts(), "cases": {}, "other": {}}
    names = [*AGENTS, BLIND, *([Recurrent.name] if options.network else [])]
    every: dict[str, list[Curve]] = {name: [] for name in names}
    gains: list[float] = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as executor:
        for case in cases:
            arms = case.arms()
            known = swept(arms, options.sweeps / f"{case.name}.npz", executor)
            gains += (known.default_us / known.best_us).tolist()
            tasks = {name: executor.submit(curves, known, name, options.network) for name in names}
            for name, task in tasks.items():
                every[name] += task.result()
            rows = [r for name in names for r in summary(name, every[name][-len(SEEDS) :])]
            results["cases"][case.name] = rows
            fifty = [r for r in rows if r["samples"] == 50]
            print(
                f"\n## {case.name}, {len(arms)} choices, 50 samples\n\n{printed(fifty)}", flush=True
            )
            if case.name in OTHER:
                path = options.sweeps / f"{case.name}-other.npz"
                other = swept(arms.in_world(other_world(arms.topology)), path, executor)
                rows = summary("static table", [static(other, known.best.tolist())])
                estimated = np.where(known.mask, arms.expected(known.sizes), np.inf).argmin(axis=1)
                rows += summary("estimate alone", [static(other, estimated.tolist())])
                for name in ("thompson", BLIND, "ucb", "default"):
                    rows += summary(name, curves(other, name))
                results["other"][case.name] = rows
                print(f"\n## {case.name} in another world\n\n{printed(rows)}", flush=True)
    total = [row for name in names for row in summary(name, every[name])]
    results["total"] = total
    print(f"\n## All {len(cases)} cases, {len(SEEDS)} seeds\n\n{printed(total)}")
    print(f"\nThe oracle is {np.mean(gains):.2f} times as fast as NCCL's default on average.")
    print(save(results, RESULTS, "tuner"))


if __name__ == "__main__":
    main()
