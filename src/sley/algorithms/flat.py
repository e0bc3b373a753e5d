"""Broadcast, Reduce, Gather and Scatter in one or two steps, without trees.

Flat: the root itself sends to, or receives from, all other ranks. All pairs: each rank does a share
of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sley.algorithms.algorithm import MPICH, Algorithm
from sley.algorithms.rings import accumulator
from sley.algorithms.sizes import check_root, check_sizes, stage_numbers
from sley.ir.collectives import Broadcast, Gather, Reduce, Scatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, trace

__all__ = [
    "all_pairs_broadcast",
    "all_pairs_reduce",
    "flat_broadcast",
    "flat_gather",
    "flat_reduce",
    "flat_scatter",
]


def flat_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in one step: the root sends its data to every other rank.

    Source: a flat tree, as in Thakur, Rabenseifner, Gropp (2005), section 4.3. Errors: L101, L102,
    L121.
    """
    others = _other_ranks("flat-broadcast", ranks, root)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", 0)
        p.chunk(np.full_like(others, root), "in", 0).copy(others, "out", 0)

    return trace(Broadcast(ranks, 1, root, in_place), body, name="flat-broadcast")


def flat_reduce(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Reduce in one step: every rank sends its data to the root, which sums all of it.

    The root sums in the order root, root + 1, ..., modulo the number of ranks.
    Source: a flat tree, as in Thakur, Rabenseifner, Gropp (2005), section 4.4. Errors: L101, L102,
    L121.
    """
    others = _other_ranks("flat-reduce", ranks, root)

    def body(p: ChunkProgram) -> None:
        total = accumulator(p, root, "in", "in" if in_place else "out", 0)
        for other in others.tolist():
            total = total.reduce(p.chunk(other, "in", 0))

    return trace(Reduce(ranks, 1, root, in_place), body, name="flat-reduce")


def flat_gather(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Gather in one step: every rank sends its chunk to the root.

    Source: MPI_Gather's definition. Errors: L101, L102, L121.
    """
    others = _other_ranks("flat-gather", ranks, root)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", root)
        p.chunk(others, "in", 0).copy(np.full_like(others, root), "out", others)

    return trace(Gather(ranks, 1, root, in_place), body, name="flat-gather")


def flat_scatter(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Scatter in one step: the root sends every other rank its chunk.

    Source: MPI_Scatter's definition. Errors: L101, L102, L121.
    """
    others = _other_ranks("flat-scatter", ranks, root)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", root).copy(root, "out", 0)
        p.chunk(np.full_like(others, root), "in", others).copy(others, "out", 0)

    return trace(Scatter(ranks, 1, root, in_place), body, name="flat-scatter")


def all_pairs_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in two steps: the root scatters its data over the other ranks, and each of them
    sends its part to the rest.

    Source: van de Geijn's algorithm (scatter, then allgather) in Thakur, Rabenseifner, Gropp
    (2005), section 4.3, all pairs. Errors: L101, L102, L121.
    """
    others = _other_ranks("all-pairs-broadcast", ranks, root)
    part = np.arange(ranks - 1)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0, ranks - 1).copy(root, "out", 0)
        held = p.chunk(np.full_like(others, root), "in", part).copy(others, "out", part)
        for turn in range(1, ranks - 1):
            held.copy(np.roll(others, -turn), "out", part)

    return trace(Broadcast(ranks, ranks - 1, root, in_place), body, name="all-pairs-broadcast")


def all_pairs_reduce(
    ranks: int,
    *,
    root: int = 0,
    stage_channels: Sequence[int] | None = None,
    in_place: bool = False,
) -> Program:
    """Reduce in two steps: each rank sums one chunk from all ranks, and sends the root the sum.

    Rank r sums its chunk in the order r, r + 1, ..., modulo the number of ranks. In place, only the
    root's data change; the other ranks sum in scratch.
    stage_channels: as for `all_pairs_allreduce`.
    Source: Rabenseifner's algorithm (reduce-scatter, then gather) in Thakur, Rabenseifner, Gropp
    (2005), section 4.4, all pairs. Errors: L101, L102, L111, L121.
    """
    others = _other_ranks("all-pairs-reduce", ranks, root)
    summing, collecting = stage_numbers("all-pairs-reduce", stage_channels, 2)
    result = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        total = accumulator(p, root, "in", result, root)
        partial = p.chunk(others, "in", others).copy(others, "scratch", 0)
        for turn in range(1, ranks):
            total = total.reduce(p.chunk((root + turn) % ranks, "in", root), channel=summing)
            sent = p.chunk((others + turn) % ranks, "in", others)
            partial = partial.reduce(sent, channel=summing)
        partial.copy(np.full_like(others, root), result, others, channel=collecting)

    return trace(Reduce(ranks, ranks, root, in_place), body, name="all-pairs-reduce")


def _other_ranks(algorithm: str, ranks: int, root: int) -> LongArray:
    """The ranks root + 1, root + 2, ..., root - 1, modulo the number of ranks. Errors: L101, L102,
    L121."""
    check_sizes(algorithm, ranks=ranks)
    check_root(algorithm, root, ranks)
    return (root + np.arange(1, ranks)) % ranks


ALGORITHMS = (
    Algorithm.of(flat_broadcast, "broadcast", f"{MPICH}, 4.3"),
    Algorithm.of(all_pairs_broadcast, "broadcast", f"{MPICH}, 4.3"),
    Algorithm.of(flat_reduce, "reduce", f"{MPICH}, 4.4"),
    Algorithm.of(all_pairs_reduce, "reduce", f"{MPICH}, 4.4"),
    Algorithm.of(flat_gather, "gather", "MPI"),
    Algorithm.of(flat_scatter, "scatter", "MPI"),
)
