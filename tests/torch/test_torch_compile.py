"""Collectives in programs of torch.compile that Dynamo leaves to the group run as without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from support.processes.rank_pool import RankPool


def _broadcast(tensor: Tensor) -> Tensor:
    dist.broadcast(tensor, 1)
    return tensor + 1


def _barrier(tensor: Tensor) -> Tensor:
    dist.barrier()
    return tensor + 1


def _reduce(tensor: Tensor) -> Tensor:
    dist.reduce(tensor, 0)
    return tensor + 1


def _all_reduce_later(tensor: Tensor) -> Tensor:
    work = dist.all_reduce(tensor, async_op=True)
    work.wait()
    return tensor + 1


def _to_the_next(tensor: Tensor) -> Tensor:
    rank = dist.get_rank()
    if rank % 2 == 0:
        dist.send(tensor, rank + 1)
    else:
        dist.recv(tensor, rank - 1)
    return tensor + 1


PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], list[float]]] = {
    "broadcast": (_broadcast, [3, 3, 3, 3]),
    "barrier": (_barrier, [2, 3, 4, 5]),
    "reduce": (_reduce, [11, 3, 4, 5]),
    "async all_reduce": (_all_reduce_later, [11, 11, 11, 11]),
    "send and recv": (_to_the_next, [2, 2, 4, 4]),
}


def check_compiled(name: str) -> float:
    program, _ = PROGRAMS[name]
    torch._dynamo.reset()
    compiled: Any = torch.compile(program, backend="eager")
    for _ in range(2):
        found = compiled(torch.full((4,), dist.get_rank() + 1.0))
    assert (found == found[0]).all()
    return float(found[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compiled_collective_gives_what_it_gives_without_torch_compile(
    four_ranks: RankPool, name: str
) -> None:
    assert four_ranks.run(check_compiled, name) == PROGRAMS[name][1]


def check_compiled_ddp() -> None:
    torch._dynamo.reset()
    torch.manual_seed(7)
    net = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)))
    inputs = torch.randn(8, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    gradients = []
    for model in (net, torch.compile(net, backend="aot_eager")):
        net.zero_grad()
        model(inputs).square().mean().backward()
        gradients.append([parameter.grad.clone() for parameter in net.parameters()])
    for expected, found in zip(*gradients, strict=True):
        torch.testing.assert_close(found, expected)


def test_compiled_ddp_has_the_gradients_of_ddp(four_ranks: RankPool) -> None:
    four_ranks.run(check_compiled_ddp)
