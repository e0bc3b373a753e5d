"""Elements of the ranks' tensors, which every rank can compute for all, and comparisons."""

from __future__ import annotations

from functools import reduce

import torch
import torch.distributed as dist


def values(rank: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """The elements of `rank`: small integers, whose sums are exact in every type."""
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


def end(work: dist.Work | None, async_op: bool) -> None:
    if not async_op:
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
        dist.ReduceOp.BAND: lambda: reduce(torch.bitwise_and, inputs),
        dist.ReduceOp.BOR: lambda: reduce(torch.bitwise_or, inputs),
        dist.ReduceOp.BXOR: lambda: reduce(torch.bitwise_xor, inputs),
    }[op]()
    return total.to(inputs[0].dtype)
