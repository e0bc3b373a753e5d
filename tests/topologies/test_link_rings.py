"""Rings along links: each visits every GPU once, and together they fit on the links."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley import SleyError, Topology, topologies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE, FloatArray
from sley.ir.topology import Builder
from sley.topologies import LinkRings, link_rings
from support.generators.examples import examples


def rates_of(topology: Topology) -> FloatArray:
    """float64 (ranks, ranks): the rate of the direct links from rank to rank of a node."""
    rates, t = np.zeros((topology.ranks, topology.ranks)), topology.links
    for src, dst, rate in zip(t.src.tolist(), t.dst.tolist(), t.GBps.tolist(), strict=True):
        if src < topology.ranks and dst < topology.ranks:
            rates[src, dst] += rate
    return rates


def check(topology: Topology, rings: LinkRings) -> None:
    used, node = np.zeros((topology.ranks, topology.ranks)), topology.node
    for order in rings.orders.tolist():
        assert sorted(order) == list(range(topology.ranks)), "a ring visits every rank once"
        for src, dst in zip(order, order[1:] + order[:1], strict=True):
            used[src, dst] += rings.GBps
    across = node[:, None] != node
    inside = np.where(across, 0, used)
    assert (inside <= rates_of(topology) + 1e-9).all(), "rings don't use more than a link has"
    for way in (used, used.T):  # leaving a card, and entering it
        cards = np.bincount(topology.nic, np.where(across, way, 0).sum(axis=1))
        network = topology.links.GBps[topology.links.kind == LinkKind.NETWORK]
        assert (cards <= network.max(initial=0)).all()
        assert np.unique(cards[cards > 0]).size <= 1, "and load all cards alike"


def full(ranks: int, times: int = 1) -> Topology:
    """Each rank linked to every other, so many times."""
    pairs = [(a, b) for a in range(ranks) for b in range(a)]
    return Topology.from_links("full", ranks, pairs * times)


@pytest.mark.parametrize(
    ("name", "number", "rate"),
    [
        ("dgx1", 6, 20.0),
        ("ndv2", 6, 20.0),
        ("mi300x", 7, 48.0),
        ("mi300x:2", 8, 48.0),
        ("mi300x:5", 8, 48.0),
        ("dgx1:2", 4, 12.0),
        ("ndv2:3", 1, 12.0),
        ("mi250x", 6, 36.0),
        ("torus:4x4", 4, 20.0),
        ("mesh:2x4", 2, 20.0),
    ],
)
def test_a_machine_has_as_many_rings_as_its_links_allow(
    name: str, number: int, rate: float
) -> None:
    """6 and 7 links a GPU; in 6 of a die of MI250X, which has 4 to its twin: three leave each.
    Between nodes a ring takes a card, so 8 MI300X have one more, and DGX-1 as many as cards."""
    topology = topologies.find(name)
    rings = link_rings(topology)
    check(topology, rings)
    assert (len(rings.orders), rings.GBps) == (number, rate)


def test_four_gpus_with_two_links_for_each_pair_have_six_rings() -> None:
    """As in a graph that NCCL wrote (its issue 713). One link each would be no three rings of
    whole links, so six have half a link each."""
    for times, rate in ((2, 20.0), (1, 10.0)):
        topology = full(4, times)
        rings = link_rings(topology)
        check(topology, rings)
        assert (len(rings.orders), rings.GBps) == (6, rate)


@pytest.mark.parametrize("name", ["ndv4", "pcie-8", "ndv4:2", "mesh:1x4", "mesh:3x3", "1x1"])
def test_without_rings_along_links_there_are_none(name: str) -> None:
    topology = topologies.find(name)
    rings = link_rings(topology)
    assert rings.orders.shape == (0, topology.ranks)
    assert rings.GBps == 0


def test_nodes_have_rings_by_their_ranks_wherever_those_are() -> None:
    """Ranks that alternate between two nodes; the second node's links are half as fast."""
    node = np.arange(8) % 2
    builder = Builder("alternating", node)
    for a, b in combinations(range(8), 2):
        if node[a] == node[b]:
            builder.both([a], [b], LinkKind.NVLINK, 20 / (1 + node[a]), 20 / (1 + node[a]))
    (network,) = builder.add(VertexKind.NETWORK, [NONE])
    for rank, card in enumerate(builder.add(VertexKind.NIC, node)):
        builder.both([rank], [card], LinkKind.PCIE, 20, 20)
        builder.both([card], [network], LinkKind.NETWORK, 20, 20)
    topology = builder.topology(None)
    rings = link_rings(topology)
    check(topology, rings)
    assert (len(rings.orders), rings.GBps) == (4, 10.0)
    assert (node[rings.orders] == np.repeat([0, 1], 4)).all(), "node by node"


def test_nodes_that_differ_in_their_numbers_of_gpus_have_none() -> None:
    builder = Builder("uneven", np.array([0, 0, 0, 1]))
    for a, b in ((0, 1), (1, 2), (2, 0)):
        builder.both([a], [b], LinkKind.NVLINK, 20, 20)
    builder.both([2], [3], LinkKind.NETWORK, 20, 20)
    assert not link_rings(builder.topology(None)).GBps


@examples(9)
@given(
    ranks=st.integers(2, 6),
    data=st.data(),
    both_ways=st.booleans(),
)
def test_rings_of_random_machines_fit_on_the_links(
    ranks: int, data: st.DataObject, both_ways: bool
) -> None:
    rank = st.integers(0, ranks - 1)
    pairs = data.draw(st.lists(st.tuples(rank, rank), min_size=ranks, max_size=6 * ranks))
    try:
        topology = Topology.from_links("random", ranks, pairs, both_ways=both_ways)
    except SleyError:  # not connected
        return
    rings = link_rings(topology)
    check(topology, rings)
    linked = rates_of(topology) > 0
    rest = (np.array([0, *order]) for order in permutations(range(1, ranks)))
    exists = any(linked[order, np.roll(order, -1)].all() for order in rest)
    assert (len(rings.orders) > 0) == exists, "a ring is found where one exists"
    assert len(rings.orders) * rings.GBps <= rates_of(topology).sum(axis=1).min() + 1e-9


def test_the_same_machine_always_has_the_same_rings() -> None:
    first, again = topologies.dgx1(), topologies.dgx1()
    found = link_rings(first).orders.tolist()
    assert found == link_rings(again).orders.tolist()
    assert found[1] == [found[0][0], *found[0][:0:-1]], "a ring is followed by its reverse"
