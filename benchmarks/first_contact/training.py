"""Steps of training with PyTorch, as one rank of a program that knows nothing of sley.

    RANK=0 WORLD_SIZE=4 MASTER_ADDR=... MASTER_PORT=... python -m first_contact.training ddp fsdp

Rank 0 prints the losses as lines of JSON, a line for each way. With WORLD_SIZE=1 one process trains
alone on all of the data. On a GPU, which all ranks share, the backend is NCCL, elsewhere gloo.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

STEPS, BATCH, WIDTH, INPUTS, OUTPUTS = 8, 32, 1024, 64, 8
REPLAYS = 100


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


WAYS: Mapping[str, Callable[[nn.Sequential], nn.Module]] = {
    "ddp": data_parallel,
    "fsdp": sharded,
    "tensor": tensor_parallel,
}


def losses(way: str, device: torch.device) -> list[float]:
    """The losses of all of the data, step by step."""
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    net = model(device) if ranks == 1 else WAYS[way](model(device))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    generator, found = torch.Generator().manual_seed(1000), list[float]()
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, INPUTS, generator=generator).to(device)
        part = inputs if way == "tensor" else inputs.chunk(ranks)[rank]
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(net(part), torch.sin(part[:, :OUTPUTS]))
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        if ranks > 1 and way != "tensor":
            dist.all_reduce(mean)
            mean /= ranks
        found.append(mean.item())
    return found


def replayed(device: torch.device) -> list[float]:
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
    wrong = data != ranks * torch.arange(1000, dtype=torch.float32, device=device)
    return [float(wrong.sum())]


def main(ways: Sequence[str]) -> None:
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > 1:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    for way in ways:
        found = replayed(device) if way == "graph" else losses(way, device)
        if int(os.environ["RANK"]) == 0:
            print(json.dumps({way: found}), flush=True)
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1:])
