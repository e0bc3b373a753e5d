"""AllGather algorithms. In place, a rank's input is the rank's part of its output."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sley.algorithms.algorithm import (
    MPICH,
    algorithm,
    channel_numbers,
    check_even,
    check_power_of_two,
)
from sley.algorithms.butterflies import Butterfly, hypercube_peers, swing_peers
from sley.errors import Place
from sley.errors.language import L121
from sley.ir.collectives import AllGather, AllGatherV
from sley.ir.program import Program
from sley.lang import ChunkProgram, trace

_DGX1_RANKS = 8


def _copy_own_part(p: ChunkProgram, ranks: ArrayLike, in_place: bool) -> None:
    """Out of place, copies every rank's input to its part of its output."""
    if not in_place:
        p.chunk(ranks, "in", 0).copy(ranks, "out", ranks)


@algorithm("allgather", "MSCCLang, figure 3b")
def ring_allgather(ranks: int, *, channels: int | None = None, in_place: bool = False) -> Program:
    """AllGather along one ring: every chunk is passed on once around the ring.

    channels: number of channels for the chunks; with None the compiler chooses the channels.
    Source: MSCCLang, figure 3b. Errors: L102, L121.
    """
    numbers = channel_numbers("ring-allgather", channels)

    def body(p: ChunkProgram) -> None:
        _copy_own_part(p, np.arange(ranks), in_place)
        for turn, channel in enumerate(numbers[:ranks]):
            rank = np.arange(turn, ranks, len(numbers))
            c = p.chunk(rank, "in", 0)
            for step in range(1, ranks):
                c = c.copy((rank + step) % ranks, "out", rank, channel=channel)

    return trace(AllGather(ranks, 1, in_place), body)


@algorithm("allgatherv", "MSCCLang, figure 3b")
def ring_allgatherv(ranks: int, *, channels: int | None = None, in_place: bool = False) -> Program:
    """AllGather of varying counts along one ring: every part is passed on once around the ring.

    channels: as for `ring_allgather`. Source: MSCCLang, figure 3b. Errors: L102, L119, L121.
    """
    channel_numbers("ring-allgatherv", channels)  # refuses wrong ones under this name
    collective = AllGatherV(ranks, in_place=in_place)
    return replace(ring_allgather(ranks, channels=channels), collective=collective)


@algorithm("allgather", "MSCCLang 7.1.2")
def all_pairs_allgather(ranks: int, *, in_place: bool = False) -> Program:
    """AllGather in one step: every rank sends its chunk to every other.

    Source: the second step of MSCCLang's All Pairs, 7.1.2. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        _copy_own_part(p, rank, in_place)
        for turn in range(1, ranks):
            p.chunk(rank, "in", 0).copy((rank + turn) % ranks, "out", rank)

    return trace(AllGather(ranks, 1, in_place), body)


@algorithm("allgatherv", "MSCCLang 7.1.2")
def all_pairs_allgatherv(ranks: int, *, in_place: bool = False) -> Program:
    """AllGather of varying counts in one step: every rank sends its part to every other.

    Source: the second step of MSCCLang's All Pairs, 7.1.2. Errors: L102, L119, L121.
    """
    collective = AllGatherV(ranks, in_place=in_place)
    return replace(all_pairs_allgather(ranks), collective=collective)


@algorithm("allgather", f"{MPICH}, 4.1")
def recursive_doubling_allgather(ranks: int, *, in_place: bool = False) -> Program:
    """AllGather in log2(ranks) steps: partners exchange all data that they hold, which doubles in
    each step. The number of ranks must be a power of two.

    Source: Thakur, Rabenseifner, Gropp, Optimization of Collective Communication Operations in
    MPICH (2005), section 4.1. Errors: L102, L121.
    """
    check_power_of_two("recursive-doubling-allgather", ranks)
    return _along(Butterfly(hypercube_peers(ranks)), in_place)


@algorithm("allgather", "Swing (De Sensi et al., NSDI 2024), 3")
def swing_allgather(ranks: int, *, in_place: bool = False) -> Program:
    """AllGather in log2(ranks) steps, rounded up: Swing's pairs of ranks exchange all data that
    they hold. The number of ranks must be even.

    Source: the second half of Swing (De Sensi et al., NSDI 2024, arXiv 2401.09356), section 3; also
    Bine's AllGather (SC 2025). Errors: L102, L121.
    """
    check_even("swing-allgather", ranks)
    return _along(Butterfly(swing_peers([ranks])), in_place)


def _along(butterfly: Butterfly, in_place: bool) -> Program:
    """An AllGather along a butterfly."""
    rank = np.arange(butterfly.ranks)

    def body(p: ChunkProgram) -> None:
        _copy_own_part(p, rank, in_place)
        butterfly.all_gather(p, rank, buffer="out")

    return trace(AllGather(len(rank), 1, in_place), body)


@algorithm("allgather", "SCCL, table 4; MSCCLang 7.5")
def sccl_allgather_dgx1(ranks: int = _DGX1_RANKS, *, in_place: bool = False) -> Program:
    """AllGather for the 8 V100 of a DGX-1 in two steps, each with one chunk on each link.

    Every GPU sends its chunk to the three others of its quad and to its counterpart in the other
    quad; then it forwards its counterpart's chunk to its own quad.
    Source: the (1, 2, 2) algorithm of SCCL (Cai et al., Synthesizing Optimal Collective
    Algorithms, 2021, table 4), which MSCCLang 7.5 measures. Errors: L121 for other than 8 ranks.
    """
    if ranks != _DGX1_RANKS:
        raise L121.error(
            at=Place(detail="sccl-allgather-dgx1"),
            expected=f"the {_DGX1_RANKS} ranks of a DGX-1",
            found=f"ranks={ranks!r}",
        )

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        counterpart = rank ^ 4
        quad = [(rank & 4) | ((rank + turn) % 4) for turn in (1, 2, 3)]
        _copy_own_part(p, rank, in_place)
        for neighbour in (counterpart, *quad):
            p.chunk(rank, "in", 0).copy(neighbour, "out", rank)
        for neighbour in quad:
            p.chunk(rank, "out", counterpart).copy(neighbour, "out", counterpart)

    return trace(AllGather(ranks, 1, in_place), body)
