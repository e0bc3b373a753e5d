"""Broadcast and Reduce along binomial trees.

Source: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in MPICH
(2005), sections 4.3 and 4.4. Places count from the root: place 0 is the root, place k the k-th
rank after it.
"""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import MPICH, Algorithm
from sley.algorithms.rings import accumulator
from sley.algorithms.sizes import check_root, check_sizes
from sley.ir.collectives import Broadcast, Reduce
from sley.ir.program import Program
from sley.lang import ChunkProgram, trace

__all__ = ["binomial_broadcast", "binomial_reduce"]


def binomial_broadcast(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Broadcast in ceil(log2(ranks)) steps: in each step every rank that has the data sends it to
    one more rank.

    Source: Thakur, Rabenseifner, Gropp (2005), section 4.3. Errors: L101, L102, L121.
    """
    check_sizes("binomial-broadcast", ranks=ranks)
    check_root("binomial-broadcast", root, ranks)

    def body(p: ChunkProgram) -> None:
        rank = (np.arange(ranks) + root) % ranks
        if not in_place:
            p.chunk(root, "in", 0).copy(root, "out", 0)
        span = 1
        while span < ranks:
            to = np.arange(span, min(2 * span, ranks))
            p.chunk(rank[to - span], "out", 0).copy(rank[to], "out", 0)
            span *= 2

    return trace(Broadcast(ranks, 1, root, in_place), body, name="binomial-broadcast")


def binomial_reduce(ranks: int, *, root: int = 0, in_place: bool = False) -> Program:
    """Reduce in ceil(log2(ranks)) steps: in each step half of the ranks that hold a sum send it.

    Out of place the root sums in its output, the other ranks in scratch.
    Source: Thakur, Rabenseifner, Gropp (2005), section 4.4. Errors: L101, L102, L121.
    """
    check_sizes("binomial-reduce", ranks=ranks)
    check_root("binomial-reduce", root, ranks)
    result, partial = ("in", "in") if in_place else ("out", "scratch")

    def body(p: ChunkProgram) -> None:
        rank = (np.arange(ranks) + root) % ranks
        accumulator(p, rank[:1], "in", result, 0)
        if ranks > 2:
            # Odd places send their input and never sum.
            accumulator(p, rank[2::2], "in", partial, 0)
        span = 1
        while span < ranks:
            sender = np.arange(span, ranks, 2 * span)
            for who, buffer in ((sender[:1], result), (sender[1:], partial)):
                if len(who):
                    sent = p.chunk(rank[who], "in" if span == 1 else partial, 0)
                    p.chunk(rank[who - span], buffer, 0).reduce(sent)
            span *= 2

    return trace(Reduce(ranks, 1, root, in_place), body, name="binomial-reduce")


ALGORITHMS = (
    Algorithm.of(binomial_broadcast, "broadcast", f"{MPICH}, 4.3"),
    Algorithm.of(binomial_reduce, "reduce", f"{MPICH}, 4.4"),
)
