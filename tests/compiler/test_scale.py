"""Large programs compile and are verified; benchmarks/compile.py measures the time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import sley
from sley.lang import ChunkProgram


def chain(ranks: int) -> sley.Program:
    """One chunk handed on through all ranks."""

    def body(p: ChunkProgram) -> None:
        c = p.chunk(0, "in", 0)
        for rank in range(1, ranks):
            c = c.copy(rank, "out", 0)

    def promised(rank: int, index: int) -> list[tuple[int, int]] | None:
        return [(0, 0)] if rank else None

    return sley.trace(sley.Custom("chain", ranks, 1, 1, promised), body)


def star(ranks: int) -> sley.Program:
    """Everybody to rank 0, and back."""

    def body(p: ChunkProgram) -> None:
        c = p.chunk(0, "in", 0)
        for rank in range(1, ranks):
            c = c.reduce(p.chunk(rank, "in", 0))
        c = p.chunk(np.zeros(ranks - 1, int), "in", 0)
        c.copy(np.arange(1, ranks), "in", 0)

    return sley.trace(sley.AllReduce(ranks, in_place=True), body)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda: sley.algorithms.all_pairs_allreduce(64),
        lambda: sley.algorithms.ring_allreduce(256),
        lambda: sley.algorithms.hierarchical_allreduce(128, 8),
        lambda: sley.algorithms.two_step_alltoall(64, 8),
        lambda: chain(10_000),
        lambda: star(5_000),
    ],
)
@pytest.mark.parametrize("per_chunk", [False, True])
def test_large_programs_compile_within_their_time(
    make: Callable[[], sley.Program], per_chunk: bool
) -> None:
    sley.compile(make(), per_chunk=per_chunk)
