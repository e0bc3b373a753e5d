"""Topologies by name."""

from __future__ import annotations

import numpy as np

from sley.errors.compiler import C308
from sley.ir.topology import Topology
from sley.ir.words import MAX_NUMBER, is_integer


def fully_connected(ranks: int) -> Topology:
    """Every rank linked to every other."""
    return cluster(1, ranks)


def cluster(nodes: int, gpus: int, nics: int | None = None) -> Topology:
    """Nodes of GPUs in which every rank is linked to every other, ranks numbered node by node.

    nics: network cards of each node, shared by neighbouring GPUs; one for each GPU by default.
    Errors: C308.
    """
    nics = gpus if nics is None else nics
    if not all(is_integer(n) and 1 <= n <= MAX_NUMBER for n in (nodes, gpus, nics)) or gpus % nics:
        raise C308.error(
            expected="nodes and gpus from 1, and nics that divide gpus",
            found=f"nodes={nodes!r}, gpus={gpus!r}, nics={nics!r}",
        )
    rank = np.arange(nodes * gpus)
    node, gpu = np.divmod(rank, gpus)
    return Topology(
        name=f"{nodes}x{gpus}" if nics == gpus else f"{nodes}x{gpus}, {nics} NICs",
        linked=~np.eye(len(rank), dtype=bool),
        node=node,
        nic=node * nics + gpu * nics // gpus,
    )


def dgx1() -> Topology:
    """The 8 V100 of a DGX-1: NVLink's hybrid cube mesh, 4 neighbours each (double links counted
    once); two quads, fully linked inside, and a link from each GPU to its counterpart.

    Source: NVIDIA DGX-1 with Tesla V100 System Architecture, 2017.
    """
    quad = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    links = quad + [(a + 4, b + 4) for a, b in quad] + [(a, a + 4) for a in range(4)]
    return Topology.from_links("dgx1", 8, links)
