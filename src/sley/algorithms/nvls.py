"""Algorithms in which NVSwitches reduce and multicast (NVLink SHARP), as NCCL's NVLS.

A GPU of each node, the *head* of a part of the data, reads the sum of the node's GPUs through the
switch, and writes results to all of them. Between nodes only heads of the same part exchange data.

Source: NCCL 2.30.7, src/transport/nvls.cc and src/device (NVLS and NVLSTree). NCCL has NVLS for
AllGather and ReduceScatter on one node; here rings of heads extend them to several.
"""

from __future__ import annotations

import numpy as np

from sley.algorithms.algorithm import algorithm, is_positive
from sley.algorithms.allreduce import tree_levels
from sley.algorithms.rings import accumulator
from sley.errors import Place
from sley.errors.language import L102
from sley.ir.collectives import AllGather, AllReduce, ReduceScatter
from sley.ir.program import Program
from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, Ref, trace


def _heads(algorithm: str, gpus: int, heads: int | None) -> int:
    """The number of heads. Errors: L102."""
    if heads is None:
        return gpus
    if not is_positive(heads) or heads > gpus:
        at, expected = Place(detail=algorithm), f"heads from 1 to {gpus}, or None"
        raise L102.error(at=at, expected=expected, found=f"heads={heads!r}")
    return heads


def _others(head: int, gpus: int) -> list[int]:
    """The other ranks of a head's node."""
    first = head // gpus * gpus
    return [rank for rank in range(first, first + gpus) if rank != head]


def _reduce(p: ChunkProgram, own: Ref, gpus: int, index: int) -> Ref:
    """Reduces the inputs of the other GPUs of the node into a head's own data."""
    others = _others(int(own.rank), gpus)
    return own.load_reduce(p.chunk(others, "in", index)) if others else own


def _multicast(total: Ref, gpus: int, index: int) -> None:
    """Copies a head's result to the outputs of the other GPUs of the node."""
    others = _others(int(total.rank), gpus)
    if others:
        total.multicast(others, "out", index)


@algorithm("allreduce", "NCCL")
def nvls_allreduce(ranks: int, *, heads: int | None = None, in_place: bool = False) -> Program:
    """AllReduce in the switch of a node: each head reduces its part there and multicasts the sum.

    A head's part crosses each link of the node once in each direction. heads: the number of ranks
    that are heads; by default all. Source: NCCL's NVLS. Errors: L102, L121.
    """
    parts = _heads("nvls-allreduce", ranks, heads)

    def body(p: ChunkProgram) -> None:
        for head in range(parts):
            own = accumulator(p, head, "in", "in" if in_place else "out", head)
            _multicast(_reduce(p, own, ranks, head), ranks, head)

    return trace(AllReduce(ranks, parts, in_place), body)


@algorithm("allreduce", "NCCL")
def nvls_tree_allreduce(
    nodes: int, gpus: int, *, heads: int | None = None, in_place: bool = False
) -> Program:
    """AllReduce over nodes: parts are reduced in the switches, then up and down trees of heads.

    Each head of a node has two parts, with a tree each; the second has the nodes in the opposite
    order (in the next place, if their number is odd). heads: the number of GPUs of a node that are
    heads; by default all. Source: NCCL's NVLSTree. Errors: L102, L121.
    """
    first_gpus = range(_heads("nvls-tree-allreduce", gpus, heads))
    buffer = "in" if in_place else "out"
    place = np.arange(nodes)
    mirrored = (place + 1) % nodes if nodes % 2 else nodes - 1 - place

    def tree(p: ChunkProgram, heads: LongArray, part: int) -> None:
        for head in heads.tolist():
            _reduce(p, accumulator(p, head, "in", buffer, part), gpus, part)
        levels = list(tree_levels(nodes))
        for child, parent in levels:
            receiver = p.chunk(heads[parent], buffer, part)
            receiver.reduce(p.chunk(heads[child], buffer, part))
        for child, parent in reversed(levels):
            p.chunk(heads[parent], buffer, part).copy(heads[child], buffer, part)
        for head in heads.tolist():
            _multicast(p.chunk(head, buffer, part), gpus, part)

    def body(p: ChunkProgram) -> None:
        for gpu in first_gpus:
            for number, order in enumerate((place, mirrored)):
                tree(p, order * gpus + gpu, 2 * gpu + number)

    return trace(AllReduce(nodes * gpus, 2 * len(first_gpus), in_place), body)


@algorithm("allgather", "NCCL")
def nvls_allgather(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """AllGather by multicasts: each part goes around a ring of heads, one in each node, which
    multicast it.

    Source: NCCL's NVLS on one node. Errors: L102, L121.
    """
    ranks = nodes * gpus

    def body(p: ChunkProgram) -> None:
        for part in range(ranks):
            part_of_head = p.chunk(part, "in", 0)
            if not in_place:
                part_of_head.copy(part, "out", part)
            _multicast(part_of_head, gpus, part)
            for step in range(1, nodes):
                part_of_head = part_of_head.copy((part + step * gpus) % ranks, "out", part)
                _multicast(part_of_head, gpus, part)

    return trace(AllGather(ranks, 1, in_place), body)


@algorithm("reducescatter", "NCCL")
def nvls_reducescatter(nodes: int, gpus: int, *, in_place: bool = False) -> Program:
    """ReduceScatter in the switches: each node reduces a part there, and a ring of heads adds up
    the nodes' sums.

    Source: NCCL's NVLS on one node. Errors: L102, L121.
    """
    ranks = nodes * gpus

    def sum_of_node(p: ChunkProgram, head: int, part: int) -> Ref:
        """The node's sum of a part at its head; the last one of the ring is in the output."""
        own = p.chunk(head, "in", part)
        if head != part:
            own = own.copy(head, "scratch", part // gpus)
        elif not in_place:
            own = own.copy(head, "out", 0)
        return _reduce(p, own, gpus, part)

    def body(p: ChunkProgram) -> None:
        for part in range(ranks):
            total = None
            for step in range(1, nodes + 1):
                own = sum_of_node(p, (part + step * gpus) % ranks, part)
                total = own if total is None else own.reduce(total)

    return trace(ReduceScatter(ranks, 1, in_place), body)
