"""Broadcast, Reduce, Gather and Scatter: along a ring, binomial trees, flat, and all pairs.

Flat: the root itself sends to, or receives from, all other ranks. All pairs: each rank does a share
of the work.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sley.algorithms.algorithm import MPICH, algorithm, stage_numbers
from sley.algorithms.butterflies import swing
from sley.algorithms.rings import accumulator
from sley.algorithms.two_level import TwoLevel
from sley.errors import Place
from sley.errors.language import L121
from sley.ir.collectives import Broadcast, Gather, Reduce, Scatter
from sley.ir.orders import BALANCED, SameBits
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, trace


@algorithm("broadcast", "NCCL")
def ring_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast along one ring from the root on: every rank sends on what it receives.

    Source: NCCL's rings. Errors: L101, L102, L121.
    """
    places = _places(ranks, root)

    def body(p: ChunkProgram) -> None:
        data = p.chunk(root, "in", 0)
        if not in_place:
            data.copy(root, "out", 0)
        for rank in places[1:]:
            data = data.copy(rank, "out", 0)

    return trace(Broadcast(ranks, 1, root, in_place), body)


@algorithm("reduce", "NCCL")
def ring_reduce(
    ranks: int, *, root: int = 0, same_bits: SameBits = False, in_place: bool = False
) -> Program:
    """Reduce along one ring to the root: from the rank after it on, every rank adds its data to
    what it receives.

    Out of place the root sums in its output, the other ranks in scratch.
    same_bits: from rank 0 on instead, as in `one_step_allreduce`, and the last rank sends the root
    the sum; not "balanced".
    Source: NCCL's rings. Errors: L101, L102, L121.
    """
    if same_bits == BALANCED:
        expected = "same_bits as True or False, as a ring adds rank by rank"
        found = f"same_bits={same_bits!r}"
        raise L121.error(at=Place(detail="ring-reduce"), expected=expected, found=found)
    places = np.arange(ranks) if same_bits else _places(ranks, root + 1)
    result = "in" if in_place else "out"
    # In order the root adds before the end: in scratch, so that its input stays until it is added.
    partial = "in" if in_place and not same_bits else "scratch"

    def body(p: ChunkProgram) -> None:
        total = p.chunk(places[0], "in", 0)
        for rank in places[1:-1]:
            total = accumulator(p, rank, "in", partial, 0).reduce(total)
        last = places[-1]
        total = accumulator(p, last, "in", result if last == root else partial, 0).reduce(total)
        if last != root:
            total.copy(root, result, 0)

    return trace(Reduce(ranks, 1, root, in_place), body)


@algorithm("broadcast", f"{MPICH}, 4.3")
def binomial_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in ceil(log2(ranks)) steps: in each step every rank that has the data sends it to
    one more rank.

    Source: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in
    MPICH (2005), section 4.3. Errors: L101, L102, L121.
    """
    places = _places(ranks, root)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", 0)
        span = 1
        while span < ranks:
            to = np.arange(span, min(2 * span, ranks))
            p.chunk(places[to - span], "out", 0).copy(places[to], "out", 0)
            span *= 2

    return trace(Broadcast(ranks, 1, root, in_place), body)


@algorithm("reduce", f"{MPICH}, 4.4")
def binomial_reduce(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Reduce in ceil(log2(ranks)) steps: in each step half of the ranks that hold a sum send it.

    Out of place the root sums in its output, the other ranks in scratch.
    Source: Thakur, Rabenseifner, Gropp (2005), section 4.4. Errors: L101, L102, L121.
    """
    places = _places(ranks, root)
    result, partial = ("in", "in") if in_place else ("out", "scratch")

    def body(p: ChunkProgram) -> None:
        accumulator(p, places[:1], "in", result, 0)
        if ranks > 2:
            # Odd places send their input and never sum.
            accumulator(p, places[2::2], "in", partial, 0)
        span = 1
        while span < ranks:
            sender = np.arange(span, ranks, 2 * span)
            for who, buffer in ((sender[:1], result), (sender[1:], partial)):
                if len(who):
                    sent = p.chunk(places[who], "in" if span == 1 else partial, 0)
                    p.chunk(places[who - span], buffer, 0).reduce(sent)
            span *= 2

    return trace(Reduce(ranks, 1, root, in_place), body)


@algorithm("broadcast", "Bine trees (De Sensi et al., SC 2025)")
def bine_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in log2(ranks) steps, rounded up, as along a binomial tree, between ranks a third
    closer: for rings, tori and machines whose near ranks have better links.

    Each rank sends to its peer in `swing_allreduce`, the farthest first. The last place of an odd
    number receives the data from the root.
    Source: Bine trees (De Sensi et al., SC 2025, arXiv 2508.17311), distance-halving. Errors: L101,
    L102, L121.
    """
    places = _places(ranks, root)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", 0)
        for child, parent in reversed(_bine_tree(ranks)):
            p.chunk(places[parent], "out", 0).copy(places[child], "out", 0)

    return trace(Broadcast(ranks, 1, root, in_place), body)


@algorithm("reduce", "Bine trees (De Sensi et al., SC 2025)")
def bine_reduce(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Reduce in log2(ranks) steps, rounded up, along the tree of `bine_broadcast`.

    Out of place the root sums in its output, the other ranks in scratch.
    Source: Bine trees (De Sensi et al., SC 2025, arXiv 2508.17311). Errors: L101, L102, L121.
    """
    places, tree = _places(ranks, root), _bine_tree(ranks)
    result, partial = ("in", "in") if in_place else ("out", "scratch")
    inner = np.unique(np.concatenate([parent for _, parent in tree]))

    def body(p: ChunkProgram) -> None:
        accumulator(p, root, "in", result, 0)
        if len(inner) > 1:
            accumulator(p, places[inner[1:]], "in", partial, 0)
        for child, parent in tree:
            for rows, buffer in ((parent == 0, result), (parent > 0, partial)):
                for sums in (False, True):  # leaves send their input
                    own = rows & (np.isin(child, inner) == sums)
                    if own.any():
                        sent = p.chunk(places[child[own]], partial if sums else "in", 0)
                        p.chunk(places[parent[own]], buffer, 0).reduce(sent)

    return trace(Reduce(ranks, 1, root, in_place), body)


def _bine_tree(ranks: int) -> list[tuple[LongArray, LongArray]]:
    """Children and parents in a Bine tree to place 0, a step after the other."""
    steps = swing("bine", ranks, None)[0].steps
    tree = [step[step[:, 2] == 0] for step in steps]
    return [(step[:, 0], step[:, 1]) for step in tree if len(step)]


@algorithm("broadcast", f"{MPICH}, 4.3")
def flat_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in one step: the root sends its data to every other rank.

    Source: a flat tree, as in Thakur, Rabenseifner, Gropp (2005), section 4.3. Errors: L101, L102,
    L121.
    """
    others = _places(ranks, root)[1:]

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", 0)
        p.chunk(np.full_like(others, root), "in", 0).copy(others, "out", 0)

    return trace(Broadcast(ranks, 1, root, in_place), body)


@algorithm("reduce", f"{MPICH}, 4.4")
def flat_reduce(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Reduce in one step: every rank sends its data to the root, which sums all of it.

    The root sums in the order root, root + 1, ..., modulo the number of ranks.
    Source: a flat tree, as in Thakur, Rabenseifner, Gropp (2005), section 4.4. Errors: L101, L102,
    L121.
    """
    others = _places(ranks, root)[1:]

    def body(p: ChunkProgram) -> None:
        total = accumulator(p, root, "in", "in" if in_place else "out", 0)
        for other in others.tolist():
            total = total.reduce(p.chunk(other, "in", 0))

    return trace(Reduce(ranks, 1, root, in_place), body)


@algorithm("gather", "MPI")
def flat_gather(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Gather in one step: every rank sends its chunk to the root.

    Source: MPI_Gather's definition. Errors: L101, L102, L121.
    """
    others = _places(ranks, root)[1:]

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", root)
        p.chunk(others, "in", 0).copy(np.full_like(others, root), "out", others)

    return trace(Gather(ranks, 1, root, in_place), body)


@algorithm("scatter", "MPI")
def flat_scatter(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Scatter in one step: the root sends every other rank its chunk.

    Source: MPI_Scatter's definition. Errors: L101, L102, L121.
    """
    others = _places(ranks, root)[1:]

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", root).copy(root, "out", 0)
        p.chunk(np.full_like(others, root), "in", others).copy(others, "out", 0)

    return trace(Scatter(ranks, 1, root, in_place), body)


@algorithm("broadcast", f"{MPICH}, 4.3")
def all_pairs_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in two steps: the root scatters its data over the other ranks, and each of them
    sends its part to the rest.

    Source: van de Geijn's algorithm (scatter, then allgather) in Thakur, Rabenseifner, Gropp
    (2005), section 4.3, all pairs. Errors: L101, L102, L121.
    """
    others = _places(ranks, root)[1:]
    part = np.arange(ranks - 1)

    def body(p: ChunkProgram) -> None:
        if not in_place:
            p.chunk(root, "in", 0, ranks - 1).copy(root, "out", 0)
        held = p.chunk(np.full_like(others, root), "in", part).copy(others, "out", part)
        for turn in range(1, ranks - 1):
            held.copy(np.roll(others, -turn), "out", part)

    return trace(Broadcast(ranks, ranks - 1, root, in_place), body)


@algorithm("reduce", f"{MPICH}, 4.4")
def all_pairs_reduce(
    ranks: int,
    *,
    root: int = 0,
    stage_channels: Sequence[int] | None = None,
    same_bits: SameBits = False,
    in_place: bool = False,
) -> Program:
    """Reduce in two steps: each rank sums one chunk from all ranks, and sends the root the sum.

    Rank r sums its chunk in the order r, r + 1, ..., modulo the number of ranks. In place, only the
    root's data change; the other ranks sum in scratch.
    stage_channels: as for `all_pairs_allreduce`. same_bits: whether every rank sums as in
    `one_step_allreduce`.
    Source: Rabenseifner's algorithm (reduce-scatter, then gather) in Thakur, Rabenseifner, Gropp
    (2005), section 4.4, all pairs. Errors: L101, L102, L121.
    """
    if same_bits:
        return TwoLevel([range(ranks)]).reduce(
            root=root, stage_channels=stage_channels, same_bits=same_bits, in_place=in_place
        )
    others = _places(ranks, root)[1:]
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

    return trace(Reduce(ranks, ranks, root, in_place), body)


def _places(ranks: int, root: int) -> LongArray:
    """The ranks root, root + 1, ..., root - 1, modulo the number of ranks: place 0 is the
    root."""
    return (root + np.arange(ranks)) % ranks
