"""Forests: trees from every rank whose link loads reach the bound, and never exceed it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import sley
from sley import Protocol, SleyError, Topology, topologies
from sley.algorithms import CATALOG
from sley.compiler import tree_search
from sley.compiler.choices import Choices
from sley.compiler.search import search_ranges
from sley.compiler.synthesis import Synthesis, along_rings, low_trees
from sley.compiler.tree_search import TILES, fastest, is_cut
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.graph import depths, match_chunks
from sley.ir.tables import NONE
from sley.ir.topology import Builder
from sley.model.bounds import Bounds
from sley.model.simulation import simulate
from sley.topologies import Forest, find_routes, least_height, link_rings, match_forest, pack_forest
from sley.topologies.rates import RankPairs, tree_rates
from support.generators.examples import examples
from support.generators.fabrics import direct_topologies, switched_topologies
from support.generators.sampling import each_value

COLLECTIVES = {
    "allgather": sley.AllGather,
    "reducescatter": sley.ReduceScatter,
    "allreduce": sley.AllReduce,
}


def above(parent: list[int], rank: int) -> list[int]:
    """The ranks between a rank and the root of a tree, with the root."""
    seen = [rank]
    while (source := parent[seen[-1]]) != NONE:
        assert source not in seen
        seen.append(source)
    return seen[1:]


def check_trees(forest: Forest) -> list[int]:
    """Each tree reaches every rank. Returns the chunks of each root."""
    ranks, shares = forest.topology.ranks, [0] * forest.topology.ranks
    for weight, parent in zip(forest.weight.tolist(), forest.parent.tolist(), strict=True):
        (root,) = (rank for rank in range(ranks) if parent[rank] == NONE)
        shares[root] += weight
        for rank in range(ranks):
            assert rank == root or above(parent, rank)[-1] == root
    assert sum(shares) == forest.chunks
    return shares


def bandwidth(forest: Forest) -> float:
    """The bandwidth of an AllGather by the paths of each tree's transfers, one after another."""
    topology = forest.topology
    loads = [0] * len(topology.links)
    for weight, parent in zip(forest.weight.tolist(), forest.parent.tolist(), strict=True):
        for rank, above in enumerate(parent):
            if above != NONE:
                for link in topology.paths([above], [rank]).target.tolist():
                    loads[link] += weight
    rates = topology.links.GBps.tolist()
    time = max(load / rate for load, rate in zip(loads, rates, strict=True))
    return forest.chunks / time


def narrowest(topology: Topology) -> float:
    """The bandwidth of an AllGather that no cut of direct links exceeds, by all cuts."""
    ranks, links = topology.ranks, topology.links
    inside = (np.arange(1, 2**ranks - 1)[:, None] >> np.arange(ranks) & 1).astype(bool)
    leaving = (inside[:, links.src] & ~inside[:, links.dst]) @ links.GBps
    return float(ranks * (leaving / inside.sum(axis=1)).min())


def best_of_all(topology: Topology) -> float:
    """The most bandwidth of an AllGather with a tree from each rank, of all trees along links."""
    ranks, links = topology.ranks, topology.links
    loads = np.zeros((1, len(links)), np.int64)
    for root in range(ranks):
        above = [[NONE] if rank == root else range(ranks) for rank in range(ranks)]
        parents = np.array([*product(*above)])
        parents = parents[(depths(parents) != NONE).all(axis=1)]
        uses = np.stack([parents[:, b] == a for a, b in zip(links.src, links.dst, strict=True)], 1)
        uses = uses[uses.sum(axis=1) == ranks - 1]  # without a pair that no link joins
        loads = np.unique((loads[:, None] + uses).reshape(-1, len(links)), axis=0)
    return float(ranks / (loads / links.GBps).max(axis=1).min())


def along_paths(topology: Topology) -> float:
    """The most bandwidth of an AllGather whose transfers take the topology's paths: the rates of
    pairs of ranks fit on the links, and with these rates each rank's data can flow to every rank
    (Edmonds 1973), as one linear program."""
    ranks = topology.ranks
    src, dst = (ends.ravel() for ends in np.indices((ranks, ranks), np.int32))
    linked = topology.are_linked(src, dst)
    src, dst = src[linked], dst[linked]
    pairs, paths = len(src), topology.paths(src, dst)
    uses = np.zeros((len(topology.links), pairs))
    uses[paths.target, np.repeat(np.arange(pairs), np.diff(paths.offset))] = 1
    # Variables: the rate of each pair, the flow of each pair to each rank, the data of each rank.
    width = pairs * (1 + ranks) + 1
    below = [np.pad(uses, ((0, 0), (0, width - pairs)))]
    limits = [topology.links.GBps]
    equal = []
    for sink in range(ranks):
        first = pairs * (1 + sink)
        part = np.zeros((pairs, width))
        part[:, first : first + pairs] = np.eye(pairs)
        part[:, :pairs] = -np.eye(pairs)
        below.append(part)
        limits.append(np.zeros(pairs))
        for rank in range(ranks):
            if rank != sink:
                row = np.zeros(width)
                row[first : first + pairs] = 1.0 * (src == rank) - (dst == rank)
                row[-1] = -1
                equal.append(row)
    goal = np.zeros(width)
    goal[-1] = -1
    found = linprog(
        goal,
        np.concatenate(below),
        np.concatenate(limits),
        np.array(equal),
        np.zeros(len(equal)),
    )
    return float(-found.fun * ranks)


def fitting_rate(topology: Topology, ups: tuple[bool, ...]) -> float:
    """The rate of all trees, with roots of equal shares if they are of one direction; the rates of
    pairs fit on the links."""
    shares = np.ones(topology.ranks, np.int64) if len(ups) == 1 else None
    rates = tree_rates(RankPairs.of(topology), ups, shares)
    loads = sum(rates.pairs.loads(one) for one in rates.GBps)
    assert (loads <= topology.links.GBps * (1 + 1e-6)).all()
    return rates.algbw_GBps


@examples(24)
@given(direct_topologies(most=12), st.integers(1, 8))
def test_trees_reach_what_the_narrowest_cut_allows(topology: Topology, chunks: int) -> None:
    """With whole chunks on links there is no better forest, with enough chunks none at all."""
    forest = pack_forest(topology, chunks=chunks)
    assert check_trees(forest) == [chunks] * topology.ranks
    most = narrowest(topology)
    assert forest.algbw_GBps == pytest.approx(bandwidth(forest))
    assert forest.algbw_GBps <= most * (1 + 1e-9)
    # A cut has room for all chunks that cross it if each of its links has the room of one more.
    links = topology.links
    degree = np.bincount(links.src).max()
    rate = links.GBps.min()
    least = 1 / (1 / most + degree / rate / (topology.ranks * chunks))
    assert forest.algbw_GBps >= least * (1 - 1e-6)
    exact = pack_forest(topology, within=0)
    assert exact.algbw_GBps >= 0.95 * most


@examples(18)
@given(direct_topologies(most=4))
def test_no_trees_are_better(topology: Topology) -> None:
    """All trees from 4 ranks are few enough to try."""
    found = pack_forest(topology, chunks=1)
    assert found.algbw_GBps == pytest.approx(best_of_all(topology))


@examples(36)
@given(switched_topologies(), st.sampled_from(list(COLLECTIVES)))
def test_trees_stay_within_the_bound_behind_switches(topology: Topology, collective: str) -> None:
    """Trees are proven programs, and as fast as their links say."""
    if topology.ranks == 1:
        return
    made = Synthesis.of(collective, topology)
    shares = [check_trees(forest) for forest in made.parts]
    assert shares[0] == shares[-1]
    if collective != "allreduce":
        assert len({*shares[0]}) == 1
    bounds = Bounds.of(COLLECTIVES[collective](topology.ranks), topology)
    assert made.algbw_GBps <= bounds.algbw_GBps * (1 + 1e-9)
    if collective == "allgather":  # links are symmetric
        most = along_paths(topology)
        assert fitting_rate(topology, (False,)) == pytest.approx(most, rel=1e-5)
        assert 0.95 * most * (1 - 1e-6) <= made.algbw_GBps <= most * (1 + 1e-6)


@examples(15)
@given(
    st.one_of(direct_topologies(), switched_topologies()),
    st.sampled_from(list(COLLECTIVES)),
    st.booleans(),
    st.sampled_from(["msccl", "hpds"]),
    st.sampled_from([None, 0, 1]),
)
def test_programs_along_trees_are_proven(
    topology: Topology, collective: str, in_place: bool, schedule: str, higher: int | None
) -> None:
    if topology.ranks > 1:
        height = None if higher is None else least_height(topology) + higher
        program = sley.synthesize(collective, topology, chunks=3, height=height, in_place=in_place)
        sley.verify(sley.compile(program, topology=topology, schedule=schedule))


@given(
    st.one_of(direct_topologies(4), switched_topologies()),
    st.sampled_from(["reducescatter", "allreduce"]),
    st.booleans(),
    st.integers(2, 5),
)
@examples(12)
def test_sums_in_other_orders_are_proven(
    topology: Topology, collective: str, in_place: bool, sum_orders: int
) -> None:
    if topology.ranks > 1:
        made = Synthesis.of(collective, topology, chunks=2)
        last = made.program(in_place=in_place, leaves_last=True)
        sley.verify(sley.compile(last, topology=topology))
        program = made.program(in_place=in_place, sum_orders=sum_orders)
        assert program.collective.blocks * program.collective.chunks == sum_orders * made.chunks
        sley.verify(sley.compile(program, topology=topology))


@given(
    st.one_of(direct_topologies(4), switched_topologies()),
    st.sampled_from(["reducescatter", "allreduce"]),
    st.booleans(),
)
@examples(12)
def test_binomial_trees_of_leaves_are_proven(
    topology: Topology, collective: str, in_place: bool
) -> None:
    if topology.ranks > 1:
        made = Synthesis.of(collective, topology, chunks=2)
        (up, *_), found = made.parts, made.binomial
        assert isinstance(up, Forest)
        assert check_trees(up.binomial) == check_trees(up)
        if found is not None:
            assert found.algbw_GBps >= made.algbw_GBps * (1 - 1e-6)
            sley.verify(sley.compile(found.program(in_place=in_place), topology=topology))


def test_roots_add_leaves_last_where_links_inside_nodes_are_the_busiest() -> None:
    made = {
        n: Synthesis.of("reducescatter", topologies.find(n)) for n in ("p5:2", "b200:4", "ndv4")
    }
    assert [one.leaves_wait for one in made.values()] == [True, False, False]
    # Links over PCIe, and stars, whose roots have only leaves.
    assert Synthesis.of("reducescatter", topologies.find("pcie-8:2"), chunks=1).leaves_wait
    assert not Synthesis.of("reducescatter", topologies.find("p5:2"), height=1).leaves_wait
    assert not Synthesis.of("allgather", topologies.find("p5:2")).leaves_wait
    busy = made["p5:2"]
    for last in (False, True):
        t = busy.program(in_place=True, leaves_last=last).transfers
        sources = t.src[(t.dst == 0) & (t.dst_index == 0)]
        assert (sources >= 8).tolist() == [last, *[False] * 6, not last]


def test_binomial_trees_add_few_parts() -> None:
    """Of a node's 7 leaves 3 send to the root, on whose links the data is as much."""
    made = Synthesis.of("allreduce", topologies.ndv4())
    assert Synthesis.of("allgather", topologies.ndv4()).binomial is None
    found = made.binomial
    assert found is not None
    up, down = found.parts
    assert isinstance(up, Forest)
    for root, parent in zip(up.root.tolist(), up.parent.tolist(), strict=True):
        below = {(rank - root) % 8 for rank in range(8) if parent[rank] == root}
        assert below == {1, 2, 4}
    assert (up.height, down) == (3, made.parts[1])
    assert found.algbw_GBps == pytest.approx(made.algbw_GBps)
    # Links of a mesh differ, and a chain of two has no leaves to join.
    assert Synthesis.of("reducescatter", topologies.find("mi300x")).binomial is None
    assert Synthesis.of("reducescatter", topologies.find("2x2")).binomial is None


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_chains_follow_rings_of_links_in_their_direction(collective: str) -> None:
    links = [(0, 2), (2, 1), (1, 3), (3, 0)]
    topology = Topology.from_links("one way", 4, links, both_ways=False)
    found = along_rings(collective, topology)
    assert found is not None
    assert found.algbw_GBps == pytest.approx(Synthesis.of(collective, topology).algbw_GBps)
    for part in found.parts:
        assert isinstance(part, Forest)
        assert check_trees(part) == [1] * 4
    sley.verify(sley.compile(found.program(), topology=topology))
    assert along_rings(collective, topologies.ndv4()) is None
    # Each rank has a link to the other node, but not to the next one of a ring.
    builder = Builder("apart", [0, 0, 1, 1])
    builder.both([0, 2], [1, 3], LinkKind.NVLINK, 25.0, 20.0)
    builder.both([0, 1], [2, 3], LinkKind.NETWORK, 25.0, 20.0)
    apart = builder.topology()
    assert along_rings(collective, apart) is None
    assert link_rings(apart).GBps == 0
    assert fastest(collective, apart, 1 << 20, in_place=True, instances=1).choice.end.time_us > 0


def test_tiles_cut_the_longest_messages() -> None:
    """Trees of 11 and of 1 of 12 chunks, whose sums are cut into 7 parts at leaves alone."""
    topology = topologies.find("mi355x:2")
    program = Synthesis.of("reducescatter", topology, chunks=12).program(sum_orders=7)
    longest = (1 << 30) / 16 / 12 * 11 / topology.model.tile_bytes.simple
    assert is_cut(program, 1 << 30, topology, longest * 0.99)
    assert not is_cut(program, 1 << 30, topology, longest * 1.01)


@pytest.mark.parametrize(
    ("collective", "name", "chunks", "tile", "share", "sends"),
    [
        ("reducescatter", "resccl:2", None, 0.0625, 0.975, 4),
        ("reducescatter", "dgx-h100:2", 2, 0.0625, 0.955, 2),
        ("reducescatter", "dgx1", None, 1, 0.99, 7),
        ("allreduce", "mi300x:2", None, 0.25, 0.98, 30),
    ],
)
def test_sums_one_after_the_other_leave_no_links_idle(
    collective: str, name: str, chunks: int | None, tile: float, share: float, sends: int
) -> None:
    """By binomial trees around switches, leaves that come last, and along rings of links."""
    options = {"in_place": True, "protocol": "Direct", "instances": [2, 3], "tiles": (tile,)}
    options |= {"chunks": chunks}
    found = fastest(collective, topologies.find(name), 1 << 30, **options)
    assert found.choice.end.of_bound > share
    assert found.synthesis.sends == sends
    assert found.synthesis in found.front


def test_leaves_send_from_the_start() -> None:
    """In as many orders as leaves, each leaf is the first and the last of a part once."""
    program = Synthesis.of("reducescatter", topologies.ndv4()).program(in_place=True, sum_orders=7)
    t = program.transfers
    rows = t.dst == 0
    turns = np.empty((7, 7), np.int64)
    for part in range(7):
        turns[part] = t.src[rows][t.dst_index[rows] == part]
    assert (np.sort(turns, axis=0) == np.sort(turns, axis=1).T).all()
    assert (np.sort(turns, axis=1) == np.arange(1, 8)).all()


@pytest.mark.parametrize(
    ("collective", "name", "size", "gain"),
    [
        ("reducescatter", "ndv4", "1G", 1.05),
        ("reducescatter", "ndv4", "4M", 1.8),
        pytest.param("reducescatter", "dgx-h100:2", "1G", 1.04, marks=pytest.mark.slow),
        ("allreduce", "ndv4", "4M", 1.25),
    ],
)
def test_sums_in_several_orders_are_faster(
    collective: str, name: str, size: str, gain: float
) -> None:
    """Both with the options of the simulated best with one order."""
    made = Synthesis.of(collective, topologies.find(name))
    assert made.sum_orders == 7
    whole, parts = (
        sley.choose(
            made.program(in_place=True, sum_orders=number),
            size,
            name,
            schedule="msccl",
            allocate="connection",
            channels=1,
            protocol=["LL128", "Simple"],
            instances=[1, 4] if "G" in size and ":" not in name else 1,
        ).at(size)
        for number in (1, 7)
    )
    assert whole.end.time_us >= gain * parts.end.time_us


def test_wrong_numbers_of_orders_are_refused() -> None:
    for wrong in (0, 65, 1.5, "2"):
        with pytest.raises(SleyError, match="L102"):
            sley.algorithms.forest_reducescatter(3, sum_orders=wrong)
    for wrong in (6, "true", None, [[1], [1, 2]]):
        with pytest.raises(SleyError, match="L112"):
            sley.algorithms.forest_allreduce(3, leaves_last=wrong)


@pytest.mark.parametrize(("collective", "in_place"), each_value(COLLECTIVES, [False, True]))
def test_trees_move_the_data(collective: str, in_place: bool) -> None:
    """Trees with inner ranks and shares of different sizes, run on processes."""
    program = sley.synthesize(collective, "dgx1", chunks=6, in_place=in_place)
    plan = sley.compile(program, topology="dgx1", protocol=Protocol.SIMPLE)
    (row,) = sley.run(plan, "48K", dtype="int32")
    assert row.wrong == 0


@pytest.mark.parametrize(
    ("name", "share", "height"),
    [
        *(("ndv4", 1.0, 1), ("dgx-h100", 1.0, 1), ("mi300x", 1.0, 1), ("2x4", 1.0, 2)),
        *(("ndv4:2", 0.97, 2), ("dgx1", 0.95, 3), ("dgx1:2", 1.0, 3), ("ndv4:4", 1.0, 2)),
    ],
)
def test_few_trees_suffice_for_machines(name: str, share: float, height: int) -> None:
    forest = pack_forest(topologies.find(name))
    check_trees(forest)
    bounds = Bounds.of(sley.AllGather(forest.topology.ranks), forest.topology)
    assert forest.algbw_GBps >= share * bounds.algbw_GBps * (1 - 1e-6)
    assert forest.height <= height


@pytest.mark.parametrize(
    ("nodes", "chunks", "published"),
    [(1, None, 342.86), (2, 1, 342.86), (2, None, 346.67), (4, None, 266.67)],
)
def test_a100s_reach_the_published_optimum(
    nodes: int, chunks: int | None, published: float
) -> None:
    """ForestColl's figures (arXiv 2402.06787) for GPUs at a switch of 300 GB/s with cards of 25."""
    topology = Topology.cluster(nodes, 8, nvlink_GBps=(300, 300), nic_GBps=(25, 25))
    forest = pack_forest(topology, chunks=chunks, within=0)
    check_trees(forest)
    assert forest.algbw_GBps == pytest.approx(published, abs=0.005)


@pytest.mark.parametrize(
    ("nodes", "chunks", "published"),
    [(1, 1, 266.67), (1, None, 342.86), (2, 83, 354.13)],
)
def test_mi250s_reach_the_published_optimum(
    nodes: int, chunks: int | None, published: float
) -> None:
    """ForestColl's figures for links of xGMI of 50 GB/s, and cards of 16."""
    links = topologies.mi250x().links
    direct = (links.kind == LinkKind.NVLINK) & (np.maximum(links.src, links.dst) < 16)
    rates = 50 * np.rint(links.GBps[direct] / links.GBps[direct].min())
    rank = np.arange(16 * nodes)
    builder = Builder("mi250", rank // 16)
    for first in rank[::16]:
        ends = first + links.src[direct], first + links.dst[direct]
        builder.link(*ends, LinkKind.NVLINK, rates, rates)
    if nodes > 1:
        cards = builder.add(VertexKind.NIC, rank // 16)
        builder.both(rank, cards, LinkKind.PCIE, 64.0, 64.0)
        network = builder.add(VertexKind.NETWORK, [NONE])
        builder.both(cards, np.repeat(network, len(rank)), LinkKind.NETWORK, 16.0, 16.0)
    forest = pack_forest(builder.topology(), chunks=chunks, within=0)
    check_trees(forest)
    assert forest.algbw_GBps == pytest.approx(published, abs=0.005)


def test_more_chunks_come_closer() -> None:
    """Rates without a common measure need many chunks."""
    bounds = Bounds.of(sley.AllGather(16), "ndv4:2")
    shares = [
        pack_forest(topologies.ndv4(2), within=within).algbw_GBps / bounds.algbw_GBps
        for within in (0.05, 0.01)
    ]
    assert 0.95 <= shares[0] < 0.99 <= shares[1]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"collective": "broadcast"}, "'broadcast'"),
        ({"chunks": 0}, "chunks=0"),
        ({"chunks": 2.5}, "chunks=2.5"),
        ({"within": 1.0}, "within=1.0"),
        ({"within": "few"}, "within='few'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], found: str) -> None:
    with pytest.raises(SleyError, match=found) as info:
        sley.synthesize(**{"collective": "allgather", "topology": "2x2", **arguments})
    assert info.value.code == "T612"


@pytest.mark.parametrize("up", [False, True])
def test_many_equal_nodes_have_chains_of_the_trees_of_one(up: bool) -> None:
    topology = topologies.ndv4(17)
    forest = pack_forest(topology, up=up)
    assert check_trees(forest) == [forest.chunks // 136] * 136
    bounds = Bounds.of(sley.AllGather(136), topology)
    assert forest.algbw_GBps == pytest.approx(bounds.algbw_GBps, rel=1e-6)
    name = "forest-reducescatter" if up else "forest-allgather"
    program = CATALOG[name].function(136, trees=forest.rows, channels=1)
    sley.verify(sley.compile(program, topology=topology))


@pytest.mark.parametrize(
    ("topology", "up", "share"),
    [
        # Trees and chains pass the same links, and the trees of a node are no other's.
        (topologies.mi250x(9).without("gpu0-gpu1@4"), False, 0.95),
        (topologies.ndv4(17).degraded("nic3@1", 0.5), True, 0.95),
        *(
            pytest.param(
                topologies.ndv4(17).degraded(part, 0.5), False, 0.95, marks=pytest.mark.slow
            )
            for part in ("gpu0-switch0@16", "nic3-network0@1")
        ),
        (topologies.dgx_h100(17).without("nic3@1"), False, 0.94),  # GPU 3 reaches no other node
        (topologies.mi250x(9).without("nic2@4"), True, 0.94),
    ],
    ids=lambda one: one.name if isinstance(one, Topology) else "",
)
def test_trees_of_many_nodes_come_near_the_bound(
    topology: Topology, up: bool, share: float
) -> None:
    """Also where nodes differ, in which other places serve."""
    forest = pack_forest(topology, up=up)
    assert (forest.depth != NONE).all()
    assert ((forest.parent == NONE).sum(axis=1) == 1).all()
    chunks = np.bincount(forest.root, forest.weight, topology.ranks)
    assert (chunks == forest.chunks / topology.ranks).all()
    bounds = Bounds.of(sley.AllGather(topology.ranks), topology)
    assert share * bounds.algbw_GBps <= forest.algbw_GBps <= bounds.algbw_GBps * (1 + 1e-9)


def test_programs_of_many_nodes_that_differ_are_proven() -> None:
    topology = topologies.dgx_h100(17).without("nic3@1")
    program = sley.synthesize("allgather", topology, chunks=1, in_place=True)
    sley.verify(sley.compile(program, topology=topology))


def test_rails_that_a_node_lacks_are_refused() -> None:
    """Data for it can't come to another place."""
    builder = Builder("rails", np.repeat(np.arange(33), 4))
    rank = np.arange(132)
    switches = builder.add(VertexKind.SWITCH, np.arange(33))
    builder.both(rank, switches[rank // 4], LinkKind.NVLINK, 300.0, 230.0)
    rails = builder.add(VertexKind.NETWORK, [NONE] * 4)
    builder.both(rank[:-1], rails[rank[:-1] % 4], LinkKind.NETWORK, 25.0, 24.0)
    with pytest.raises(SleyError, match="between all places") as info:
        pack_forest(builder.topology())
    assert info.value.code == "T612"


def test_many_nodes_with_other_numbers_of_gpus_are_refused() -> None:
    builder = Builder("uneven", [0] * 5 + np.repeat(np.arange(1, 32), 4).tolist())
    network = builder.add(VertexKind.NETWORK, [NONE])
    builder.both(np.arange(129), np.repeat(network, 129), LinkKind.NETWORK, 25.0, 25.0)
    with pytest.raises(SleyError, match="129") as info:
        pack_forest(builder.topology())
    assert info.value.code == "T612"


def test_many_nodes_whose_gpus_only_the_network_joins_are_refused() -> None:
    builder = Builder("cards", np.repeat(np.arange(33), 4))
    cards = builder.add(VertexKind.NIC, np.repeat(np.arange(33), 4))
    network = builder.add(VertexKind.NETWORK, [NONE])
    builder.both(np.arange(132), cards, LinkKind.PCIE, 25.0, 25.0)
    builder.both(cards, np.repeat(network, 132), LinkKind.NETWORK, 25.0, 25.0)
    with pytest.raises(SleyError, match="T612"):
        pack_forest(builder.topology())


@pytest.mark.parametrize("slow", [1e-3, 1e-6])
def test_links_of_very_different_rates_have_trees_and_routes(slow: float) -> None:
    """The narrowest rank's rate is the solver's unit, not the widest link's."""
    builder = Builder("uneven", [0, 0, 0])
    rates = np.array([slow, 1e6, 1e6])
    builder.both([0, 1, 2], [1, 2, 0], LinkKind.NVLINK, rates, rates)
    topology = builder.topology()
    for collective, made in COLLECTIVES.items():
        bound = Bounds.of(made(3), topology).algbw_GBps
        found = Synthesis.of(collective, topology).algbw_GBps
        assert 0.6 * bound < found <= bound * (1 + 1e-6)
    routing = find_routes(topology)
    assert routing.algbw_GBps >= 0.9 * routing.optimum_GBps


@pytest.mark.parametrize("channels", [1, 3])
def test_trees_take_no_more_channels_than_given(channels: int) -> None:
    forest = pack_forest(topologies.dgx1())
    program = sley.algorithms.forest_allreduce(8, trees=forest.rows, channels=channels)
    assert set(program.transfers.channel.tolist()) - {NONE} == {*range(2 * channels)}
    with pytest.raises(SleyError, match="L102"):
        sley.algorithms.forest_allgather(8, channels=0)


@pytest.mark.parametrize(
    "trees",
    [
        [[0, -1, 0], [0, 1, -1]],  # without chunks
        [[1, -1, -1], [1, 1, -1]],  # two roots
        [[1, -1, 2], [1, 1, -1]],  # a parent that is no rank
        [[1, -1], [1, 1, -1]],
        "trees",
        [[1.5, -1, 0], [1.5, 1, -1]],
    ],
)
def test_rows_that_are_no_forest_are_refused(trees: Any) -> None:
    for name in COLLECTIVES:
        with pytest.raises(SleyError) as info:
            CATALOG[f"forest-{name}"].function(2, trees=trees)
        assert info.value.code == "L138"


@pytest.mark.parametrize("trees", [[[1, -1, 0]], [[1, -1, 0], [2, 1, -1]]])
def test_shares_differ_only_for_an_allreduce(trees: list[list[int]]) -> None:
    sley.verify(sley.compile(sley.algorithms.forest_allreduce(2, trees=trees)))
    for name in ("allgather", "reducescatter"):
        with pytest.raises(SleyError, match="L138"):
            CATALOG[f"forest-{name}"].function(2, trees=trees)
    with pytest.raises(SleyError, match="L138"):
        sley.algorithms.forest_allreduce(2, trees=trees, up_trees=[[1, 1, -1]])


@examples(24)
@given(direct_topologies())
def test_an_allreduce_comes_near_the_best_shares_of_roots(topology: Topology) -> None:
    made = Synthesis.of("allreduce", topology)
    shares = [check_trees(forest) for forest in made.parts]
    assert shares[0] == shares[1]
    best = fitting_rate(topology, (True, False))
    assert 0.95 * best * (1 - 1e-6) <= made.algbw_GBps <= best * (1 + 1e-6)
    sley.verify(sley.compile(made.program(), topology=topology))


def test_a_cycle_beside_the_root_is_refused() -> None:
    rows = [[1, *(-1 if rank == root else 0 for rank in range(3))] for root in range(3)]
    rows[0] = [1, -1, 2, 1]  # ranks 1 and 2 send to each other
    with pytest.raises(SleyError, match="L138"):
        sley.algorithms.forest_allgather(3, trees=rows)


def test_trees_of_many_nodes_share_channels() -> None:
    """Trees from 8 nodes use the same links in each: a channel for each would be 119 blocks if none
    passed data on. Both are compared; one channel always is, as its plans have more instances."""
    for name, expected in (("1x4", [1]), ("2x4", [2, 1]), ("8x8", [8, 1, 2])):
        made = Synthesis.of("allgather", topologies.find(name), chunks=1)
        programs = made.compared_programs(made.topology.model.most_blocks, in_place=True)
        assert [int(one.transfers.channel.max()) + 1 for one in programs] == expected


def test_sums_along_trees_are_as_fast_as_over_a_mesh() -> None:
    """HM goes the same ways. Trees are slower if all ranks wait for the same one first."""
    programs = [
        sley.synthesize("reducescatter", "ndv4:2", chunks=1, in_place=True),
        sley.algorithms.hm_reducescatter(2, 8, in_place=True),
    ]
    trees, mesh = (
        simulate(sley.compile(one, topology="ndv4:2", protocol="Simple", instances=2), "1G").time_us
        for one in programs
    )
    assert trees < mesh


def sends(topology: Topology) -> int:
    """The most transfers that a rank's data needs, breadth first."""
    ranks, most = range(topology.ranks), 0
    for root in ranks:
        reached, count = {root}, 0
        while len(reached) < topology.ranks:
            near = [(a, b) for a in reached for b in ranks]
            src, dst = np.array(near, np.int32).T
            reached |= set(dst[topology.are_linked(src, dst)].tolist())
            count += 1
        most = max(most, count)
    return most


@examples(36)
@given(
    st.one_of(direct_topologies(), switched_topologies()),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([0, 1, 2, None]),
)
def test_matched_trees_keep_to_their_height(
    topology: Topology, chunks: int, up: bool, higher: int | None
) -> None:
    least = least_height(topology)
    assert least == sends(topology)
    limit = None if higher is None else least + higher
    forest = match_forest(topology, up=up, chunks=chunks, height=limit)
    assert check_trees(forest) == [chunks] * topology.ranks
    depth = [
        len(above(parent, rank))
        for parent in forest.parent.tolist()
        for rank in range(topology.ranks)
    ]
    assert forest.height == max(depth)
    assert least <= forest.height <= (topology.ranks if limit is None else limit)
    tree, rank = np.nonzero(forest.parent != NONE)
    ends = [forest.parent[tree, rank], rank]
    assert topology.are_linked(*np.array(ends[::-1] if up else ends, np.int32)).all()
    if not up and topology.ranks > 1:
        assert forest.algbw_GBps == pytest.approx(bandwidth(forest))
    with pytest.raises(SleyError, match="T612"):
        match_forest(topology, height=least - 1)


def test_a_fast_detour_leaves_no_rank_too_far() -> None:
    """Over rank 1 data is earlier at rank 2, but then too many sends from rank 0 for rank 3."""
    topology = Topology.from_links("detour", 4, [(0, 1), (1, 2)] * 3 + [(0, 2), (2, 3)])
    for limit, height in ((2, 2), (None, 3)):
        forest = match_forest(topology, height=limit)
        check_trees(forest)
        assert forest.height == height


def matched(
    ranks: int, src: Any, dst: Any, paths: list[list[int]], time: list[float], root: Any, most: Any
) -> list[list[int]]:
    """The plain twin of `match_chunks`: looks at all sends each time."""
    parent = [[NONE] * ranks for _ in root]
    held = [{rank: (0.0, 0)} for rank in root]  # by chunk: the arrival and sends, by rank
    free, sent = [0.0] * len(time), [0] * len(src)
    order = [[c for c, at in enumerate(root) if at == rank] for rank in range(ranks)]
    while True:
        best: tuple[Any, ...] = ()
        for p, (a, b) in enumerate(zip(src, dst, strict=True)):
            ready = max(free[link] for link in paths[p])
            for place, c in enumerate(order[a]):
                if b not in held[c] and held[c][a][1] < most[root[c]][b]:
                    start = max(ready, held[c][a][0])
                    arrival = start + max(time[link] for link in paths[p])
                    key = arrival, sent[p], p, len(held[c]), place, c, start
                    best = min(best or key, key)
        if not best:
            return parent
        arrival, _, p, _, _, c, start = best
        for link in paths[p]:
            free[link] = start + time[link]
        sent[p] += 1
        parent[c][dst[p]] = src[p]
        held[c][dst[p]] = arrival, held[c][src[p]][1] + 1
        order[dst[p]].append(c)


@examples(36)
@given(st.data())
def test_chunks_are_matched_in_the_order_of_their_arrivals(data: st.DataObject) -> None:
    ranks, links = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 6))
    every = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    src, dst = zip(*data.draw(st.permutations(every)), strict=True)
    path = st.lists(st.integers(0, links - 1), min_size=1, max_size=3, unique=True)
    paths = [data.draw(path) for _ in every]
    time = data.draw(st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=links, max_size=links))
    root = data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6))
    most = data.draw(
        st.lists(
            st.lists(st.integers(1, 3), min_size=ranks, max_size=ranks),
            min_size=ranks,
            max_size=ranks,
        )
    )
    found = match_chunks(
        ranks,
        src=np.array(src),
        dst=np.array(dst),
        first=np.cumsum([0, *map(len, paths)]),
        path=np.concatenate(paths),
        time=np.array(time),
        root=np.array(root),
        most=np.array(most).ravel(),
    )
    assert found.tolist() == matched(ranks, src, dst, paths, time, root, most)


@pytest.mark.parametrize(
    ("name", "height", "chunks", "share"),
    [
        *(("ndv4", 1, 1, 1.0), ("ndv4:4", 1, 1, 0.125), ("ndv4:4", 2, 1, 1.0)),
        *(("dgx1", 2, 1, 0.58), ("dgx1", 2, 4, 0.66), ("torus:4x4", 4, 4, 1.0)),
        ("gb200-nvl72:2", 3, 2, 0.99),
    ],
)
def test_low_trees_share_links(name: str, height: int, chunks: int, share: float) -> None:
    topology = topologies.find(name)
    forest = match_forest(topology, chunks=chunks, height=height)
    bounds = Bounds.of(sley.AllGather(topology.ranks), topology)
    assert forest.height == height
    assert forest.algbw_GBps >= share * bounds.algbw_GBps


def test_the_front_goes_from_low_trees_to_the_most_bandwidth() -> None:
    """For small sizes few sends are faster, for large ones much bandwidth."""
    collective = "reducescatter"
    topology = topologies.dgx1()
    low = low_trees(collective, topology)
    assert low[0].parts[0].height == least_height(topology)
    options = {"in_place": True, "schedule": "msccl", "protocol": "LL", "instances": 1}
    found = fastest(collective, topology, 1 << 10, **options)
    front, small, choice = found.front, found.synthesis, found.choice
    assert choice.program.transfers == small.program(in_place=True).transfers
    if collective == "reducescatter":  # a send more, but fewer sums in turn
        assert (front.pop(), small.sends) == (small, min(one.sends for one in front) + 1)
    else:
        assert small.sends == min(one.sends for one in front)
    large = fastest(collective, topology, 1 << 27, **options).synthesis
    assert large.algbw_GBps > 1.15 * small.algbw_GBps
    most = max(one.algbw_GBps for one in front)
    assert most >= Synthesis.of(collective, topology).algbw_GBps
    assert (front[-1].algbw_GBps, front[-1].is_even) == (pytest.approx(most), True)
    for one in front[:-1]:
        lower = [o for o in front if o.sends < one.sends and o.chunks <= one.chunks]
        limit = max([o.algbw_GBps for o in lower], default=0)
        assert one.algbw_GBps > 1.1 * limit or one.algbw_GBps == most


def test_small_tiles_fill_tall_trees_sooner() -> None:
    topology = topologies.find("nd-gb200:2")
    options = {"chunks": 1, "in_place": True, "schedule": "msccl", "instances": 3}
    found = fastest("reducescatter", topology, 1 << 30, tiles=TILES, **options)
    assert found.tile == 0.0625
    plan, model = found.choice.plan, topology.model
    small = replace(model, tile_bytes=model.tile_bytes * found.tile)
    times = [sley.simulate(plan, "1G", topology, model=one).time_us for one in (small, model)]
    assert times[0] == pytest.approx(found.choice.end.time_us)
    assert times[0] < 0.98 * times[1]
    # A call that a whole tile doesn't cut has no smaller ones.
    assert fastest("reducescatter", topology, 1 << 20, tiles=TILES, **options).tile == 1


def test_only_calls_that_tiles_cut_take_more_blocks_for_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ties = list[float]()

    def recorded(*given: Any, tie: float, **more: Any) -> Choices:
        ties.append(tie)
        return search_ranges(*given, tie=tie, **more)

    monkeypatch.setattr(tree_search, "search_ranges", recorded)
    options = {"chunks": 1, "in_place": True, "schedule": "msccl", "protocol": "Direct"}
    for size in (1 << 20, 1 << 30):
        fastest("allgather", topologies.ndv4(), size, instances=1, **options)
    assert ties == [0.01, 0.002]


def test_more_instances_of_trees_that_share_a_channel_fill_links() -> None:
    """With a channel for each of the trees with a common edge a GPU has too few blocks for the
    instances that fill the links."""
    topology, options = topologies.find("mi355x:2"), {"schedule": "hpds", "protocol": "Direct"}
    options |= {"chunks": 12, "in_place": True, "instances": [1, 6], "tiles": (0.25,)}
    found = fastest("allgather", topology, 1 << 30, **options)
    assert found.choice.program.transfers.channel.max() == 0
    assert found.choice.plan.slots == 8
    assert found.choice.end.of_bound > 0.97


@pytest.mark.parametrize(
    ("held", "most", "options"),
    [
        (8, None, {"collective": "reducescatter"}),  # of sums in several orders no plan fits
        (49, 24, {"collective": "allgather", "schedule": "hpds", "instances": [1, 2]}),
    ],
)
def test_a_plan_that_fits_is_taken_though_others_are_faster(
    held: int, most: int | None, options: dict[str, Any]
) -> None:
    machine = topologies.find("dgx1")
    topology = replace(machine, model=replace(machine.model, multiprocessors=held))
    options |= {"size": 1 << 28, "in_place": True, "protocol": "Simple", "most_blocks": most}
    assert fastest(topology=topology, **options).choice.plan.blocks_per_rank <= (most or held)


def test_as_many_blocks_are_used_as_links_need() -> None:
    """With slow blocks, 3 and 6 instances fit where 4 and 8 don't, and 2 and 4 fill no link."""
    options = {"chunks": 1, "in_place": True, "schedule": "msccl"}
    topology = topologies.find("resccl")
    for collective, least in (("allgather", 0.98), ("allreduce", 0.84)):
        found = fastest(collective, topology, 1 << 30, **options)
        assert found.choice.end.of_bound > least
        assert found.choice.plan.blocks_per_rank <= topology.model.multiprocessors


def test_even_trees_with_more_connections_than_blocks_may_fit() -> None:
    topology = topologies.mi250x()
    made = Synthesis.of("allreduce", topology, chunks=2).even
    most = topology.model.most_blocks
    own, *shared = made.compared_programs(most, in_place=True)
    assert made.connections > most
    options = {"topology": topology, "protocol": "Direct", "verify": False}
    plan, *others = (sley.compile(program, **options) for program in (own, *shared))
    assert plan.blocks_per_rank <= topology.model.multiprocessors
    share, *less = (sley.simulate(one, "1G").of_bound for one in (plan, *others))
    assert share > max(0.8, *less)


@pytest.mark.parametrize("held", [True, False])
def test_few_trees_of_an_allreduce_need_few_blocks(held: bool) -> None:
    """The trees of all ranks would share blocks, in which they wait for one another."""
    topology, options = topologies.dgx1(), {"protocol": "Simple", "in_place": True}
    if held:
        topology = replace(topology, model=replace(topology.model, multiprocessors=16))
    found = fastest("allreduce", topology, 1 << 28, **options, most_blocks=None if held else 16)
    assert found.synthesis.chunks < topology.ranks
    assert found.choice.plan.blocks_per_rank <= 16
    assert found.choice.end.of_bound > 0.7


def test_even_trees_fill_links_that_one_block_can_not() -> None:
    topology = topologies.find("ndv4:2")
    made = Synthesis.of("allgather", topology, within=0.01)
    even = made.even
    assert (made.is_even, even.is_even) == (False, True)
    assert even.loads == pytest.approx(made.loads)
    assert even.chunks == made.chunks
    options = {"topology": topology, "protocol": "Direct", "verify": False}
    share, of_even = (
        sley.simulate(sley.compile(one.program(in_place=True), **options), "1G").of_bound
        for one in (made, even)
    )
    assert share < 0.93
    assert of_even > 0.95


def test_after_the_limit_of_time_nothing_further_is_compared() -> None:
    options = {"in_place": True, "schedule": "msccl", "instances": [1, 4]}
    found = fastest("allgather", topologies.dgx1(), 1 << 20, limit_s=1e-9, **options)
    whole = fastest("allgather", topologies.dgx1(), 1 << 20, **options)
    assert (len(found.front), whole.left) == (1, 0)
    assert found.left > 0
    assert found.choice.end.time_us > whole.choice.end.time_us


def test_one_rank_needs_no_sends() -> None:
    topology = Topology.cluster(1, 1)
    assert least_height(topology) == match_forest(topology).height == 0
    assert [one.sends for one in low_trees("allgather", topology)] == [0]
