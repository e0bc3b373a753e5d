"""Allocate: the numbers of thread blocks are ResCCL's, and no block has two tasks at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import hm_allgather, hm_allreduce
from sley.compiler.passes.allocate import allocate
from sley.compiler.passes.blocks import assign_blocks
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.fuse import fuse
from sley.compiler.passes.links import used_links
from sley.compiler.passes.merging import Overlaps
from sley.compiler.passes.order import order as depth_order
from sley.compiler.passes.pipelines import pipelines
from sley.compiler.passes.timeline import Estimator, HopCosts
from sley.errors import Diagnostic
from sley.ir.dag import Allocated, Blocks, InstructionDag, Order
from sley.ir.dependencies import dependencies
from sley.ir.program import Program
from sley.ir.tables import NONE, offsets_of
from sley.ir.words import Allocation, LoopOrder, Schedule
from sley.lang import ChunkProgram
from support.generators.examples import examples
from support.generators.random_programs import SCHEDULES, random_programs
from support.generators.random_transfers import random_transfers, random_trees
from support.generators.sampling import each_value
from support.machines import naive_passes

SIZES = ((2, 4), (2, 8), (4, 4), (4, 8))
"""ResCCL's Topo1-4: nodes, GPUs of each."""

STATE_BLOCKS = [8, 16, 8, 16]
"""2g: a block for each peer and direction (ResCCL 4.4)."""

AG, AR = (0, 1, 2), (0, 1, 1, 2)
"""A channel for each stage, but for the ring's two in AllReduce."""

MESHES = [(hm_allgather, AG), (hm_allreduce, AR)]

Build = Callable[..., Program]


def most_blocks(plan: sley.Plan) -> int:
    """Blocks of the rank that has most."""
    return int(np.bincount(plan.block_rank).max(initial=0))


def counts(build: Build, stages: tuple[int, ...], sizes: Any = SIZES, **way: Any) -> list[int]:
    """Blocks a rank on each size."""
    programs = [build(*size, stage_channels=stages, in_place=True) for size in sizes]
    return [most_blocks(sley.compile(program, verify=False, **way)) for program in programs]


@pytest.mark.parametrize(("build", "channels"), MESHES)
@pytest.mark.parametrize("way", [{"fusion": False}, {"schedule": "hpds"}], ids=str)
def test_a_connection_has_a_block_at_each_end(
    build: Build, channels: tuple[int, ...], way: dict[str, Any]
) -> None:
    """4(g-1) + 2: both meshes send to and receive from g-1 peers, the ring to one and from one."""
    assert counts(build, channels, **way) == [14, 30, 14, 30]


@pytest.mark.parametrize(("build", "channels"), [*MESHES, (hm_allreduce, (0, 1, 2, 3))])
def test_by_state_both_meshes_share_their_blocks(build: Build, channels: tuple[int, ...]) -> None:
    assert counts(build, channels, schedule="hpds", allocate="state") == STATE_BLOCKS


@pytest.mark.parametrize(("gpus", "expected"), [(4, 4), (8, 8)])
def test_where_a_node_shares_one_card_blocks_serve_several_peers(gpus: int, expected: int) -> None:
    """The mesh waits for the card most of the time, so fewer than 2g blocks are ever busy."""
    program = hm_allreduce(2, gpus, nics=1, stage_channels=AR, in_place=True)
    plan = sley.compile(program, schedule="hpds", allocate="state", loop_order="tile")
    assert most_blocks(plan) == expected
    peers = np.stack([plan.block, plan.instructions.send_peer])[:, plan.sends]
    assert (np.bincount(np.unique(peers, axis=1)[0]) > 1).any()


@pytest.mark.parametrize(("build", "channels"), MESHES)
@pytest.mark.parametrize("way", ["hpds tile", "round-robin tile", "round-robin instruction"])
def test_no_schedule_or_loop_order_needs_more(
    build: Build, channels: tuple[int, ...], way: str
) -> None:
    options = {
        **dict(zip(("schedule", "loop_order"), way.split(), strict=True)),
        "allocate": "state",
    }
    found = counts(build, channels, SIZES[:3], **options)
    assert all(ours <= theirs for ours, theirs in zip(found, STATE_BLOCKS, strict=False))


@pytest.mark.parametrize(
    ("build", "channels", "expected"),
    [
        (hm_allgather, AG, [14, 30, 13, 29]),
        (hm_allgather, (0, 1, 0), [8, 16, 7, 15]),
        # On two nodes the reference counts 14 and 30: several sends read the ring's last reduction,
        # which it leaves unfused. We fuse it with the send on the longest path: a block fewer.
        (hm_allreduce, AR, [13, 29, 13, 29]),
        (hm_allreduce, (0, 1, 2, 3), [16, 32, 14, 30]),
        (hm_allreduce, (0, 1, 1, 0), [7, 15, 7, 15]),
    ],
)
def test_fused_connections_share_a_block(
    build: Build, channels: tuple[int, ...], expected: list[int]
) -> None:
    assert counts(build, channels) == expected


@pytest.mark.parametrize(("mesh", "schedule"), each_value(MESHES, ["msccl", "hpds", "round-robin"]))
def test_no_rank_has_more_blocks_than_the_limit(
    mesh: tuple[Build, tuple[int, ...]], schedule: str
) -> None:
    build, channels = mesh
    program = build(2, 4, stage_channels=channels, in_place=True)
    for limit in (1, 2, 5, 8, 13):
        plan = sley.compile(program, schedule=schedule, max_blocks=limit)
        assert most_blocks(plan) <= limit
        both = sley.compile(program, schedule=schedule, max_blocks=limit, allocate="state")
        assert most_blocks(both) <= min(limit, 8)


def test_a_limit_that_is_met_changes_nothing() -> None:
    program = hm_allreduce(2, 4, stage_channels=AR, in_place=True)
    free = sley.compile(program, schedule="hpds", allocate="state")
    limited = sley.compile(program, schedule="hpds", allocate="state", max_blocks=8)
    assert limited.instructions == free.instructions
    assert limited.block_offset.tolist() == free.block_offset.tolist()


@pytest.mark.parametrize(("build", "channels"), MESHES)
def test_one_block_takes_at_least_the_time_of_all_its_work(
    build: Build, channels: tuple[int, ...]
) -> None:
    for nodes, gpus in SIZES[:3]:
        program = build(nodes, gpus, stage_channels=channels, in_place=True)
        plans = [
            sley.compile(program, schedule="hpds", verify=False, **way)
            for way in ({}, {"max_blocks": 1})
        ]
        times = [plan.estimate.time_us for plan in plans if plan.estimate is not None]
        assert times[0] == plans[0].estimate.unmerged_us  # type: ignore[union-attr]
        # One block does all the work of its rank, one transfer after the other.
        assert plans[1].estimate is not None
        assert times[1] >= max(plans[1].estimate.busy_us) - 1e-6


def test_blocks_stay_apart_where_sharing_by_state_would_take_longer() -> None:
    """In the msccl schedule receives come long after their sends, so blocks that the timeline never
    sees at work at the same time would wait for one another."""
    program = sley.algorithms.build("two-level-allreduce", nodes=3, gpus=2)
    apart, shared = (sley.compile(program, allocate=how) for how in ("connection", "state"))
    assert shared.instructions == apart.instructions
    assert shared.block_offset.tolist() == apart.block_offset.tolist()
    assert shared.estimate is not None
    assert shared.estimate.time_us == shared.estimate.unmerged_us


def test_the_estimate_follows_the_topology() -> None:
    """Machines with different rates have different estimates, in the ratio of their rates where
    these alone decide."""
    program = hm_allreduce(2, 8, in_place=True)
    p5, ndv4 = (sley.topologies.find(f"{name}:2") for name in ("p5", "ndv4"))
    fast, slow = (
        replace(
            ndv4,
            model=replace(
                ndv4.model,
                nvlink_latency_us=1e-6,
                network_latency_us=1e-6,
                nvlink_block_GBps=rate,
                network_block_GBps=rate,
            ),
        )
        for rate in (10.0, 5.0)
    )
    times = []
    for topology in (p5, ndv4, fast, slow):
        plan = sley.compile(program, topology=topology, schedule="hpds", allocate="state")
        assert plan.estimate is not None
        times.append(plan.estimate.unmerged_us)
    assert times[0] != times[1]
    assert times[3] == pytest.approx(2 * times[2])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("flat-broadcast", {"schedule": "hpds", "allocate": "state"}),
        ("multi-ring-allreduce", {"max_blocks": 4}),
    ],
)
def test_the_simulation_finds_faster_ways_to_share_as_many_blocks(
    name: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without simulation the plan is the timeline's choice; with it no size is slower, and on these
    plans one is faster."""
    topology = sley.topologies.find("p5:2")
    program = sley.algorithms.build(name, nodes=2, gpus=8, in_place=True)
    found = sley.compile(program, topology=topology, **options)
    monkeypatch.setattr("sley.compiler.passes.allocate.SIMULATED", 0)
    timeline = sley.compile(program, topology=topology, **options)
    assert most_blocks(found) <= most_blocks(timeline)
    times = [
        [one.time_us for one in sley.simulate(plan, ["1M", "64M"])] for plan in (found, timeline)
    ]
    assert all(ours <= theirs for ours, theirs in zip(*times, strict=True))
    assert times[0][1] < 0.9 * times[1][1]


def test_sharing_that_costs_more_than_it_saves_is_undone() -> None:
    """By the timeline of one tile, three blocks for six connections are enough; calls of many tiles
    take six times as long with them."""
    topology = sley.topologies.find("ndv4:2")
    program = sley.algorithms.build("double-binary-tree-allreduce", ranks=16, in_place=True)
    apart, state = (
        sley.compile(program, topology=topology, allocate=how) for how in ("connection", "state")
    )
    assert state.instructions == apart.instructions
    assert most_blocks(state) == most_blocks(apart)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_within_a_limit_the_work_is_spread(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sley.compiler.passes.allocate.SIMULATED", 0)
    program = hm_allgather(2, 4, in_place=True)
    plan = sley.compile(program, schedule="hpds", max_blocks=limit)
    assert plan.estimate is not None
    work = np.bincount(plan.block_rank, plan.estimate.busy_us).max()
    assert work <= limit * plan.estimate.time_us + 1e-6
    assert limit * plan.estimate.time_us <= 1.3 * work


@st.composite
def overlapping(draw: st.DrawFn) -> list[np.ndarray]:
    """For each rank, for how long each two of its blocks are at work at the same time."""
    found = []
    for size in draw(st.lists(st.integers(0, 6), min_size=1, max_size=3)):
        square = np.zeros((size, size))
        for one, two in combinations(range(size), 2):
            square[one, two] = square[two, one] = draw(st.integers(0, 9))
        found.append(square)
    return found


@given(overlapping(), st.integers(1, 5))
def test_those_merge_that_are_least_at_work_at_the_same_time(
    squares: list[np.ndarray], limit: int
) -> None:
    sizes = [len(square) for square in squares]
    together = np.concatenate([square.ravel() for square in squares])
    first = offsets_of(np.array(sizes))
    merges = Overlaps(first, offsets_of(np.array(sizes) ** 2), together).merges(1)
    colour = merges.colours(limit)  # what was merged down to one block tells of every limit
    expected: list[int] = []
    for square in squares:
        sets = [{k} for k in range(len(square))]
        while len(sets) > limit:
            _, one, two = min(
                (sum(square[a, b] for a in sets[x] for b in sets[y]), x, y)
                for x, y in combinations(range(len(sets)), 2)
            )
            sets[one] |= sets.pop(two)
        number = {k: min(members) for members in sets for k in members}
        expected += [len(expected) + number[k] for k in range(len(square))]
    assert colour.tolist() == expected


def test_only_those_that_ask_for_it_get_an_estimate() -> None:
    program = hm_allgather(2, 2)
    assert sley.compile(program).estimate is None
    assert sley.compile(program, allocate="instance").estimate is None
    for way in ({"schedule": "hpds"}, {"allocate": "state"}, {"max_blocks": 9}):
        assert sley.compile(program, **way).estimate is not None


@st.composite
def cases(draw: st.DrawFn) -> tuple[InstructionDag, Order, Blocks, sley.Topology | None, int]:
    """Ordered programs with a block for each connection, as `allocate` gets them."""
    kinds = [random_transfers(max_transfers=24), random_trees(), random_programs(max_operations=16)]
    random = draw(st.one_of(kinds))
    topology = getattr(random, "topology", None)
    dag = dependencies(random.program)
    schedule = draw(st.sampled_from(SCHEDULES))
    tiles = draw(st.sampled_from([1, 16]))
    if schedule is Schedule.MSCCL:
        low = assign_channels(dag, fuse(dag, None), draw(st.integers(1, 2)))
        order = depth_order(low, 2)
    else:
        low = assign_channels(dag, None, draw(st.integers(1, 2)))
        order = pipelines(low, used_links(dag.program, topology), schedule)
    return low, order, assign_blocks(low, order), topology, tiles


Case = tuple[InstructionDag, Order, Blocks, sley.Topology | None, int]


def allocated(
    case: Case, allocation: Allocation, max_blocks: int | None = None
) -> tuple[Allocated, naive_passes.Times]:
    """What comes of the allocation, and the means to reckon it up again."""
    low, order, blocks, topology, tiles = case
    program = low.chunks.program
    costs = HopCosts.of(program, topology, sley.Protocol.SIMPLE, per_chunk=False)
    estimator = Estimator.of(low, used_links(program, topology), costs, tiles)
    found = allocate(low, order, blocks, estimator, allocation, max_blocks)
    return found, naive_passes.Times(naive_passes.Graph(program, topology), tiles)


def works(order: Order, blocks: Blocks) -> dict[tuple[int, int], int]:
    """The block of each half (transfer, 0 where it is sent, 1 where it is received or local)."""
    at_src, at_dst, _ = naive_passes.ends(order, blocks)
    return {(t, 0): b for t, b in at_src.items()} | {(t, 1): b for t, b in at_dst.items()}


@examples(14)
@given(cases())
def test_blocks_that_share_are_never_at_work_at_the_same_time(case: Case) -> None:
    _, order, blocks, _, _ = case
    found, times = allocated(case, Allocation.STATE)
    clock = naive_passes.timeline(times, order, blocks)
    before, after = works(order, blocks), works(found.order, found.blocks)
    assert before.keys() == after.keys()
    inside: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for half, block in after.items():
        inside[block].add(half)
    for halves in inside.values():
        for one, two in combinations(halves, 2):
            if before[one] == before[two]:
                continue
            early, late = sorted((one[0], two[0]), key=lambda t: (clock.start[t], clock.end[t]))
            assert clock.end[early] <= clock.start[late]


@examples(14)
@given(cases())
def test_blocks_that_never_work_at_the_same_time_could_not_be_fewer_one_by_one(case: Case) -> None:
    """No two blocks of a rank are left that a merge could have joined without a wait."""
    _, order, blocks, _, _ = case
    found, times = allocated(case, Allocation.STATE)
    if (order.pipeline == NONE).any():
        return  # in other orders a block may hold up another that it never meets
    clock = naive_passes.timeline(times, order, blocks)
    spans: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (t, _), block in works(found.order, found.blocks).items():
        spans[block].append((clock.start[t], clock.end[t]))
    for one, two in combinations(range(len(found.blocks.rank)), 2):
        if found.blocks.rank[one] == found.blocks.rank[two]:
            assert any(a[0] < b[1] and b[0] < a[1] for a in spans[one] for b in spans[two])


@examples(14)
@given(cases(), st.sampled_from([None, 1, 2, 3]))
def test_what_is_expected_is_what_the_timeline_says(case: Case, max_blocks: int | None) -> None:
    low, order, blocks, _, _ = case
    for allocation in Allocation:
        found, times = allocated(case, allocation, max_blocks)
        clock = naive_passes.timeline(times, found.order, found.blocks)
        estimate = found.estimate
        unmerged = naive_passes.timeline(times, order, blocks)
        assert estimate.unmerged_us == pytest.approx(max(unmerged.end.values(), default=0))
        assert estimate.time_us == pytest.approx(max(clock.end.values(), default=0))
        if max_blocks is None:
            assert estimate.time_us <= estimate.unmerged_us + 1e-6
        busy = [0.0] * len(found.blocks.rank)
        for row, block in zip(found.order, found.blocks.instruction_block.tolist(), strict=True):
            both = [t for t in (row.receive, row.send) if t != NONE]
            busy[block] += max(clock.end[t] for t in both) - min(clock.start[t] for t in both)
        assert estimate.busy_us.tolist() == pytest.approx(busy)
        assert len(found.blocks.rank) <= len(blocks.rank)
        assert most(found.blocks) <= (max_blocks or most(blocks))
        # Nothing but blocks and their order has changed.
        assert sorted(halves(found.order)) == sorted(halves(order))
        assert found.blocks.rank.tolist() == sorted(found.blocks.rank.tolist())
        assert (
            ranks_of(low, found.order) == found.blocks.rank[found.blocks.instruction_block].tolist()
        )


def most(blocks: Blocks) -> int:
    return int(np.bincount(blocks.rank).max(initial=0))


def halves(order: Order) -> list[tuple[int, int, int]]:
    return list(
        zip(order.receive.tolist(), order.send.tolist(), order.pipeline.tolist(), strict=True)
    )


def ranks_of(low: InstructionDag, order: Order) -> list[int]:
    """The rank that does each row."""
    t = low.chunks.program.transfers
    return [int(t.dst[row.receive] if row.receive != NONE else t.src[row.send]) for row in order]


@examples(14)
@given(cases(), st.integers(1, 2))
def test_merged_blocks_list_whole_transfers_in_one_order(case: Case, max_blocks: int) -> None:
    """In which each receive follows its send, and everything what it depends on."""
    _, order, _, _, _ = case
    if (order.pipeline == NONE).any():
        return
    for limit in (None, max_blocks):
        found, times = allocated(case, Allocation.STATE, limit)
        place: dict[int, int] = {}
        rows = list(found.order)
        for k, row in enumerate(rows):
            if row.send != NONE:
                assert rows[k + 1].receive == row.send
            else:
                place[row.receive] = k
        for t, before in enumerate(times.graph.before):
            assert all(place[p] < place[t] for p in before)


def refused(program: Program, code: str, **way: Any) -> Diagnostic:
    with pytest.raises(sley.SleyError) as caught:
        sley.compile(program, **way)
    assert caught.value.code == code
    return caught.value.diagnostics[0]


def test_options_that_exclude_one_another_are_refused() -> None:
    program = hm_allgather(2, 2)
    assert "msccl" in str(refused(program, "C309", loop_order="instruction"))
    for schedule in ("hpds", "round-robin"):
        found = refused(program, "C309", schedule=schedule, fusion=True)
        assert f"{schedule} with fusion" in str(found)
        sley.compile(program, schedule=schedule, fusion=False)
    sley.compile(program, loop_order="tile", schedule="msccl", fusion=True)


def test_blocks_given_by_hand_are_not_merged() -> None:
    collective = sley.Custom("pair", 2, 1, 1, lambda rank, index: [(0, 0)], in_place=True)

    def body(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0).copy(1, "in", 0, send_block=1)

    program = sley.trace(collective, body)
    ways = ({"allocate": "state"}, {"allocate": "instance"}, {"max_blocks": 1})
    for way in (*ways, {"schedule": "hpds", "max_blocks": 4}):
        assert refused(program, "C309", **way).places[0].file == __file__
    for way in ({}, {"schedule": "hpds"}, {"schedule": "round-robin", "loop_order": "tile"}):
        sley.compile(program, **way)
    received = replace(
        program, transfers=replace(program.transfers, send_block=[NONE], recv_block=[2])
    )
    refused(received, "C309", allocate="state")


@pytest.mark.parametrize(
    "way",
    [
        {"schedule": "hpds2"},
        {"schedule": 1},
        {"allocate": "states"},
        {"loop_order": "outer"},
        {"max_blocks": 0},
        {"max_blocks": -1},
        {"max_blocks": 1.5},
        {"max_blocks": True},
        {"max_blocks": 4097},
    ],
    ids=str,
)
def test_options_that_mean_nothing_are_refused(way: dict[str, Any]) -> None:
    word, value = next(iter(way.items()))
    assert f"{word}={value!r}" in str(refused(hm_allgather(2, 2), "C304", **way))


def test_options_may_be_words_or_names() -> None:
    program = hm_allgather(2, 2)
    by_word = sley.compile(
        program, schedule=Schedule.HPDS, allocate=Allocation.STATE, loop_order=LoopOrder.TILE
    )
    by_name = sley.compile(program, schedule="hpds", allocate="state", loop_order="tile")
    assert by_word.instructions == by_name.instructions
    assert by_word.loop_order is by_name.loop_order is LoopOrder.TILE
