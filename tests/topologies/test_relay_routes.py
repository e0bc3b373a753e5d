"""Routes of an AllToAll: whose link loads come near a linear program's optimum, and never exceed
it; proven programs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

import sley
from sley import Protocol, SleyError, Topology, topologies
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.linear import LinearProgram
from sley.ir.tables import NONE
from sley.ir.topology import Builder
from sley.model.bounds import Bounds
from sley.topologies import Routing, find_routes
from support.generators.examples import examples
from support.generators.fabrics import direct_topologies, switched_topologies


def check_routes(routes: Routing) -> None:
    """As many chunks come from each rank to each other, over ranks that are linked."""
    topology = routes.topology
    chunks = np.zeros((topology.ranks, topology.ranks), int)
    loads = [0] * len(topology.links)
    path = cache(lambda a, b: topology.paths([a], [b]).target.tolist())
    for weight, *passed in routes.rows.tolist():
        ranks = [rank for rank in passed if rank != NONE]
        assert passed == ranks + [NONE] * (len(passed) - len(ranks))
        assert len({*ranks}) == len(ranks) >= 2
        chunks[ranks[0], ranks[-1]] += weight
        for a, b in pairwise(ranks):
            assert path(a, b)
            for link in path(a, b):
                loads[link] += weight
    assert (chunks + np.eye(len(chunks), dtype=int) * chunks[0, 1] == chunks[0, 1]).all()
    assert routes.chunks == topology.ranks * chunks[0, 1]
    busiest = max(np.array(loads) / topology.links.GBps)
    assert routes.algbw_GBps == pytest.approx(routes.chunks / busiest)


def best(topology: Topology) -> float:
    """The algorithm bandwidth of the best routes: flows from each rank over sends between linked
    ranks, as one linear program."""
    ranks = topology.ranks
    src, dst = (ends.ravel() for ends in np.indices((ranks, ranks), np.int32))
    linked = topology.are_linked(src, dst)
    src, dst = src[linked], dst[linked]
    pairs, paths = len(src), topology.paths(src, dst)
    uses = np.zeros((len(topology.links), pairs))
    np.add.at(uses, (paths.target, np.repeat(np.arange(pairs), np.diff(paths.offset))), 1)
    # Variables: the flow of each rank's data over each pair, and the time.
    kept, wanted = [], []
    for origin in range(ranks):
        for rank in range(ranks):
            if rank != origin:
                row = np.zeros(ranks * pairs + 1)
                row[origin * pairs : (origin + 1) * pairs] = 1.0 * (dst == rank) - (src == rank)
                kept.append(row)
                wanted.append(1.0)
    within = np.column_stack([np.tile(uses, ranks), -topology.links.GBps])
    goal = np.zeros(ranks * pairs + 1)
    goal[-1] = 1
    found = linprog(goal, within, np.zeros(len(within)), np.array(kept), np.array(wanted))
    return float(ranks / found.x[-1])


drawn = st.one_of(direct_topologies(), switched_topologies()).filter(lambda one: one.ranks > 1)


@examples(36)
@given(drawn, st.sampled_from([None, 1, 3]))
def test_routes_come_near_the_best_ones(topology: Topology, chunks: int | None) -> None:
    routes = find_routes(topology, chunks=chunks)
    check_routes(routes)
    most = best(topology)
    assert most * (1 - 1e-6) <= routes.optimum_GBps <= most * (1 + 2e-3)
    bounds = Bounds.of(sley.AllToAll(topology.ranks), topology)
    assert routes.algbw_GBps <= min(most, bounds.algbw_GBps) * (1 + 1e-6)
    assert routes.algbw_GBps >= (0.9 if chunks is None else 0.5) * most


@examples(15)
@given(drawn, st.booleans(), st.sampled_from(["msccl", "hpds"]), st.sampled_from([1, 2]))
def test_programs_along_routes_are_proven(
    topology: Topology, in_place: bool, schedule: str, chunks: int
) -> None:
    program = sley.synthesize("alltoall", topology, chunks=chunks, in_place=in_place)
    sley.verify(sley.compile(program, topology=topology, schedule=schedule))


@pytest.mark.parametrize("in_place", [False, True])
def test_routes_move_the_data(in_place: bool) -> None:
    """Data that waits on ranks between, run on processes."""
    program = sley.synthesize("alltoall", "dgx1", chunks=2, in_place=in_place)
    plan = sley.compile(program, topology="dgx1", protocol=Protocol.SIMPLE)
    (row,) = sley.run(plan, "64K", dtype="int32")
    assert row.wrong == 0


def test_what_goes_on_together_is_one_transfer() -> None:
    """Rank 2 passes on what ranks 0 and 1 have for rank 3."""
    over = {(0, 3): [0, 2, 3], (1, 3): [1, 2, 3]}
    rows = [[1, *over.get(ends, [*ends, NONE])] for ends in permutations(range(4), 2)]
    program = sley.algorithms.routed_alltoall(4, routes=rows, in_place=True)
    sley.verify(sley.compile(program))
    t = program.transfers
    sent = zip(t.src.tolist(), t.dst.tolist(), t.count.tolist(), strict=True)
    assert sorted(count for a, b, count in sent if (a, b) == (2, 3)) == [1, 2]
    # Blocks that receive share the copies out of scratch, of what came in one send.
    assert t.count[t.src == t.dst].tolist() == [1] * 10
    # What rank 2 passes on doesn't wait behind what it sends.
    assert {*t.channel[(t.src == 2) & (t.dst == 3)].tolist()} == {0, 1}


@pytest.mark.parametrize(
    ("name", "share", "longest"),
    [
        *(("ndv4:2", 1.0, 1), ("mi300x", 1.0, 1), ("dgx1:2", 1.0, 2), ("ndv2:2", 1.0, 2)),
        *(("dgx1", 0.96, 4), ("mi250x", 0.96, 8), ("torus:4x4", 0.95, 6), ("pcie-8:2", 0.92, 4)),
    ],
)
def test_link_loads_of_machines(name: str, share: float, longest: int) -> None:
    routes = find_routes(topologies.find(name), within=0.03)
    bounds = Bounds.of(sley.AllToAll(routes.topology.ranks), routes.topology)
    assert routes.algbw_GBps >= share * bounds.algbw_GBps * (1 - 1e-9)
    assert routes.height <= longest


def test_direct_transfers_that_reach_the_bound_need_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(LinearProgram, "solve")
    routes = find_routes(topologies.dgx2(4))
    assert (routes.height, len(routes.weight)) == (1, 64 * 63)
    assert routes.algbw_GBps == pytest.approx(routes.optimum_GBps)
    with pytest.raises(AttributeError):
        find_routes(topologies.mi250x())


@pytest.mark.parametrize("name", ["torus:3x3", "mesh:2x5", "ndv2", "2x4:2"])
def test_equal_ranks_share_variables_of_the_program(name: str) -> None:
    topology = topologies.find(name)
    routes = find_routes(topology, within=0.0)
    check_routes(routes)
    assert routes.optimum_GBps == pytest.approx(best(topology), rel=2e-3)


@pytest.mark.parametrize(
    ("topology", "rate", "longest", "connections"),
    [
        (topologies.ndv4(9), 0.99, 2, 7 + 8),  # with its node, and one rank of each other node
        (topologies.mi250x(5), 0.99, 2, 15 + 4),
        (topologies.torus(3, 5, 5), 0.95, 5, 6),
        (topologies.dgx_h100(9).without("nic3@1"), 0.9, 3, 60),
    ],
    ids=lambda one: one.name if isinstance(one, Topology) else "",
)
def test_routes_of_many_ranks(
    topology: Topology, rate: float, longest: int, connections: int
) -> None:
    """They come near the best ones, over few connections."""
    routes = find_routes(topology)
    check_routes(routes)
    assert routes.algbw_GBps >= rate * routes.optimum_GBps
    assert routes.height <= longest
    route, turn = np.nonzero(routes.passed[:, 1:] != NONE)
    ends = np.stack([routes.passed[route, turn], routes.passed[route, turn + 1]])
    assert np.bincount(np.unique(ends, axis=1)[0]).max() <= connections


def test_programs_of_many_ranks_are_proven() -> None:
    program = sley.synthesize("alltoall", "9x8", in_place=True)
    sley.verify(sley.compile(program, topology="9x8"))


@pytest.mark.slow
def test_routes_of_512_ranks() -> None:
    routes = find_routes(topologies.torus(8, 8, 8))
    assert routes.optimum_GBps == pytest.approx(20.0)
    assert routes.algbw_GBps >= 0.95 * routes.optimum_GBps


def test_whole_chunks_keep_off_links_that_are_much_slower() -> None:
    """As those that other groups leave: a share that is rounded up would take all the time."""
    whole = topologies.dgx1()
    rates = np.where(np.arange(len(whole.links)) % 5 == 0, 1e-3, 1.0) * whole.links.GBps
    routes = find_routes(replace(whole, links=replace(whole.links, GBps=rates)))
    check_routes(routes)
    assert routes.algbw_GBps >= 0.9 * routes.optimum_GBps


@pytest.mark.parametrize("name", ["dgx-h100:2", "dgx-h100:4", "ndv4:2"])
def test_chunks_leave_the_busiest_cards_beside_a_broken_or_slow_one(name: str) -> None:
    """By the flows' shares alone, the card of a rank that passes on much had 11 chunks instead of 9
    on two DGX-H100 with one card at half its rate."""
    topology = topologies.find(name)
    for left in (topology.without("nic1@0"), topology.degraded("nic1@0", 0.5)):
        routes = find_routes(left)
        check_routes(routes)
        assert routes.algbw_GBps >= 0.95 * routes.optimum_GBps


def test_what_no_routes_reach_is_refused() -> None:
    builder = Builder("apart", np.zeros(2, int))
    card = builder.add(VertexKind.NIC, [0])
    builder.both(np.arange(2), np.repeat(card, 2), LinkKind.PCIE, 25.0, 20.0)
    uneven = topologies.ndv4(9)
    rates = uneven.links.GBps * np.linspace(0.5, 1, len(uneven.links))
    uneven = replace(uneven, links=replace(uneven.links, GBps=rates))
    for topology, found in (
        (builder.topology(), "from rank 0 to 1"),
        (topologies.ndv4(129), "1032"),
        (uneven, "ndv4:9: 3[0-9]{5}"),
    ):
        with pytest.raises(SleyError, match=found) as info:
            sley.synthesize("alltoall", topology)
        assert info.value.code == "T612"


@pytest.mark.parametrize(
    "routes",
    [
        [[1, 0, 1]],  # nothing from rank 1
        [[1, 0, 1], [2, 1, 0]],
        [[0, 0, 1], [0, 1, 0]],  # without chunks
        [[1, 0, 1], [1, 1, 2]],  # no rank
        [[1, 0, 1, 0], [1, 1, 0, -1]],  # rank 0 twice
        [[1, 0, -1, 1], [1, 1, 0, -1]],  # a gap
        [[1, -1], [1, -1]],
        [[1, 0, 1], [1, 1]],
        [[1.0, 0, 1], [1, 1, 0]],
        "routes",
        [[1, 0, 1, -1, -1], [1, 1, 0, 1, 0]],  # rank 1 twice
    ],
)
def test_rows_that_are_no_routes_are_refused(routes: Any) -> None:
    with pytest.raises(SleyError) as info:
        sley.algorithms.routed_alltoall(2, routes=routes)
    assert info.value.code == "L139"
