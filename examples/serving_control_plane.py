"""The control plane of a serving engine, which asks for gloo and gets sley.

Engines that serve a model on several GPUs agree on each step over a group of CPU tensors. Each rank
contributes a few numbers, as in SGLang's data-parallel attention; all ranks pad their batches to
the largest one, as in vLLM. The GPUs wait for these calls. `Coordinator` names gloo, as the engines
do; `replace_gloo` gives it sley. Programs that can't be edited need only the variable
SLEY_REPLACE_GLOO=1.

    torchrun --standalone --nproc-per-node 4 examples/serving_control_plane.py

prints:

    gloo is ProcessGroupSley
    step 0: tokens [0, 128, 1, 0], padded to 128, no CUDA graph
    step 1: tokens [512, 4, 0, 8], padded to 512, no CUDA graph
    step 2: tokens [256, 0, 8, 512], padded to 512, no CUDA graph
    step 3: tokens [0, 8, 7, 0], padded to 8, CUDA graph
"""

import random

import torch
import torch.distributed as dist

import sley.torch


class Coordinator:
    """The ranks' agreement on each step, as an engine has it."""

    def __init__(self):
        self.group = dist.new_group(backend="gloo")
        self.ranks = dist.get_world_size(self.group)
        self.table = torch.empty(self.ranks, 6, dtype=torch.int64)

    def gather(self, batch):
        """The numbers of all ranks' batches: int64 (ranks, 6)."""
        dist.all_gather(list(self.table), torch.tensor(batch), group=self.group)
        return self.table

    def padded_tokens(self, tokens):
        """The number of tokens to which all ranks pad their batches."""
        counts = torch.zeros(self.ranks, dtype=torch.int32)
        counts[dist.get_rank()] = tokens
        dist.all_reduce(counts, group=self.group)
        return int(counts.max())


def batch_of(step, rank):
    """A rank's batch: tokens, results, and four flags, of them the first for a CUDA graph."""
    chance = random.Random(100 * step + rank)
    is_prefill = chance.random() < 0.2
    tokens = 0 if (step + rank) % 3 == 0 else chance.randint(1, 8) * (64 if is_prefill else 1)
    return [tokens, min(tokens, 8), int(tokens < 64), int(is_prefill), 0, int(tokens > 0)]


if __name__ == "__main__":
    sley.torch.replace_gloo()
    dist.init_process_group("gloo")
    coordinator = Coordinator()
    if dist.get_rank() == 0:
        print(f"{dist.get_backend(coordinator.group)} is {type(coordinator.group).__name__}")
    for step in range(4):
        batch = batch_of(step, dist.get_rank())
        table = coordinator.gather(batch)
        padded = coordinator.padded_tokens(batch[0])
        if dist.get_rank() == 0:
            has_graph = bool(table[:, 2].all())
            print(f"step {step}: tokens {table[:, 0].tolist()}, padded to {padded},", end=" ")
            print("CUDA graph" if has_graph else "no CUDA graph")
    dist.destroy_process_group()
