"""Timeline: small ones calculated by hand, others compared with the plain rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes.blocks import assign_blocks, number_blocks
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.fuse import fuse, fuse_copies
from sley.compiler.passes.links import used_links
from sley.compiler.passes.order import order as depth_order
from sley.compiler.passes.parallelize import parallelize
from sley.compiler.passes.pipelines import pipelines
from sley.compiler.passes.timeline import Estimator, HopCosts, sequence_of
from sley.ir.dag import Blocks, InstructionDag, Order
from sley.ir.dependencies import dependencies
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.words import Schedule
from sley.lang import ChunkProgram
from support.generators.examples import examples
from support.generators.random_programs import SCHEDULES, RandomProgram, random_programs
from support.generators.random_transfers import (
    RandomTransfers,
    clusters,
    random_transfers,
    random_trees,
)
from support.inputs.written_programs import lower
from support.machines import naive_passes

ROUND = sley.CostModel(
    nvlink_latency_us=1.0,  # type: ignore[arg-type]
    network_latency_us=10.0,  # type: ignore[arg-type]
    nvlink_block_GBps=1.0,
    network_block_GBps=0.5,
    local_block_GBps=1.0,
    tile_bytes=2000,  # type: ignore[arg-type]
)
TILES = 3
"""A tile takes 2 us inside a node and 4 us between nodes: a transfer takes 7 us or 22 us."""


def cluster(nodes: int, gpus: int, nics: int | None = None) -> sley.Topology:
    """A cluster with these costs."""
    return replace(sley.topologies.cluster(nodes, gpus, nics), model=ROUND)


def estimator_of(low: InstructionDag, topology: sley.Topology | None, tiles: int) -> Estimator:
    """The estimator for Simple."""
    program = low.chunks.program
    costs = HopCosts.of(program, topology, sley.Protocol.SIMPLE, per_chunk=False)
    return Estimator.of(low, used_links(program, topology), costs, tiles)


def lowered(
    program: Program, topology: sley.Topology | None, schedule: Schedule, instances: int = 1
) -> tuple[InstructionDag, Order]:
    """The program lowered and ordered; fused where the schedule is msccl."""
    dag = dependencies(parallelize(program, instances))
    if schedule is Schedule.MSCCL:
        low = assign_channels(dag, fuse(dag, None), 1)
        return low, depth_order(low, 2)
    low = assign_channels(dag, None, 1)
    return low, pipelines(low, used_links(dag.program, topology), schedule)


def spans(
    transfers: Sequence[tuple[int, int, int, int]],
    topology: sley.Topology | None = None,
    schedule: Schedule = Schedule.HPDS,
    ranks: int = 4,
) -> list[tuple[float, float]]:
    """When each of some transfers (src, dst, step, chunk), all recv, is at work."""
    collective = sley.Custom("some", ranks, 4, 4, lambda rank, index: None, in_place=True)

    def body(p: ChunkProgram) -> None:
        for src, dst, step, chunk in transfers:
            p.transfer(src, dst, step, chunk, "recv")

    topology = topology or cluster(1, ranks)
    low, order = lowered(sley.trace(collective, body), topology, schedule)
    found = estimator_of(low, topology, TILES).timeline(order, assign_blocks(low, order))
    t = low.chunks.program.transfers
    row = {(t.src[k], t.dst[k], t.step[k], t.dst_index[k]): k for k in range(len(t))}
    assert found.time_us == max(found.end_us)
    return [(found.start_us[row[key]], found.end_us[row[key]]) for key in transfers]


def test_a_transfer_takes_a_hop_and_its_tiles() -> None:
    assert spans([(0, 1, 0, 0)]) == [(0.0, 7.0)]
    assert spans([(0, 1, 0, 0)], cluster(2, 2)) == [(0.0, 7.0)]
    assert spans([(0, 2, 0, 0)], cluster(2, 2)) == [(0.0, 22.0)]


def test_one_link_carries_one_transfer_at_a_time() -> None:
    assert spans([(0, 1, 0, 0), (0, 1, 0, 1)]) == [(0.0, 7.0), (7.0, 14.0)]
    # Other ranks, the way back, and other peers are other links.
    assert spans([(0, 1, 0, 0), (1, 0, 0, 1), (2, 3, 0, 2), (0, 2, 0, 3)]) == [(0.0, 7.0)] * 4


def test_what_depends_on_a_transfer_starts_with_its_first_tile() -> None:
    assert spans([(0, 1, 0, 0), (1, 2, 1, 0)]) == [(0.0, 7.0), (3.0, 10.0)]
    assert spans([(0, 1, 0, 0), (1, 2, 1, 0), (2, 3, 2, 0)])[2] == (6.0, 13.0)


def test_what_depends_on_a_transfer_ends_no_sooner_than_a_tile_after_it() -> None:
    # First tile after 14 us; alone it would be done at 21 us, but the last tile comes at 22 us.
    assert spans([(0, 2, 0, 0), (2, 3, 1, 0)], cluster(2, 2)) == [(0.0, 22.0), (14.0, 24.0)]
    # The other way round, the slow one sets the pace.
    assert spans([(1, 0, 0, 0), (0, 2, 1, 0)], cluster(2, 2)) == [(0.0, 7.0), (3.0, 25.0)]


def test_ranks_that_share_a_card_take_turns() -> None:
    pair = [(0, 2, 0, 0), (1, 3, 0, 1)]
    assert spans(pair, cluster(2, 2)) == [(0.0, 22.0), (0.0, 22.0)]
    assert spans(pair, cluster(2, 2, 1)) == [(0.0, 22.0), (22.0, 44.0)]
    # Inside the node they don't, and a card sends while it receives.
    others = [(0, 2, 0, 0), (1, 0, 0, 1), (3, 1, 0, 2)]
    assert spans(others, cluster(2, 2, 1)) == [(0.0, 22.0), (0.0, 7.0), (0.0, 22.0)]


def test_a_fused_send_starts_with_its_receive_under_way() -> None:
    relay = [(0, 1, 0, 0), (1, 2, 1, 0)]
    assert spans(relay, schedule=Schedule.MSCCL) == [(0.0, 7.0), (3.0, 10.0)]


@pytest.mark.parametrize("schedule", [Schedule.MSCCL, Schedule.HPDS])
def test_a_copy_that_is_sent_takes_no_time_of_its_own(schedule: Schedule) -> None:
    low = fuse_copies(
        lower("""
            0 in[0] -> 0 out[4]
            0 in[0] -> 1 out[5]
            1 out[5] -> 0 out[4]
        """)
    )
    links = used_links(low.chunks.program, None)
    order = depth_order(low, 2) if schedule is Schedule.MSCCL else pipelines(low, links, schedule)
    assert low.as_ordered(order).copied.tolist() == [-1, 0, -1]
    estimator = estimator_of(low, cluster(1, 2), TILES)
    found = estimator.timeline(order, assign_blocks(low, order))
    # The last transfer overwrites the copy.
    assert found.start_us.tolist() == [0.0, 0.0, 3.0]
    assert found.end_us.tolist() == [7.0, 7.0, 10.0]
    if order.whole:
        sequence = estimator.greedy(order, assign_blocks(low, order))
        assert sequence[sequence != 0].tolist() == [1, 2]  # the copy may be anywhere


def test_a_send_with_a_copy_waits_for_its_block() -> None:
    low = fuse_copies(
        lower("""
            0 in[1] -> 2 out[1]
            0 in[0] -> 0 out[4]
            0 in[0] -> 1 out[5]
        """)
    )
    links = used_links(low.chunks.program, None)
    order = pipelines(low, links, Schedule.HPDS)
    rank = np.where(order.send != NONE, 0, np.arange(1, len(order) + 1))
    blocks = Blocks(*columns(*np.unique(rank, return_inverse=True)))
    estimator = estimator_of(low, cluster(1, 3), TILES)
    assert estimator.timeline(order, blocks).end_us.tolist() == [7, 14, 14]


def test_a_block_does_one_thing_at_a_time() -> None:
    collective = sley.Custom("some", 3, 2, 2, lambda rank, index: None, in_place=True)

    def body(p: ChunkProgram) -> None:
        p.transfer(0, 1, 0, 0, "recv")
        p.transfer(0, 2, 0, 1, "recv")

    low, order = lowered(sley.trace(collective, body), None, Schedule.HPDS)
    estimator = estimator_of(low, cluster(1, 3), TILES)
    apart = estimator.timeline(order, Blocks(*columns([0, 0, 1, 2], [0, 2, 1, 3])))
    assert apart.end_us.tolist() == [7.0, 7.0]
    shared = estimator.timeline(order, Blocks(*columns([0, 1, 2], [0, 1, 0, 2])))
    assert shared.end_us.tolist() == [7.0, 14.0]


def columns(rank: list[int], block: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(rank, np.int32), np.array(block, np.int32)


def test_the_estimate_of_a_plan_is_the_time_of_its_timeline() -> None:
    collective = sley.Custom("relay", 3, 1, 1, lambda rank, index: [(0, 0)], in_place=True)

    def body(p: ChunkProgram) -> None:
        p.transfer(0, 1, 0, 0, "recv")
        p.transfer(1, 2, 1, 0, "recv")

    program = sley.trace(collective, body)
    plan = sley.compile(program, schedule="hpds", topology=cluster(1, 3))
    assert plan.estimate is not None
    assert (plan.estimate.time_us, plan.estimate.unmerged_us, plan.estimate.tiles) == (36, 36, 16)
    assert sorted(plan.estimate.busy_us.tolist()) == [33, 33, 33, 33]
    # In tile order a tile goes all the way before the next one: 3 us, and 3 us.
    tiles = sley.compile(
        program, schedule="hpds", loop_order="tile", topology=cluster(1, 3)
    ).estimate
    assert tiles is not None
    assert (tiles.time_us, tiles.tiles) == (6, 1)


def test_a_message_of_several_chunks_takes_longer() -> None:
    def several(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0, 3).copy(1, "out", 0)
        p.chunk(0, "in", 3, 1).copy(1, "out", 3)

    collective = sley.Custom("long", 2, 4, 4, lambda rank, index: [(0, index)], in_place=True)
    program = sley.trace(collective, several)
    # The longest message fills a tile, whatever the number of its chunks; a shorter one a part.
    plan = sley.compile(program, schedule="hpds", topology=cluster(1, 2))
    assert plan.estimate is not None
    assert plan.estimate.time_us == pytest.approx(2 + 16 * (2 + 2 / 3))


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[InstructionDag, Order, Blocks, sley.Topology | None, int]:
    """Ordered programs, with blocks for connections or dealt at random."""
    random: RandomTransfers | RandomProgram = draw(
        st.one_of(
            random_transfers(max_transfers=20), random_trees(), random_programs(max_operations=16)
        )
    )
    cluster = draw(clusters(random.program.collective.ranks))
    topology = random.topology if isinstance(random, RandomTransfers) else cluster
    low, order = lowered(random.program, topology, draw(st.sampled_from(SCHEDULES)))
    blocks = assign_blocks(low, order)
    most = draw(st.sampled_from([None, 1, 2, 3]))
    if most is not None and len(blocks.rank):
        colour = draw(
            st.lists(st.integers(0, most - 1), min_size=len(blocks.rank), max_size=len(blocks.rank))
        )
        key = blocks.rank * most + np.array(colour)
        names, new = np.unique(key, return_inverse=True)
        none = np.zeros(len(names), np.int64)
        blocks = number_blocks(names // most, none, new[blocks.instruction_block])
    return low, order, blocks, topology, draw(st.sampled_from([1, 2, 16]))


@examples(14)
@given(cases())
def test_any_timeline_follows_the_rules(
    case: tuple[InstructionDag, Order, Blocks, sley.Topology | None, int],
) -> None:
    low, order, blocks, topology, tiles = case
    program = low.chunks.program
    estimator = estimator_of(low, topology, tiles)
    found = estimator.timeline(order, blocks)
    times = naive_passes.Times(naive_passes.Graph(program, topology), tiles)
    clock = naive_passes.timeline(times, order, blocks)
    rows = range(len(program.transfers))
    assert sequence_of(order, len(rows)).tolist() == naive_passes.sequence(order)
    assert found.start_us.tolist() == pytest.approx([clock.start[t] for t in rows])
    assert found.end_us.tolist() == pytest.approx([clock.end[t] for t in rows])
    again = estimator.timeline(order, blocks)
    assert (again.start_us.tolist(), again.end_us.tolist()) == (
        found.start_us.tolist(),
        found.end_us.tolist(),
    )


@examples(14)
@given(cases())
def test_the_greedy_order_takes_what_has_the_longest_way_to_go(
    case: tuple[InstructionDag, Order, Blocks, sley.Topology | None, int],
) -> None:
    low, order, blocks, topology, tiles = case
    program = low.chunks.program
    if order.fused.any():
        return  # whole transfers only
    estimator = estimator_of(low, topology, tiles)
    times = naive_passes.Times(naive_passes.Graph(program, topology), tiles)
    assert estimator.greedy(order, blocks).tolist() == naive_passes.greedy(times, order, blocks)
