"""AllToAll and AllToNext algorithms. In AllToNext every rank sends its buffer to the next rank
(MSCCLang 7.4). In place, received chunks stay in scratch until their places are sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.algorithms.algorithm import algorithm
from sley.ir.collectives import AllToAll, AllToAllV, AllToNext
from sley.ir.program import Program
from sley.lang import ChunkProgram, trace


@algorithm("alltoall", "MSCCLang 7.3")
def all_pairs_alltoall(ranks: int, *, in_place: bool = False) -> Program:
    """AllToAll in one step: every rank sends every other rank its chunk.

    Source: the naive implementation of MSCCLang 7.3. Errors: L102, L121.
    """

    def body(p: ChunkProgram) -> None:
        rank = np.arange(ranks)
        arriving = "scratch" if in_place else "out"
        for turn in range(1, ranks):
            other = (rank + turn) % ranks
            p.chunk(rank, "in", other).copy(other, arriving, rank)
        if not in_place:
            p.chunk(rank, "in", rank).copy(rank, "out", rank)
            return
        for turn in range(1, ranks):
            other = (rank - turn) % ranks
            p.chunk(rank, "scratch", other).copy(rank, "out", other)

    return trace(AllToAll(ranks, 1, in_place), body)


@algorithm("alltoallv", "MSCCLang 7.3")
def all_pairs_alltoallv(ranks: int, *, in_place: bool = False) -> Program:
    """AllToAll of varying counts in one step: every rank sends every other rank its part.

    Source: the naive implementation of MSCCLang 7.3. Errors: L102, L119, L121.
    """
    collective = AllToAllV(ranks, in_place=in_place)
    return replace(all_pairs_alltoall(ranks), collective=collective)


@algorithm("alltoall", "MSCCLang 7.3, figure 9")
def two_step_alltoall(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """AllToAll with one message between each two GPUs that have the same number on two nodes.

    Within a node, GPU g first collects the chunks of all its GPUs for each other node's GPU g.
    Source: MSCCLang 7.3, figure 9. Errors: L102, L121.
    """
    rank = np.arange(nodes * gpus)
    node, gpu = np.divmod(rank, gpus)

    def body(p: ChunkProgram) -> None:
        # Chunks for other nodes come first, because a second step depends on them.
        for hop in (*range(1, nodes), 0):
            there = (node + hop) % nodes
            for turn in range(gpus):
                to = (gpu + turn) % gpus
                c = p.chunk(rank, "in", there * gpus + to)
                if hop == 0 and not in_place:
                    c.copy(node * gpus + to, "out", rank)
                else:
                    c.copy(node * gpus + to, "scratch", there * gpus + gpu)
        for hop in range(0 if in_place else 1, nodes):
            there = (node + hop) % nodes
            collected = p.chunk(rank, "scratch", there * gpus, gpus)
            collected.copy(there * gpus + gpu, "out", node * gpus)

    return trace(AllToAll(nodes * gpus, 1, in_place), body)


@algorithm("alltoallv", "MSCCLang 7.3, figure 9")
def two_step_alltoallv(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """AllToAll of varying counts with one message between each two GPUs that have the same number
    on two nodes.

    Source: MSCCLang 7.3, figure 9. Errors: L102, L119, L121.
    """
    collective = AllToAllV(nodes * gpus, in_place=in_place)
    return replace(two_step_alltoall(nodes, gpus), collective=collective)


@algorithm("alltoall", "msccl-tools, alltoall_a100_three_step")
def three_step_alltoall(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """AllToAll with one message of gpus * gpus chunks between each two nodes.

    A gateway GPU collects all chunks of its node for another node and sends them to the gateway
    there, which scatters them. The gateways for different nodes are different GPUs of a node, as
    far as possible; both gateways have the same number, so that a message stays on its rail.
    Source: alltoall_a100_three_step.py of Microsoft's msccl-tools, with gateways chosen by the
    distance of the nodes. Errors: L102, L121.
    """
    rank, square = np.arange(nodes * gpus), gpus * gpus
    node, gpu = np.divmod(rank, gpus)
    arrived = -(-(nodes - 1) // gpus) * square

    def body(p: ChunkProgram) -> None:
        routes = [(hop, (hop - 1) % gpus, (hop - 1) // gpus * square) for hop in range(1, nodes)]
        for hop, gateway, slot in routes:
            c = p.chunk(rank, "in", (node + hop) % nodes * gpus, gpus)
            c.copy(node * gpus + gateway, "scratch", slot + gpu * gpus)
        for hop, gateway, slot in routes:
            first = np.arange(nodes) * gpus + gateway
            c = p.chunk(first, "scratch", slot, square)
            c.copy((first + hop * gpus) % (nodes * gpus), "scratch", arrived + slot)
        for turn in range(gpus):
            to = (gpu + turn) % gpus
            for hop, gateway, slot in routes:
                c = p.chunk(node * gpus + gateway, "scratch", arrived + slot + gpu * gpus + to)
                c.copy(node * gpus + to, "out", (node - hop) % nodes * gpus + gpu)
            c = p.chunk(rank, "in", node * gpus + to)
            buffer, index = ("scratch", 2 * arrived + gpu) if in_place else ("out", rank)
            c.copy(node * gpus + to, buffer, index)
        if in_place:
            p.chunk(rank, "scratch", 2 * arrived, gpus).copy(rank, "out", node * gpus)

    return trace(AllToAll(nodes * gpus, 1, in_place), body)


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
