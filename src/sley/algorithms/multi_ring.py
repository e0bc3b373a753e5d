"""Several rings or double trees at once over nodes with several network cards, as NCCL builds them.

Ring c enters every node at the same GPU, visits the other GPUs and leaves at a neighbour of the
first. With as many rings as a node has GPUs, each ring enters at a different GPU and leaves at a
different one, so that every card has one ring in and one ring out. GPUs form pairs (0 and 1, 2 and
3, ...): a ring that enters at one GPU of a pair leaves at the other. So a ring's traffic in and out
uses one card if the pair shares a card, else the two cards of one PCIe switch. If the number of
GPUs is odd, every ring leaves at the GPU after the one where it enters.

These orders need a switch between the GPUs of a node. On other machines rings and chains go along
the links, in orders that the caller gives.

Source: NCCL, graph search with NCCL_CROSS_NIC=0, which keeps a ring on the cards of one rail.

Within each node a tree is a chain of the GPUs: the last GPU sends to the one before it, and so on
up to the first, the node's head. Between the nodes the heads form a binary tree. As in NCCL's
balanced trees, a head receives from the node after its own, and the second GPU of the chain from
the node before, so that two cards share a node's traffic.

Source of the trees: NCCL 2.30.7, src/graph/connect.cc and src/graph/trees.cc, with balanced trees.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sley.algorithms.algorithm import algorithm, is_positive
from sley.algorithms.allreduce import tree_levels
from sley.algorithms.rings import accumulator, ring_all_gather, ring_reduce_scatter
from sley.errors import Place
from sley.errors.language import L102, L112, L136
from sley.ir.collectives import AllGather, AllReduce, Broadcast, Reduce, ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, Ref, trace

Orders = Sequence[Sequence[int]] | LongArray | None


@algorithm("allreduce", "NCCL")
def multi_ring_allreduce(
    nodes: int,
    gpus: int,
    *,
    rings: int | None = None,
    orders: Orders = None,
    in_place: bool = False,
) -> Program:
    """AllReduce along several rings, each with a share of the data and its own channel.

    rings: number of rings; by default one for each GPU of a node. orders: the rings themselves,
    the ranks of each in the order in which it visits them.
    Source: NCCL's rings. Errors: L102, L112, L121, L136.
    """
    ways = _ways("multi-ring-allreduce", nodes, gpus, rings, orders)
    count, ranks = ways.shape
    buffer = "in" if in_place else "out"

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(ways):
            first = c * ranks
            ring_reduce_scatter(p, ring, first, 1, buffer=buffer, source="in", channels=[c])
            ring_all_gather(p, ring, first, 1, buffer=buffer, channels=[c])

    return trace(AllReduce(ranks, count * ranks, in_place), body)


@algorithm("allgather", "NCCL")
def multi_ring_allgather(
    nodes: int,
    gpus: int,
    *,
    rings: int | None = None,
    orders: Orders = None,
    in_place: bool = False,
) -> Program:
    """AllGather along several rings, each with a share of the data and its own channel.

    rings: number of rings; by default one for each GPU of a node. orders: the rings themselves,
    the ranks of each in the order in which it visits them.
    Source: NCCL's rings. Errors: L102, L112, L121, L136.
    """
    ways = _ways("multi-ring-allgather", nodes, gpus, rings, orders)
    count, ranks = ways.shape

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(ways):
            part = p.chunk(ring, "in", c)
            place = ring * count + c
            if not in_place:
                part.copy(ring, "out", place)
            for step in range(1, ranks):
                part = part.copy(np.roll(ring, -step), "out", place, channel=c)

    return trace(AllGather(ranks, count, in_place), body)


@algorithm("reducescatter", "NCCL")
def multi_ring_reducescatter(
    nodes: int,
    gpus: int,
    *,
    rings: int | None = None,
    orders: Orders = None,
    in_place: bool = False,
) -> Program:
    """ReduceScatter along several rings, each with a share of the data and its own channel.

    Out of place, partial sums are in scratch and the final sum in the output.
    rings: number of rings; by default one for each GPU of a node. orders: the rings themselves,
    the ranks of each in the order in which it visits them.
    Source: NCCL's rings. Errors: L102, L112, L121, L136.
    """
    ways = _ways("multi-ring-reducescatter", nodes, gpus, rings, orders)
    count, ranks = ways.shape

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(ways):
            place = ring * count + c
            part = p.chunk(np.roll(ring, -1), "in", place)
            for step in range(1, ranks):
                own = p.chunk(np.roll(ring, -step - 1), "in", place)
                if not in_place:
                    last = step == ranks - 1
                    scratch = c * (ranks - 2) + step - 1
                    own = own.copy(own.rank, *(("out", c) if last else ("scratch", scratch)))
                part = own.reduce(part, channel=c)

    return trace(ReduceScatter(ranks, count, in_place), body)


@algorithm("broadcast", "NCCL")
def multi_ring_broadcast(
    nodes: int,
    gpus: int,
    *,
    rings: int | None = None,
    orders: Orders = None,
    root: int = 0,
    in_place: bool = False,
) -> Program:
    """Broadcast along several rings, each with a share of the data and its own channel: from the
    root on, every rank sends on what it receives.

    rings, orders: as for `multi_ring_allreduce`.
    Source: NCCL's rings. Errors: L101, L102, L112, L121, L136.
    """
    ways = _from_root(root, _ways("multi-ring-broadcast", nodes, gpus, rings, orders))
    count, ranks = ways.shape

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(ways):
            part = p.chunk(root, "in", c)
            if not in_place:
                part.copy(root, "out", c)
            for rank in ring[1:]:
                part = part.copy(rank, "out", c, channel=c)

    return trace(Broadcast(ranks, count, root, in_place), body)


@algorithm("reduce", "NCCL")
def multi_ring_reduce(
    nodes: int,
    gpus: int,
    *,
    rings: int | None = None,
    orders: Orders = None,
    root: int = 0,
    in_place: bool = False,
) -> Program:
    """Reduce along several rings, each with a share of the data and its own channel: from the rank
    after the root on, every rank adds its data to what it receives.

    Out of place the root sums in its output, the other ranks in scratch.
    rings, orders: as for `multi_ring_allreduce`.
    Source: NCCL's rings. Errors: L101, L102, L112, L121, L136.
    """
    ways = _from_root(root, _ways("multi-ring-reduce", nodes, gpus, rings, orders))
    count, ranks = ways.shape
    result, partial = ("in", "in") if in_place else ("out", "scratch")

    def body(p: ChunkProgram) -> None:
        for c, ring in enumerate(ways):
            part = p.chunk(ring[1], "in", c)
            for rank in ring[2:]:
                part = accumulator(p, rank, "in", partial, c).reduce(part, channel=c)
            accumulator(p, root, "in", result, c).reduce(part, channel=c)

    return trace(Reduce(ranks, count, root, in_place), body)


def _from_root(root: int, ways: LongArray) -> LongArray:
    """The rings, each from the root on."""
    return np.stack([np.roll(way, -int(np.flatnonzero(way == root)[0])) for way in ways])


def _ways(algorithm: str, nodes: int, gpus: int, rings: int | None, orders: Orders) -> LongArray:
    """int64 (rings, ranks): the given orders, or `ring_orders`. Errors: L102, L112, L136."""
    if orders is None:
        return ring_orders(algorithm, nodes, gpus, rings)
    if rings is not None:
        raise L112.error(
            at=Place(detail=algorithm),
            expected="rings or orders",
            found=f"both, rings={rings!r}",
            remedy="Leave out rings: their number is that of the orders.",
        )
    ranks = nodes * gpus
    try:
        ways = np.array(orders)
    except ValueError:  # rings of different lengths
        ways = np.zeros(0)
    complete = ways.ndim == 2 and len(ways) and np.issubdtype(ways.dtype, np.integer)
    if not complete or ways.shape[1] != ranks or (np.sort(ways) != np.arange(ranks)).any():
        raise L136.error(
            at=Place(detail=algorithm),
            expected=f"orders as lists of all ranks from 0 to {ranks - 1}, each rank once",
            found=repr(orders)[:100],
        )
    return ways.astype(np.int64)


def ring_orders(algorithm: str, nodes: int, gpus: int, rings: int | None) -> LongArray:
    """int64 (rings, ranks): the ranks of each ring in the order in which it visits them.

    Ring c enters at GPU ``c * gpus // rings`` (with more rings than GPUs, at GPU ``c % gpus``).
    From an even GPU it counts down, from an odd GPU up, so that it leaves at the other GPU of the
    pair.
    Errors: L102.
    """
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


@algorithm("allreduce", "NCCL")
def multi_tree_allreduce(
    nodes: int, gpus: int, *, orders: Orders = None, in_place: bool = False
) -> Program:
    """AllReduce over double trees, one for each GPU of a node: up to the root, and down again.

    Double tree h has GPU h of every node as its head. Each of its two trees has a share of the data
    and its own channel; the second has the nodes in the opposite order (in the next place, if their
    number is odd). orders: rings that pass node by node, for a double tree each, with what a ring
    visits of a node as its chain. Source: NCCL's trees. Errors: L102, L121, L136.
    """
    name, place = "multi-tree-allreduce", np.arange(nodes)
    mirrored = (place + 1) % nodes if nodes % 2 else nodes - 1 - place
    ways = _ways(name, nodes, gpus, None, orders) if orders is not None else None
    chains = _chains(name, nodes, gpus) if ways is None else ways.reshape(-1, nodes, gpus)

    def body(p: ChunkProgram) -> None:
        for head, chain in enumerate(chains):
            for tree, node in enumerate((place, mirrored)):
                _reduce_and_copy(p, chain[node], 2 * head + tree, in_place)

    return trace(AllReduce(nodes * gpus, 2 * len(chains), in_place), body)


def _chains(name: str, nodes: int, gpus: int) -> LongArray:
    """int64 (gpus, nodes, gpus): the ranks of each chain from its head, in each node. The second is
    the head's neighbour, with which it may share a card."""
    chains = ring_orders(name, nodes, gpus, None).reshape(gpus, nodes, gpus)
    return np.roll(chains[..., ::-1], 1, axis=2)


def _reduce_and_copy(p: ChunkProgram, ranks: LongArray, chunk: int, in_place: bool) -> None:
    """One tree. ranks: int64 (nodes, gpus), each node's chain, the nodes by place in the tree."""
    nodes, gpus = ranks.shape
    buffer = "in" if in_place else "out"
    levels = list(tree_levels(nodes))

    def down_chain(position: int, places: LongArray) -> None:
        total = p.chunk(ranks[places, position - 1], buffer, chunk)
        total.copy(ranks[places, position], buffer, chunk, channel=chunk)

    def held(position: int, places: LongArray) -> Ref:
        """The data that GPUs send up. All that send at once have reduced something, or none has."""
        own = buffer if sums[places[0], position] else "in"
        return p.chunk(ranks[places, position], own, chunk)

    def up_chain(position: int, places: LongArray) -> None:
        receiver = p.chunk(ranks[places, position - 1], buffer, chunk)
        receiver.reduce(held(position, places), channel=chunk)

    def entry(child: LongArray, parent: LongArray) -> LongArray:
        """The position in the parent's chain to which a child is connected."""
        return np.where(child < parent, min(1, gpus - 1), 0)

    places, root = np.arange(nodes), np.zeros(1, np.int64)
    sums = np.broadcast_to(np.arange(gpus) < gpus - 1, ranks.shape).copy()
    for child, parent in levels:
        sums[parent, entry(child, parent)] = True
    accumulator(p, ranks[sums], "in", buffer, chunk)
    for position in range(gpus - 1, 1, -1):
        up_chain(position, places)
    for child, parent in levels:
        if gpus > 1:
            up_chain(1, child)
        receiver = p.chunk(ranks[parent, entry(child, parent)], buffer, chunk)
        receiver.reduce(held(0, child), channel=chunk)
    if gpus > 1:
        up_chain(1, root)
        down_chain(1, root)
    for child, parent in reversed(levels):
        total = p.chunk(ranks[parent, entry(child, parent)], buffer, chunk)
        total.copy(ranks[child, 0], buffer, chunk, channel=chunk)
        if gpus > 1:
            down_chain(1, child)
    for position in range(2, gpus):
        down_chain(position, places)
