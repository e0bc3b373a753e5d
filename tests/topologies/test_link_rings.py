"""Rings along links: each visits every GPU once, and together they fit on the links."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sley import SleyError, Topology, topologies
from sley.ir.tables import FloatArray
from sley.topologies import LinkRings, link_rings
from support.generators.examples import examples


def rates_of(topology: Topology) -> FloatArray:
    """float64 (ranks, ranks): the rate of the direct links from rank to rank."""
    rates, t = np.zeros((topology.ranks, topology.ranks)), topology.links
    for src, dst, rate in zip(t.src.tolist(), t.dst.tolist(), t.GBps.tolist(), strict=True):
        if src < topology.ranks and dst < topology.ranks:
            rates[src, dst] += rate
    return rates


def check(topology: Topology, rings: LinkRings) -> None:
    used = np.zeros((topology.ranks, topology.ranks))
    for order in rings.orders.tolist():
        assert sorted(order) == list(range(topology.ranks)), "a ring visits every rank once"
        for src, dst in zip(order, order[1:] + order[:1], strict=True):
            used[src, dst] += rings.GBps
    assert (used <= rates_of(topology) + 1e-9).all(), "rings don't use more than a link has"


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
        ("mi250x", 6, 36.0),
        ("torus:4x4", 4, 20.0),
        ("mesh:2x4", 2, 20.0),
    ],
)
def test_a_machine_has_as_many_rings_as_its_links_allow(
    name: str, number: int, rate: float
) -> None:
    """6 and 7 links a GPU; in 6 of a die of MI250X, which has 4 to its twin: three leave each."""
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


@pytest.mark.parametrize("name", ["ndv4", "pcie-8", "dgx1:2", "mesh:1x4", "mesh:3x3", "1x1"])
def test_without_rings_along_links_there_are_none(name: str) -> None:
    topology = topologies.find(name)
    rings = link_rings(topology)
    assert rings.orders.shape == (0, topology.ranks)
    assert rings.GBps == 0


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
