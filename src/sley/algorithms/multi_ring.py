"""Several rings at once over nodes with several network cards, as NCCL builds them.

Ring c enters every node at one GPU, visits the others and leaves at a neighbour of the first one,
towards the GPU of the next node at which it enters there. With as many rings as a node has GPUs,
each enters at another GPU and leaves at another one, so that every card carries one ring in and
one out. GPUs pair up (0 and 1, 2 and 3, ...): what enters at one of a pair leaves at the other.
So a ring's traffic in and out goes over one card where the two share one, and over the two cards
of one PCIe switch where each has its own. An odd GPU out makes every ring leave at the next GPU.

Source: NCCL, graph search with NCCL_CROSS_NIC=0, by which a ring uses cards of one rail.
"""

from __future__ import annotations

import numpy as np

from sley.algorithms.rings import ring_all_gather, ring_reduce_scatter
from sley.algorithms.sizes import check_sizes, is_positive
from sley.errors import Place
from sley.errors.language import L102
from sley.ir.collectives import AllGather, AllReduce, ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, trace


def multi_ring_allreduce(
    nodes: int, gpus: int, *, rings: int | None = None, in_place: bool = False
) -> Program:
    """AllReduce along several rings, each with its share of the data and a channel of its own.

    rings: how many; one for each GPU of a node by default.
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
    """AllGather along several rings, each with its share of the data and a channel of its own.

    rings: how many; one for each GPU of a node by default.
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
    """ReduceScatter along several rings, each with its share of the data and a channel of its own.

    Out of place, sums on their way are formed in scratch, the last one in the output.
    rings: how many; one for each GPU of a node by default.
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

    Ring c enters at GPU ``c * gpus // rings`` (taking turns if there are more rings than GPUs).
    From an even GPU it goes down, from an odd one up, so that it leaves at the other GPU of the
    pair. Errors: L102, L121.
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
