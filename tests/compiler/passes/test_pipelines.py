"""Pipelines: compared with plain code of ResCCL's algorithm 1, and with its aims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.algorithms import (
    hm_allgather,
    hm_allreduce,
    multi_ring_allgather,
    two_level_allgather,
)
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.fuse import fuse_copies
from sley.compiler.passes.links import used_links
from sley.compiler.passes.parallelize import parallelize
from sley.compiler.passes.pipelines import chunk_groups, pipelines
from sley.ir.dag import InstructionDag, Order
from sley.ir.dependencies import dependencies
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.ir.words import Schedule
from sley.lang import ChunkProgram
from support.checks.invariants import order_faults
from support.checks.stages import Stages
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.generators.random_transfers import (
    RandomTransfers,
    clusters,
    random_transfers,
    random_trees,
)
from support.inputs.written_programs import lower
from support.machines import naive_passes

WHOLE = [Schedule.HPDS, Schedule.ROUND_ROBIN]
LITERAL = {Schedule.HPDS: naive_passes.hpds, Schedule.ROUND_ROBIN: naive_passes.round_robin}
SIZES = [(2, 4), (2, 8), (4, 4), (4, 8)]

transfers = st.one_of(random_transfers(), random_trees())
schedules = st.sampled_from(WHOLE)


def scheduled(
    program: Program, topology: sley.Topology | None, schedule: Schedule, instances: int = 1
) -> tuple[InstructionDag, Order]:
    """The program lowered without fusion, and its order."""
    dag = dependencies(parallelize(program, instances))
    lowered = assign_channels(dag, None, 1)
    return lowered, pipelines(lowered, used_links(dag.program, topology), schedule)


def sub_pipelines(order: Order) -> list[set[int]]:
    """The transfers of each sub-pipeline, in their order."""
    found: list[set[int]] = [set() for _ in range(int(order.pipeline.max(initial=NONE)) + 1)]
    for row in order:
        found[row.pipeline].add(row.receive if row.receive != NONE else row.send)
    return found


def check_against_the_letter(
    program: Program, topology: sley.Topology | None, schedule: Schedule, instances: int = 1
) -> None:
    lowered, order = scheduled(program, topology, schedule, instances)
    graph = naive_passes.Graph(lowered.chunks.program, topology)
    assert sub_pipelines(order) == LITERAL[schedule](graph)


@examples(14)
@given(transfers, schedules)
def test_transfers_fall_into_the_sub_pipelines_of_algorithm_1(
    random: RandomTransfers, schedule: Schedule
) -> None:
    check_against_the_letter(random.program, random.topology, schedule)


@examples(14)
@given(random_programs(max_operations=12), schedules, st.integers(1, 2), st.data())
def test_chunk_programs_with_local_operations_and_parts_fall_into_the_sub_pipelines_of_algorithm_1(
    random: RandomProgram, schedule: Schedule, instances: int, data: st.DataObject
) -> None:
    topology = data.draw(clusters(random.ranks))
    check_against_the_letter(random.program, topology, schedule, instances)


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize("build", [hm_allgather, hm_allreduce])
def test_the_hierarchical_mesh_falls_into_the_sub_pipelines_of_algorithm_1(
    build: Callable[..., Program], schedule: Schedule
) -> None:
    program = build(3, 3, nics=1, in_place=True)
    check_against_the_letter(program, program.topology, schedule)


@examples(14)
@given(transfers, schedules)
def test_an_order_keeps_what_the_schedule_promises(
    random: RandomTransfers, schedule: Schedule
) -> None:
    lowered, order = scheduled(random.program, random.topology, schedule)
    graph = naive_passes.Graph(lowered.chunks.program, random.topology)
    remote = lowered.remote

    # Every transfer once: a local one in one row, a remote one sent, and received at once.
    rows = list(order)
    place: dict[int, int] = {}
    at = 0
    while at < len(rows):
        row = rows[at]
        t = row.send if row.receive == NONE else row.receive
        assert t not in place
        place[t] = at
        if remote[t]:
            assert (row.receive, row.send) == (NONE, t)
            assert (rows[at + 1].receive, rows[at + 1].send) == (t, NONE)
            assert rows[at + 1].pipeline == row.pipeline
        else:
            assert (row.receive, row.send) == (t, NONE)
        at += 2 if remote[t] else 1
    assert sorted(place) == list(range(len(graph)))

    for t, before in enumerate(graph.before):
        assert all(place[p] < place[t] for p in before)
    assert order.pipeline.tolist() == sorted(order.pipeline.tolist())

    done: set[int] = set()
    for pipeline in sub_pipelines(order):
        assert pipeline
        used = [link for t in pipeline for link in graph.links[t]]
        assert len(used) == len(set(used)), "a link twice in a sub-pipeline"
        done |= pipeline
        for t in set(range(len(graph))) - done:
            left_out = not graph.before[t] <= done or graph.links[t] & set(used)
            assert left_out, "a transfer that was ready and had its links free was left out"


@examples(14)
@given(transfers, st.sampled_from(["hpds", "round-robin"]))
def test_blocks_go_from_sub_pipeline_to_sub_pipeline(
    random: RandomTransfers, schedule: str
) -> None:
    stages = Stages.of(random.program, topology=random.topology, schedule=schedule)
    plan, order = stages.plan, stages.values["pipelines"]
    number = {t: k for k, members in enumerate(sub_pipelines(order)) for t in members}
    assert plan.pipelines == max(number.values(), default=NONE) + 1
    assert [number[t] for t in plan.instructions.transfer.tolist()] == (
        plan.instructions.pipeline.tolist()
    )
    for start, end in zip(plan.block_offset[:-1], plan.block_offset[1:], strict=True):
        inside = plan.instructions.pipeline[start:end].tolist()
        assert inside == sorted(inside)


@examples(14)
@given(st.one_of(transfers.map(lambda r: r.program), random_programs().map(lambda r: r.program)))
def test_a_chunk_is_what_common_memory_ties_together(program: Program) -> None:
    assert chunk_groups(program).tolist() == naive_passes.Graph(program, None).group


def test_in_the_transfer_language_a_chunk_is_the_chunk() -> None:
    program = hm_allreduce(2, 2, in_place=True)
    assert chunk_groups(program).tolist() == program.transfers.dst_index.tolist()
    # Out of place as well, though inputs, outputs and scratch are different memory.
    apart = sley.compile(hm_allgather(2, 2), schedule="hpds")
    together = sley.compile(hm_allgather(2, 2, in_place=True), schedule="hpds")
    assert apart.pipelines == together.pipelines


def sent_with_copies(text: str) -> tuple[InstructionDag, Order]:
    """A program lowered with copies that are to be sent, and its order by HPDS."""
    low = fuse_copies(lower(text))
    return low, pipelines(low, used_links(low.chunks.program, None), Schedule.HPDS)


def test_a_copy_runs_with_its_send() -> None:
    _, order = sent_with_copies("""
        1 in[1] -> 0 out[4]
        0 in[0] -> 0 out[4]
        0 out[4] -> 2 out[4]
        0 in[0] -> 1 out[5]
    """)
    assert [(row.receive, row.send) for row in order] == [
        (NONE, 0),
        (0, NONE),
        (1, 3),
        (3, NONE),
        (NONE, 2),
        (2, NONE),
    ]


def test_a_copy_runs_alone_where_its_send_comes_later() -> None:
    """The receiver of the message waits for a transfer that sends the copy."""
    low, order = sent_with_copies("""
        0 in[0] -> 0 out[4]
        0 out[4:6] -> 1 out[4]
        1 out[4] -> 2 out[4]
        0 in[0] -> 1 out[4]
    """)
    assert low.sent.tolist() == [True, False, False, False]
    assert (0, NONE) in [(row.receive, row.send) for row in order]
    assert not order_faults(low, order, 1)
    assert not low.as_ordered(order).sent.any()


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize("build", [hm_allgather, two_level_allgather, multi_ring_allgather])
def test_out_of_place_transfers_are_in_the_order_of_those_in_place(
    build: Callable[..., Program], schedule: Schedule
) -> None:
    """A copy that is sent is no transfer of its own, and takes no turn from others."""

    def said(in_place: bool) -> list[tuple[int, ...]]:
        stages = Stages.of(build(2, 4, in_place=in_place), schedule=schedule)
        assert not stages.faults()
        t, order = stages.dag.program.transfers, stages.order
        row = order.send[order.send != NONE]
        number = order.pipeline[order.send != NONE]
        columns = (t.src[row], t.dst[row], t.dst_index[row], number)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    assert said(False) == said(True)


def test_a_program_without_transfers_has_no_sub_pipelines() -> None:
    collective = sley.Custom("idle", 2, 1, 1, lambda rank, index: [(rank, index)], in_place=True)
    idle = sley.trace(collective, lambda p: None)
    for schedule in WHOLE:
        assert sley.compile(idle, schedule=schedule).pipelines == 0


def test_the_chunk_that_contributed_least_comes_first() -> None:
    def contend(p: ChunkProgram) -> None:
        p.transfer(0, 1, 0, 0, "recv")
        p.transfer(0, 1, 1, 0, "recv")
        p.transfer(2, 3, 0, 1, "recv")
        p.transfer(3, 2, 1, 1, "rrc")
        p.transfer(2, 0, 0, 2, "recv")
        p.transfer(0, 1, 1, 2, "recv")

    collective = sley.Custom("contention", 4, 3, 3, lambda rank, index: None, in_place=True)
    program = sley.trace(collective, contend)
    t = program.transfers
    said = {(t.src[k], t.dst[k], t.step[k], t.dst_index[k]): k for k in range(len(t))}
    first = {said[0, 1, 0, 0], said[2, 3, 0, 1], said[3, 2, 1, 1], said[2, 0, 0, 2]}
    ours, theirs = {said[0, 1, 1, 0]}, {said[0, 1, 1, 2]}
    # Chunk 1 has contributed twice, the others once. Chunks 0 and 2 both want the link 0 -> 1.
    _, hpds = scheduled(program, None, Schedule.HPDS)
    assert sub_pipelines(hpds) == [first, ours, theirs]
    # The circle stopped at chunk 1, so it is chunk 2's turn.
    _, circle = scheduled(program, None, Schedule.ROUND_ROBIN)
    assert sub_pipelines(circle) == [first, theirs, ours]


def shared_sub_pipelines(program: Program, schedule: str) -> tuple[int, int]:
    """How many transfers inside a node depend directly on one between nodes, and how many of them
    sit in the same sub-pipeline as that one."""
    assert program.topology is not None
    lowered, order = scheduled(program, program.topology, Schedule(schedule))
    number = np.empty(len(lowered.forward), np.int64)
    for k, members in enumerate(sub_pipelines(order)):
        number[list(members)] = k
    d = lowered.chunks.dependencies
    crosses = used_links(program, program.topology).crosses
    mixed = (d.true == 1) & crosses[d.before] & ~crosses[d.after]
    together = mixed & (number[d.before] == number[d.after])
    return len(set(d.after[mixed].tolist())), len(set(d.after[together].tolist()))


@pytest.mark.parametrize(("nodes", "gpus"), SIZES)
@pytest.mark.parametrize("build", [hm_allgather, hm_allreduce])
def test_hpds_keeps_what_depends_on_the_network_apart_only_while_links_are_scarce(
    build: Callable[..., Program], nodes: int, gpus: int
) -> None:
    """ResCCL 4.3 says that HPDS keeps an intra-node transfer out of the sub-pipeline of the
    inter-node transfer that it depends on. Nothing in algorithm 1 says so: a chunk goes on within
    one sub-pipeline for as long as its links are free. Where every GPU has its own card, the links
    inside the node are taken by then; where the node shares one, they are not."""
    own = build(nodes, gpus, in_place=True)
    assert shared_sub_pipelines(own, "hpds")[1] == 0
    for schedule in ("hpds", "round-robin"):
        mixed, together = shared_sub_pipelines(build(nodes, gpus, nics=1, in_place=True), schedule)
        assert together > mixed / 2


def test_round_robin_mixes_what_hpds_keeps_apart() -> None:
    own = hm_allreduce(4, 4, in_place=True)
    assert shared_sub_pipelines(own, "hpds")[1] < shared_sub_pipelines(own, "round-robin")[1]
