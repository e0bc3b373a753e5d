"""Recording of a training: the calls of gradients overlap the backward pass."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sley.communicator import record
from sley.tuning.workloads import Workload
from support.rank_pool import RankPool

SLOW_S = 0.02


class Slow(torch.autograd.Function):
    """The identity, whose backward pass takes a while."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(SLOW_S)
        return gradient


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(Slow.apply(self.first(inputs)))


def train() -> Workload:
    net = DistributedDataParallel(Net(), bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        net(torch.ones(4, 64)).square().sum().backward()
        optimizer.step()

    step()
    step()  # with the buckets in the order of the first step
    with record() as recorder:
        dist.barrier()
        step()
        time.sleep(SLOW_S)
        ended = dist.all_reduce(torch.ones(8), async_op=True)
        assert ended is not None
        time.sleep(SLOW_S)
        ended.wait()
        dist.barrier()
    return recorder.workload()


def test_gradients_overlap_the_backward_pass(four_ranks: RankPool) -> None:
    for workload in four_ranks.run(train):
        calls = list(workload.calls())
        sizes = [cell.size_bytes for _, cell in calls]
        assert sizes == [1, 4 * 65 * 64, 4 * 65 * 64, 32, 1]
        rows = [row for row, _ in calls]
        assert workload.overlaps[rows].tolist() == [False, True, True, True, False]
        first, second, later = (int(workload.waited[row]) for row in rows[1:4])
        # Both are waited for after the backward pass, and before what follows it.
        assert rows[2] < first < rows[3]
        assert rows[2] < second < rows[3] < later < rows[4]
        us = workload.compute_us
        assert us[rows[2]] > SLOW_S * 1e6 * 0.8, "the backward pass between the buckets"
        assert us[rows[3]] > SLOW_S * 1e6 * 0.8, "the pause after the step"
        assert us[later] > SLOW_S * 1e6 * 0.8, "the pause before a wait for an ended call"
