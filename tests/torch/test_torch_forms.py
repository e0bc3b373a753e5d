"""Other forms of collectives: coalesced, of objects, functional, with plain values for options."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from support.rank_pool import RankPool
from support.rank_values import same


def check_coalesced() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sizes = [3, 1, 8]
    for async_op in (False, True):
        tensors = [torch.full((size,), rank + 1.0) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if async_op:
            manager.wait()
        for tensor in tensors:
            same(tensor, torch.full(tensor.shape, ranks * (ranks + 1) / 2))

        inputs = [torch.full((size,), rank) for size in sizes]
        outputs = [torch.empty(ranks * size, dtype=torch.int64) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        if async_op:
            manager.wait()
        for output, size in zip(outputs, sizes, strict=True):
            same(output, torch.arange(ranks).repeat_interleave(size))

        inputs = [torch.arange(ranks).repeat_interleave(size) for size in sizes]
        outputs = [torch.empty(size, dtype=torch.int64) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=async_op) as manager:
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.reduce_scatter_tensor(output, tensor)
        if async_op:
            manager.wait()
        for output, size in zip(outputs, sizes, strict=True):
            same(output, torch.full((size,), ranks * rank))

    lists = [[torch.empty(size) for size in sizes] for _ in range(ranks)]
    dist.all_gather_coalesced(lists, [torch.full((size,), float(rank)) for size in sizes])
    for other, tensors in enumerate(lists):
        for tensor in tensors:
            same(tensor, torch.full(tensor.shape, float(other)))
    dist.all_reduce_coalesced(tensors := [torch.ones(size) for size in sizes])
    for tensor in tensors:
        same(tensor, torch.full(tensor.shape, float(ranks)))


def test_coalesced_collectives_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_coalesced)


def check_objects() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    mine = {"rank": rank, "text": "x" * 100 * rank}
    everything = [{"rank": r, "text": "x" * 100 * r} for r in range(ranks)]
    found: list[object] = [None] * ranks
    dist.all_gather_object(found, mine)
    assert found == everything
    found = [None] * ranks
    dist.gather_object(mine, found if rank == 2 else None, 2)
    assert found == (everything if rank == 2 else [None] * ranks)
    given = everything[:2] if rank == 1 else [None, None]
    dist.broadcast_object_list(given, 1)
    assert given == everything[:2]
    taken: list[object] = [None]
    dist.scatter_object_list(taken, everything if rank == 3 else None, 3)
    assert taken == [mine]


def test_object_collectives_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_objects)


def check_functional() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    world = dist.group.WORLD
    tensor = torch.full((ranks, 2), rank + 1.0)
    total = ranks * (ranks + 1) / 2
    same(functional.all_reduce(tensor, "sum", world).wait(), torch.full((ranks, 2), total))
    gathered = functional.all_gather_tensor(tensor, 0, world).wait()
    same(gathered, torch.arange(1.0, ranks + 1).repeat_interleave(ranks)[:, None].repeat(1, 2))
    part = functional.reduce_scatter_tensor(tensor, "avg", 0, world).wait()
    same(part, torch.full((1, 2), total / ranks))
    exchanged = functional.all_to_all_single(tensor, None, None, world).wait()
    same(exchanged, torch.arange(1.0, ranks + 1)[:, None].repeat(1, 2))
    same(functional.broadcast(tensor, 1, world).wait(), torch.full((ranks, 2), 2.0))
    one, two = functional.all_reduce_coalesced([tensor, 2 * tensor], "max", world)
    same(one.wait() + two.wait(), torch.full((ranks, 2), 3.0 * ranks))


def test_functional_collectives_are_right(four_ranks: RankPool) -> None:
    four_ranks.run(check_functional)


def check_options_as_values() -> None:
    """The forms of a group's own methods that take plain values."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    tensor = torch.full((3,), rank + 1.0)
    group.allreduce(tensor, dist.ReduceOp.MAX).wait()
    same(tensor, torch.full((3,), float(ranks)))
    group.allreduce([tensor]).wait()
    same(tensor, torch.full((3,), float(ranks * ranks)))
    tensor = torch.full((3,), float(rank))
    group.broadcast(tensor, 2).wait()
    same(tensor, torch.full((3,), 2.0))
    group.reduce(tensor, 1, dist.ReduceOp.SUM).wait()
    same(tensor, torch.full((3,), 2.0 * ranks if rank == 1 else 2.0))
    outputs = [torch.empty(1) for _ in range(ranks)]
    group.allgather(outputs, torch.tensor([float(rank)])).wait()
    same(torch.cat(outputs), torch.arange(float(ranks)))
    output = torch.empty(1)
    group.reduce_scatter(output, outputs, dist.ReduceOp.SUM).wait()
    same(output, torch.tensor([float(ranks * rank)]))
    group.gather(outputs if rank == 0 else [], output, 0).wait()
    group.scatter(output, outputs if rank == 0 else [], 0).wait()
    same(output, torch.tensor([float(ranks * rank)]))
    group.barrier().wait()
    assert group._get_sequence_number_for_group() > 0


def test_options_may_be_plain_values(four_ranks: RankPool) -> None:
    four_ranks.run(check_options_as_values)
