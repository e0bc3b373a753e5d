"""Every collective, compared with the result computed from all ranks' inputs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
import torch.distributed as dist

from support.generators.sampling import each_value
from support.processes.rank_pool import RankPool
from support.processes.rank_values import end, everybody, own, reduced, same

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
    torch.bool,
    torch.float8_e4m3fn,
]
MOVED_ONLY = [
    torch.bool,
    torch.uint16,
    torch.uint32,
    torch.complex64,
    torch.complex128,
    torch.float8_e5m2,
]
SIZES = [(1,), (7,), (3, 5), (257,), (4, 33, 9), (0,), ()]


def check_reductions(dtype: torch.dtype, async_op: bool) -> None:
    ops = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    if dtype.is_floating_point:
        ops.append(dist.ReduceOp.AVG)
    else:
        ops += [dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR]
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for seed, shape in enumerate(SIZES):
        for op in ops:
            expected = reduced(everybody(shape, dtype, seed), op)
            tensor = own(shape, dtype, seed)
            end(dist.all_reduce(tensor, op, async_op=async_op), async_op)
            same(tensor, expected)

            root = seed % ranks
            tensor = own(shape, dtype, seed)
            end(dist.reduce(tensor, root, op, async_op=async_op), async_op)
            same(tensor, expected if rank == root else own(shape, dtype, seed))

            parts = [everybody(shape, dtype, seed + 50 + index) for index in range(ranks)]
            expected = reduced(parts[rank], op)
            inputs = [own(shape, dtype, seed + 50 + index) for index in range(ranks)]
            output = torch.empty(shape, dtype=dtype)
            end(dist.reduce_scatter(output, inputs, op, async_op=async_op), async_op)
            same(output, expected)

            output = torch.empty(shape, dtype=dtype)
            whole = torch.stack(inputs)
            end(dist.reduce_scatter_tensor(output, whole, op, async_op=async_op), async_op)
            same(output, expected)


def check_movements(dtype: torch.dtype, async_op: bool) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    for seed, shape in enumerate(SIZES):
        root = (seed + 1) % ranks
        inputs = everybody(shape, dtype, seed)

        tensor = own(shape, dtype, seed)
        end(dist.broadcast(tensor, root, async_op=async_op), async_op)
        same(tensor, inputs[root])

        outputs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
        end(dist.all_gather(outputs, own(shape, dtype, seed), async_op=async_op), async_op)
        same(torch.stack(outputs), torch.stack(inputs))

        output = torch.empty((ranks, *shape), dtype=dtype)
        tensor = own(shape, dtype, seed)
        end(dist.all_gather_into_tensor(output, tensor, async_op=async_op), async_op)
        same(output, torch.stack(inputs))

        outputs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
        gathered = outputs if rank == root else None
        end(dist.gather(tensor, gathered, root, async_op=async_op), async_op)
        if rank == root:
            same(torch.stack(outputs), torch.stack(inputs))

        output = torch.empty(shape, dtype=dtype)
        scattered = [part.clone() for part in inputs] if rank == root else None
        end(dist.scatter(output, scattered, root, async_op=async_op), async_op)
        same(output, inputs[rank])

        sent = [everybody(shape, dtype, seed + 70 + index) for index in range(ranks)]
        given = [sent[index][rank] for index in range(ranks)]
        expected = torch.stack([sent[rank][index] for index in range(ranks)])
        outputs = [torch.empty(shape, dtype=dtype) for _ in range(ranks)]
        end(dist.all_to_all(outputs, given, async_op=async_op), async_op)
        same(torch.stack(outputs), expected)

        output = torch.empty((ranks, *shape), dtype=dtype)
        end(dist.all_to_all_single(output, torch.stack(given), async_op=async_op), async_op)
        same(output, expected)


@pytest.mark.parametrize(("dtype", "async_op"), each_value(TYPES, [False, True]))
def test_reductions_give_what_gloo_gives(
    four_ranks: RankPool, dtype: torch.dtype, async_op: bool
) -> None:
    four_ranks.run(check_reductions, dtype, async_op)


@pytest.mark.parametrize(
    ("dtype", "async_op"),
    each_value([torch.float32, torch.bfloat16, *MOVED_ONLY], [False, True]),
)
def test_movements_give_what_gloo_gives(
    four_ranks: RankPool, dtype: torch.dtype, async_op: bool
) -> None:
    four_ranks.run(check_movements, dtype, async_op)


def check_unequal_parts(async_op: bool) -> None:
    """Small parts, which are reduced together, and large ones, each on its own."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    ops = dist.ReduceOp
    for sizes in ([5, 0, 4, 3], [0, 70_000, 1, 5]):
        for dtype, op in ((torch.float32, ops.AVG), (torch.int64, ops.BXOR), (torch.bool, ops.SUM)):
            given = [everybody((size,), dtype, seed) for seed, size in enumerate(sizes)]
            inputs = [parts[rank] for parts in given]
            output = torch.ones(2 * sizes[rank]).to(dtype)[::2]
            end(dist.reduce_scatter(output, inputs, op, async_op=async_op), async_op)
            same(output, reduced(given[rank], op))
            for parts, tensor in zip(given, inputs, strict=True):
                same(tensor, parts[rank])
    sizes = [1, 40_000, 2, 3]
    row = torch.arange(float(sum(sizes)))
    inputs, expected = list(row.split(sizes)), ranks * row.split(sizes)[rank]
    end(dist.reduce_scatter(row[-sizes[rank] :], inputs, async_op=async_op), async_op)
    same(row[-sizes[rank] :], expected)  # the output overlaps the input of another rank
    pairs = [torch.full((2, size), rank + 1j) for size in range(1, ranks + 1)]
    output = torch.empty(2, rank + 1, dtype=pairs[0].dtype)
    end(dist.reduce_scatter(output, pairs, async_op=async_op), async_op)
    same(output, torch.full((2, rank + 1), ranks * (ranks - 1) / 2 + ranks * 1j))


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_parts_of_unequal_sizes_are_reduced(four_ranks: RankPool, async_op: bool) -> None:
    four_ranks.run(check_unequal_parts, async_op)


def check_splits(async_op: bool) -> None:
    """Rank r sends (r + s) % 3 rows to rank s: none to some."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    giving = [(rank + other) % 3 for other in range(ranks)]
    repeats, others = torch.tensor(giving), torch.arange(float(ranks))
    given = (100 * rank + others).repeat_interleave(repeats).reshape(-1, 1).repeat(1, 2)
    taken = torch.empty(sum(giving), 2)
    work = dist.all_to_all_single(taken, given, giving, giving, async_op=async_op)
    end(work, async_op)
    same(taken, (100 * others + rank).repeat_interleave(repeats).reshape(-1, 1).repeat(1, 2))

    inputs = [torch.full((giving[other], 3), 100 * rank + other) for other in range(ranks)]
    outputs = [torch.empty(giving[other], 3, dtype=torch.int64) for other in range(ranks)]
    end(dist.all_to_all(outputs, inputs, async_op=async_op), async_op)
    for other, output in enumerate(outputs):
        same(output, torch.full((giving[other], 3), 100 * other + rank))


@pytest.mark.parametrize("async_op", [False, True], ids=["sync", "async"])
def test_all_to_all_takes_split_sizes(four_ranks: RankPool, async_op: bool) -> None:
    four_ranks.run(check_splits, async_op)


def check_splits_that_only_this_rank_finds_equal() -> None:
    """Ranks 0 and 1 exchange one row with everybody, ranks 2 and 3 five with one another."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    giving = [5 if min(rank, other) >= 2 else 1 for other in range(ranks)]
    given = torch.full((sum(giving),), rank)
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given, np.array(giving), torch.tensor(giving))
    same(taken, torch.tensor([other for other in range(ranks) for _ in range(giving[other])]))


def test_split_sizes_may_look_equal_on_some_ranks(four_ranks: RankPool) -> None:
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
    for async_op in (False, True):
        for tensor in views(dtype):
            parts = everybody(tuple(tensor.shape), dtype)
            tensor.copy_(parts[rank])
            end(dist.all_reduce(tensor, async_op=async_op), async_op)
            same(tensor, sum(parts))

            tensor.copy_(parts[rank])
            end(dist.reduce(tensor, 1, async_op=async_op), async_op)
            same(tensor, sum(parts) if rank == 1 else parts[rank])

            tensor.copy_(parts[rank])
            end(dist.broadcast(tensor, 2, async_op=async_op), async_op)
            same(tensor, parts[2])

            tensor.copy_(parts[rank])
            outputs = [torch.empty_like(tensor) for _ in range(ranks)]
            end(dist.all_gather(outputs, tensor, async_op=async_op), async_op)
            same(torch.stack(outputs), torch.stack(parts))

            output = torch.empty(*reversed(tensor.shape), ranks).permute(
                *reversed(range(tensor.dim() + 1))
            )
            end(dist.all_gather_into_tensor(output, tensor, async_op=async_op), async_op)
            same(output, torch.stack(parts))

            outputs = [torch.empty_like(tensor) for _ in range(ranks)]
            end(dist.all_to_all(outputs, [tensor] * ranks, async_op=async_op), async_op)
            same(torch.stack(outputs), torch.stack(parts))


def test_tensors_that_are_not_contiguous_are_taken(four_ranks: RankPool) -> None:
    four_ranks.run(check_views)


def check_lazy_views() -> None:
    """A tensor whose memory holds other numbers than its elements."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    negated = torch._neg_view(torch.arange(4.0) + rank)
    assert negated.is_neg()
    assert negated.is_contiguous()
    outputs = [torch.empty(4) for _ in range(ranks)]
    dist.all_gather(outputs, negated)
    for other, output in enumerate(outputs):
        same(output, -(torch.arange(4.0) + other))


def test_tensors_that_are_negated_when_read_are_taken(four_ranks: RankPool) -> None:
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


def test_lists_of_tensors_one_behind_another_are_taken(four_ranks: RankPool) -> None:
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
    output = whole if rank == 0 else torch.empty(ranks)  # in place on this rank alone
    dist.all_to_all_single(output, whole)
    same(output, 10.0 * torch.arange(float(ranks)) + rank)

    whole = 10.0 * rank + torch.arange(float(ranks))
    parts = list(whole.split(1))
    dist.all_to_all(parts, parts)
    same(whole, 10.0 * torch.arange(float(ranks)) + rank)

    # The tensors of a list are adjacent on one rank alone.
    parts = (
        list(torch.zeros(ranks).split(1)) if rank == 0 else [torch.zeros(1) for _ in range(ranks)]
    )
    parts[rank].fill_(rank + 1.0)
    dist.all_gather(parts, parts[rank])
    same(torch.cat(parts), torch.arange(1.0, ranks + 1))
    dist.reduce_scatter(parts[rank], parts)
    same(parts[rank], torch.tensor([ranks * (rank + 1.0)]))

    whole = torch.full((ranks,), rank + 1.0)
    dist.gather(whole[rank : rank + 1], list(whole.split(1)) if rank == 1 else None, 1)
    same(whole, torch.arange(1.0, ranks + 1) if rank == 1 else torch.full((ranks,), rank + 1.0))


def check_lists_that_overlap() -> None:
    """The tensor for rank k + 1 is where that from rank k arrives, or that from another rank: then
    the tensors aren't in a row."""
    ranks, rank, size = dist.get_world_size(), dist.get_rank(), 500_000
    arrived = 10.0 * torch.arange(ranks) + rank
    for step in (1, -1):
        whole = torch.arange(ranks + 1.0).repeat_interleave(size) + 10 * rank
        parts = list(whole.split(size))
        dist.all_to_all(parts[1:][::step], parts[:-1])
        expected = arrived if step == 1 else arrived.flip(0)
        same(whole[size:], expected.repeat_interleave(size))


def test_lists_may_overlap(four_ranks: RankPool) -> None:
    four_ranks.run(check_lists_that_overlap)


def check_sizes_on_one_side() -> None:
    """Only what rank 0 sends is unequal: it gives those sizes, ranks 2 and 3 what they receive."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    sizes = torch.full((ranks, ranks), 2)
    sizes[0] = torch.tensor([2, 2, 4, 0])
    sent, received = sizes[rank].tolist(), sizes[:, rank].tolist()
    given = torch.cat([torch.full((n,), 10.0 * rank + dst) for dst, n in enumerate(sent)])
    taken = torch.zeros(sum(received))
    splits = [parts if len(set(parts)) > 1 else None for parts in (received, sent)]
    assert None in splits
    dist.all_to_all_single(taken, given, *splits)
    same(taken, torch.cat([torch.full((n,), 10.0 * s + rank) for s, n in enumerate(received)]))


def test_all_to_all_takes_sizes_on_one_side(four_ranks: RankPool) -> None:
    four_ranks.run(check_sizes_on_one_side)


def test_inputs_may_share_memory_with_outputs(four_ranks: RankPool) -> None:
    four_ranks.run(check_in_place)


def check_sizes_of_some_ranks(async_op: bool) -> None:
    """Ranks that give sizes and ranks that leave them out, which then are equal."""
    rank, ranks, equal = dist.get_rank(), dist.get_world_size(), 3
    works, checks = [], []
    for turn in range(2**ranks):
        giving = [other for other in range(ranks) if turn >> other & 1]
        generator = torch.Generator().manual_seed(turn)
        sizes = torch.full((ranks, ranks), equal)  # of rows from a rank to another
        for src, dst in itertools.product(giving, giving):
            sizes[src, dst] = int(torch.randint(0, 5, (), generator=generator))
        sent, received = sizes[rank].tolist(), sizes[:, rank].tolist()
        given = torch.cat(
            [torch.full((n, 2), 100.0 * turn + 10 * rank + dst) for dst, n in enumerate(sent)]
        )
        taken = torch.zeros(sum(received), 2)
        splits = (received, sent) if rank in giving else (None, None)
        works.append(dist.all_to_all_single(taken, given, *splits, async_op=async_op))
        expected = [
            torch.full((n, 2), 100.0 * turn + 10 * src + rank) for src, n in enumerate(received)
        ]
        checks.append((taken, torch.cat(expected)))
    for work in works:
        if work is not None:
            work.wait()
    for taken, expected in checks:
        torch.testing.assert_close(taken, expected, rtol=0, atol=0)
    dist.all_reduce(total := torch.ones(5))
    assert (total == ranks).all()


@pytest.mark.parametrize("async_op", [False, True])
def test_all_to_all_runs_where_some_ranks_give_sizes(four_ranks: RankPool, async_op: bool) -> None:
    four_ranks.run(check_sizes_of_some_ranks, async_op)
