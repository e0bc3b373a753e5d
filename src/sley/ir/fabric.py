"""Fabric: the vertices of a topology and the links between them, as tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

from sley.ir.tables import ByteArray, FloatArray, IntArray, Table


class VertexKind(IntEnum):
    """The kind of a vertex. SWITCH: an NVSwitch or similar, inside a node. PCIE: a PCIe switch or a
    CPU. NIC: a network card. NETWORK: a switch outside the nodes."""

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
    """The kind of a link. NVLINK: NVLink and xGMI. The order is that of latency."""

    NVLINK = 0
    PCIE = 1
    NETWORK = 2


@dataclass(frozen=True, eq=False, repr=False)
class Vertices(Table):
    """One row a vertex; vertex r is the GPU of rank r, for every rank.

    kind: VertexKind.
    node: its node; NONE outside of nodes.
    """

    WORDS = MappingProxyType({"kind": VertexKind})

    kind: ByteArray
    node: IntArray

    @property
    def ranks(self) -> int:
        """The number of GPUs."""
        return int((self.kind == VertexKind.GPU).sum())


@dataclass(frozen=True, eq=False, repr=False)
class TopologyLinks(Table):
    """One row a link and direction: a resource that transfers share.

    src, dst: vertices.
    kind: LinkKind.
    nominal_GBps: the rate of the data sheet.
    GBps: the rate that transfers reach together, which the simulator and the bounds use.
    latency_us: the link's latency instead of the cost model's for its kind, or NONE.
    """

    WORDS = MappingProxyType({"kind": LinkKind})

    src: IntArray
    dst: IntArray
    kind: ByteArray
    nominal_GBps: FloatArray  # noqa: N815 - a unit
    GBps: FloatArray
    latency_us: FloatArray
