"""Every collective, against what it should give, computed from all ranks' inputs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_pool import RankPool

TYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
]
MOVED_ONLY = [torch.bool, torch.uint16, torch.uint32, torch.complex64, torch.complex128]
if hasattr(torch, "float8_e4m3fn"):
    MOVED_ONLY.append(torch.float8_e4m3fn)
SIZES = [(1,), (7,), (3, 5), (257,), (4, 33, 9), (0,), ()]


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The elements of `rank`: small whole numbers, whose sums are exact in every type."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 4, shape, generator=generator)
    if dtype.is_complex:
        return torch.complex(numbers.double(), numbers.double() + rank).to(dtype)
    return numbers.to(dtype)


def everybody(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    return [values(rank, shape, dtype, seed) for rank in range(dist.get_world_size())]


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if found.dtype.itemsize == 1 and found.dtype.is_floating_point:
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(found, expected), f"{found} instead of {expected}"


def own(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    return values(dist.get_rank(), shape, dtype, seed)


def end(work: dist.Work | None, is_async: bool) -> None:
    if not is_async:
        assert work is None
        return
    assert work is not None
    assert work.wait()
    assert work.is_completed()
    assert work.is_success()
    assert work.exception() is None


def reduced(inputs: list[torch.Tensor], op: object) -> torch.Tensor:
    stack = torch.stack(inputs)
    wide = stack.double() if stack.is_floating_point() else stack
    total = {
        dist.ReduceOp.SUM: lambda: wide.sum(0),
        dist.ReduceOp.AVG: lambda: wide.sum(0) / len(inputs),
        dist.ReduceOp.PRODUCT: lambda: wide.prod(0),
        dist.ReduceOp.MIN: lambda: wide.amin(0),
        dist.ReduceOp.MAX: lambda: wide.amax(0),
    }[op]()
    return total.to(inputs[0].dtype)


def check_reductions(dtype: torch.dtype, is_async: bool) -> None:
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    if dtype.is_floating_point:
        ops.append(dist.ReduceOp.AVG)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for seed, shape in enumerate(SIZES):
        for op in ops:
            expected = reduced(everybody(shape, dtype, seed), op)
            tensor = own(shape, dtype, seed)
            end(dist.all_reduce(tensor, op, async_op=is_async), is_async)
            same(tensor, expected)

            root = seed % ranks
            tensor = own(shape, dtype, seed)
            end(dist.reduce(tensor, root, op, async_op=is_async), is_async)
            same(tensor, expected if rank == root else own(shape, dtype, seed))

            parts = [everybody(shape, dtype, seed + 50 + index) for index in range(ranks)]
            expected = reduced(parts[rank], op)
            inputs = [own(shape, dtype, seed + 50 + index) for index in range(ranks)]
            output = torch.empty(shape, dtype=dtype)
            end(dist.reduce_scatter(output, inputs, op, async_op=is_async), is_async)
            same(output, expected)

            output = torch.empty(shape, dtype=dtype)
            whole = torch.stack(inputs)
            end(dist.reduce_scatter_tensor(output, whole, op, async_op=is_async), is_async)
            same(output, expected)


def check_movements(dtype: torch.dtype, is_async: bool) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for seed, shape in enumerate(SIZES):
        root = (seed + 1) % ranks
        inputs = everybody(shape, dtype, seed)

        tensor = own(shape, dtype, seed)
        end(dist.broadcast(tensor, root, async_op=is_async), is_async)
        same(tensor, inputs[root])

        outputs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
        end(dist.all_gather(outputs, own(shape, dtype, seed), async_op=is_async), is_async)
        same(torch.stack(outputs), torch.stack(inputs))

        output = torch.empty((ranks, *shape), dtype=dtype)
        tensor = own(shape, dtype, seed)
        end(dist.all_gather_into_tensor(output, tensor, async_op=is_async), is_async)
        same(output, torch.stack(inputs))

        outputs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
        gathered = outputs if rank == root else None
        end(dist.gather(tensor, gathered, root, async_op=is_async), is_async)
        if rank == root:
            same(torch.stack(outputs), torch.stack(inputs))

        output = torch.empty(shape, dtype=dtype)
        scattered = [part.clone() for part in inputs] if rank == root else None
        end(dist.scatter(output, scattered, root, async_op=is_async), is_async)
        same(output, inputs[rank])

        sent = [everybody(shape, dtype, seed + 70 + index) for index in range(ranks)]
        given = [sent[index][rank] for index in range(ranks)]
        expected = torch.stack([sent[rank][index] for index in range(ranks)])
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
        end(dist.all_to_all(outputs, given, async_op=is_async), is_async)
        same(torch.stack(outputs), expected)

        output = torch.empty((ranks, *shape), dtype=dtype)
        end(dist.all_to_all_single(output, torch.stack(given), async_op=is_async), is_async)
        same(output, expected)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_reductions(four_ranks: RankPool, dtype: torch.dtype, is_async: bool) -> None:
    four_ranks.run(check_reductions, dtype, is_async)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, *MOVED_ONLY], ids=str)
def test_movements(four_ranks: RankPool, dtype: torch.dtype, is_async: bool) -> None:
    four_ranks.run(check_movements, dtype, is_async)


def check_splits(is_async: bool) -> None:
    """Rank r sends (r + s) % 3 rows to rank s: none to some."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    giving = [(rank + other) % 3 for other in range(ranks)]
    repeats, others = torch.tensor(giving), torch.arange(float(ranks))
    given = (100 * rank + others).repeat_interleave(repeats).reshape(-1, 1).repeat(1, 2)
    taken = torch.empty(sum(giving), 2)
    work = dist.all_to_all_single(taken, given, giving, giving, async_op=is_async)
    end(work, is_async)
    same(taken, (100 * others + rank).repeat_interleave(repeats).reshape(-1, 1).repeat(1, 2))

    inputs = [torch.full((giving[other], 3), 100 * rank + other) for other in range(ranks)]
    outputs = [torch.empty(giving[other], 3, dtype=torch.int64) for other in range(ranks)]
    end(dist.all_to_all(outputs, inputs, async_op=is_async), is_async)
    for other, output in enumerate(outputs):
        same(output, torch.full((giving[other], 3), 100 * other + rank))


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_all_to_all_with_split_sizes(four_ranks: RankPool, is_async: bool) -> None:
    four_ranks.run(check_splits, is_async)


def check_splits_that_only_this_rank_finds_equal() -> None:
    """Ranks 0 and 1 exchange one row with everybody, ranks 2 and 3 five with one another."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    giving = [5 if min(rank, other) >= 2 else 1 for other in range(ranks)]
    given = torch.full((sum(giving),), rank)
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given, giving, giving)
    same(taken, torch.tensor([other for other in range(ranks) for _ in range(giving[other])]))


def test_split_sizes_that_look_equal_on_some_ranks(four_ranks: RankPool) -> None:
    four_ranks.run(check_splits_that_only_this_rank_finds_equal)


def views(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of 12 elements that aren't contiguous, or hold their elements otherwise."""
    return [
        torch.zeros(4, 3, dtype=dtype).T,
        torch.zeros(24, dtype=dtype)[::2],
        torch.zeros(2, 3, 2, dtype=dtype).permute(2, 0, 1),
        torch.zeros(5, 12, dtype=dtype)[3],
    ]


def check_views() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    dtype = torch.float32
    for is_async in (False, True):
        for tensor in views(dtype):
            parts = everybody(tuple(tensor.shape), dtype)
            tensor.copy_(parts[rank])
            end(dist.all_reduce(tensor, async_op=is_async), is_async)
            same(tensor, sum(parts))

            tensor.copy_(parts[rank])
            end(dist.reduce(tensor, 1, async_op=is_async), is_async)
            same(tensor, sum(parts) if rank == 1 else parts[rank])

            tensor.copy_(parts[rank])
            end(dist.broadcast(tensor, 2, async_op=is_async), is_async)
            same(tensor, parts[2])

            tensor.copy_(parts[rank])
            outputs = [torch.empty_like(tensor) for _ in range(ranks)]
            end(dist.all_gather(outputs, tensor, async_op=is_async), is_async)
            same(torch.stack(outputs), torch.stack(parts))

            output = torch.empty(*reversed(tensor.shape), ranks).permute(
                *reversed(range(tensor.dim() + 1))
            )
            end(dist.all_gather_into_tensor(output, tensor, async_op=is_async), is_async)
            same(output, torch.stack(parts))


def test_tensors_that_are_not_contiguous(four_ranks: RankPool) -> None:
    four_ranks.run(check_views)


def check_lazy_views() -> None:
    """The imaginary part of a conjugated tensor is negated when it is read."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    numbers = torch.complex(torch.arange(4.0), torch.arange(4.0) + rank)
    negated = numbers.conj().imag
    assert negated.is_neg()
    outputs = [torch.empty(4) for _ in range(ranks)]
    dist.all_gather(outputs, negated)
    for other, output in enumerate(outputs):
        same(output, -(torch.arange(4.0) + other))


def test_tensors_that_are_negated_when_read(four_ranks: RankPool) -> None:
    four_ranks.run(check_lazy_views)


def check_lists_in_a_row() -> None:
    """Tensors of a list that are parts of one, which needs no copies; and the same ones
    in another order, which does."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for order in (list(range(ranks)), list(reversed(range(ranks)))):
        whole = torch.zeros(ranks, 5)
        dist.all_gather([whole[index] for index in order], torch.full((5,), float(rank)))
        for other, index in enumerate(order):
            same(whole[index], torch.full((5,), float(other)))
        whole = torch.arange(5.0 * ranks).reshape(ranks, 5)
        output = torch.empty(5)
        dist.reduce_scatter(output, [whole[index] for index in order])
        same(output, ranks * whole[order[rank]])


def test_lists_of_tensors_one_behind_another(four_ranks: RankPool) -> None:
    four_ranks.run(check_lists_in_a_row)


def check_in_place() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    whole = torch.zeros(ranks * 6)
    whole[rank * 6 : rank * 6 + 6] = rank + 1.0
    dist.all_gather_into_tensor(whole, whole[rank * 6 : rank * 6 + 6])
    gathered = torch.arange(1.0, ranks + 1).repeat_interleave(6)
    same(whole, gathered)

    whole = gathered.clone()
    part = whole[rank * 6 : rank * 6 + 6]
    dist.reduce_scatter_tensor(part, whole)
    same(part, torch.full((6,), ranks * (rank + 1.0)))

    whole = gathered.clone()  # an input elsewhere in the output is no collective in place
    elsewhere = (rank + 1) % ranks
    dist.all_gather_into_tensor(whole, whole[elsewhere * 6 : elsewhere * 6 + 6])
    same(whole, torch.arange(1.0, ranks + 1).roll(-1).repeat_interleave(6))

    whole = 10.0 * rank + torch.arange(float(ranks))
    dist.all_to_all_single(whole, whole)
    same(whole, 10.0 * torch.arange(float(ranks)) + rank)

    whole = 10.0 * rank + torch.arange(float(ranks))
    parts = list(whole.split(1))
    dist.all_to_all(parts, parts)
    same(whole, 10.0 * torch.arange(float(ranks)) + rank)

    whole = torch.full((ranks,), rank + 1.0)
    dist.gather(whole[rank : rank + 1], list(whole.split(1)) if rank == 1 else None, 1)
    same(whole, torch.arange(1.0, ranks + 1) if rank == 1 else torch.full((ranks,), rank + 1.0))


def test_inputs_that_share_memory_with_outputs(four_ranks: RankPool) -> None:
    four_ranks.run(check_in_place)


def check_coalesced() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sizes = [3, 1, 8]
    for is_async in (False, True):
        tensors = [torch.full((size,), rank + 1.0) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=is_async) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        if is_async:
            manager.wait()
        for tensor in tensors:
            same(tensor, torch.full(tensor.shape, ranks * (ranks + 1) / 2))

        inputs = [torch.full((size,), rank) for size in sizes]
        outputs = [torch.empty(ranks * size, dtype=torch.int64) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=is_async) as manager:
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.all_gather_into_tensor(output, tensor)
        if is_async:
            manager.wait()
        for output, size in zip(outputs, sizes, strict=True):
            same(output, torch.arange(ranks).repeat_interleave(size))

        inputs = [torch.arange(ranks).repeat_interleave(size) for size in sizes]
        outputs = [torch.empty(size, dtype=torch.int64) for size in sizes]
        with dist.distributed_c10d._coalescing_manager(async_ops=is_async) as manager:
            for output, tensor in zip(outputs, inputs, strict=True):
                dist.reduce_scatter_tensor(output, tensor)
        if is_async:
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


def test_coalesced_collectives(four_ranks: RankPool) -> None:
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


def test_object_collectives(four_ranks: RankPool) -> None:
    four_ranks.run(check_objects)


def check_functional() -> None:
    import torch.distributed._functional_collectives as functional

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


def test_functional_collectives(four_ranks: RankPool) -> None:
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


def test_options_as_plain_values(four_ranks: RankPool) -> None:
    four_ranks.run(check_options_as_values)
