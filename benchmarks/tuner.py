"""Agents of `sley tune train` against the exhaustive oracle, NCCL's default and a static table.

    python benchmarks/tuner.py --sweeps FOLDER [--only CLUSTER-COLLECTIVE ...] [--jobs N]
        [--network FILE]

Five clusters, five collectives, 1 KB to 1 GB by factors of 4, in the simulator with 3 % of noise.
Every agent is behind the safety gate and gets equally many samples of each size. Two sizes of each
sweep are kept aside and never measured. Sweeps that are in FOLDER are not repeated.

The static table is that of `sley choose`: the fastest plans by the simulator's model. On a cluster
that is as the model says, it is the oracle; so the second table shows other worlds, in which the
model is wrong: slower latencies and blocks, and contention. The third one shows drift: a network
card that falls to half its speed, for an agent that decides for every call.
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

from sley import ByProtocol, Topology, topologies
from sley.errors import SleyError
from sley.tuning.agents.agent import Agent
from sley.tuning.agents.checkpoint import Checkpoint
from sley.tuning.agents.contextual import Thompson
from sley.tuning.agents.recurrent import Recurrent
from sley.tuning.arms import COLLECTIVES, Arms
from sley.tuning.backends import Backend, Recorded
from sley.tuning.evaluate import WORSE, Curve, curve, curve_of
from sley.tuning.online import Online
from sley.tuning.state import Site
from sley.tuning.sweep import Sweep, sweep
from sley.tuning.training import AGENTS, agent_named
from sley.tuning.worlds import degrade_card

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

LOOKS = (20, 40, 50, 80)
SEEDS = (0, 1)
OTHER = ("ndv4x1-allreduce", "ndv4x2-allreduce", "ndv4x2-allgather", "rescclx4-alltonext")
"""The cases in another world."""

DRIFT = ("ndv4x2-allreduce", "ndv4x2-alltonext", "ndv4x2-allgather")
DRIFT_CALLS = 200
"""Calls of each size before the change, and after it."""


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


def swept(arms: Arms, path: Path, executor: Executor | None) -> Sweep:
    """The sweep of a file, or a new one, which is written there."""
    try:
        return Sweep.load(path, arms)
    except SleyError:
        found = sweep(arms, SIZES, executor=executor)
        path.parent.mkdir(parents=True, exist_ok=True)
        found.save(path)
        return found


def curves(found: Sweep, agent: str, network: Path | None = None) -> list[Curve]:
    """The curves of an agent with all seeds. network: of the agent "recurrent"."""

    def recurrent(backend: Backend, seed: int) -> Agent:
        assert network is not None
        site = Site.of(backend, found.arms.topology)
        return Recurrent(site, Checkpoint.load(network), seed)

    def blind(backend: Backend, seed: int) -> Agent:
        backend.expected[:] = 0
        return Thompson(backend, seed)

    make = {Recurrent.name: recurrent, BLIND: blind}.get(agent)
    return [curve(found, agent, LOOKS, aside=ASIDE, seed=seed, make=make) for seed in SEEDS]


def static(found: Sweep, table: Sequence[int]) -> Curve:
    """The curve of an arm for each size, fixed before any measurement."""
    trained = np.setdiff1d(np.arange(len(SIZES)), ASIDE)
    return curve_of("table", found, LOOKS, [list(table)] * len(LOOKS), trained)


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


def true_us(found: Sweep, chosen: Sequence[int]) -> np.ndarray:
    """The times of an arm for each size."""
    return np.array([found.true_us(cell, arm) for cell, arm in enumerate(chosen)])


def drift(before: Sweep, after: Sweep, seed: int) -> dict[str, float]:
    """Regret after a change: of the agent that decides for every call, and of the static table."""
    calls = DRIFT_CALLS * len(SIZES)
    backend = Recorded(before, seed=seed, changes=[(calls, after)])
    online = Online(backend, lambda: agent_named("thompson", backend, seed), seed=seed)
    rng = np.random.default_rng(seed)
    for _ in range(2 * DRIFT_CALLS):
        for cell in rng.permutation(len(SIZES)).tolist():
            arm = online.choose(cell)
            online.observe(cell, arm, backend.measure(cell, arm))
    chosen = [online.agent.best(cell) for cell in range(len(SIZES))]
    found = [call - calls for call, _ in online.changes]
    return {
        "online mean": float((true_us(after, chosen) / after.best_us - 1).mean()),
        "online worst": float((true_us(after, chosen) / after.best_us - 1).max()),
        "static mean": float((true_us(after, before.best.tolist()) / after.best_us - 1).mean()),
        "static worst": float((true_us(after, before.best.tolist()) / after.best_us - 1).max()),
        "found after calls": float(min((f for f in found if f >= 0), default=-1)),
        "false alarms": float(sum(f < 0 for f in found)),
    }


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
    results: dict[str, Any] = {"machine": machine.facts(), "cases": {}, "other": {}, "drift": {}}
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
                for name in ("thompson", BLIND, "gaussian-ucb", "ucb", "default"):
                    rows += summary(name, curves(other, name))
                results["other"][case.name] = rows
                print(f"\n## {case.name} in another world\n\n{printed(rows)}", flush=True)
            if case.name in DRIFT:
                path = options.sweeps / f"{case.name}-drift.npz"
                after = swept(arms.in_world(degrade_card(arms.topology, 1)), path, executor)
                found = [drift(known, after, seed) for seed in SEEDS]
                results["drift"][case.name] = found
                print(f"\n## {case.name}, card 1 at half speed after {DRIFT_CALLS} calls a size\n")
                print(table(list(found[0]), [[f"{v:.3g}" for v in f.values()] for f in found]))
    total = [row for name in names for row in summary(name, every[name])]
    results["total"] = total
    print(f"\n## All {len(cases)} cases, {len(SEEDS)} seeds\n\n{printed(total)}")
    print(f"\nThe oracle is {np.mean(gains):.2f} times as fast as NCCL's default on average.")
    print(save(results, RESULTS, "tuner"))


if __name__ == "__main__":
    main()
