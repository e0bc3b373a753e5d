"""Groups: the least time of collectives that groups of a cluster call at the same time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.sparse import coo_array

from sley import SleyError, Topology, topologies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.tables import NONE
from sley.ir.topology import Builder
from sley.topologies import Group, find_routes, grid_groups, pack_forest
from sley.topologies.rates import RankPairs, TreeRates, group_rates, tree_rates
from support.generators.examples import examples
from support.generators.fabrics import direct_topologies, switched_topologies

WAYS = ((False,), (True,), (True, False))


def best_rate(
    cluster: Topology, groups: list[Group], ups: list[tuple[bool, ...]], sizes: list[float]
) -> float:
    """The most r such that the trees of each group can carry r times its size, as one linear
    program: the rates of all groups' pairs fit on the links, and in each group and direction each
    root's data can flow to every rank (Edmonds 1973). Its variables begin with r."""
    most: list[tuple[int, int, float]] = []  # row, variable, factor
    equal: list[tuple[int, int, float]] = []
    width, rows, limits = 1, len(cluster.links), cluster.links.GBps.tolist()
    equals = 0
    for group, of, size in zip(groups, ups, sizes, strict=True):
        pairs, ranks = RankPairs.of(group.topology), group.topology.ranks
        root, count = width, len(pairs.src)
        for origin in range(0 if of else ranks):  # an AllToAll has flows of each rank's data
            links = group.links[pairs.link].tolist()
            most += [(k, width + p, 1.0) for k, p in zip(links, pairs.pair.tolist(), strict=True)]
            for rank in set(range(ranks)) - {origin}:
                out, into = np.flatnonzero(pairs.src == rank), np.flatnonzero(pairs.dst == rank)
                equal += [(equals, width + pair, -1.0) for pair in out.tolist()]
                equal += [(equals, width + pair, 1.0) for pair in into.tolist()]
                equal.append((equals, 0, -size / ranks))
                equals += 1
            width += count
        if not of:
            continue
        width += ranks
        # The sum of the roots, which are equal if there is one direction.
        equal += [(equals, root + rank, 1.0) for rank in range(ranks)] + [(equals, 0, -size)]
        equals += 1
        for rank in range(ranks if len(of) == 1 else 0):
            equal += [(equals, root + rank, 1.0), (equals, 0, -size / ranks)]
            equals += 1
        for up in of:
            rate = width
            width += count
            links = group.links[pairs.link].tolist()
            used = zip(links, pairs.pair.tolist(), strict=True)
            most += [(link, rate + pair, 1.0) for link, pair in used]
            src, dst = pairs.ends(up)
            for sink in range(ranks):
                flow = width
                width += count
                most += [(rows + pair, flow + pair, 1.0) for pair in range(count)]
                most += [(rows + pair, rate + pair, -1.0) for pair in range(count)]
                rows += count
                limits += [0.0] * count
                for rank in set(range(ranks)) - {sink}:
                    out, into = np.flatnonzero(src == rank), np.flatnonzero(dst == rank)
                    equal += [(equals, flow + pair, 1.0) for pair in out.tolist()]
                    equal += [(equals, flow + pair, -1.0) for pair in into.tolist()]
                    equal.append((equals, root + rank, -1.0))
                    equals += 1
    below, exact = (
        coo_array(
            ([f for _, _, f in of], ([r for r, _, _ in of], [v for _, v, _ in of])), (n, width)
        ).tocsr()
        for of, n in ((most, rows), (equal, equals))
    )
    goal = np.zeros(width)
    goal[0] = -1
    return float(-linprog(goal, below, limits, exact, np.zeros(equals)).fun)


def check_rates(rates: TreeRates, groups: list[Group], sizes: list[float]) -> float:
    """The pairs of all groups fit on the links, and so do the groups' parts of them, on which each
    group alone reaches its rate. Returns the rate for a size of 1."""
    most = rates.pairs.topology.links.GBps * (1 + 1e-6)
    assert (np.sum([rates.pairs.loads(one) for one in rates.GBps], axis=0) <= most).all()
    assert (rates.group_GBps.sum(axis=0) <= most).all()
    of_group = np.bincount(rates.pairs.group, rates.root)
    return float((of_group / sizes).min())


@examples(12, deadline=None)
@given(st.one_of(direct_topologies(), switched_topologies()), st.data())
def test_the_rates_of_groups_are_the_best_along_paths(
    cluster: Topology, data: st.DataObject
) -> None:
    assume(cluster.ranks > 1)
    groups, ups, sizes = list[Group](), list[tuple[bool, ...]](), list[float]()
    for _ in range(data.draw(st.integers(1, 2))):
        order = data.draw(st.permutations(range(cluster.ranks)))
        cut = data.draw(st.integers(0, cluster.ranks - 2))
        way, size = data.draw(st.sampled_from([*WAYS, ()])), data.draw(st.sampled_from([1.0, 3.0]))
        for ranks in (order[:cut], order[cut:]):
            try:
                groups += [Group.of(cluster, ranks)] if len(ranks) > 1 else []
            except SleyError as error:
                assert error.code == "T603"  # only other GPUs join them
                continue
            ups += [way] if len(ranks) > 1 else []
            sizes += [size] if len(ranks) > 1 else []
    assume(groups)
    try:
        rates = group_rates(cluster, groups, ups, np.array(sizes))
    except SleyError as error:
        assert error.code == "T612"
        assert best_rate(cluster, groups, ups, sizes) < 1e-9
        return
    found = check_rates(rates, groups, sizes)
    assert found == pytest.approx(best_rate(cluster, groups, ups, sizes), rel=1e-5)
    for group, way, size, part in zip(groups, ups, sizes, rates.group_GBps, strict=True):
        if way:
            shares = np.ones(len(group.ranks), np.int64) if len(way) == 1 else None
            own = tree_rates(RankPairs.of(group.at(part)), way, shares).algbw_GBps
        else:
            own = find_routes(group.at(part)).optimum_GBps
        assert own >= found * size * (1 - 1e-5)


@pytest.mark.parametrize("name", ["ndv4:2", "dgx1", "mi250x", "torus:4x4"])
def test_one_alltoall_of_all_ranks_has_the_rate_of_its_routes(name: str) -> None:
    cluster = topologies.find(name)
    groups = [Group.of(cluster, range(cluster.ranks))]
    rates = group_rates(cluster, groups, [()], np.array([5.0]))
    assert rates.algbw_GBps == pytest.approx(find_routes(cluster).optimum_GBps, rel=2e-3)


@pytest.mark.parametrize("name", ["ndv4:2", "dgx1", "mi250x:1"])
@pytest.mark.parametrize("way", WAYS)
def test_one_group_of_all_ranks_has_the_rates_of_the_topology(
    name: str, way: tuple[bool, ...]
) -> None:
    cluster = topologies.find(name)
    shares = np.ones(cluster.ranks, np.int64) if len(way) == 1 else None
    alone = tree_rates(RankPairs.of(cluster), way, shares)
    groups = [Group.of(cluster, range(cluster.ranks))]
    together = group_rates(cluster, groups, [way], np.array([5.0]))
    assert together.algbw_GBps == pytest.approx(alone.algbw_GBps)
    assert sorted(groups[0].links.tolist()) == [*range(len(cluster.links))]
    for one in ("src", "dst", "kind", "GBps", "latency_us"):
        own, whole = (getattr(of.links, one) for of in (groups[0].topology, cluster))
        # Vertices that are no ranks may have other numbers.
        is_rank = own < cluster.ranks if one in ("src", "dst") else np.ones(len(own), bool)
        assert (own == whole[groups[0].links])[is_rank].all()


@pytest.mark.parametrize(("name", "tensor"), [("ndv4:2", 4), ("mi250x:2", 2), ("p4d:2", 2)])
def test_no_trees_beat_the_least_time(name: str, tensor: int) -> None:
    cluster = topologies.find(name)
    grid = grid_groups(cluster.ranks, {"tp": tensor, "dp": cluster.ranks // tensor})
    groups = [Group.of(cluster, ranks) for word in grid for ranks in grid[word]]
    sizes = np.array([2.0] * len(grid["tp"]) + [1.0] * len(grid["dp"]))
    rates = group_rates(cluster, groups, [(False,)] * len(groups), sizes)
    found = check_rates(rates, groups, sizes.tolist())
    load = np.zeros(len(cluster.links))
    for group, size in zip(groups, sizes.tolist(), strict=True):
        forest = pack_forest(group.topology)
        load[group.links] += size * forest.loads / forest.chunks
    assert 1 / found <= (load / cluster.links.GBps).max() * (1 + 1e-6)


def test_a_group_uses_the_cards_of_its_ranks_on_the_cluster() -> None:
    node = np.repeat([0, 1], 2)  # two GPUs and two cards around a switch of PCIe
    builder, rank = Builder("drawn", node), np.arange(4)
    switch, cards = builder.add(VertexKind.PCIE, [0, 1]), builder.add(VertexKind.NIC, node)
    network = builder.add(VertexKind.NETWORK, [NONE])
    for ends in (rank, cards):
        builder.both(ends, switch[node], LinkKind.PCIE, 25.0, 20.0)
    builder.both(cards, np.full(4, network[0]), LinkKind.NETWORK, 25.0, 20.0)
    cluster = builder.topology()
    for ranks in ([3, 0], [1, 3], [2, 1]):
        group = Group.of(cluster, ranks)
        found = group.links[group.topology.paths([0], [1]).target]
        assert found.tolist() == cluster.paths(*np.array(ranks)[:, None]).target.tolist()
        assert group.topology.node.tolist() == node[ranks].tolist()


def test_dimensions_of_a_grid_are_neighbours_first() -> None:
    found = grid_groups(12, {"tp": 2, "dp": 3, "pp": 2})
    assert found["tp"] == [[rank, rank + 1] for rank in range(0, 12, 2)]
    assert sorted(found["dp"]) == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]
    assert sorted(found["pp"]) == [[rank, rank + 6] for rank in range(6)]


@pytest.mark.parametrize("ranks", [[0, 0], [], [0, 16], [0, True], [-1, 2], [0, 1.0]])
def test_wrong_ranks_are_refused(ranks: list[int]) -> None:
    with pytest.raises(SleyError, match="T613"):
        Group.of(topologies.find("ndv4:2"), ranks)


@pytest.mark.parametrize("sizes", [{}, {"tp": 3}, {"tp": 0, "dp": 16}, {"tp": 4.0, "dp": 4}])
def test_wrong_grids_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(SleyError, match="T613"):
        grid_groups(16, sizes)


def test_a_group_that_only_others_join_is_refused() -> None:
    line = Topology.from_links("line", 3, [(0, 1), (1, 2)])
    with pytest.raises(SleyError, match="T603"):
        Group.of(line, [0, 2])


@pytest.mark.parametrize("name", ["ndv4:3", "mi250x:3", "dgx1:3"])
def test_groups_of_equal_nodes_are_alike(name: str) -> None:
    cluster = topologies.find(name)
    nodes = np.arange(cluster.ranks).reshape(3, -1)
    first, second, third = (Group.of(cluster, ranks.tolist()).topology for ranks in nodes)
    assert first.links == second.links == third.links
    slow = Group.of(cluster.degraded("nic0-network0@1", 0.5), nodes[1].tolist())
    assert slow.topology.links != first.links
