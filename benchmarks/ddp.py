"""Training with DistributedDataParallel: steps and losses over sley and over gloo.

    torchrun --nproc-per-node 4 benchmarks/ddp.py [--width 256,1024] [--steps 20] [--rounds 7]

Every rank has one model for each backend, from the same seed, and its own part of the data. The two
models take turns, with `--steps` steps in a round. A time is that of a round on the slowest rank,
divided by the number of steps. Rank 0 prints the medians, the median of the ratios, and the largest
difference of the loss curves. Each rank computes with one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from statistics import median

import torch
import torch.distributed as dist
from common.ranks import print_table, ranks, slowest_s
from common.tables import ms_text, ratio_text
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import sley.torch  # noqa: F401 - registers the backend

BATCH, INPUTS, OUTPUTS = 32, 64, 8
BACKENDS = ("sley", "gloo")


class Trained:
    """A model that is trained over one backend."""

    def __init__(self, backend: str, width: int) -> None:
        torch.manual_seed(7)
        layers = [nn.Linear(INPUTS, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh()]
        net = nn.Sequential(*layers, nn.Linear(width, OUTPUTS))
        self.net = DistributedDataParallel(net, process_group=dist.new_group(backend=backend))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.data = batches(dist.get_rank())
        self.losses: list[float] = []
        self.ms: list[float] = []

    def step(self) -> None:
        inputs, targets = next(self.data)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.net(inputs), targets)
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())

    def round(self, steps: int) -> None:
        def all_steps() -> None:
            for _ in range(steps):
                self.step()

        self.ms.append(1e3 * slowest_s(all_steps) / steps)


def batches(rank: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The rank's data: random inputs, and a function of them as targets."""
    generator = torch.Generator().manual_seed(1000 + rank)
    while True:
        inputs = torch.randn(BATCH, INPUTS, generator=generator)
        yield inputs, torch.sin(inputs[:, :OUTPUTS])


def row(width: int, options: argparse.Namespace) -> tuple[object, ...]:
    """The times of one width, and the largest difference of the losses on any rank."""
    trained = {backend: Trained(backend, width) for backend in BACKENDS}
    for one in trained.values():
        one.step()
    for turn in range(options.rounds):
        for backend in BACKENDS if turn % 2 else BACKENDS[::-1]:
            trained[backend].round(options.steps)
    own, other = (trained[backend] for backend in BACKENDS)
    ratio = median(g / s for g, s in zip(other.ms, own.ms, strict=True))
    apart = torch.tensor(own.losses).sub(torch.tensor(other.losses)).abs().max()
    dist.all_reduce(apart, dist.ReduceOp.MAX)
    parameters = sum(p.numel() for p in own.net.parameters())
    curve = f"{own.losses[0]:.4f} to {own.losses[-1]:.4f}"
    times = (ms_text(median(own.ms)), ms_text(median(other.ms)), ratio_text(ratio))
    return width, parameters, *times, curve, f"{float(apart):.1e}"


def main() -> None:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--width", default="256,1024", help="of the hidden layers")
    made.add_argument("--steps", type=int, default=20)
    made.add_argument("--rounds", type=int, default=7)
    options = made.parse_args()
    ratio = "median of gloo / sley"
    head = ("width", "parameters", "sley, ms", "gloo, ms", ratio, "loss", "losses apart")
    with ranks():
        print_table(head, [row(int(width), options) for width in options.width.split(",")])


if __name__ == "__main__":
    main()
