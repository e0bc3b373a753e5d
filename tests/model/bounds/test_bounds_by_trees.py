"""The fastest trees along paths, as a bound: against all cuts, all partitions and other plans."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

import sley
from sley.algorithms import CATALOG
from sley.ir.collectives import AllGather, AllReduce, AllToAll, Broadcast, Reduce, ReduceScatter
from sley.ir.fabric import LinkKind
from sley.ir.topology import Builder, Topology
from sley.model.bounds import Bounds
from sley.model.bounds.loads import busiest_link
from sley.topologies.rates import RankPairs, tree_rates
from support.generators.bound_graphs import partitions, vertex_sets
from support.generators.examples import examples
from support.generators.fabrics import direct_topologies, switched_topologies

BY_TREES = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def rate_by_all_cuts(topology: Topology) -> float:
    """The rate of an AllReduce's trees by a row for each cut: trees of copies must enter each set
    of GPUs as often as there are roots outside, and trees that reduce must leave it as often."""
    links, n = topology.links, topology.ranks
    m, rows = len(links), []
    for inside in vertex_sets(topology):
        enters = np.array([r.dst in inside and r.src not in inside for r in links], float)
        leaves = np.array([r.src in inside and r.dst not in inside for r in links], float)
        roots = np.array([float(v not in inside) for v in range(n)])
        rows += [np.concatenate([-enters, np.zeros(m), roots])]
        rows += [np.concatenate([np.zeros(m), -leaves, roots])]
    limits = np.zeros(len(rows))
    rows += list(np.hstack([np.eye(m), np.eye(m), np.zeros((m, n))]))
    cost = np.append(np.zeros(2 * m), -np.ones(n))
    solved = linprog(cost, A_ub=np.array(rows), b_ub=np.append(limits, links.GBps))
    return float(-solved.fun)


def rate_by_all_partitions(topology: Topology) -> float:
    """The most of any AllReduce: 2 (p - 1) messages of each chunk pass between any p parts, and
    one out of each set of ranks."""
    pairs = RankPairs.of(topology)
    links, n = len(topology.links), len(pairs.src)
    uses = np.zeros((links, n))
    np.add.at(uses, (pairs.link, pairs.pair), 1)
    rows = [np.append(row, 0) for row in uses]
    limits = [*topology.links.GBps.tolist()]
    for parts in partitions(list(range(topology.ranks))):
        part = np.array([[rank in p for p in parts].index(True) for rank in range(topology.ranks)])
        crosses = part[pairs.src] != part[pairs.dst]
        rows.append(np.append(-1.0 * crosses, 2 * (len(parts) - 1)))
        for inside in range(len(parts)) if len(parts) == 2 else ():
            rows.append(np.append(-1.0 * (crosses & (part[pairs.src] == inside)), 1))
    limits += [0] * (len(rows) - len(limits))
    solved = linprog(np.append(np.zeros(n), -1), A_ub=np.array(rows), b_ub=limits)
    return float(-solved.fun)


@examples(9)
@given(direct_topologies(most=5))
def test_trees_are_as_fast_as_all_cuts_allow(topology: Topology) -> None:
    found = tree_rates(RankPairs.of(topology), (True, False), None).algbw_GBps
    assert found == pytest.approx(rate_by_all_cuts(topology), rel=1e-6)


@examples(12)
@given(st.one_of(direct_topologies(most=6), switched_topologies()))
def test_no_allreduce_is_faster_than_trees_where_paths_are_symmetric(topology: Topology) -> None:
    """Rates that cross all partitions often enough are rates of trees."""
    assume(2 <= topology.ranks <= 6)
    bounds = Bounds.of(AllReduce(topology.ranks), topology)
    most = rate_by_all_partitions(topology)
    if RankPairs.of(topology).are_symmetric:
        assert bounds.exact
        assert bounds.algbw_GBps == pytest.approx(most, rel=2e-6)
    assert bounds.algbw_GBps >= most * (1 - 1e-6)
    trees = tree_rates(RankPairs.of(topology), (True, False), None).algbw_GBps
    assert trees <= bounds.algbw_GBps * (1 + 1e-6)
    assert bounds.exact == (trees > bounds.algbw_GBps * (1 - 1e-5))


@examples(9)
@given(switched_topologies())
def test_no_algorithm_moves_less_over_the_busiest_link(topology: Topology) -> None:
    """Cuts of links alone would let data pass a card from one of its GPUs to another."""
    words = {"ranks": topology.ranks, "nodes": topology.nodes}
    words["gpus"] = topology.ranks // topology.nodes
    for one in CATALOG.values():
        if one.collective not in BY_TREES or not set(one.required) <= words.keys():
            continue
        try:
            program = one.function(**{word: words[word] for word in one.required})
        except sley.SleyError:
            continue
        t = program.transfers
        ends = t.src[t.remote], t.dst[t.remote]
        if program.collective.ranks == topology.ranks and topology.are_linked(*ends).all():
            busiest = busiest_link(program, topology)
            bounds = Bounds.of(program.collective, topology)
            assert busiest is None or busiest.algbw_GBps <= bounds.algbw_GBps * (1 + 1e-6)


def test_two_gpus_share_the_card_that_a_cut_gives_to_each() -> None:
    """A DGX-2's 32 GPUs receive 31 of 32 parts each, by NVLink or by the card of two GPUs: the cut
    around one GPU counts all of the card."""
    topology = sley.topologies.find("dgx2:2")
    total = 32 * 120 + 16 * 24
    for collective, parts in ((AllGather, 31), (ReduceScatter, 31), (AllReduce, 62)):
        bounds = Bounds.of(collective(32), topology)
        assert bounds.exact
        assert bounds.algbw_GBps == pytest.approx(total / parts, rel=1e-5)
    of_two = (2 * 120 + 24) / 2
    bounds = Bounds.of(Broadcast(32), topology)
    assert (bounds.exact, bounds.algbw_GBps) == (True, pytest.approx(of_two, rel=1e-5))
    assert bounds.reason == (
        "1 times the size along trees over the paths between GPUs, limited by links GPU - switch, "
        "NIC - network at 132 GB/s"
    )
    nominal = Bounds.of(AllGather(32), topology, nominal=True)
    assert nominal.algbw_GBps == pytest.approx((32 * 150 + 16 * 25) / 31, rel=1e-5)


def test_more_gpus_than_ranks_or_many_ranks_leave_open_whether_paths_reach_the_bound() -> None:
    cases = (("dgx2:2", AllGather(20)), ("dgx2:9", AllGather(144)), ("ndv4:17", Broadcast(136)))
    for name, collective in cases:
        bounds = Bounds.of(collective, sley.topologies.find(name))
        assert not bounds.exact
        assert bounds.reason.endswith("(the tightest bound found)")


@pytest.mark.parametrize("name", ["h200", "b200:2", "nd-gb200"])
def test_switches_that_reduce_reach_the_bound(name: str) -> None:
    topology = sley.topologies.find(name)
    assert Bounds.of(AllReduce(topology.ranks), topology).exact


def test_cards_carry_single_messages_beside_switches_that_reduce() -> None:
    """Of 30 messages of a chunk, each takes 9 / 7 / 0.85 links to switches, or 2 to cards."""
    bounds = Bounds.of(AllReduce(16), sley.topologies.find("h200:2"))
    messages = 32 * 370 / (9 / 7 / 0.85) + 32 * 48.5 / 2
    assert bounds.algbw_GBps == pytest.approx(messages / 30)
    assert not bounds.exact


@pytest.mark.parametrize("link", [0, 5, 9])
def test_a_slower_link_leaves_the_bound_exact(link: int) -> None:
    base = sley.topologies.ndv4()
    rates = base.links.GBps.copy()
    rates[link] /= 2
    slow = replace(base, links=replace(base.links, GBps=rates))
    bounds = Bounds.of(AllReduce(8), slow)
    assert bounds.exact
    assert bounds.algbw_GBps == pytest.approx(115), "all data cross the slow link once"


def test_a_switch_only_forwards() -> None:
    found = tree_rates(RankPairs.of(sley.topologies.ndv4()), (True, False), None).algbw_GBps
    assert found == pytest.approx(230 * 8 / 14), "each GPU sends 14 of 8 parts of the data"


def linked(ranks: int, *links: tuple[int, int, float]) -> Topology:
    """GPUs with NVLinks: from, to, GB/s."""
    builder = Builder("linked", np.zeros(ranks, int))
    for src, dst, rate in links:
        builder.link([src], [dst], LinkKind.NVLINK, rate, rate)
    return builder.topology()


def test_a_root_and_its_receivers_alone_limit_a_broadcast() -> None:
    """The only link into the root and out of rank 3 is ten million times as slow."""
    fast = [(a, b, 100.0) for a, b in ((0, 1), (1, 2), (2, 3), (2, 1), (1, 0))]
    bounds = Bounds.of(Broadcast(4), linked(4, *fast, (3, 0, 1e-5)))
    assert (bounds.algbw_GBps, bounds.exact) == (pytest.approx(100), True)
    turned = [(b, a, rate) for a, b, rate in [*fast, (3, 0, 1e-5)]]
    bounds = Bounds.of(Reduce(4), linked(4, *turned))
    assert (bounds.algbw_GBps, bounds.exact) == (pytest.approx(100), True)


def test_links_beside_those_of_paths_leave_an_allreduce_symmetric() -> None:
    both = [(a, b, 10.0) for a, b in ((0, 1), (0, 1), (1, 2), (0, 2))]
    bounds = Bounds.of(AllReduce(3), linked(3, *both, *((b, a, rate) for a, b, rate in both)))
    assert (bounds.algbw_GBps, bounds.exact) == (pytest.approx(15), True)


def test_switches_that_reduce_may_be_pcie_switches() -> None:
    """A message through one uses as few links as through an NVSwitch."""
    topology = replace(sley.topologies.find("pcie-8:2"), in_network=True)
    plan = sley.compile(
        sley.algorithms.nvls_tree_allreduce(2, 8),
        topology=topology,
        protocol="Direct",
        verify=False,
    )
    assert sley.simulate(plan, "1G", topology=topology).of_bound < 1


def test_an_alltoall_takes_paths() -> None:
    bounds = Bounds.of(AllToAll(16), sley.topologies.find("pcie-8:2"))
    assert (bounds.algbw_GBps, bounds.exact) == (pytest.approx(20, rel=1e-3), True)
    assert bounds.reason.startswith("1 times the size along the best routes at 20")


def test_searches_for_cuts_end() -> None:
    bounds = Bounds.of(AllReduce(128), sley.topologies.find("mesh:8x16"))
    assert not bounds.exact
