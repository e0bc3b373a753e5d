"""Steps of training with PyTorch, as one rank of a program.

    RANK=0 WORLD_SIZE=4 MASTER_ADDR=... MASTER_PORT=... python -m first_contact.training nccl ddp

The first word is the backend: "nccl", with which the program knows nothing of sley, or "cuda:sley",
on a GPU that all ranks share; elsewhere "gloo" or "sley". Rank 0 prints a line of JSON for each
further word: the losses of a way of training, or the number of wrong elements after calls. With
WORLD_SIZE=1 one process trains alone on all of the data.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import profile

STEPS, BATCH, PARTS, WIDTH, INPUTS, OUTPUTS = 8, 32, 4, 1024, 64, 8
REPLAYS, LARGE = 100, 300_000


def model(device: torch.device) -> nn.Sequential:
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, OUTPUTS))
    return net.to(device)


def data_parallel(net: nn.Sequential) -> nn.Module:
    return DistributedDataParallel(net)


def sharded(net: nn.Sequential) -> nn.Module:
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(net)
    return net


def tensor_parallel(net: nn.Sequential) -> nn.Module:
    mesh = init_device_mesh(next(net.parameters()).device.type, (dist.get_world_size(),))
    return parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Averaged(nn.Module):
    """A model with gradients that one compiled program averages over the ranks."""

    def __init__(self, net: nn.Sequential) -> None:
        super().__init__()
        self.net, self.forward = net, net.forward
        on_gpu = next(net.parameters()).is_cuda
        self._averages = torch.compile(averages, backend="inductor" if on_gpu else "aot_eager")

    def average(self) -> None:
        gradients = [parameter.grad for parameter in self.net.parameters()]
        for gradient, average in zip(gradients, self._averages(gradients), strict=True):
            gradient.copy_(average)


def averages(gradients: list[Tensor]) -> list[Tensor]:
    group, ranks = dist.group.WORLD, dist.get_world_size()
    return [functional.all_reduce(one, "sum", group) / ranks for one in gradients]


class Pipeline:
    """A layer of a model for each rank, which pass on the parts of a batch."""

    def __init__(self, net: nn.Sequential, device: torch.device) -> None:
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        layers = [*net, *(nn.Identity() for _ in range(self._ranks))][: self._ranks]
        widths = [INPUTS, WIDTH, WIDTH, *[OUTPUTS] * self._ranks]
        taken, given = (
            torch.empty(BATCH // PARTS, width, device=device, requires_grad=width != INPUTS)
            for width in widths[self._rank : self._rank + 2]
        )
        layer = layers[self._rank]
        stage = PipelineStage(layer, self._rank, self._ranks, device, taken, given)
        self._schedule = ScheduleGPipe(stage, PARTS, nn.functional.mse_loss)

    def loss(self, inputs: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch, after the gradients are there."""
        parts: list[Tensor] = []
        if self._rank == 0:
            self._schedule.step(inputs)
        elif self._rank < self._ranks - 1:
            self._schedule.step()
        else:
            self._schedule.step(target=target, losses=parts)
        mean = (
            torch.stack(parts).mean().detach() if parts else torch.zeros((), device=inputs.device)
        )
        dist.broadcast(mean, self._ranks - 1)
        return mean


WAYS: Mapping[str, Callable[[nn.Sequential], nn.Module]] = {
    "ddp": data_parallel,
    "fsdp": sharded,
    "tensor": tensor_parallel,
    "compiled": Averaged,
    "pipeline": lambda net: net,
}


def losses(way: str, device: torch.device) -> list[float]:
    """The losses of all of the data, step by step."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    net = model(device) if ranks == 1 else WAYS[way](model(device))
    pipeline = Pipeline(net, device) if ranks > 1 and way == "pipeline" else None
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator, found = torch.Generator().manual_seed(1000), list[float]()
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, INPUTS, generator=generator).to(device)
        part = inputs if way in ("tensor", "pipeline") else inputs.chunk(ranks)[rank]
        target = torch.sin(part[:, :OUTPUTS])
        optimizer.zero_grad()
        if pipeline:
            loss = pipeline.loss(part, target)
        else:
            loss = nn.functional.mse_loss(net(part), target)
            loss.backward()
        if isinstance(net, Averaged):
            net.average()
        optimizer.step()
        mean = loss.detach()
        if ranks > 1 and part is not inputs:
            dist.all_reduce(mean)
            mean /= ranks
        found.append(mean.item())
    return found


def replayed(device: torch.device) -> int:
    """What a captured all-reduce leaves after replays; each divides by the number of ranks first,
    so the values stay as they are."""
    data = torch.arange(1000, dtype=torch.float32, device=device)
    ranks = dist.get_world_size()
    dist.all_reduce(data)  # before the capture, as PyTorch wants it
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        data /= ranks
        dist.all_reduce(data)
    for _ in range(REPLAYS):
        graph.replay()
    torch.cuda.synchronize()
    return wrong(data, ranks * torch.arange(1000, dtype=torch.float32, device=device))


def wrong(found: Tensor, expected: Tensor) -> int:
    return int((found != expected).sum())


def exchanged(device: torch.device) -> int:
    """An all-to-all of rows, as many as the sum of both ranks says, none too."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    rows = [(rank + other) % 3 * 1000 for other in range(ranks)]
    sent = torch.cat([torch.full((n, 2), 10.0 * rank + to) for to, n in enumerate(rows)])
    due = torch.cat([torch.full((n, 2), 10.0 * of + rank) for of, n in enumerate(rows)])
    found = torch.empty_like(due, device=device)
    dist.all_to_all_single(found, sent.to(device), rows, rows)
    return wrong(found, due.to(device))


def passed_around(device: torch.device) -> int:
    """Two messages to each neighbor in one batch, larger than what a rank sends ahead."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    batch, due, found = [], [], []
    for number, step in enumerate((1, -1, 1, -1)):
        to, source = (rank + step) % ranks, (rank - step) % ranks
        sent = torch.full((LARGE,), 10.0 * rank + number, device=device)
        due.append(torch.full_like(sent, 10.0 * source + number))
        found.append(torch.empty_like(sent))
        batch += [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, found[-1], source)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    return wrong(torch.cat(found), torch.cat(due))


def profiled(device: torch.device) -> int:
    """An all-reduce in a profile, which must show it."""
    data = torch.ones(1000, device=device)
    with profile() as found:
        dist.all_reduce(data)
    names = [event.key for event in found.key_averages()]
    shown = any("all_reduce" in name or "allreduce" in name for name in names)
    return wrong(data, torch.full_like(data, dist.get_world_size())) + (not shown)


def operated(device: torch.device) -> int:
    """sley's operators, in a compiled program."""
    ranks, group = dist.get_world_size(), dist.group.WORLD.group_name

    @torch.compile(backend="aot_eager", fullgraph=True)
    def program(data: Tensor) -> Tensor:
        reduced = torch.ops.sley.all_reduce(data, "sum", group)
        return torch.ops.sley.all_gather(reduced + 1, group)

    data = torch.arange(1000, dtype=torch.float32, device=device)
    return wrong(program(data), (ranks * data + 1).repeat(ranks))


CALLS: Mapping[str, Callable[[torch.device], int]] = {
    "graph": replayed,
    "operators": operated,
    "exchange": exchanged,
    "batch": passed_around,
    "profile": profiled,
}


def main(backend: str, *ways: str) -> None:
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(backend)
    for way in ways:
        found = CALLS[way](device) if way in CALLS else losses(way, device)
        if int(os.environ["RANK"]) == 0:
            print(json.dumps({way: found}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
