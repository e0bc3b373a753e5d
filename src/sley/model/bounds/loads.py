"""Loads: the data that a program moves over each link of a topology."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.program import Program
from sley.ir.topology import Topology


@dataclass(frozen=True)
class BusiestLink:
    """The link of a topology that a program uses the longest.

    name: the link's. algbw_GBps: the most that the program can reach on the topology, if no other
    link, no latency and no thread block takes time: the size of a call over this link's time.
    """

    name: str
    algbw_GBps: float  # noqa: N815 - a unit


def busiest_link(program: Program, topology: Topology) -> BusiestLink | None:
    """The busiest link, None for a program without remote transfers. topology: has all links that
    the program needs."""
    t, c = program.transfers, program.collective
    if not t.remote.any():
        return None
    loads = topology.loads(t.src[t.remote], t.dst[t.remote], t.count[t.remote])
    busiest = int(np.argmax(loads / topology.links.GBps))
    rate = topology.algbw_GBps(loads, c.blocks * c.chunks)
    return BusiestLink(topology.link_label(busiest), rate)
