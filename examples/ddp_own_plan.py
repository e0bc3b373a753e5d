"""DistributedDataParallel on CPUs, with a plan of one's own for its gradients.

sley is a backend of torch.distributed. A program that is registered with the group runs for calls
of its sizes, after sley has proven it. All other calls run sley's own plans.

    torchrun --standalone --nproc-per-node 2 examples/ddp_own_plan.py

prints:

    exchange-parts, allreduce(2 ranks, 2 chunks, in place), 4K and more
    ran for an AllReduce of 4K and more: exchange-parts, registered
"""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import sley
import sley.torch  # registers the backend "sley"


def exchange_parts(ranks):
    """Every rank reduces one part of the data, and copies the sum to the others."""

    @sley.program(sley.AllReduce(ranks, chunks=ranks, in_place=True), name="exchange-parts")
    def program(p: sley.ChunkProgram):
        for home in range(ranks):
            others = [rank for rank in range(ranks) if rank != home]
            total = p.chunk(home, "in", home)
            for rank in others:
                total = total.reduce(p.chunk(rank, "in", home))
            for rank in others:
                total.copy(rank, "in", home)

    return program


def train(steps):
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(torch.nn.Linear(256, 16))
    for _ in range(steps):
        loss = model(torch.randn(32, 256)).square().mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad


if __name__ == "__main__":
    dist.init_process_group("sley")
    plans = dist.group.WORLD.plans
    registered = plans.register(exchange_parts(dist.get_world_size()), min_bytes="4K")
    train(steps=5)
    if dist.get_rank() == 0:
        print(*registered)
        for one in plans.stats():
            if one.row.collective == "allreduce":
                print(f"ran for an AllReduce of {one.row.sizes}: {one.plan.name}, {one.origin}")
    dist.destroy_process_group()
