"""Tests of the parts of the bounds: cuts, groups, equivalent nodes, needs, latencies."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
)
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.topology import Builder, Topology
from sley.model.bounds import Bounds
from sley.model.bounds.cuts import Cuts
from sley.model.bounds.groups import describe_gpus, levels_of, representatives
from sley.model.bounds.latency import _mixed_pairs
from sley.model.bounds.mixed import entering_chunks
from sley.model.bounds.needs import Collect, Everywhere, Exchange, Mixed, Spread, needs_of
from support.generators.bound_graphs import cut_GBps, simple_ways, topologies, vertex_sets
from support.generators.examples import examples


@examples(14)
@given(topologies(), st.integers(0, 2**32), st.booleans())
def test_min_cut_is_the_narrowest_of_all_cuts(topology: Topology, seed: int, into: bool) -> None:
    draw = np.random.default_rng(seed)
    ranks = int(draw.integers(2, topology.ranks + 1))
    gpus = np.zeros(topology.ranks, bool)
    gpus[draw.choice(ranks, int(draw.integers(1, ranks)), replace=False)] = True
    chosen, rest = ({int(r) for r in np.flatnonzero(g)} for g in (gpus[:ranks], ~gpus[:ranks]))
    if into:
        chosen, rest = rest, chosen
    narrowest = min(
        cut_GBps(topology, s) for s in vertex_sets(topology) if chosen <= s and not rest & s
    )
    cuts = Cuts(topology, ranks, nominal=False)
    assert cuts.leaving_GBps(gpus, into=into) == pytest.approx(narrowest, rel=1e-6)


def test_needs_are_derived_from_the_postcondition() -> None:
    kinds = {
        Spread: [AllGather(4, 2), Broadcast(4), Broadcast(3, 2, root=1, in_place=True)],
        Collect: [ReduceScatter(4, 2), Reduce(4), Reduce(3, 2, root=1, in_place=True)],
        Everywhere: [AllReduce(4, 3), AllReduce(2, 1, in_place=True)],
        Exchange: [AllToAll(4), Scatter(4, 2), Gather(3), AllGather(2), AllReduce(1)],
    }
    for kind, collectives in kinds.items():
        for collective in collectives:
            assert isinstance(needs_of(collective), kind), collective
    some = Custom("some", 3, 1, 1, lambda rank, _: [(0, 0)] if rank < 2 else [(0, 0), (1, 0)])
    assert isinstance(needs_of(some), Mixed)
    all_but_one = Custom("all-but-one", 4, 1, 2, lambda r, i: [((r + i + 1) % 4, 0)])
    assert isinstance(needs_of(all_but_one), Mixed)


def test_needs_count_the_chunks_of_each_rank() -> None:
    gather = needs_of(AllGather(3, 2))
    assert isinstance(gather, Spread)
    assert gather.chunks.tolist() == [2, 2, 2]
    root = needs_of(Reduce(3, 5, root=1))
    assert isinstance(root, Collect)
    assert root.chunks.tolist() == [0, 5, 0]
    scatter = needs_of(Scatter(3, 4, root=1))
    assert isinstance(scatter, Exchange)
    assert (scatter.src.tolist(), scatter.dst.tolist()) == ([1, 1], [0, 2])
    assert scatter.chunks.tolist() == [4, 4]


@examples(36)
@given(st.data())
def test_entering_chunks_is_a_lower_bound_of_the_matrix_rank(data: st.DataObject) -> None:
    """The bound is at most the rank of the matrix of all parts needed from outside."""
    ranks = data.draw(st.integers(2, 4))
    owner = data.draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=6))
    chunk = st.integers(0, len(owner) - 1)
    parts = data.draw(st.lists(st.sets(chunk, min_size=1), min_size=1, max_size=5))
    pair = st.tuples(st.integers(0, ranks - 1), st.integers(0, len(parts) - 1))
    wants = sorted(data.draw(st.sets(pair, min_size=1)))
    inside = np.array(data.draw(st.lists(st.booleans(), min_size=ranks, max_size=ranks)))
    inputs = np.array([i for part in parts for i in sorted(part)])
    needs = Mixed(
        np.array([r for r, _ in wants]),
        np.array([v for _, v in wants]),
        np.concatenate([[0], np.cumsum([len(part) for part in parts])]),
        inputs,
        np.array(owner)[inputs],
    )
    rows = [
        [i in parts[v] and not inside[owner[i]] for i in range(len(owner))]
        for r, v in wants
        if inside[r]
    ]
    independent = int(np.linalg.matrix_rank(np.array(rows, float))) if rows else 0
    found = entering_chunks(needs, inside)
    assert found <= independent
    assert (found > 0) == (independent > 0)
    if all(len(part) == 1 for part in parts):
        assert found == independent


@examples(10)
@given(st.integers(2, 200), st.integers(1, 12), st.integers(0, 2**32))
def test_latency_pairs_are_all_owners_of_a_value_with_all_ranks_that_need_it(
    ranks: int, values: int, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    start = np.concatenate([[0], np.cumsum(draw.integers(1, 4, values))])
    owner = draw.integers(0, ranks, start[-1])
    rank, value = np.divmod(np.unique(draw.integers(0, ranks * values, 30)), values)
    found = _mixed_pairs(ranks, Mixed(rank, value, start, np.arange(start[-1]), owner))
    assert list(zip(*(column.tolist() for column in found), strict=True)) == sorted(
        {
            (src, dst)
            for dst, v in zip(rank.tolist(), value.tolist(), strict=True)
            for src in owner[start[v] : start[v + 1]].tolist()
            if src != dst
        }
    )


def test_latency_pairs_take_no_memory_for_every_value_of_a_pair() -> None:
    ranks, values = 64, 256
    every_rank, every_value = np.arange(ranks), np.arange(values)
    needs = Mixed(
        rank=np.repeat(every_rank, values),
        value=np.tile(every_value, ranks),
        start=np.arange(values + 1) * ranks,
        inputs=np.arange(values * ranks),
        owner=np.tile(every_rank, values),
    )
    tracemalloc.start()
    src, _ = _mixed_pairs(ranks, needs)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(src) == ranks * (ranks - 1)
    assert most < 8 * ranks * ranks * values / 4  # a quarter of one number for each


def test_levels_of_a_cluster_are_gpus_cards_and_nodes() -> None:
    cluster = Topology.cluster(3, 4, 2)
    levels = levels_of(cluster)
    assert [level.word for level in levels] == ["GPU", "group with one network card", "node"]
    assert levels[1].group.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert levels[2].group.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def racks() -> Topology:
    """Four nodes of two GPUs, two nodes a rack, with narrow links between the racks."""
    node = np.repeat(np.arange(4), 2)
    builder = Builder("racks", node)
    inner = builder.add(VertexKind.SWITCH, np.arange(4))
    card = builder.add(VertexKind.NIC, node)
    leaf = builder.add(VertexKind.NETWORK, [-1, -1])
    spine = builder.add(VertexKind.NETWORK, [-1])
    builder.both(np.arange(8), inner[node], LinkKind.NVLINK, 300, 230)
    builder.both(np.arange(8), card, LinkKind.PCIE, 25, 24)
    builder.both(card, leaf[node // 2], LinkKind.NETWORK, 25, 24)
    builder.both(leaf, spine, LinkKind.NETWORK, 10, 10)
    return builder.topology()


def test_links_between_racks_bound_the_collectives() -> None:
    topology = racks()
    assert [level.word for level in levels_of(topology)] == ["GPU", "node", "rack"]
    gather = Bounds.of(AllGather(8), topology)
    assert gather.algbw_GBps == pytest.approx(20)
    assert gather.reason == "0.5 times the size into nodes 2-3 at 10 GB/s"
    reduce = Bounds.of(AllReduce(8), topology)
    assert reduce.algbw_GBps == pytest.approx(10)
    assert Bounds.of(AllToAll(8), topology).algbw_GBps == pytest.approx(10 * 8 / 16)


def test_a_mark_or_a_slower_link_makes_a_node_represent_itself() -> None:
    topology = racks()
    mark = np.zeros(8, np.int64)
    assert representatives(topology, topology.links.GBps, mark).tolist() == [0, 1, 0, 1, 4, 5, 4, 5]
    mark[2] = 1
    assert representatives(topology, topology.links.GBps, mark).tolist() == [0, 1, 2, 3, 4, 5, 4, 5]
    rates = topology.links.GBps.copy()
    rates[topology.links.dst == 3] /= 2
    mark[2] = 0
    assert representatives(topology, rates, mark).tolist() == [0, 1, 2, 3, 4, 5, 4, 5]


@examples(5)
@given(st.integers(2, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_bounds_from_representatives_equal_bounds_from_all_gpus(
    nodes: int, gpus: int, seed: int
) -> None:
    """The bounds are the same on a topology in which every GPU represents only itself."""
    cluster = Topology.cluster(nodes, gpus)
    draw = np.random.default_rng(seed)
    slowed = cluster.links.GBps * draw.choice([1, 1, 1, 0.5], len(cluster.links))
    links = replace(cluster.links, GBps=slowed)
    for ranks in (cluster.ranks, max(cluster.ranks - 1, 2)):
        for collective in (AllGather(ranks), AllReduce(ranks), AllToAll(ranks), Broadcast(ranks)):
            topology = Topology("slowed", cluster.vertices, links)
            found = Bounds.of(collective, topology)
            # The same links with latencies that differ between nodes: no nodes are equivalent.
            own = np.where(cluster.links.kind == LinkKind.NVLINK, 1.0, 1.0 + np.arange(len(links)))
            apart = Topology("apart", cluster.vertices, replace(links, latency_us=own))
            alone = Bounds.of(collective, apart)
            assert found.algbw_GBps == pytest.approx(alone.algbw_GBps, rel=1e-6)


def test_describe_gpus_names_nodes_and_ranges() -> None:
    cluster = Topology.cluster(4, 2)
    for gpus, words in (
        ([3], "GPU 3"),
        ([2, 3], "node 1"),
        ([2, 3, 4, 5], "nodes 1-2"),
        ([0, 1, 4, 5], "2 nodes from 0 on"),
        ([1, 2], "GPUs 1-2"),
        ([1, 2, 5], "3 GPUs from 1 on"),
    ):
        assert describe_gpus(np.array(gpus), cluster) == words


@examples(14)
@given(topologies(), st.booleans(), st.integers(0, 2**32))
def test_latency_is_the_longest_of_the_shortest_paths(
    topology: Topology, own: bool, seed: int
) -> None:
    ranks, model = topology.ranks, topology.model
    if own:
        said = np.random.default_rng(seed).integers(1, 50, len(topology.links)) / 10
        topology = replace(topology, links=replace(topology.links, latency_us=said))
    links = topology.links
    by_kind = [getattr(model, f"{kind.name.lower()}_latency_us").ll for kind in LinkKind]
    far = np.full((ranks, ranks), np.inf)
    np.fill_diagonal(far, 0)
    for src, dst in permutations(range(ranks), 2):
        for way in simple_ways(topology, src, dst):
            if all(links.dst[row] >= ranks for row in way[:-1]):
                hop = links.latency_us[way].sum() if own else by_kind[links.kind[way].max()]
                far[src, dst] = min(far[src, dst], hop)
    for middle in range(ranks):
        far = np.minimum(far, far[:, middle, None] + far[None, middle])

    def hops_us(collective: Collective) -> float:
        return Bounds.of(collective, topology).at(1).latency_us - model.launch_us.ll

    assert hops_us(AllGather(ranks)) == pytest.approx(far.max())
    assert hops_us(Broadcast(ranks)) == pytest.approx(far[0].max())
    assert hops_us(Reduce(ranks, root=1)) == pytest.approx(far[:, 1].max())
    assert hops_us(AllToNext(ranks)) == pytest.approx(
        far[np.arange(ranks - 1), np.arange(1, ranks)].max()
    )


def test_latency_counts_the_hops_over_other_gpus() -> None:
    """In a chain of GPUs the ends are three hops apart, and neighbours one."""
    path = Topology.from_links("path", 4, [(0, 1), (1, 2), (2, 3)])
    assert Bounds.of(AllGather(4), path).at(1).latency_us == pytest.approx(6.6 + 3 * 0.6)
    assert Bounds.of(Gather(4, root=1), path).at(1).latency_us == pytest.approx(6.6 + 2 * 0.6)
    swap = Custom("swap", 4, 1, 1, lambda rank, _: [(rank ^ 1, 0)])
    assert Bounds.of(swap, path).at(1).latency_us == pytest.approx(6.6 + 0.6)
    own = replace(path.links, latency_us=np.full(len(path.links), 2.5))
    slow = Topology("slow", path.vertices, own)
    assert Bounds.of(AllToAll(4), slow).at(1).latency_us == pytest.approx(6.6 + 3 * 2.5)
