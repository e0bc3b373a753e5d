"""Calls that the communicator doesn't support: gloo, and refusals; types that it lacks."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist

from sley.torch import CollectiveError
from support.processes.rank_pool import RankPool


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def check_gloo() -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    log, logger = _Log(), logging.getLogger("sley.torch")
    logger.addHandler(log)
    logger.setLevel(logging.INFO)
    try:
        sparse = torch.sparse_coo_tensor([[rank]], [1.0 + rank], (ranks,))
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1.0 + r for r in range(ranks)]
        dist.all_reduce(sparse)  # told once
        assert len(log.lines) == 1
        assert "gloo" in log.lines[0]
        assert "sparse" in log.lines[0]
    finally:
        logger.removeHandler(log)


def test_gloo_runs_what_the_engine_lacks(four_ranks: RankPool) -> None:
    four_ranks.run(check_gloo)


def check_sparse_on_one_rank() -> None:
    rank, group = dist.get_rank(), dist.new_group()
    tensor = torch.ones(4) if rank == 2 else torch.ones(4).to_sparse()
    with pytest.raises(CollectiveError, match=r"(?s)N622.*rank 2|rank 2.*N622|this rank") as error:
        dist.all_reduce(tensor, group=group)
    assert error.value.code == "N622"
    assert "sparse" in str(error.value)
    dist.destroy_process_group(group)


def test_a_sparse_tensor_on_some_ranks_only_is_an_error_on_all(four_ranks: RankPool) -> None:
    four_ranks.run(check_sparse_on_one_rank)


def check_refused_types() -> None:
    """By sley, with the types that can be used, and not by gloo."""
    tiny = torch.ones(3).to(torch.float8_e4m3fnuz)
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)
    op = dist.ReduceOp
    for call, found, expected in (
        (lambda: dist.all_reduce(tiny), "float8_e4m3fnuz", "float32"),
        (lambda: dist.reduce(tiny, 0, op.MAX), "float8_e4m3fnuz", "for MAX"),
        (lambda: dist.reduce_scatter_tensor(tiny[:1], torch.cat([tiny, tiny[:1]])), "8", "float16"),
        (lambda: dist.all_reduce(torch.ones(3, dtype=torch.uint16), op.MIN), "uint16", "int32"),
        (lambda: dist.all_reduce(torch.ones(3), op.BOR), "float32", "int64"),
        (lambda: dist.broadcast(quantized, 0), "qint8", "quantized"),
        (lambda: dist.broadcast(torch.ones(2).to_sparse(), 0), "sparse_coo", "dense"),
    ):
        with pytest.raises(CollectiveError) as error:
            call()
        (one,) = error.value.diagnostics
        assert one.code == "B902"
        assert found in one.found
        assert expected in one.expected
    outputs = [torch.empty_like(tiny) for _ in range(dist.get_world_size())]
    dist.all_gather(outputs, tiny)
    assert all(torch.equal(output.float(), torch.ones(3)) for output in outputs)


def test_types_that_nothing_reduces_are_refused_by_name(four_ranks: RankPool) -> None:
    four_ranks.run(check_refused_types)


def check_unsigned(dtype: torch.dtype) -> None:
    """Beyond the largest signed number; sums and products wrap around."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    most = torch.iinfo(dtype).max
    high = most // 2 + 1
    op = dist.ReduceOp
    for given, kind, expected in (
        (most - rank, op.SUM, -ranks - 6 & most),
        (high + rank, op.BOR, high | 3),
        (high + 1, op.PRODUCT, (high + 1) ** ranks & most),
        *([(high - rank, op.MAX, high)] if dtype is not torch.uint16 else []),
    ):
        for _ in range(2):  # then without Python
            tensor = torch.tensor([given], dtype=dtype)
            dist.all_reduce(tensor, kind)
            assert tensor.tolist() == [expected]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_integers_are_reduced(dtype: torch.dtype, four_ranks: RankPool) -> None:
    four_ranks.run(check_unsigned, dtype)


def check_premultiplied(async_op: bool) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    total = ranks * (ranks + 1) / 2

    def end(work: dist.Work | None) -> None:
        if async_op:
            work.wait()

    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        for factor in (0.5, torch.tensor([0.5], dtype=dtype)):
            op = dist._make_nccl_premul_sum(factor)
            mine = torch.full((6,), rank + 1.0, dtype=dtype)
            kept = mine.clone()
            end(dist.all_reduce(tensor := mine.clone(), op, async_op=async_op))
            assert tensor.tolist() == [total / 2] * 6
            end(dist.reduce(tensor := mine.clone(), 1, op, async_op=async_op))
            assert tensor.tolist() == ([total / 2] * 6 if rank == 1 else kept.tolist())
            whole = mine.repeat(ranks)
            output = torch.empty(6, dtype=dtype)
            end(dist.reduce_scatter_tensor(output, whole, op, async_op=async_op))
            assert output.tolist() == [total / 2] * 6
            output.zero_()
            end(dist.reduce_scatter(output, [mine] * ranks, op, async_op=async_op))
            assert output.tolist() == [total / 2] * 6
            assert torch.equal(mine, kept)
            assert torch.equal(whole, kept.repeat(ranks))
            two = [mine.clone(), mine[:2].clone()]
            end(dist.all_reduce_coalesced(two, op, async_op=async_op))
            assert torch.cat(two).tolist() == [total / 2] * 8
    third = dist._make_nccl_premul_sum(1 / 3)
    dist.all_reduce(tensor := torch.full((2,), 5.0, dtype=torch.float16), third)
    product = 5 * torch.tensor(1 / 3, dtype=torch.float16)  # the factor has the tensor's type
    assert torch.equal(tensor, sum([product.expand(2)] * ranks))
    for wrong in (
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), third),
        lambda: dist.all_reduce(torch.ones(1).expand(3), third),
    ):
        with pytest.raises(CollectiveError, match="B902"):
            wrong()


@pytest.mark.parametrize("async_op", [False, True])
def test_premul_sum_multiplies_before_it_adds(async_op: bool, four_ranks: RankPool) -> None:
    four_ranks.run(check_premultiplied, async_op)


def check_complex() -> None:
    """Sums of complex numbers are sums of their parts; products are not."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    tensor = torch.tensor([1 + 2j, rank + 1j])
    group.allreduce([tensor]).wait()
    total = ranks * (ranks - 1) / 2
    assert torch.equal(tensor, torch.tensor([ranks * (1 + 2j), total + ranks * 1j]))
    with pytest.raises(CollectiveError, match="complex64"):
        group.allreduce([tensor], dist.ReduceOp.PRODUCT)
    with pytest.raises(ValueError, match="complex"):
        dist.all_reduce(tensor, dist.ReduceOp.PRODUCT)


def test_complex_numbers_are_summed(four_ranks: RankPool) -> None:
    four_ranks.run(check_complex)


def check_unfit() -> None:
    """Refused before anything is sent, so the group stays usable."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    part, whole = torch.ones(3), torch.ones(3 * ranks)
    meta = torch.ones(3 * ranks, device="meta")
    calls = [
        lambda: dist.all_gather_into_tensor(torch.ones(7), part),
        lambda: dist.all_gather_into_tensor(torch.ones(3 * ranks, dtype=torch.int32), part),
        lambda: group._allgather_base(meta, part),
        lambda: dist.all_gather([part], part),
        lambda: dist.all_gather([torch.ones(4) for _ in range(ranks)], part),
        lambda: dist.reduce_scatter_tensor(part, torch.ones(4)),
        lambda: dist.reduce_scatter(part, [torch.ones(2) for _ in range(ranks)]),
        lambda: dist.all_to_all_single(torch.ones(5), torch.ones(5)),
        lambda: dist.all_to_all_single(whole, whole, [1] * ranks, [3] * ranks),
        lambda: dist.all_to_all_single(whole, whole, [3] * ranks, [3]),
        lambda: dist.all_to_all([part], [part]),
        lambda: group.allreduce([part, part]),
        lambda: group.alltoall(
            [torch.ones(1 + (r == rank)) for r in range(ranks)], [part[:1]] * ranks
        ),
    ]
    if rank == 0:
        calls.append(lambda: dist.gather(part, [torch.ones(2) for _ in range(ranks)]))
        calls.append(lambda: dist.scatter(part, [torch.ones(2) for _ in range(ranks)]))
    for number, call in enumerate(calls):
        with pytest.raises(CollectiveError) as error:
            call()
        assert error.value.code == "B902", number
        assert isinstance(error.value, dist.DistBackendError)
    dist.all_reduce(part)
    assert (part == ranks).all()


def test_tensors_that_do_not_fit_are_refused(four_ranks: RankPool) -> None:
    four_ranks.run(check_unfit)
