"""Tests of bounds against exhaustive search on small graphs, and against algorithms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog

from sley.errors import SleyError
from sley.ir.collective import Collective
from sley.ir.collectives import (
    AllGather,
    AllReduce,
    AllToAll,
    AllToNext,
    Broadcast,
    Custom,
    Gather,
    Reduce,
    ReduceScatter,
    Scatter,
    SendRecv,
)
from sley.ir.tables import NONE
from sley.ir.topology import Topology
from sley.model.bounds import Bounds, bound
from sley.model.bounds.cuts import Cuts
from sley.model.bounds.mixed import mixed
from sley.model.bounds.needs import Mixed
from sley.topologies import find_routes
from sley.topologies.rates import RankPairs
from support.generators.bound_graphs import (
    backwards,
    cut_GBps,
    partitions,
    rate_along_paths,
    simple_ways,
    topologies,
    vertex_sets,
)
from support.generators.examples import examples


def ratio(collective: Collective, topology: Topology) -> float:
    """Size over GB/s."""
    return 1 / Bounds.of(collective, topology).algbw_GBps


@examples(24)
@given(topologies(least_gpus=3))  # two GPUs exchange data, over all ways
def test_the_bound_of_allgather_is_the_worst_of_all_cuts(topology: Topology) -> None:
    """Of the paths between GPUs, or of all links where paths don't join all GPUs."""
    n = topology.ranks
    worst = max(len(s & set(range(n))) / n / cut_GBps(topology, s) for s in vertex_sets(topology))
    for up, collective in ((False, AllGather(n, 3)), (True, ReduceScatter(n))):
        turned = backwards(topology) if up else topology
        most = rate_along_paths(turned, [1 / n] * n, up=up)
        bounds = Bounds.of(collective, turned)
        assert bounds.algbw_GBps == pytest.approx(most or 1 / worst, rel=2e-6)
        assert bounds.exact == (most > 0)
        assert bounds.algbw_GBps <= 1 / worst * (1 + 1e-6)


@examples(24)
@given(topologies(least_gpus=3), st.integers(0, 4))
def test_the_bound_of_broadcast_is_the_narrowest_cut_around_the_root(
    topology: Topology, root: int
) -> None:
    n, root = topology.ranks, root % topology.ranks
    narrowest = min(cut_GBps(topology, s) for s in vertex_sets(topology) if root in s)
    for up, collective in ((False, Broadcast(n, 2, root)), (True, Reduce(n, 2, root))):
        turned = backwards(topology) if up else topology
        most = rate_along_paths(turned, [1.0 * (rank == root) for rank in range(n)], up=up)
        bounds = Bounds.of(collective, turned)
        assert bounds.algbw_GBps == pytest.approx(most or narrowest, rel=2e-6)
        assert bounds.exact == (most > 0)
        assert bounds.algbw_GBps <= narrowest * (1 + 1e-6)


@examples(12)
@given(topologies(least_gpus=3))
def test_the_bound_of_allreduce_is_between_single_gpus_and_all_partitions(
    topology: Topology,
) -> None:
    n = topology.ranks
    sets = vertex_sets(topology)

    def narrowest(part: set[int]) -> float:
        return min(cut_GBps(topology, s) for s in sets if s & set(range(n)) == part)

    around = [(len(p), sum(map(narrowest, p))) for p in partitions(list(range(n))) if len(p) > 1]
    inward = backwards(topology)
    around += [
        (len(p), sum(min(cut_GBps(inward, s) for s in sets if s & set(range(n)) == q) for q in p))
        for p in partitions(list(range(n)))
        if len(p) > 1
    ]
    two = 1 / min(cut_GBps(topology, s) for s in sets)
    found = ratio(AllReduce(n, 2), topology)
    apart = [2 * (parts - 1) / total for parts, total in around if parts == n]
    assert found >= max(two, *apart) * (1 - 1e-6)
    if not RankPairs.of(topology).are_symmetric:  # else as fast as trees along paths
        assert found <= max(two, *(2 * (p - 1) / total for p, total in around)) * (1 + 1e-6)
    both = [Bounds.of(one(n), topology) for one in (AllGather, ReduceScatter)]
    if all(one.exact for one in both):  # paths join all GPUs
        assert found <= sum(1 / one.algbw_GBps for one in both) * (1 + 1e-6)


def time_over_all_paths(topology: Topology, demand: dict[tuple[int, int], float]) -> float:
    """The smallest time for a demand: a linear program over all simple paths."""
    ways = [(pair, way) for pair in demand for way in simple_ways(topology, *pair)]
    load = np.zeros((len(topology.links), len(ways) + 1))
    amount = np.zeros((len(demand), len(ways) + 1))
    names = list(demand)
    for column, (pair, way) in enumerate(ways):
        load[way, column] = 1
        amount[names.index(pair), column] = 1
    load[:, -1] = -topology.links.GBps
    cost = np.zeros(len(ways) + 1)
    cost[-1] = 1
    solved = linprog(
        cost, A_ub=load, b_ub=np.zeros(len(load)), A_eq=amount, b_eq=list(demand.values())
    )
    return float(solved.fun)


@examples(19)
@given(topologies(most_gpus=4), st.sampled_from(["alltoall", "scatter", "gather", "next", "send"]))
def test_the_bound_of_exchange_is_the_flow_over_all_paths(topology: Topology, name: str) -> None:
    n = topology.ranks
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    collective, used, part = {
        "alltoall": (AllToAll(n), pairs, 1 / n),
        "scatter": (Scatter(n, 2, root=1), [p for p in pairs if p[0] == 1], 1 / n),
        "gather": (Gather(n, 2, root=1), [p for p in pairs if p[1] == 1], 1 / n),
        "next": (AllToNext(n, 2), [p for p in pairs if p[0] + 1 == p[1]], 1.0),
        "send": (SendRecv(n, 2, src=1, dst=0), [(1, 0)], 1.0),
    }[name]
    bounds = Bounds.of(collective, topology)
    wanted = time_over_all_paths(topology, dict.fromkeys(used, part))
    links = topology.links
    paths = [
        topology.paths([a], [b]).target.tolist()
        for a, b in zip(links.src, links.dst, strict=True)
        if max(a, b) < n
    ]
    if paths == [[row] for row in range(len(links))]:
        assert bounds.exact
    if bounds.exact and name == "alltoall":  # within what the program of routes may lack
        assert find_routes(topology).optimum_GBps >= bounds.algbw_GBps * (1 - 1e-3)
    if "routes" in bounds.reason:
        assert name == "alltoall"
        assert find_routes(topology).optimum_GBps == pytest.approx(bounds.algbw_GBps)
        assert 1 / bounds.algbw_GBps > wanted
    else:
        assert 1 / bounds.algbw_GBps == pytest.approx(wanted, rel=1e-5)


def hop_tree(topology: Topology, root: int, draw: np.random.Generator) -> list[list[int]]:
    """The paths of a random tree of copies from a GPU to all others, as rows of links."""
    ranks = topology.ranks
    reached, tree = {root}, []
    while len(reached) < ranks:
        ways = [
            (dst, way)
            for src in reached
            for dst in range(ranks)
            if dst not in reached and (way := topology.paths([src], [dst]).target.tolist())
        ]
        assume(ways)
        dst, way = ways[draw.integers(len(ways))]
        tree.append(way)
        reached.add(dst)
    return tree


@examples(14)
@given(topologies(), st.integers(0, 2**32))
def test_no_trees_of_copies_are_faster_than_the_bound(topology: Topology, seed: int) -> None:
    """Loads of random trees that all move data at the same time: AllGather with a tree for each
    rank, AllReduce up a tree and down another for each part. Trees may use GPUs without a rank."""
    draw = np.random.default_rng(seed)
    n = int(draw.integers(2, topology.ranks + 1))
    gather = np.zeros(len(topology.links))
    for root in range(n):
        for way in hop_tree(topology, root, draw):
            gather[way] += 1 / n
    gather_time = (gather / topology.links.GBps).max()
    assert ratio(AllGather(n), topology) <= gather_time * (1 + 1e-9)
    turned = backwards(topology)
    reduce = np.zeros(len(topology.links))
    for root in range(n):
        for way in hop_tree(turned, root, draw):
            reduce[way] += 1 / n
    scatter_time = (reduce / topology.links.GBps).max()
    assert ratio(ReduceScatter(n), topology) <= scatter_time * (1 + 1e-9)
    both = ((gather + reduce) / topology.links.GBps).max()
    assert ratio(AllReduce(n), topology) <= both * (1 + 1e-9)


@examples(14)
@given(topologies(), st.integers(0, 2**32), st.integers(1, 2**30))
def test_no_store_and_forward_tree_is_faster_than_the_bound(
    topology: Topology, seed: int, size: int
) -> None:
    tree = hop_tree(topology, 0, np.random.default_rng(seed))
    model, links = topology.model, topology.links
    by_kind = (model.nvlink_latency_us.ll, model.pcie_latency_us.ll, model.network_latency_us.ll)
    time_us = {0: model.launch_us.ll}
    for way in tree:
        moved = size / links.GBps[way].min() / 1e3
        hop = moved + by_kind[links.kind[way].max()]
        time_us[int(links.dst[way[-1]])] = time_us[int(links.src[way[0]])] + hop
    assert bound(Broadcast(topology.ranks), topology, size).time_us <= max(time_us.values()) + 1e-6


STANDARD = (AllGather, ReduceScatter, AllReduce, AllToAll, Broadcast, Gather, AllToNext)


@examples(14)
@given(topologies(), st.sampled_from(STANDARD), st.floats(0.1, 10))
def test_more_capacity_never_lowers_the_bound_on_bandwidth(
    topology: Topology, collective: type, factor: float
) -> None:
    made = collective(topology.ranks)
    base = Bounds.of(made, topology)
    nominal = Bounds.of(made, topology, nominal=True)
    # The nominal rate of every link of these topologies is a quarter higher.
    assert nominal.algbw_GBps == pytest.approx(1.25 * base.algbw_GBps, rel=1e-5)
    links = topology.links
    wider = links.GBps.copy()
    wider[0] *= 1 + factor
    changed = type(links)(
        links.src, links.dst, links.kind, links.nominal_GBps, wider, links.latency_us
    )
    better = Bounds.of(made, Topology("wider", topology.vertices, changed))
    assert better.algbw_GBps >= base.algbw_GBps * (1 - 1e-5)


def as_mixed(collective: Collective) -> Mixed:
    """A collective's needs as Mixed, whatever their kind."""
    rank = np.repeat(np.arange(collective.ranks), collective.output_chunks)
    some = collective.expected != NONE
    owners = np.repeat(np.arange(collective.ranks), collective.input_chunks)
    values = collective.values
    inputs = values.target.astype(np.int64)
    return Mixed(
        rank[some],
        collective.expected[some].astype(np.int64),
        values.offset,
        inputs,
        owners[inputs],
    )


@examples(14)
@given(topologies(), st.sampled_from(STANDARD))
def test_the_bound_of_mixed_needs_never_exceeds_that_of_their_kind(
    topology: Topology, collective: type
) -> None:
    made = collective(topology.ranks, 2)
    limit = mixed(Cuts(topology, topology.ranks, nominal=False), as_mixed(made))
    known = Bounds.of(made, topology)
    whole = made.blocks * made.chunks
    assert 0 < limit.ratio <= whole / known.algbw_GBps * (1 + 1e-6)


def test_a_custom_collective_gets_the_bound_of_its_simple_cuts() -> None:
    """An AllReduce in each of two nodes: a GPU needs only the chunks of its own node."""
    pairs = Custom("pairs", 4, 1, 1, lambda rank, _: [(rank // 2 * 2, 0), (rank // 2 * 2 + 1, 0)])
    bounds = Bounds.of(pairs, Topology.cluster(2, 2))
    assert bounds.algbw_GBps == pytest.approx(254)
    assert not bounds.exact
    assert bounds.at(8).bandwidth_reason.endswith("(the tightest bound found)")
    assert bounds.at(8).latency_us == pytest.approx(6.6 + 0.6)


def test_a_bound_depends_on_the_postcondition_not_on_the_name() -> None:
    """The bound of a custom collective follows from its postcondition, whatever its name."""
    other = Custom("mine", 4, 1, 1, lambda rank, _: [((rank + 1) % 4, 0)])
    impostor = replace(other, name="allgather")
    real = Custom("mine", 4, 1, 4, lambda _, index: [(index, 0)])
    cluster = Topology.cluster(1, 4)
    assert Bounds.of(impostor, cluster).algbw_GBps == pytest.approx(230)
    gather = Bounds.of(AllGather(4), cluster)
    assert Bounds.of(real, cluster).algbw_GBps == gather.algbw_GBps == pytest.approx(230 * 4 / 3)


def test_a_collective_of_one_rank_takes_only_the_launch() -> None:
    bound = Bounds.of(AllReduce(1), Topology.cluster(1, 2)).at(100)
    assert (bound.bandwidth_us, bound.latency_us) == (0, 6.6)
    assert bound.bandwidth_reason == "nothing has to move"


def test_switches_that_reduce_halve_the_data_of_allreduce_only() -> None:
    """But a switch reads and writes the data of the rank that it serves, too."""
    plain = Topology.cluster(1, 8)
    nvls = Topology("nvls", plain.vertices, plain.links, plain.model, in_network=True)
    efficiency = plain.model.switch_efficiency
    assert Bounds.of(AllReduce(8), nvls).algbw_GBps == pytest.approx(230 * efficiency * 8 / 9)
    assert Bounds.of(AllReduce(8), nvls, nominal=True).algbw_GBps == pytest.approx(300 * 8 / 9)
    pair = replace(Topology.cluster(1, 2), in_network=True)
    assert Bounds.of(AllReduce(2), pair).algbw_GBps == pytest.approx(230)
    # Between nodes no switch reduces: 3 messages a chunk and direction over 4 nodes' cards.
    nodes = replace(Topology.cluster(4, 8, 2), in_network=True)
    assert Bounds.of(AllReduce(32), nodes).algbw_GBps == pytest.approx(2 * 24 / 1.5)
    assert Bounds.of(AllReduce(8), plain).algbw_GBps == pytest.approx(230 * 8 / 14)
    for collective in (AllGather(8), AllToAll(8), Broadcast(8)):
        same = [Bounds.of(collective, t).algbw_GBps for t in (plain, nvls)]
        assert same[0] == pytest.approx(same[1])


def test_gpus_without_a_rank_forward() -> None:
    """Two ranks of a triangle: the third GPU is a second path."""
    triangle = Topology.from_links("triangle", 3, [(0, 1), (1, 2), (2, 0)])
    assert Bounds.of(SendRecv(2), triangle).algbw_GBps == pytest.approx(40)
    assert Bounds.of(AllReduce(2), triangle).algbw_GBps == pytest.approx(40)


def test_gpus_without_a_rank_reduce() -> None:
    """Three ranks around a fourth GPU, which can reduce one message from each."""
    star = Topology.from_links("star", 4, [(0, 3), (1, 3), (2, 3)])
    assert Bounds.of(AllReduce(3), star).algbw_GBps == pytest.approx(20)


def test_more_ranks_than_gpus_are_refused() -> None:
    with pytest.raises(SleyError) as error:
        bound(AllReduce(9), Topology.cluster(1, 8), 1024)
    assert error.value.code == "C305"


def test_shortest_paths_give_the_exact_bound_of_a_torus() -> None:
    """All links together bound an AllToAll: 16 x 16 GPUs with 4 links each, at an average distance
    of 8."""
    side = range(16)
    links = [(16 * i + j, 16 * i + (j + 1) % 16) for i in side for j in side]
    links += [(16 * i + j, 16 * ((i + 1) % 16) + j) for i in side for j in side]
    bounds = Bounds.of(AllToAll(256), Topology.from_links("torus", 256, links))
    assert bounds.algbw_GBps == pytest.approx(4 * 20 / 8)
    assert bounds.exact
