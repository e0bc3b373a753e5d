"""Small topologies: with direct links, and with switches and network cards."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from sley import Topology
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.ir.topology import Builder


@st.composite
def direct_topologies(draw: st.DrawFn, most: int = 6) -> Topology:
    """A ring with further links, in both directions or, with other rates, in one."""
    ranks = draw(st.integers(2, most))
    pair = st.tuples(st.integers(0, ranks - 1), st.integers(0, ranks - 1))
    more = draw(st.lists(pair.filter(lambda ends: ends[0] != ends[1]), max_size=10))
    ring = [(rank, (rank + 1) % ranks) for rank in range(ranks)]
    both = draw(st.booleans())
    return Topology.from_links("drawn", ranks, ring + more, both_ways=both, GBps=20.0)


@st.composite
def switched_topologies(draw: st.DrawFn) -> Topology:
    """Nodes of GPUs around switches, with cards that GPUs share, behind PCIe switches or not, and
    direct links in a node."""
    nodes, gpus = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    node = np.repeat(np.arange(nodes), gpus)
    rank, rate = np.arange(nodes * gpus), st.sampled_from([5.0, 10.0, 12.0, 30.0])
    builder = Builder("drawn", node)
    if gpus > 1 or nodes == 1:
        switch = builder.add(VertexKind.SWITCH, np.arange(nodes))
        builder.both(rank, switch[node], LinkKind.NVLINK, 25.0, draw(rate))
    if gpus > 2 and draw(st.booleans()):
        builder.both(rank[::gpus], rank[1::gpus], LinkKind.NVLINK, 25.0, draw(rate))
    if nodes > 1:
        shared = draw(st.sampled_from([n for n in range(1, gpus + 1) if gpus % n == 0]))
        home = np.repeat(np.arange(nodes), gpus // shared)
        cards = builder.add(VertexKind.NIC, home)
        if draw(st.booleans()):
            switch = builder.add(VertexKind.PCIE, np.arange(nodes))
            builder.both(rank, switch[node], LinkKind.PCIE, 25.0, draw(rate))
            builder.both(cards, switch[home], LinkKind.PCIE, 25.0, draw(rate))
        else:
            builder.both(rank, cards[rank // shared], LinkKind.PCIE, 25.0, draw(rate))
        network = builder.add(VertexKind.NETWORK, [NONE])
        builder.both(cards, np.full(len(cards), network[0]), LinkKind.NETWORK, 25.0, draw(rate))
    return builder.topology()
