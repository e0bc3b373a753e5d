"""Tests of rings over several nodes: they are closed and use all cards evenly."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley import topologies
from sley.algorithms.multi_ring import ring_orders
from sley.errors import SleyError
from sley.ir.words import Buffer, TransferKind

NAMES = ("multi-ring-allreduce", "multi-ring-allgather", "multi-ring-reducescatter")
ROOTED = ("multi-ring-broadcast", "multi-ring-reduce")


def crossings(program: sley.Program, gpus: int) -> dict[int, set[tuple[int, int]]]:
    """For each channel, the pairs of ranks on different nodes that exchange data."""
    t = program.transfers
    found: dict[int, set[tuple[int, int]]] = {}
    for row in np.flatnonzero(t.src // gpus != t.dst // gpus).tolist():
        found.setdefault(int(t.channel[row]), set()).add((int(t.src[row]), int(t.dst[row])))
    return found


@given(
    nodes=st.integers(1, 4),
    gpus=st.integers(1, 9),
    rings=st.none() | st.integers(1, 20),
)
def test_each_ring_visits_every_rank_node_by_node(nodes: int, gpus: int, rings: int | None) -> None:
    if nodes * gpus < 2:
        return
    orders = ring_orders("a", nodes, gpus, rings)
    assert orders.shape == (rings or gpus, nodes * gpus)
    for order in orders:
        assert sorted(order) == list(range(nodes * gpus))
        assert list(order // gpus) == sorted(order // gpus)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("nodes", "gpus"), [(2, 2), (2, 3), (3, 4), (2, 8)])
def test_every_gpu_has_one_ring_in_and_one_ring_out(name: str, nodes: int, gpus: int) -> None:
    program = sley.algorithms.build(name, nodes=nodes, gpus=gpus, in_place=True)
    pairs = crossings(program, gpus)
    assert sorted(pairs) == list(range(gpus))
    for ring in pairs.values():
        assert len(ring) == nodes
    crossed = [pair for ring in pairs.values() for pair in ring]
    assert sorted(src for src, _ in crossed) == list(range(nodes * gpus))
    assert sorted(dst for _, dst in crossed) == list(range(nodes * gpus))


@pytest.mark.parametrize("rings", [4, 8, 16])
def test_a_ring_enters_and_leaves_over_one_shared_card(rings: int) -> None:
    program = sley.algorithms.multi_ring_allreduce(2, 8, rings=rings, in_place=True)
    load = np.zeros(8, int)
    for ring in crossings(program, 8).values():
        cards = {rank // 2 % 4 for pair in ring for rank in pair}
        assert len(cards) == 1
        for src, _ in ring:
            load[src // 2] += 1
    assert np.ptp(load) == 0


@pytest.mark.parametrize("name", NAMES)
def test_rings_load_all_links_evenly(name: str) -> None:
    program = sley.algorithms.build(name, nodes=2, gpus=4, in_place=True)
    t = program.transfers
    sent = np.bincount(t.src, weights=t.count)
    assert np.ptp(sent) == 0
    assert np.ptp(np.bincount(t.channel)) == 0


def test_a_ring_on_one_node_is_a_circle_of_its_gpus() -> None:
    program = sley.algorithms.multi_ring_allgather(1, 4, rings=1, in_place=True)
    t = program.transfers
    assert set(zip(t.src.tolist(), t.dst.tolist(), strict=True)) == {(0, 3), (3, 2), (2, 1), (1, 0)}


@pytest.mark.parametrize("rings", [0, -1, True, 1.5, "2"])
@pytest.mark.parametrize("name", NAMES)
def test_rings_must_be_a_positive_number(name: str, rings: int) -> None:
    with pytest.raises(SleyError) as caught:
        sley.algorithms.build(name, nodes=2, gpus=2, rings=rings)
    assert caught.value.code == "L102"


@pytest.mark.parametrize("name", NAMES)
def test_one_rank_is_refused(name: str) -> None:
    with pytest.raises(SleyError) as caught:
        sley.algorithms.build(name, nodes=1, gpus=1)
    assert caught.value.code == "L121"


@pytest.mark.parametrize("name", [*NAMES, *ROOTED])
@pytest.mark.parametrize("in_place", [False, True])
def test_given_orders_are_the_rings_of_the_channels(name: str, in_place: bool) -> None:
    orders = topologies.link_rings(topologies.dgx1()).orders
    program = sley.algorithms.build(name, nodes=1, gpus=8, orders=orders, in_place=in_place)
    plan = sley.compile(program, topology=topologies.dgx1())  # proven; refused beside the links
    assert plan.channels == len(orders)
    t = program.transfers
    for channel, order in enumerate(orders):
        used = t.remote & (t.channel == channel)
        pairs = set(zip(t.src[used].tolist(), t.dst[used].tolist(), strict=True))
        around = set(zip(order.tolist(), np.roll(order, -1).tolist(), strict=True))
        assert pairs <= around, "data go along the ring"
        assert len(pairs) >= len(order) - 1, "and all the way"


@pytest.mark.parametrize("in_place", [False, True])
def test_trees_with_orders_have_chains_along_the_links(in_place: bool) -> None:
    """A ring's way through a node is a chain, in both directions of its links."""
    topology = topologies.mi300x(3)
    orders = topologies.link_rings(topology).orders
    program = sley.algorithms.multi_tree_allreduce(3, 8, orders=orders, in_place=in_place)
    t = program.transfers
    sley.verify(sley.compile(program, topology=topology))
    ways = orders.reshape(-1, 3, 8)
    for channel, chains in enumerate(np.repeat(ways, 2, axis=0)):
        used = t.remote & (t.channel == channel) & (t.src // 8 == t.dst // 8)
        pairs = set(zip(t.src[used].tolist(), t.dst[used].tolist(), strict=True))
        links = {(a, b) for chain in chains.tolist() for a, b in pairwise(chain)}
        assert pairs == links | {(b, a) for a, b in links}


@pytest.mark.parametrize("name", ROOTED)
@pytest.mark.parametrize("root", [0, 3, 5])
def test_rings_of_a_rooted_collective_begin_or_end_at_the_root(name: str, root: int) -> None:
    program = sley.algorithms.build(name, nodes=2, gpus=3, root=root)
    t, begins = program.transfers, name == "multi-ring-broadcast"
    assert root not in (t.dst if begins else t.src)[t.remote]
    assert np.bincount(t.channel[t.remote]).tolist() == [5, 5, 5]
    sley.verify(sley.compile(program))


@pytest.mark.parametrize("name", [*NAMES, *ROOTED])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"orders": [[0, 1, 2]]}, "L136"),
        ({"orders": [[0, 1, 2, 3], [0, 1, 2]]}, "L136"),
        ({"orders": [[0, 1, 2, 2]]}, "L136"),
        ({"orders": [[0.0, 1.0, 2.0, 3.0]]}, "L136"),
        ({"orders": [0, 1, 2, 3]}, "L136"),
        ({"orders": []}, "L136"),
        ({"orders": [[0, 1, 2, 3]], "rings": 1}, "L112"),
    ],
)
def test_orders_must_be_rings_of_all_ranks(name: str, words: dict[str, Any], code: str) -> None:
    with pytest.raises(SleyError) as caught:
        sley.algorithms.build(name, nodes=2, gpus=2, **words)
    assert caught.value.code == code


@pytest.mark.parametrize("name", ["dgx1", "mi300x"])
def test_rings_along_links_load_each_link_by_its_rate(name: str) -> None:
    topology = topologies.find(name)
    orders = topologies.link_rings(topology).orders
    t = sley.algorithms.multi_ring_allreduce(1, 8, orders=orders, in_place=True).transfers
    sent = np.bincount(8 * t.src + t.dst, minlength=64)
    links = topology.links
    assert len(set((sent[8 * links.src + links.dst] / links.GBps).tolist())) == 1


def test_multi_ring_on_twice_the_cards_takes_half_the_time() -> None:
    """Twice the cards, half the time: one ring uses only one card of each node."""
    plan = sley.compile(sley.algorithms.multi_ring_allreduce(2, 4, in_place=True), instances=6)
    times = [
        sley.simulate(plan, "256M", sley.topologies.cluster(2, 4, nics)).time_us for nics in (2, 4)
    ]
    assert times[0] / times[1] == pytest.approx(2, rel=0.05)


def test_rings_use_disjoint_scratch() -> None:
    program = sley.algorithms.multi_ring_reducescatter(2, 3)
    t = program.transfers
    kept = t.dst_buffer == Buffer.SCRATCH
    first = kept & (t.kind == TransferKind.COPY)
    assert len(set(t.dst_index[first].tolist())) == 3 * (6 - 2)


def test_a_tree_uses_one_shared_card_of_each_node() -> None:
    program = sley.algorithms.multi_tree_allreduce(4, 8, in_place=True)
    cards = {
        c: {rank // 2 % 4 for pair in pairs for rank in pair}
        for c, pairs in crossings(program, 8).items()
    }
    assert cards == {channel: {channel // 4} for channel in range(16)}
