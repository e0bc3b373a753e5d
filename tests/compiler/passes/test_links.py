"""Links: the transfers that share a link, with and without a topology."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes.links import check_links, used_links
from sley.compiler.passes.parallelize import parallelize
from sley.ir.dag import Links
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.lang import ChunkProgram
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.generators.random_transfers import (
    RandomTransfers,
    clusters,
    random_transfers,
    random_trees,
)
from support.machines import naive_passes


def one_chunk(ranks: int, *pairs: tuple[int, int]) -> Program:
    """A transfer from rank to rank for each pair, each of a chunk of its own."""
    collective = sley.Custom("pairs", ranks, 9, 9, lambda rank, index: None, in_place=True)

    def body(p: ChunkProgram) -> None:
        for chunk, (src, dst) in enumerate(pairs):
            p.transfer(src, dst, 0, chunk, "recv")

    return sley.trace(collective, body, name="pairs")


def names(links: Links, row: int) -> set[int]:
    return {int(links.first[row]), int(links.second[row])} - {NONE}


def test_without_a_topology_a_link_is_a_connection() -> None:
    links = used_links(one_chunk(3, (0, 1), (1, 0), (0, 2), (0, 1)), None)
    assert links.first.tolist() == [0, 2, 1, 0]
    assert links.second.tolist() == [NONE] * 4
    assert links.number == 3
    assert not links.crosses.any()


def test_in_a_node_cards_do_not_matter() -> None:
    program = one_chunk(4, (0, 1), (0, 2), (1, 2), (0, 1))
    links = used_links(program, sley.topologies.cluster(1, 4, 1))
    assert links.first.tolist() == used_links(program, None).first.tolist()
    assert links.second.tolist() == [NONE] * 4


def test_between_nodes_a_transfer_uses_the_cards_of_both() -> None:
    program = one_chunk(4, (0, 2), (0, 3), (1, 3), (2, 0))
    own = used_links(program, sley.topologies.cluster(2, 2))
    assert own.crosses.all()
    # Rank 0 sends twice through its card, rank 3 receives twice through its own.
    assert names(own, 0) & names(own, 1)
    assert names(own, 1) & names(own, 2)
    assert not names(own, 0) & names(own, 2)
    # A card sends and receives at the same time.
    assert not names(own, 0) & names(own, 3)
    shared = used_links(program, sley.topologies.cluster(2, 2, 1))
    assert names(shared, 0) == names(shared, 1) == names(shared, 2)
    assert not names(shared, 0) & names(shared, 3)
    assert shared.number == 4


def test_a_connection_and_a_card_are_never_the_same_link() -> None:
    program = one_chunk(4, (0, 1), (2, 3), (0, 2), (1, 3))
    links = used_links(program, sley.topologies.cluster(2, 2))
    every = [name for row in range(4) for name in names(links, row)]
    assert sorted(every) == list(range(links.number))
    assert links.number == 6


def test_parts_side_by_side_have_links_of_their_own() -> None:
    program = parallelize(one_chunk(4, (0, 2), (1, 3)), 2)
    links = used_links(program, sley.topologies.cluster(2, 2, 1))
    lane = program.transfers.lane
    for one in range(4):
        for two in range(4):
            assert bool(names(links, one) & names(links, two)) == (lane[one] == lane[two])


def test_local_operations_use_no_link() -> None:
    collective = sley.Custom("local", 2, 1, 1, lambda rank, index: [(rank, 0)])
    program = sley.trace(
        collective, lambda p: [p.chunk(r, "in", 0).copy(r, "out", 0) for r in range(2)]
    )
    links = used_links(program, sley.topologies.cluster(2, 1))
    assert (links.number, links.first.tolist(), links.second.tolist()) == (0, [-1, -1], [-1, -1])


def test_a_program_without_transfers_uses_no_link() -> None:
    links = used_links(one_chunk(2), None)
    assert (links.number, len(links.first), len(links.crosses)) == (0, 0, 0)


def check_sharing(program: Program, topology: sley.Topology | None) -> None:
    """Transfers share a number exactly where they share a link by name, and none is unused."""
    links, graph = used_links(program, topology), naive_passes.Graph(program, topology)
    assert links.crosses.tolist() == graph.crosses
    number: dict[object, int] = {}
    for row in range(len(graph)):
        named = graph.links[row]
        assert len(named) == len(names(links, row))
        for other in range(row):
            assert bool(names(links, row) & names(links, other)) == bool(named & graph.links[other])
        number.update(dict.fromkeys(named, 0))
    assert links.number == len(number)
    assert set(np.concatenate([links.first, links.second]).tolist()) - {NONE} == set(
        range(links.number)
    )


@examples(14)
@given(st.one_of(random_transfers(max_transfers=16), random_trees()), st.integers(1, 2))
def test_transfers_share_what_the_topology_says(random: RandomTransfers, instances: int) -> None:
    check_sharing(parallelize(random.program, instances), random.topology)


@examples(14)
@given(random_programs(max_operations=16), st.data())
def test_transfers_of_chunk_programs_share_what_the_topology_says(
    random: RandomProgram, data: st.DataObject
) -> None:
    check_sharing(parallelize(random.program), data.draw(clusters(random.ranks)))


def test_a_transfer_without_a_link_is_refused_with_its_line() -> None:
    ring = sley.Topology.from_links("ring", 3, [(0, 1), (1, 2), (2, 0)], both_ways=False)
    check_links(one_chunk(3, (0, 1), (2, 0)), ring)
    with pytest.raises(sley.SleyError, match=r"rank 1 -> rank 0, which ring does not link") as e:
        check_links(one_chunk(3, (0, 1), (1, 0)), ring)
    assert e.value.code == "C301"
    assert e.value.diagnostics[0].places[0].file == __file__


def test_a_topology_with_fewer_ranks_than_the_program_is_refused() -> None:
    program = one_chunk(3, (0, 1))
    check_links(program, sley.topologies.cluster(2, 2))
    with pytest.raises(sley.SleyError, match="C305"):
        check_links(program, sley.topologies.cluster(1, 2))
