"""Fabric: what a topology is made of, vertices and the links between them, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from sley.ir.tables import ByteArray, FloatArray, IntArray, Table


class VertexKind(IntEnum):
    """What stands at a vertex. SWITCH: NVSwitch and its like, inside a node. PCIE: a PCIe switch
    or a CPU. NIC: a network card. NETWORK: a switch outside the nodes."""

    GPU = 0
    SWITCH = 1
    PCIE = 2
    NIC = 3
    NETWORK = 4

    @property
    def word(self) -> str:
        """Its name in tables and messages."""
        return ("GPU", "switch", "PCIe", "NIC", "network")[self]


class LinkKind(IntEnum):
    """What a link is made of. NVLINK: NVLink and xGMI. The order is that of latency."""

    NVLINK = 0
    PCIE = 1
    NETWORK = 2


@dataclass(frozen=True, eq=False, repr=False)
class Vertices(Table):
    """One row a vertex; vertex r is the GPU of rank r, for every rank.

    kind: VertexKind.
    node: the node it is in; NONE outside of nodes.
    """

    kind: ByteArray
    node: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class TopologyLinks(Table):
    """One row a link and direction: a resource that transfers share.

    src, dst: vertices.
    kind: LinkKind.
    nominal_GBps: what the data sheet says.
    GBps: what transfers reach together; the simulator and the bounds reckon with it.
    latency_us: of this link, instead of what the cost model says for its kind; NONE without.
    """

    src: IntArray
    dst: IntArray
    kind: ByteArray
    nominal_GBps: FloatArray  # noqa: N815 - a unit
    GBps: FloatArray
    latency_us: FloatArray
