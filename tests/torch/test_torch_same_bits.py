"""Groups whose sums have one order: training has the same bits however gradients are split."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from sley.communicator import Settings
from support.processes.rank_pool import RankPool

STEPS = 3
BUCKETS_MB = (0.0001, 0.004, 0.012, 0.05, 25)
"""From one gradient at a time to all at once: calls of one step, of two, and of both."""


def model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Linear(64, 16))


def losses(net: nn.Module) -> tuple[str, ...]:
    """The losses of this rank on its own part of the data, to the last bit."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for _ in range(STEPS):
        inputs = torch.randn(8, 16, generator=generator)
        # float64, whose digits show a difference of one bit in a parameter.
        loss = (net(inputs).double() - inputs.sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item().hex())
    return tuple(found)


def data_parallel(group: Any, bucket_mb: float) -> tuple[str, ...]:
    return losses(DistributedDataParallel(model(), process_group=group, bucket_cap_mb=bucket_mb))


def fully_sharded(group: Any, *units: slice) -> tuple[str, ...]:
    from torch.distributed.fsdp import fully_shard

    net, mesh = model(), DeviceMesh.from_group(group, "cpu")
    for unit in units:
        fully_shard([*net[unit]], mesh=mesh)
    return losses(fully_shard(net, mesh=mesh))


def check_training() -> None:
    found = {}
    for same_bits in (True, False):
        group = dist.new_group(pg_options=Settings(same_bits=same_bits))
        found[same_bits] = {data_parallel(group, size) for size in BUCKETS_MB}
        found[same_bits] |= {
            fully_sharded(group),
            fully_sharded(group, slice(0, 1), slice(2, 3)),
            fully_sharded(group, slice(0, 3)),
        }
        dist.destroy_process_group(group)
    assert len(found[True]) == 1
    assert len(found[False]) > 1


def test_losses_have_the_same_bits_whatever_the_buckets_and_units(four_ranks: RankPool) -> None:
    four_ranks.run(check_training)


def check_calls(dtype: torch.dtype) -> None:
    """An element has the same bits in calls of all sizes, split, coalesced, and with factors."""
    group = dist.new_group(pg_options=Settings(same_bits=True))
    ranks, whole = dist.get_world_size(), 40_000
    generator = torch.Generator().manual_seed(dist.get_rank())
    scale = 10.0 ** torch.randint(-2, 3, (whole,), generator=generator)
    data = (torch.randn(whole, generator=generator) * scale).to(dtype)
    expected = data.clone()
    dist.all_reduce(expected, group=group)
    split = data.clone()
    for part in split.split((1, 100, 2_000, whole - 2_101)):
        dist.all_reduce(part, group=group)
    together = data.clone()
    dist.all_reduce_coalesced(list(together.split(9_000)), group=group)
    shares = torch.empty(whole // ranks, dtype=dtype)
    dist.reduce_scatter_tensor(shares, data, group=group)
    scattered = torch.empty_like(data)
    dist.all_gather_into_tensor(scattered, shares, group=group)
    rooted = data.clone()
    dist.reduce(rooted, 2, group=group)
    dist.broadcast(rooted, 2, group=group)
    for found in (split, together, scattered, rooted):
        assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    other = data.clone()
    dist.all_reduce(other)
    assert not torch.equal(other, expected)
    dist.destroy_process_group(group)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_elements_have_the_same_bits_in_all_calls(four_ranks: RankPool, dtype: torch.dtype) -> None:
    four_ranks.run(check_calls, dtype)
