"""Several double trees at once over nodes with several network cards, as NCCL builds them.

Within each node a tree is a chain of the GPUs: the last GPU sends to the one before it, and so on
up to the first, the node's head. Between the nodes the heads form a binary tree. As in NCCL's
balanced trees, a head receives from the node after its own, and the second GPU of the chain from
the node before, so that two cards share a node's traffic.

Source: NCCL 2.30.7, src/graph/connect.cc and src/graph/trees.cc, with balanced trees.
"""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import algorithm
from sley.algorithms.allreduce import tree_levels
from sley.algorithms.multi_ring import ring_orders
from sley.algorithms.rings import accumulator
from sley.ir.collectives import AllReduce
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, Ref, trace


@algorithm("allreduce", "NCCL")
def multi_tree_allreduce(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """AllReduce over double trees, one for each GPU of a node: up to the root, and down again.

    Double tree h has GPU h of every node as its head. Each of its two trees has a share of the data
    and its own channel; the second has the nodes in the opposite order (in the next place, if their
    number is odd). Source: NCCL's trees. Errors: L102, L121.
    """
    place = np.arange(nodes)
    mirrored = (place + 1) % nodes if nodes % 2 else nodes - 1 - place

    def body(p: ChunkProgram) -> None:
        for head, chain in enumerate(_chains(gpus)):
            for tree, node in enumerate((place, mirrored)):
                _reduce_and_copy(p, node[:, None] * gpus + chain, 2 * head + tree, in_place)

    return trace(AllReduce(nodes * gpus, 2 * gpus, in_place), body)


def _chains(gpus: int) -> LongArray:
    """int64 (gpus, gpus): the GPUs of each chain from its head. The second is the head's neighbour,
    with which it may share a card."""
    orders = ring_orders("multi-tree-allreduce", 1, gpus, None) if gpus > 1 else np.zeros((1, 1))
    return np.roll(orders[:, ::-1], 1, axis=1).astype(np.int64)


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
