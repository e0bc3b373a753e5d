"""Fit of the costs of sley's kernels where all ranks share one GPU, and its errors.

    python benchmarks/one_gpu.py [--fit]

The model is the simulator, with the machine of `sley.topologies.one_gpu`. Its numbers are fitted to
measured times of AllReduces (least squares of the logarithms, so of ratios). --fit repeats this, in
minutes: first with 2 and 4 ranks alone, as the errors of the times of 8, which it doesn't know, say
what a prediction is worth; then with all, for the numbers with their standard errors. The last
table has the predicted times of what a communicator chooses, beside NCCL's measured ones.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any

import kernels_plans as plans
import numpy as np
from common.results import RESULTS
from common.tables import MISSING, table

import sley
from sley.algorithms import build
from sley.communicator.selection.device_rules import DeviceLimits, device_rows
from sley.ir.cost_model import ByProtocol
from sley.ir.sizes import size_text
from sley.ir.words import Protocol
from sley.topologies.one_gpu import ONE_H100, OneGPU

DEVICE = "nvidia-h100-80gb-hbm3"
STEPS = f"steps-{DEVICE}-20261126.jsonl"
SWEEP = f"kernels-{DEVICE}-20261126-211343.json"
ENGINES = f"kernels-{DEVICE}-20261127-073055.json"
PEERS = {4: f"kernels-{DEVICE}-20261127-072455.json", 8: f"kernels-{DEVICE}-20261126-211308.json"}

LIMITS = DeviceLimits(is_one_device=True)
LEAST_BYTES = 16
"""A rank's part of a block's data: with less, measured calls cut chunks into elements."""

MOST_BYTES = {Protocol.LL: 1 << 20, Protocol.LL128: 4 << 20}
"""Larger calls use another protocol."""


@dataclass(frozen=True)
class Setting:
    """An AllReduce that was measured over sizes."""

    file: str
    algorithm: str
    protocol: Protocol
    ranks: int
    blocks: int
    threads: int

    def times_us(self, sizes: Sequence[int], gpu: OneGPU) -> list[float]:
        """The prediction."""
        plan = _plan(self.algorithm, self.ranks, self.protocol, self.blocks)
        machine = gpu.topology(self.ranks, self.threads)
        model = replace(machine.model, runs=0)  # no kernel had any
        return [one.time_us for one in sley.simulate(plan, sizes, machine, model=model)]


@cache
def _plan(algorithm: str, ranks: int, protocol: Protocol, blocks: int) -> sley.Plan:
    level = algorithm.removeprefix("HM ")
    if level in plans.LEVELS:
        return plans.level(level).plan
    return plans.case(algorithm, ranks, protocol, blocks).plan


Values = np.ndarray[Any, Any]
Measured = dict[Setting, dict[int, float]]
"""The times of each setting, in us, by bytes of a rank."""


def measured() -> Measured:
    """The measured times of generated code."""
    found: Measured = defaultdict(dict)
    for setting, size, us in (*_steps(), *_kernels()):
        chunk = size / setting.ranks / (setting.blocks if setting.algorithm == plans.RING else 1)
        most = MOST_BYTES.get(setting.protocol, size)
        if chunk >= LEAST_BYTES and size <= most:
            found[setting][size] = us
    return found


def _steps() -> Iterator[tuple[Setting, int, float]]:
    for line in (RESULTS / STEPS).read_text().splitlines():
        row = json.loads(line)
        how = Protocol[row["protocol"]], row["ranks"], row["blocks"], row["threads"]
        for size in filter(str.isdecimal, row):
            yield Setting(STEPS, plans.RING, *how), int(size), row[size]


def _kernels() -> Iterator[tuple[Setting, int, float]]:
    for name in (SWEEP, ENGINES, *PEERS.values()):
        for row in _rows(name):
            if (row.get("engine"), row.get("launching")) != ("generated", "together"):
                continue
            how = row["ranks"], row["blocks"], row["threads"]
            setting = Setting(name, row["algorithm"], Protocol(row["protocol"]), *how)
            yield setting, row["size_bytes"], row["median_us"]


def _rows(name: str) -> list[dict[str, Any]]:
    rows = json.loads((RESULTS / name).read_text())["rows"]
    return [row for row in rows if "median_us" in row]


def ratios(of: Measured, gpu: OneGPU) -> dict[Setting, Values]:
    """Predicted over measured times of each setting, by ascending size."""
    return {
        setting: np.array(setting.times_us(sorted(us), gpu)) / [us[size] for size in sorted(us)]
        for setting, us in of.items()
    }


def errors_table(of: Measured, gpu: OneGPU) -> str:
    """The errors of the predictions, in Markdown."""
    groups: dict[tuple[int, str], list[Values]] = defaultdict(list)
    for setting, found in ratios(of, gpu).items():
        small = np.array(sorted(of[setting])) <= 256 << 10
        kind = "rings" if setting.algorithm == plans.RING else "all pairs and HM"
        groups[setting.ranks, f"{kind}, to 256 KB"].append(found[small])
        groups[setting.ranks, f"{kind}, above"].append(found[~small])
    lines = []
    for (ranks, what), parts in sorted(groups.items()):
        ratio = np.concatenate(parts)
        error = np.abs(ratio - 1)
        cells = (np.median(error), np.quantile(error, 0.9), np.exp(np.log(ratio).mean()) - 1)
        lines.append((ranks, what, len(ratio), *(f"{cell:.0%}" for cell in cells)))
    return table(("ranks", "of", "times", "median error", "nine of ten within", "mean"), lines)


def _flat(gpu: OneGPU) -> Values:
    return np.hstack(list(astuple(gpu)[1:]))


def _from_flat(numbers: Sequence[float]) -> OneGPU:
    left = list(map(float, numbers))
    made: list[Any] = []
    for field in fields(OneGPU)[1:]:
        is_split = is_dataclass(getattr(ONE_H100, field.name))
        made.append(ByProtocol(*(left.pop(0) for _ in range(3))) if is_split else left.pop(0))
    return OneGPU(ONE_H100.name, *made)


def _names() -> Iterator[str]:
    for field in fields(OneGPU)[1:]:
        if is_dataclass(getattr(ONE_H100, field.name)):
            yield from (f"{field.name}, {each}" for each in ("LL", "LL128", "Simple"))
        else:
            yield field.name


_GIVEN = ("share, Simple", "block_us", "decode_us", "loss")
"""A share is a part of Simple's rate. The others follow from pairs of times. In 16 blocks a rank
instead of one, rings of 2, 4 and 8 ranks took -0.4, 2.7 and 3.1 us longer at 4 KB with LL in 128
threads, 1.6, 0.3 and 4.1 with Simple in 512. The interpreter takes 1.9 us longer for a ring of 4
ranks, of 7 instructions, and 5 % at 64 MB."""


def fitted(of: Measured) -> tuple[OneGPU, str]:
    """The fit, in which all algorithms count alike, and its table in Markdown. Numbers in _GIVEN
    stay."""
    from scipy.optimize import least_squares

    count = Counter(each.algorithm for each in of for _ in of[each])
    weights = np.concatenate([np.full(len(of[each]), count[each.algorithm]) for each in of]) ** -0.5
    start = _flat(ONE_H100)
    free = np.array([name not in _GIVEN for name in _names()])

    def residuals(scales: Values) -> Values:
        numbers = start.copy()
        numbers[free] *= scales
        found = ratios(of, _from_flat(numbers)).values()
        return np.asarray(np.log(np.concatenate(list(found))) * weights * weights.size**0.5)

    most = np.where(np.char.find(list(_names()), "share") >= 0, 1 / start, 4.0)[free]
    ones = np.ones(int(free.sum()))
    found = least_squares(
        residuals,
        ones,
        bounds=(0.25, most),
        loss="soft_l1",
        f_scale=0.1,
        diff_step=0.02,
        max_nfev=8,
    )
    degrees = len(found.fun) - len(ones)
    spread = np.linalg.pinv(found.jac.T @ found.jac) * (found.fun @ found.fun) / degrees
    error = np.zeros(len(start))
    error[free] = np.sqrt(np.diag(spread)) * start[free]
    start[free] *= found.x
    lines = [
        (name, f"{value:.3g}", f"{one:.2g}")
        for name, value, one in zip(_names(), start, error, strict=True)
    ]
    return _from_flat(start), table(("number", "fitted", "standard error"), lines)


SIZES = tuple(256 << 2 * step for step in range(11))


def predictions_table(gpu: OneGPU) -> str:
    """AllReduces of 2, 4 and 8 ranks as communicators choose them, beside NCCL's measured times,
    us, in Markdown."""
    lines = []
    for ranks in (2, 4, 8):
        nccl, rows = _nccl(ranks), device_rows("all_reduce", ranks, LIMITS, disk=False)
        for size in SIZES:
            recipe = next(row.recipe for row in rows if row.sizes.covers(size))
            program = build(recipe.name, **recipe.arguments, in_place=True)
            plan = sley.compile(program, **recipe.options)
            us = sley.simulate(plan, size, gpu.topology(ranks), interpreter=True).time_us
            how = f"{recipe.stem}, {plan.protocol.value}, {plan.blocks_per_rank} blocks"
            theirs = f"{nccl[size]:.1f}" if size in nccl else MISSING
            lines.append((ranks, size_text(size), how, f"{us:.1f}", theirs))
    head = ("ranks", "size", "plan", "predicted us", "NCCL, measured")
    return table(head, lines)


def _nccl(ranks: int) -> dict[int, float]:
    """NCCL's best measured times."""
    found: dict[int, float] = {}
    for row in _rows(PEERS[ranks]) if ranks in PEERS else ():
        if row["by"] == "NCCL":
            size = row["size_bytes"]
            found[size] = min(row["median_us"], found.get(size, np.inf))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--fit", action="store_true", help="fit the numbers anew")
    gpu, of = ONE_H100, measured()
    if parser.parse_args().fit:
        few, most = ({s: of[s] for s in of if (s.ranks < 8) == is_few} for is_few in (True, False))
        print("Fitted to 2 and 4 ranks:", errors_table(most, fitted(few)[0]), sep="\n\n")
        gpu, numbers = fitted(of)
        print("\nFitted to all:", numbers, "", sep="\n\n")
    print(errors_table(of, gpu), predictions_table(gpu), sep="\n\n")


if __name__ == "__main__":
    main()
