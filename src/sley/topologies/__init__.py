"""Topologies by name."""

from __future__ import annotations

from sley.ir.topology import Topology


def fully_connected(ranks: int) -> Topology:
    """Every rank linked to every other."""
    return cluster(1, ranks)


def cluster(nodes: int, gpus: int, nics: int | None = None) -> Topology:
    """Nodes of GPUs in which every rank is linked to every other, ranks numbered node by node.

    nics: network cards of each node, shared by neighbouring GPUs; one for each GPU by default.
    Errors: C308.
    """
    return Topology.cluster(nodes, gpus, nics)


def dgx1() -> Topology:
    """The 8 V100 of a DGX-1: NVLink's hybrid cube mesh, 4 neighbours each (double links counted
    once); two quads, fully linked inside, and a link from each GPU to its counterpart.

    Source: NVIDIA DGX-1 with Tesla V100 System Architecture, 2017.
    """
    quad = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    links = quad + [(a + 4, b + 4) for a, b in quad] + [(a, a + 4) for a in range(4)]
    return Topology.from_links("dgx1", 8, links)
