"""Link classes: the links of a simulation by the kinds of their ends and their rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.fabric import VertexKind
from sley.ir.tables import LongArray
from sley.model.simulation.result import Simulation


@dataclass(frozen=True)
class LinkClass:
    """Links between vertices of equal kinds, with equal rates.

    ends: "GPU -> NIC".
    GBps: the rate of each.
    links: their rows in the topology.
    used: how many of them carry data.
    average, median, most: the share of their capacity that is used from launch to end.
    busiest: the row of the link with the largest share.
    """

    ends: str
    GBps: float
    links: LongArray
    used: int
    average: float
    median: float
    most: float
    busiest: int


def link_classes(simulation: Simulation) -> list[LinkClass]:
    """All links of the topology in classes, by the kinds of their ends and their rates."""
    links, kind = simulation.topology.links, simulation.topology.vertices.kind
    utilisation = simulation.utilisation
    keys = np.column_stack((kind[links.src], kind[links.dst], links.GBps))
    names, owner = np.unique(keys, axis=0, return_inverse=True)
    classes = []
    for number, (src, dst, rate) in enumerate(names.tolist()):
        rows = np.flatnonzero(owner.ravel() == number)
        share = utilisation[rows]
        classes.append(
            LinkClass(
                ends=f"{VertexKind(int(src)).word} -> {VertexKind(int(dst)).word}",
                GBps=rate,
                links=rows,
                used=int((simulation.links.moved_bytes[rows] > 0).sum()),
                average=float(share.mean()),
                median=float(np.median(share)),
                most=float(share.max()),
                busiest=int(rows[share.argmax()]),
            )
        )
    return classes
