"""Compares the order of algorithms by predicted time with their order by measured time: on the CPU
runtime and a topology calibrated on this machine, for five collectives and for five algorithms of
AllReduce. With more ranks than cores both times vary between runs.

    python benchmarks/calibrated.py [--ranks N]

Measured times are medians over rounds in which the algorithms take turns. A pair of algorithms
counts at a size if the measured times differ by more than 20 %; it agrees if the predicted times
have the same order.
"""

from __future__ import annotations

import argparse
import statistics
from itertools import combinations

from common import machine

import sley
from sley.communicator import jobs
from sley.communicator.calibrating import calibrate
from sley.engine.measure import Sweep

SIZES = (2**10, 2**15, 2**20, 2**22, 2**24)
ROUNDS = 5
DIFFERENCE = 1.2


def programs(ranks: int) -> dict[str, dict[str, sley.Program]]:
    """The two sets of five algorithms."""
    library = sley.algorithms
    return {
        "five collectives": {
            "ring AllReduce": library.ring_allreduce(ranks, in_place=True),
            "ring AllGather": library.ring_allgather(ranks, in_place=True),
            "ring ReduceScatter": library.ring_reducescatter(ranks, in_place=True),
            "pairs AllToAll": library.all_pairs_alltoall(ranks),
            "tree Broadcast": library.binomial_broadcast(ranks, in_place=True),
        },
        "one collective, AllReduce": {
            "ring": library.ring_allreduce(ranks, in_place=True),
            "all pairs": library.all_pairs_allreduce(ranks, in_place=True),
            "halving doubling": library.recursive_halving_doubling_allreduce(ranks, in_place=True),
            "binary trees": library.double_binary_tree_allreduce(ranks, in_place=True),
            "hierarchical": library.hierarchical_allreduce(2, ranks // 2, in_place=True),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    print(machine.text(machine.facts()), f"{ranks} ranks", sep=", ")
    found = calibrate(ranks)
    for name in ("launch_us", "copy_us", "round_us", "small_us", "large_us", "alone_us"):
        print(f"  {name:<10} {getattr(found, name):>10.2f}")
    for title, five in programs(ranks).items():
        print(f"\n{title}")
        compare({name: sley.compile(program) for name, program in five.items()}, found.topology)


def compare(plans: dict[str, sley.Plan], topology: sley.Topology) -> None:
    """Measures and predicts the times of all plans, and prints the pairs with different orders."""
    measured: dict[tuple[str, int], list[float]] = {}
    for _ in range(ROUNDS):
        for name, plan in plans.items():
            for row in jobs.run(plan, Sweep(SIZES, iterations=10, warmup=2, check=False)):
                measured.setdefault((name, row.size_bytes), []).append(row.time_us)
    print(
        f"{'size':>10}  {'algorithm':<18}  {'measured us':>12}  {'predicted us':>12}  {'ratio':>6}"
    )
    agreeing = counted = 0
    for size in SIZES:
        times = {}
        for name, plan in plans.items():
            real = statistics.median(measured[name, size])
            guess = sley.simulate(plan, size, topology).time_us
            times[name] = (real, guess)
            print(f"{size:>10}  {name:<18}  {real:>12.1f}  {guess:>12.1f}  {guess / real:>6.2f}")
        for one, other in combinations(times, 2):
            (a, guess_a), (b, guess_b) = times[one], times[other]
            if max(a, b) / min(a, b) > DIFFERENCE:
                counted += 1
                agrees = (a < b) == (guess_a < guess_b)
                agreeing += agrees
                if not agrees:
                    print(f"{'':>10}  opposite order: {one}, {other}")
    print(f"pairs that differ by over 20 %: {counted}; in the same order: {agreeing}")


if __name__ == "__main__":
    main()
