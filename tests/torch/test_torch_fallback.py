"""Calls that the communicator doesn't support: gloo, and refusals."""

from __future__ import annotations

import logging

import pytest
import torch
import torch.distributed as dist

from sley.torch import CollectiveError
from support.rank_pool import RankPool


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
        with pytest.raises(RuntimeError, match="dtype"):
            dist.all_reduce(torch.ones(3), dist.ReduceOp.BOR)
        sparse = torch.sparse_coo_tensor([[rank]], [1.0 + rank], (ranks,))
        dist.all_reduce(sparse)
        assert sparse.to_dense().tolist() == [1.0 + r for r in range(ranks)]
        dist.all_reduce(sparse)  # told once
        assert len(log.lines) == 2
        assert all("gloo" in line for line in log.lines)
        assert "BOR" in log.lines[0]
        assert "sparse" in log.lines[1]
    finally:
        logger.removeHandler(log)


def test_gloo_runs_what_the_engine_lacks(four_ranks: RankPool) -> None:
    four_ranks.run(check_gloo)


def check_complex() -> None:
    """Sums of complex numbers are sums of their parts; products are not."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    tensor = torch.tensor([1 + 2j, rank + 1j])
    group.allreduce([tensor]).wait()
    total = ranks * (ranks - 1) / 2
    assert torch.equal(tensor, torch.tensor([ranks * (1 + 2j), total + ranks * 1j]))
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
