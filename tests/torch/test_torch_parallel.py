"""Tensors, layers and checkpoints divided over ranks: the losses are those of gloo.

Only the ranks import these parts of PyTorch, which takes a second.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from support.processes.rank_pool import RankPool

STEPS = 6


def mean_square(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (output - target).square().mean()


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same on all ranks."""
    inputs = torch.randn(8, 16, generator=torch.Generator().manual_seed(step))
    return inputs, inputs.sin()


def layers(number: int) -> list[nn.Module]:
    torch.manual_seed(7)
    return [nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)) for _ in range(number)]


def losses(net: nn.Module) -> list[float]:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        inputs, target = data(step)
        loss = mean_square(net(inputs), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def check_tensor_parallel() -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    found = []
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):
        mesh = DeviceMesh.from_group(group, "cpu")
        (net,) = layers(1)
        net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        found.append(losses(net))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert found[0] == pytest.approx(losses(layers(1)[0]), rel=1e-4)
    assert found[0][-1] < found[0][0]


def test_tensor_parallel_training_has_the_losses_of_gloo(four_ranks: RankPool) -> None:
    four_ranks.run(check_tensor_parallel)


def pipeline(group: Any, schedule: type) -> list[float]:
    """The losses of the last rank; each has one layer."""
    from torch.distributed.pipelining import PipelineStage

    rank, ranks = dist.get_rank(), dist.get_world_size()
    layer = layers(ranks)[rank]
    stage = PipelineStage(layer, rank, ranks, torch.device("cpu"), group=group)
    run = schedule(stage, n_microbatches=4, loss_fn=mean_square)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    found = []
    for step in range(STEPS):
        inputs, target = data(step)
        parts: list[torch.Tensor] = []
        optimizer.zero_grad()
        given = (inputs,) if rank == 0 else ()
        is_last = rank == ranks - 1
        run.step(*given, **({"target": target, "losses": parts} if is_last else {}))
        optimizer.step()
        if is_last:
            found.append(torch.stack(parts).mean().item())
    return found


def check_pipeline_parallel() -> None:
    from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe

    gloo = dist.new_group(backend="gloo")
    for schedule in (ScheduleGPipe, Schedule1F1B):
        found = pipeline(dist.group.WORLD, schedule)
        assert found == pytest.approx(pipeline(gloo, schedule), rel=1e-5)
        assert (len(found) == STEPS) == (dist.get_rank() == dist.get_world_size() - 1)


def test_pipeline_parallel_training_has_the_losses_of_gloo(four_ranks: RankPool) -> None:
    four_ranks.run(check_pipeline_parallel)


def sharded(group: Any, seed: int) -> nn.Module:
    """A model with random parameters, cut over the ranks of a group."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))  # 5 and 3 rows: unequal parts
    fully_shard(net, mesh=DeviceMesh.from_group(group, "cpu"))
    return net


def check_checkpoint(folder: str) -> None:
    """What sley's group saves, gloo's loads, and the other way round."""
    import torch.distributed.checkpoint as dcp

    groups = dist.group.WORLD, dist.new_group(backend="gloo")
    for turn, (saving, loading) in enumerate((groups, groups[::-1])):
        saved, loaded = sharded(saving, 1), sharded(loading, 2)
        path = f"{folder}/{turn}"
        dcp.save({"net": saved.state_dict()}, checkpoint_id=path, process_group=saving)
        state = {"net": loaded.state_dict()}
        dcp.load(state, checkpoint_id=path, process_group=loading)
        loaded.load_state_dict(state["net"])
        for one, other in zip(saved.parameters(), loaded.parameters(), strict=True):
            assert torch.equal(one.full_tensor(), other.full_tensor())


def test_a_distributed_checkpoint_is_what_was_saved(four_ranks: RankPool, tmp_path: Path) -> None:
    four_ranks.run(check_checkpoint, str(tmp_path))
