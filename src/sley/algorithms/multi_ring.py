"""Several rings at once over nodes with several network cards, as NCCL builds them.

Ring c enters every node at the same GPU, visits the other GPUs and leaves at a neighbour of the
first. With as many rings as a node has GPUs, each ring enters at a different GPU and leaves at a
different one, so that every card has one ring in and one ring out. GPUs form pairs (0 and 1, 2 and
3, ...): a ring that enters at one GPU of a pair leaves at the other. So a ring's traffic in and out
uses one card if the pair shares a card, else the two cards of one PCIe switch. If the number of
GPUs is odd, every ring leaves at the GPU after the one where it enters.

Source: NCCL, graph search with NCCL_CROSS_NIC=0, which keeps a ring on the cards of one rail.
"""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import Algorithm
from sley.algorithms.rings import ring_all_gather, ring_reduce_scatter
from sley.algorithms.sizes import check_sizes, is_positive
from sley.errors import Place
from sley.errors.language import L102
from sley.ir.collectives import AllGather, AllReduce, ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, trace

__all__ = ["multi_ring_allgather", "multi_ring_allreduce", "multi_ring_reducescatter"]


def multi_ring_allreduce(
    nodes: int, gpus: int, *, rings: int | None = None, in_place: bool = False
) -> Program:
    """AllReduce along several rings, each with a share of the data and its own channel.

    rings: number of rings; by default one for each GPU of a node.
    Source: NCCL's rings. Errors: L102, L121.
    """
    orders = ring_orders("multi-ring-allreduce", nodes, gpus, rings)
    count, ranks = orders.shape
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(orders):
            first = c * ranks
            ring_reduce_scatter(p, ring, first, 1, buffer=buffer, source="in", channels=[c])
            ring_all_gather(p, ring, first, 1, buffer=buffer, channels=[c])

    collective = AllReduce(ranks, count * ranks, in_place)
    return trace(collective, body, name="multi-ring-allreduce")


def multi_ring_allgather(
    nodes: int, gpus: int, *, rings: int | None = None, in_place: bool = False
) -> Program:
    """AllGather along several rings, each with a share of the data and its own channel.

    rings: number of rings; by default one for each GPU of a node.
    Source: NCCL's rings. Errors: L102, L121.
    """
    orders = ring_orders("multi-ring-allgather", nodes, gpus, rings)
    count, ranks = orders.shape

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(orders):
            part = p.chunk(ring, "in", c)
            place = ring * count + c
            if not in_place:
                part.copy(ring, "out", place)
            for step in range(1, ranks):
                part = part.copy(np.roll(ring, -step), "out", place, channel=c)

    collective = AllGather(ranks, count, in_place)
    return trace(collective, body, name="multi-ring-allgather")


def multi_ring_reducescatter(
    nodes: int, gpus: int, *, rings: int | None = None, in_place: bool = False
) -> Program:
    """ReduceScatter along several rings, each with a share of the data and its own channel.

    Out of place, partial sums are in scratch and the final sum in the output.
    rings: number of rings; by default one for each GPU of a node.
    Source: NCCL's rings. Errors: L102, L121.
    """
    orders = ring_orders("multi-ring-reducescatter", nodes, gpus, rings)
    count, ranks = orders.shape

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(orders):
            place = ring * count + c
            part = p.chunk(np.roll(ring, -1), "in", place)
            for step in range(1, ranks):
                own = p.chunk(np.roll(ring, -step - 1), "in", place)
                if not in_place:
                    last = step == ranks - 1
                    scratch = c * (ranks - 2) + step - 1
                    own = own.copy(own.rank, *(("out", c) if last else ("scratch", scratch)))
                part = own.reduce(part, channel=c)

    collective = ReduceScatter(ranks, count, in_place)
    return trace(collective, body, name="multi-ring-reducescatter")


def ring_orders(algorithm: str, nodes: int, gpus: int, rings: int | None) -> LongArray:
    """int64 (rings, ranks): the ranks of each ring in the order in which it visits them.

    Ring c enters at GPU ``c * gpus // rings`` (with more rings than GPUs, at GPU ``c % gpus``).
    From an even GPU it counts down, from an odd GPU up, so that it leaves at the other GPU of the
    pair.
    Errors: L102, L121.
    """
    check_sizes(algorithm, nodes=nodes, gpus=gpus)
    if rings is None:
        rings = gpus
    if not is_positive(rings):
        raise L102.error(
            at=Place(detail=algorithm),
            expected="a positive number of rings, or None",
            found=f"rings={rings!r}",
        )
    ring = np.arange(rings)
    entry = ring * gpus // rings if rings < gpus else ring % gpus
    upwards = (entry % 2 == 1) & (gpus % 2 == 0)
    visited = entry[:, None] + np.where(upwards, 1, -1)[:, None] * np.arange(gpus)
    within = np.broadcast_to((visited % gpus)[:, None, :], (rings, nodes, gpus))
    order = (np.arange(nodes)[:, None] * gpus + within).reshape(rings, nodes * gpus)
    return order.astype(np.int64)


ALGORITHMS = (
    Algorithm.of(multi_ring_allreduce, "allreduce", "NCCL"),
    Algorithm.of(multi_ring_allgather, "allgather", "NCCL"),
    Algorithm.of(multi_ring_reducescatter, "reducescatter", "NCCL"),
)
