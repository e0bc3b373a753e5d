"""Training on several ranks: the losses equal those of gloo."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from support.processes.rank_pool import RankPool

STEPS = 12


def model() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.BatchNorm1d(64), nn.Linear(64, 4))


def losses(net: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of this rank on its own part of the data."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(STEPS):
        inputs = torch.randn(8, 16, generator=generator)
        loss = (net(inputs) - inputs[:, :4].sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def data_parallel(group: Any, hook: Any = None, **settings: Any) -> list[float]:
    net = DistributedDataParallel(model(), process_group=group, bucket_cap_mb=0.005, **settings)
    if hook is not None:
        net.register_comm_hook(*hook)
    return losses(net, torch.optim.SGD(net.parameters(), lr=0.1))


def check_data_parallel() -> None:
    gloo = dist.new_group(backend="gloo")
    expected = data_parallel(gloo)
    found = data_parallel(None)
    assert found == pytest.approx(expected, rel=1e-5)
    assert found[-1] < found[0]
    assert data_parallel(None) == found  # to the bit
    for settings in (
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True},
        {"static_graph": True},
    ):
        assert data_parallel(None, **settings) == pytest.approx(expected, rel=1e-5)
    dist.destroy_process_group(gloo)


def test_ddp_has_the_losses_of_gloo(four_ranks: RankPool) -> None:
    four_ranks.run(check_data_parallel)


def _twice(group, bucket):  # DDP wants real types or none
    """A hook that waits for a collective in the callback of another."""
    buffer = bucket.buffer().div_(dist.get_world_size())
    first = dist.all_reduce(buffer, async_op=True).get_future()

    def again(future: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
        (tensor,) = future.value()
        second = dist.all_reduce(tensor.clone(), dist.ReduceOp.MAX, async_op=True)
        return second.get_future().wait()[0]

    return first.then(again)


def check_hooks() -> None:
    expected = data_parallel(None)
    state = dist.group.WORLD
    for hook in ((state, default_hooks.allreduce_hook), (state, default_hooks.fp16_compress_hook)):
        assert data_parallel(None, hook) == pytest.approx(expected, rel=0.05)
    one_bucket = DistributedDataParallel(model())
    one_bucket.register_comm_hook(None, _twice)
    found = losses(one_bucket, torch.optim.SGD(one_bucket.parameters(), lr=0.1))
    assert found == pytest.approx(expected, rel=1e-5)


def test_ddp_with_a_hook_has_nearly_the_losses_of_ddp(four_ranks: RankPool) -> None:
    four_ranks.run(check_hooks)


def check_fully_sharded() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    expected = data_parallel(None)
    for shape, names in (((4,), ("shard",)), ((2, 2), ("replicate", "shard"))):
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        net = model()
        for layer in net:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        fully_shard(net, mesh=mesh)
        if hasattr(net, "set_allocate_memory_from_process_group_for_comm") and len(shape) == 1:
            net.set_allocate_memory_from_process_group_for_comm(True)
        found = losses(net, torch.optim.SGD(net.parameters(), lr=0.1))
        assert found == pytest.approx(expected, rel=1e-4)


def test_fsdp2_has_the_losses_of_ddp(four_ranks: RankPool) -> None:
    four_ranks.run(check_fully_sharded)
