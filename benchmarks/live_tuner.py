"""What a tuner gains on this machine: communicators with the policy of `sley tune train --live`
against communicators without, and the best of all choices.

    python benchmarks/live_tuner.py [--ranks 4] [--sizes 1K:64M:4] [--samples 200] [--rounds 30]

1. An agent trains, with `--samples` measurements of each size.
2. Ranks with two communicators, one with the policy (SLEY_TUNER) and one without, make the same
   calls by turns in `--rounds` rounds. A time is that of the slowest rank. The ratio is the median
   of the rounds' ratios, default over policy, with its quartiles; above 1 the policy is faster. The
   results of both are compared once at each size.
3. Every choice is measured `--sweep` times at each size, in rounds over all of them. The fastest
   one (the oracle) is then measured again, since the best of many noisy times looks too good: its
   ratio to the default is that of the new measurements. A ratio below 1 counts as 1 in the mean,
   since one may keep the default. `--sweep 0` leaves this out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean, median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from common import machine, results
from common.sizes import read_sizes
from common.tables import table

from sley.communicator import Call, Communicator, FolderStore, Settings
from sley.communicator.arrays import span
from sley.engine.types import DATA_TYPES, Array
from sley.ir.collectives import STANDARD
from sley.ir.sizes import size_text
from sley.ir.words import ReduceOp
from sley.tuning import Live, Training
from sley.tuning import policy as policies
from sley.tuning.arms import IN_PLACE

FLOAT32 = DATA_TYPES["float32"]
WARM = 32
"""Calls with each communicator before those that are timed."""

TURN_US, MOST_CALLS = 2000.0, 100
"""How long the calls of a turn take together, and how many they are at most."""

CONFIRMING = 40
"""New measurements of the oracle's choice, and of the default."""

Case = tuple[str, int]
"""A collective and a size."""


@dataclass(frozen=True)
class Pair:
    """A rank's calls of one case. default_us, policy_us: a time for each round. wrong: elements in
    which the results differ. changes: what the communicator with the policy changed."""

    default_us: list[float]
    policy_us: list[float]
    wrong: int
    changes: list[str]


def compare(
    rank: int, ranks: int, folder: str, policy: str, cases: Sequence[Case], rounds: int
) -> list[Pair]:
    """The calls of one rank, with a communicator of each kind."""
    store = FolderStore(folder)
    own = Settings.from_environment(tuner=policy, plan_dir=None)
    none = Settings.from_environment(tuner=None, plan_dir=None)
    with (
        Communicator(store, rank, ranks, name="default", settings=none) as default,
        Communicator(store, rank, ranks, name="policy", settings=own) as tuned,
    ):
        return [_compare(default, tuned, case, rounds) for case in cases]


def _compare(default: Communicator, tuned: Communicator, case: Case, rounds: int) -> Pair:
    collective, size = case
    row, ranks = STANDARD[collective], default.ranks
    count = size // (FLOAT32.size_bytes * (ranks if row.has_parts else 1))
    elements = [count * (ranks if parts else 1) for parts in (row.input_parts, row.output_parts)]
    data = np.empty(elements[0], np.float32)
    out = data if IN_PLACE[collective] else np.empty(elements[1], np.float32)
    call = Call(row.call, *span(data), *span(out), count, FLOAT32, ReduceOp.SUM)
    found = [_result(comm, call, data, out) for comm in (default, tuned)]
    wrong = int(np.count_nonzero(found[0] != found[1]))
    data[:] = out[:] = 0
    for comm in (default, tuned):
        comm.endpoint.time_us(call, WARM)
    slowest = np.array([default.endpoint.time_us(call, 3)])
    default.all_reduce(slowest, op=ReduceOp.MAX)
    calls = int(np.clip(TURN_US / slowest[0], 1, MOST_CALLS))
    times_us: dict[Communicator, list[float]] = {default: [], tuned: []}
    for turn in range(rounds):
        for comm in (default, tuned) if turn % 2 else (tuned, default):
            comm.endpoint.time_us(call, 1)  # the ranks begin together
            times_us[comm].append(comm.endpoint.time_us(call, calls))
    kinds = [change for change in tuned.endpoint.changes if change.kind == row.call]
    changes = [str(change) for change in kinds if change.size_bytes == size]
    return Pair(times_us[default], times_us[tuned], wrong, changes)


def _result(comm: Communicator, call: Call, data: Array, out: Array) -> Array:
    """The result of a call on test data, whose sums are exact."""
    data[:] = (np.arange(len(data)) * 7 + comm.rank * 13) % 101
    comm.endpoint.submit(call)
    return out.copy()


@dataclass(frozen=True)
class Row:
    """The figures of one case. ratio, low, high: the median of default / policy, and its quartiles.
    oracle, oracle_ratio: the fastest choice, and default / oracle; "" and 0 without a sweep."""

    collective: str
    size_bytes: int
    default: str
    choice: str
    default_us: float
    policy_us: float
    ratio: float
    low: float
    high: float
    wrong: int
    changes: list[str]
    oracle: str = ""
    oracle_ratio: float = 0.0


def _row(live: Live, training: Training, cell: int, pairs: Sequence[Pair]) -> Row:
    default = np.max([pair.default_us for pair in pairs], axis=0)
    tuned = np.max([pair.policy_us for pair in pairs], axis=0)
    ratios: list[float] = (default / tuned).tolist()
    low, _, high = quantiles(ratios, n=4)
    return Row(
        live.collective,
        int(live.sizes[cell]),
        str(live.recipes[int(live.default[cell])]),
        str(live.recipes[training.agent.best(cell)]),
        float(np.median(default)),
        float(np.median(tuned)),
        median(ratios),
        low,
        high,
        sum(pair.wrong for pair in pairs),
        pairs[0].changes,
    )


def oracles(live: Live, sweeps: int) -> list[tuple[str, float]]:
    """The fastest choice of each size, and the default's time over its time."""
    times_us: dict[tuple[int, int], list[float]] = {}
    for number in range(sweeps):
        for cell, arm in np.argwhere(live.mask).tolist():
            times_us.setdefault((cell, arm), []).append(live.measure(cell, arm))
        print(f"  sweep {number + 1} of {sweeps}", flush=True)
    found = []
    for cell in range(len(live.sizes)):
        arms = np.flatnonzero(live.mask[cell]).tolist()
        best = min(arms, key=lambda arm: median(times_us[cell, arm]))
        default = int(live.default[cell])
        again = [(live.measure(cell, default), live.measure(cell, best)) for _ in range(CONFIRMING)]
        found.append((str(live.recipes[best]), median(d / b for d, b in again)))
    return found


def report(rows: Sequence[Row]) -> str:
    """The table of the rows, and a line of each collective."""
    head = ["", "size", "default", "choice", "default us", "policy us", "ratio", "quartiles"]
    head += ["wrong", "reverted", "best of all", "its ratio"]
    lines = [
        [
            *(row.collective, size_text(row.size_bytes), row.default, row.choice),
            *(f"{row.default_us:.1f}", f"{row.policy_us:.1f}", f"{row.ratio:.2f}"),
            *(f"{row.low:.2f} to {row.high:.2f}", row.wrong, len(row.changes)),
            *(row.oracle or "-", f"{row.oracle_ratio:.2f}" if row.oracle else "-"),
        ]
        for row in rows
    ]
    text = [table(head, lines), ""]
    for collective in dict.fromkeys(row.collective for row in rows):
        own = [row for row in rows if row.collective == collective]
        words = f"{collective}: {geometric_mean(row.ratio for row in own):.3f}x the default's "
        words += f"speed on average, {min(row.ratio for row in own):.3f}x at worst"
        if all(row.oracle for row in own):
            best = geometric_mean(max(row.oracle_ratio, 1) for row in own)
            words += f"; the best of all {best:.3f}x"
        same = [row.ratio for row in own if row.choice == row.default]
        if same:
            words += f"; {min(same):.2f} to {max(same):.2f} where both run the same plan, which is "
            words += "how much two communicators differ"
        text.append(f"{words}; {sum(row.wrong for row in own)} wrong elements")
    return "\n".join(text)


def paired(
    policy: policies.Policy, ranks: int, cases: Sequence[Case], rounds: int
) -> list[list[Pair]]:
    """For each case, the calls of each rank."""
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(ranks, mp_context=get_context("spawn")) as processes,
    ):
        path = str(Path(folder) / "policy.toml")
        policies.write(policy, path)
        made = [
            processes.submit(compare, rank, ranks, folder, path, cases, rounds)
            for rank in range(ranks)
        ]
        return list(map(list, zip(*(one.result() for one in made), strict=True)))


def measure(options: argparse.Namespace) -> list[Row]:
    """Trains, compares and sweeps."""
    trained: dict[str, Training] = {}
    for collective in options.collectives.split(","):
        live = Live(collective, options.ranks, options.sizes)
        trained[collective] = Training(live, seed=options.seed)
        trained[collective].run(options.samples)
        live.close()
        print(f"trained {collective}: {len(live.arms)} choices", flush=True)
    learned = tuple(row for training in trained.values() for row in training.rows())
    first = next(iter(trained.values()))
    policy = policies.Policy(learned, machine=first.backend.machine, facts={"agent": first.name})
    cases = [(name, size) for name in trained for size in options.sizes]
    pairs = iter(paired(policy, options.ranks, cases, options.rounds))
    rows: list[Row] = []
    for collective, training in trained.items():
        with Live(collective, options.ranks, options.sizes) as live:
            own = [_row(live, training, cell, next(pairs)) for cell in range(len(live.sizes))]
            if options.sweep:
                print(f"sweeping {collective}", flush=True)
                best: list[Mapping[str, Any]] = [
                    {"oracle": name, "oracle_ratio": ratio}
                    for name, ratio in oracles(live, options.sweep)
                ]
                own = [Row(**(asdict(row) | b)) for row, b in zip(own, best, strict=True)]
        rows += own
    return rows


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--ranks", type=int, default=4)
    made.add_argument("--collectives", default="allreduce,alltoall")
    made.add_argument("--sizes", type=read_sizes, default="1K:64M:4")
    made.add_argument("--samples", type=int, default=200)
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--rounds", type=int, default=30)
    made.add_argument("--sweep", type=int, default=5, help="measurements of each choice")
    made.add_argument("--save", type=Path, metavar="FOLDER", help="write the results here (JSON)")
    options = made.parse_args()
    facts = machine.facts()
    print(machine.text(facts), f"{options.ranks} ranks, {options.samples} samples\n", sep="\n")
    rows = measure(options)
    print(f"\n{report(rows)}")
    if options.save is not None:
        given = {"ranks": options.ranks, "samples": options.samples, "rounds": options.rounds}
        found = {"machine": facts, **given, "rows": [asdict(row) for row in rows]}
        print(results.save(found, options.save, "live-tuner"))


if __name__ == "__main__":
    main()
