"""AllToNext algorithms: every rank sends its buffer to the next rank (MSCCLang 7.4)."""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import algorithm
from sley.ir.collectives import AllToNext
from sley.ir.program import Program
from sley.lang import ChunkProgram, trace


@algorithm("alltonext", "MSCCLang 7.4")
def alltonext(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """AllToNext that uses all network links of a node for the data from node to node.

    The last GPU of a node scatters its buffer over the node, each GPU sends its part to the GPU
    with the same number on the next node, and the first GPU there gathers the parts.
    Source: MSCCLang 7.4, figure 10. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        # Starts at the last rank, so that in place every rank sends its data before it receives.
        for following in range(nodes * gpus - 1, 0, -1):
            rank = following - 1
            if following % gpus:
                p.chunk(rank, "in", 0, gpus).copy(following, "out", 0)
                continue
            for part in range(gpus):
                near, far = following - gpus + part, following + part
                c = p.chunk(rank, "in", part)
                if near != rank:
                    c = c.copy(near, "scratch", 0)
                if far != following:
                    c = c.copy(far, "scratch", 1)
                c.copy(following, "out", part)

    return trace(AllToNext(nodes * gpus, gpus, in_place), body)


@algorithm("alltonext", "MSCCLang 7.4")
def direct_alltonext(ranks: int, *, in_place: bool = False) -> Program:
    """AllToNext in one step: every rank sends its whole buffer directly to the next rank.

    In place, received data stays in scratch until the buffer has been sent.
    Source: the naive implementation of MSCCLang 7.4. Errors: L102, L121.
    """
    rank = np.arange(ranks - 1)

    def body(p: ChunkProgram) -> None:
        c = p.chunk(rank, "in", 0).copy(rank + 1, "scratch" if in_place else "out", 0)
        if in_place:
            c.copy(rank + 1, "out", 0)

    return trace(AllToNext(ranks, 1, in_place), body)
