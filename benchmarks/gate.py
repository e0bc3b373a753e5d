"""The tuner's gate under noise that is independent, hangs together, or stalls.

    python benchmarks/gate.py [--sweep] [--seeds N]

Agents behind the gate measure recorded times of AllReduce on 1x4 and 2x2, 1 KB to 256 MB, with
noise. Prints, for each kind of noise, how many of the deployed choices are slower than the default,
and the mean regret. `--sweep` first simulates the times anew (results/gate-sweeps.json).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
from common import machine
from common.results import RESULTS, save
from common.tables import table
from common.tuner_agents import WORSE, Ucb

from sley import topologies
from sley.tuning import Arms, Training, sweep
from sley.tuning.agents import Agent
from sley.tuning.policy import Machine, Recipe

SWEEPS = RESULTS / "gate-sweeps.json"
SIZES = tuple(1 << exponent for exponent in range(10, 29, 2))
LOOKS, LONG = (20, 35, 50), (20, 50, 200)

Factors = Callable[[np.random.Generator], Iterator[float]]
"""Makes the factors of the times of one call after another."""


def independent(sigma: float) -> Factors:
    return lambda rng: (float(np.exp(rng.normal(0, sigma))) for _ in count())


def drifting(correlation: float) -> Factors:
    """Logarithms with a deviation of 0.15 and a correlation from call to call (AR(1))."""

    def made(rng: np.random.Generator) -> Iterator[float]:
        log = rng.normal(0, 0.15)
        while True:
            yield float(np.exp(log))
            log = correlation * log + rng.normal(0, 0.15 * np.sqrt(1 - correlation**2))

    return made


def two_states(rng: np.random.Generator) -> Iterator[float]:
    """1.4 times as slow for 60 calls of 120, with 3 % of noise."""
    start = int(rng.integers(120))
    for call, factor in enumerate(independent(0.03)(rng), start):
        yield factor * (1.4 if call // 60 % 2 else 1.0)


def stalling(rng: np.random.Generator) -> Iterator[float]:
    """5 % of calls take 1.5 to 5 times as long, with 3 % of noise."""
    for factor in independent(0.03)(rng):
        yield factor * (rng.uniform(1.5, 5) if rng.random() < 0.05 else 1)


NOISES: dict[str, tuple[Factors, tuple[int, ...]]] = {
    "independent, 3 %": (independent(0.03), LONG),
    "independent, 30 %": (independent(0.3), LONG),
    "drift, 15 %, correlation .5": (drifting(0.5), LOOKS),
    "drift, 15 %, correlation .9": (drifting(0.9), LOOKS),
    "drift, 15 %, correlation .98": (drifting(0.98), LOOKS),
    "two states, 1.4 times": (two_states, LOOKS),
    "stalls, 5 % of calls": (stalling, LOOKS),
}


class Random(Agent):
    """Measures any arm; the fastest measured one is the best."""

    name = "random"

    def choose(self, cell: int) -> int:
        return int(self.rng.choice(np.flatnonzero(self.mask(cell))))


class Recorded:
    """A back end of recorded times with noise."""

    collective, margin = "allreduce", 0.01

    def __init__(self, name: str, times: dict[str, Any], factors: Iterator[float]) -> None:
        self.us = np.array(times["us"])
        self.mask, self.default = np.array(times["mask"]), np.array(times["default"])
        arms = self.us.shape[1]
        self.sizes, self.blocks = np.array(SIZES), np.ones(arms, np.int64)
        self.recipes = tuple(Recipe(f"choice {arm}") for arm in range(arms))
        self.features, self.expected = np.zeros((arms, 1)), np.zeros(self.us.shape)
        self.machine = Machine("simulator", name, "0" * 16, 1, 4)
        self._factors = factors

    def measure(self, cell: int, arm: int) -> float:
        return float(self.us[cell, arm]) * next(self._factors)


def swept(name: str) -> dict[str, Any]:
    """The simulated times of all choices."""
    nodes, gpus = map(int, name.split("x"))
    arms = Arms.of("allreduce", topologies.cluster(nodes, gpus), actions="nccl")
    found = sweep(arms, SIZES)
    us = [
        [float(f"{found.true_us(c, a):.5g}") for a in range(len(arms))] for c in range(len(SIZES))
    ]
    return {"us": us, "mask": found.mask.tolist(), "default": found.default.tolist()}


def choices(noise: str, times: dict[str, Any], seeds: int) -> list[tuple[int, float, float, float]]:
    """For each choice that is deployed: samples, regret, time over the default's less one, and the
    default's regret."""
    factors, looks = NOISES[noise]
    rows: list[tuple[int, float, float, float]] = []
    for name, one in times.items():
        for make in (Ucb, Random):
            for seed in range(seeds):
                backend = Recorded(name, one, factors(np.random.default_rng(seed)))
                training = Training(backend, make, seed=seed)
                cells = np.arange(len(SIZES))
                best = np.where(backend.mask, backend.us, np.inf).min(axis=1)
                default = backend.us[cells, backend.default]
                for samples in looks:
                    training.run(samples)
                    us = backend.us[cells, [training.agent.best(c) for c in cells.tolist()]]
                    slower, regret = us / default - 1, us / best - 1
                    every = [samples] * len(us), regret, slower, default / best - 1
                    rows += zip(*every, strict=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seeds", type=int, default=17)
    options = parser.parse_args()
    if options.sweep:
        SWEEPS.write_text(json.dumps({name: swept(name) for name in ("1x4", "2x2")}) + "\n")
    times = json.loads(SWEEPS.read_text())
    found: dict[str, Any] = {}
    rows = []
    for noise, (_, looks) in NOISES.items():
        columns = zip(*choices(noise, times, options.seeds), strict=True)
        samples, regret, slower, of_default = map(np.array, columns)
        one: dict[str, Any] = {
            "choices": len(slower),
            "slower": int((slower > WORSE).sum()),
            "worst": float(slower.max()),
            "regret": {look: float(regret[samples == look].mean()) for look in looks},
            "regret_of_default": float(of_default.mean()),
        }
        found[noise] = one
        means = [f"{one['regret'][n]:.1%}" if n in looks else "" for n in LONG]
        counted = f"{one['slower']} of {one['choices']}"
        rows.append((noise, counted, f"{one['worst']:+.1%}", *means, f"{of_default.mean():.1%}"))
        print(*rows[-1], flush=True)
    head = ("noise", "slower", "worst", *(f"regret, {n} samples" for n in LONG), "default's")
    print(table(head, rows, align_numbers=True))
    print(save({"machine": machine.facts(), "noises": found}, RESULTS, "gate"))


if __name__ == "__main__":
    main()
