"""Ranks that torchrun starts: their group, the times of the slowest one, and rank 0's table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from cpu_peers import machine

from common.machine import text
from common.tables import table


@contextmanager
def ranks() -> Iterator[None]:
    """The default group of all ranks, over gloo; each rank computes with one thread."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    yield
    dist.destroy_process_group()


def slowest_s(call: Callable[[], None]) -> float:
    """The seconds of a call on the slowest rank; all ranks begin it together."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    taken = torch.tensor([time.perf_counter() - begin])
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken)


def print_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """Prints the machine, the number of ranks and a table, on rank 0."""
    if dist.get_rank() == 0:
        print(text(machine.facts()), f"{dist.get_world_size()} ranks\n", sep="\n")
        print(table(head, rows))
