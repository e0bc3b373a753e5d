"""A collective whose sums are operands of others, so that AVG divides some at the end of a call."""

from __future__ import annotations

import sley


def prefix_sums(ranks: int) -> sley.Program:
    """Every rank gets the sum of its chunk and those of the ranks before it, in place."""
    collective = sley.Custom(
        "prefix-sums", ranks, 1, 1, lambda rank, _: [(r, 0) for r in range(rank + 1)], in_place=True
    )

    @sley.program(collective)
    def program(p: sley.lang.ChunkProgram) -> None:
        for rank in range(1, ranks):
            p.chunk(rank, "in", 0).reduce(p.chunk(rank - 1, "in", 0))

    return program
