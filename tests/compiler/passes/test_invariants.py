"""Invariants: what the passes make has no faults, and what is damaged has one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.emit import emit
from sley.compiler.passes.fuse import fuse
from sley.ir.dag import Blocks, Order
from sley.ir.dependencies import dependencies
from sley.ir.program import Program
from sley.ir.tables import NONE
from sley.lang import ChunkProgram
from support.checks.invariants import (
    block_faults,
    chunk_faults,
    instruction_faults,
    order_faults,
    program_faults,
)
from support.checks.stages import Stages
from support.generators.examples import examples
from support.generators.random_options import random_options
from support.generators.random_programs import RandomProgram, random_programs
from support.generators.random_transfers import RandomTransfers, random_transfers, random_trees


@examples(14)
@given(
    st.one_of(random_transfers(max_transfers=24), random_trees(), random_programs()),
    random_options(),
)
def test_the_values_of_the_passes_have_no_faults(
    random: RandomProgram | RandomTransfers, options: dict[str, Any]
) -> None:
    assert not program_faults(random.program)
    topology = getattr(random, "topology", None)
    assert not Stages.of(random.program, topology=topology, **options).faults()


@examples(14)
@given(random_programs(max_operations=16), st.integers(0, 2), st.data())
def test_blocks_by_hand_have_no_faults(
    random: RandomProgram, instances: int, data: st.DataObject
) -> None:
    program = with_blocks_by_hand(random.program, data)
    try:
        stages = Stages.of(program, instances=1 + instances)
    except sley.SleyError:
        return
    assert not stages.faults()


def with_blocks_by_hand(program: Program, data: st.DataObject) -> Program:
    rows = len(program.transfers)
    blocks = st.lists(st.integers(-1, 3), min_size=rows, max_size=rows)
    by_hand = {"send_block": data.draw(blocks), "recv_block": data.draw(blocks)}
    return replace(program, transfers=replace(program.transfers, **by_hand))


# Damage by hand: every one of these must be found.


def all_pairs(p: ChunkProgram) -> None:
    """Everybody gathers in scratch, reduces there, and passes the result round a ring."""
    for owner in range(3):
        for step in (1, 2):
            p.chunk((owner + step) % 3, "in", owner).copy(owner, "scratch", step - 1)
    for owner in range(3):
        c = p.chunk(owner, "in", owner)
        for step in (1, 2):
            c = c.reduce(p.chunk(owner, "scratch", step - 1))
        c.copy((owner + 1) % 3, "in", owner).copy((owner + 2) % 3, "in", owner)


def parted(p: ChunkProgram) -> None:
    """Two lanes, a channel and blocks by hand, chunks in pairs, a chain of local copies, and a
    chunk that is overwritten before anybody reads it."""
    with p.parallelize(2):
        p.chunk(0, "in", 0, 2).copy(1, "out", 0, channel=0).copy(2, "out", 0)
    p.chunk(1, "in", 2, 2).copy(2, "out", 2, send_block=1, recv_block=0)
    p.chunk(2, "in", 0, 2).copy(2, "out", 4, send_block=2)
    p.chunk(1, "in", 0, 2).copy(2, "scratch", 0)
    p.chunk(2, "scratch", 0, 2).copy(0, "out", 0)
    p.chunk(0, "in", 0).copy(0, "out", 2).copy(0, "out", 3)
    p.chunk(1, "in", 0).copy(0, "out", 2)


PROGRAMS = {
    "all pairs": sley.trace(sley.AllReduce(3, 3, in_place=True), all_pairs),
    "parted": sley.trace(sley.Custom("parted", 3, 4, 6, lambda rank, index: None), parted),
}
STAGES = {name: Stages.of(program, slots=1) for name, program in PROGRAMS.items()}


def changes(values: Any, by: tuple[int, ...] = (-1, 1)) -> Iterator[Any]:
    """A column with one value at a time changed."""
    for row in range(len(values)):
        for step in by:
            changed = values.astype(np.int64)
            changed[row] += step
            yield changed


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_the_undamaged_has_no_faults(stages: Stages) -> None:
    assert not stages.faults()
    assert stages.lowered.forward.max() > NONE


@pytest.mark.parametrize(
    ("column", "by"),
    [
        ("kind", (-5, 5)),
        ("src", (-9, 9)),
        ("dst", (-9, 9)),
        ("src_buffer", (-9, 9)),
        ("dst_buffer", (-9, 9)),
        ("src_index", (-99, 99)),
        ("dst_index", (-99, 99)),
        ("count", (-9, 99)),
        ("channel", (-9,)),
        ("instances", (-9,)),
        ("lane", (-9,)),
        ("send_block", (-9,)),
        ("recv_block", (-9,)),
        ("step", (-9,)),
        ("source", (-99, 99)),
    ],
)
def test_a_transfer_that_names_what_does_not_exist(column: str, by: tuple[int, ...]) -> None:
    program = PROGRAMS["parted"]
    for values in changes(getattr(program.transfers, column), by):
        damaged = replace(program, transfers=replace(program.transfers, **{column: values}))
        assert program_faults(damaged)


@pytest.mark.parametrize("side", ["src", "dst"])
def test_a_transfer_that_ends_just_outside_its_buffer(side: str) -> None:
    program = PROGRAMS["parted"]
    t = program.transfers
    rank, buffer, index = (getattr(t, f"{side}{part}") for part in ("", "_buffer", "_index"))
    last = program.layout.size[buffer, rank] - t.count
    for row in range(len(t)):
        for start in (-1, last[row] + 1):
            damaged = index.copy()
            damaged[row] = start
            t_damaged = replace(t, **{f"{side}_index": damaged})
            found = program_faults(replace(program, transfers=t_damaged))
            assert [f.rows for f in found if "inside its buffer" in f.expected] == [(row,)]


def test_scratch_that_is_negative_or_not_said_for_a_rank() -> None:
    program = PROGRAMS["parted"]
    for scratch in ([-1, 0, 2], [0, 2], [0, 0, 1]):
        assert program_faults(replace(program, scratch_chunks=np.array(scratch)))


def test_a_transfer_onto_itself() -> None:
    program = PROGRAMS["parted"]
    t, row = program.transfers, 3
    assert (t.src[row], t.dst[row]) == (2, 2)
    for shift in (-1, 0, 1):
        buffer, index = t.src_buffer.copy(), t.src_index.copy()
        buffer[row], index[row] = t.dst_buffer[row], t.dst_index[row] - shift
        moved = replace(t, src_buffer=buffer, src_index=index)
        assert program_faults(replace(program, transfers=moved))


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_each_dependency_is_missed(stages: Stages) -> None:
    d = stages.dag.dependencies
    for row in range(len(d)):
        rows = np.delete(np.arange(len(d)), row)
        fewer = type(d)(**{name: getattr(d, name)[rows] for name in d.column_names()})
        assert chunk_faults(replace(stages.dag, dependencies=fewer))


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_a_dependency_that_memory_does_not_ask_for(stages: Stages) -> None:
    """Two reads have no order."""
    d = stages.dag.dependencies
    for by_value in (0, 1):
        row = (0, 0, len(stages.lowered.forward) - 1, 0, by_value)
        more = type(d)(
            *(np.append(getattr(d, n), v) for n, v in zip(d.column_names(), row, strict=True))
        )
        found = chunk_faults(replace(stages.dag, dependencies=more))
        assert [fault.expected for fault in found] == ["no dependency between other accesses"]


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("column", ["before", "before_at_dst", "after", "after_at_dst", "true"])
def test_each_value_of_a_dependency_matters(stages: Stages, column: str) -> None:
    d = stages.dag.dependencies
    for values in changes(getattr(d, column), (-1, 1, 99)):
        damaged = replace(d, **{column: values})
        assert chunk_faults(replace(stages.dag, dependencies=damaged))


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_what_becomes_of_a_transfers_values(stages: Stages) -> None:
    dag = stages.dag
    for values in changes(dag.origin):
        assert chunk_faults(replace(dag, origin=values))
    for values in changes(dag.readers):
        assert chunk_faults(replace(dag, readers=values))
    for row in range(len(dag.kept)):
        kept = dag.kept.copy()
        kept[row] ^= True
        assert chunk_faults(replace(dag, kept=kept))
    for name in ("origin", "readers", "kept"):
        assert chunk_faults(replace(dag, **{name: getattr(dag, name)[:-1]}))


def test_transfers_that_were_not_cut_into_their_instances() -> None:
    assert chunk_faults(dependencies(PROGRAMS["parted"]))


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_only_a_send_of_what_was_received_is_fused(stages: Stages) -> None:
    low = stages.lowered
    for row, fused in enumerate(low.forward.tolist()):
        for other in range(-1, len(low.forward)):
            forward = low.forward.copy()
            forward[row] = other
            faults = instruction_faults(replace(low, forward=forward))
            if other in (NONE, fused):
                assert not faults
            elif stages.dag.origin[other] != row or low.channel[other] != low.channel[row]:
                assert faults
            elif not low.remote[row]:
                assert {"two remote transfers" in fault.expected for fault in faults} == {True}
    for forward in ([99] * len(low.forward), [-2] * len(low.forward), low.forward[:-1]):
        assert instruction_faults(replace(low, forward=np.array(forward)))


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_channels_must_fit(stages: Stages) -> None:
    low, t = stages.lowered, stages.dag.program.transfers
    fused = np.zeros(len(t), bool)
    fused[low.forward[low.forward != NONE]] = fused[low.forward != NONE] = True
    for row, values in enumerate(changes(low.channel, (99,))):
        free = low.remote[row] and not fused[row] and (t.channel[row] == NONE or t.lane[row] > 0)
        assert bool(instruction_faults(replace(low, channel=values))) != free
    for values in changes(low.channel, (-99,)):
        assert instruction_faults(replace(low, channel=values))
    if t.lanes > 1:
        assert instruction_faults(replace(low, channel=np.where(low.remote, 0, NONE)))


def test_one_connection_fused_with_two() -> None:
    """Rank 1 passes what comes from rank 0 on to ranks 2 and 3."""

    def fork(p: ChunkProgram) -> None:
        for index, rank in enumerate((2, 3)):
            p.chunk(0, "in", index).copy(1, "out", index).copy(rank, "out", index)

    def join(p: ChunkProgram) -> None:
        for index, rank in enumerate((2, 3)):
            p.chunk(rank, "in", index).copy(1, "out", index).copy(0, "out", index)

    for body in (fork, join):
        dag = dependencies(sley.trace(sley.Custom("any", 4, 2, 2, lambda r, i: None), body))
        low = assign_channels(dag, fuse(dag))
        assert not instruction_faults(low)
        one = replace(low, forward=np.array([1, NONE, 3, NONE]), channel=np.zeros(4))
        assert "one connection" in instruction_faults(one)[0].expected


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_an_order_without_a_row_or_with_one_twice(stages: Stages) -> None:
    order, rows = stages.order, np.arange(len(stages.order))
    for row in rows:
        for picked in (np.delete(rows, row), np.insert(rows, row, row)):
            assert order_faults(stages.lowered, picked_rows(order, picked), stages.plan.slots)
    idle = Order(*(np.append(getattr(order, name), NONE) for name in order.column_names()))
    assert order_faults(stages.lowered, idle, stages.plan.slots)


def picked_rows(order: Order, rows: Any) -> Order:
    return Order(**{name: getattr(order, name)[rows] for name in order.column_names()})


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("column", ["receive", "send"])
def test_each_value_of_an_order_matters(stages: Stages, column: str) -> None:
    for values in changes(getattr(stages.order, column), (-1, 1, 99, -99)):
        damaged = replace(stages.order, **{column: values})
        assert order_faults(stages.lowered, damaged, stages.plan.slots)


def test_rows_that_fuse_what_the_instruction_dag_does_not() -> None:
    stages = Stages.of(PROGRAMS["all pairs"], slots=2)
    apart = replace(stages.lowered, forward=np.full(len(stages.lowered.forward), NONE))
    found = order_faults(apart, stages.order, stages.plan.slots)
    assert {fault.expected for fault in found} == {"rows that fuse what the instruction DAG fuses"}


def over_one_connection(p: ChunkProgram) -> None:
    p.chunk(0, "in", 0).copy(1, "out", 0)
    p.chunk(0, "in", 1).copy(1, "out", 1)


TWO_MESSAGES = sley.trace(
    sley.Custom("any", 2, 2, 2, lambda rank, index: None), over_one_connection
)


def expected_of_messages(*rows: tuple[int, int]) -> set[str]:
    """What is expected of two messages of one connection with a slot in the order of these rows
    (receive, send)."""
    receive, send = np.array(rows).T
    order = Order(receive, send, np.full(len(rows), NONE))
    found = order_faults(Stages.of(TWO_MESSAGES).lowered, order, 1)
    return {fault.expected.partition(": ")[2] for fault in found}


def test_messages_in_an_order_that_no_connection_has() -> None:
    fifo, sent = "each message received in the order of the sends", "received after it is sent"
    assert not expected_of_messages((NONE, 0), (0, NONE), (NONE, 1), (1, NONE))
    assert expected_of_messages((NONE, 0), (NONE, 1), (0, NONE), (1, NONE)) == {
        "room for it in 1 slots"
    }
    assert fifo in expected_of_messages((NONE, 0), (NONE, 1), (1, NONE), (0, NONE))
    assert f"a message {sent}" in expected_of_messages((0, NONE), (NONE, 0), (NONE, 1), (1, NONE))


def test_wide_messages_are_received_right_after_they_are_sent() -> None:
    def body(p: ChunkProgram) -> None:
        p.chunk(0, "in", 0, 3).copy(1, "out", 0).copy(2, "out", 0)
        p.chunk(1, "in", 0).copy(2, "out", 3)

    program = sley.trace(sley.Custom("any", 3, 3, 4, lambda r, i: None), body)
    apart = Stages.of(program, per_chunk=True)
    assert not apart.faults()
    assert apart.order.send.tolist() == [0, NONE, 2, NONE, 1, NONE]
    # Another transfer, over another connection, begins between send and receive of a wide one.
    early = picked_rows(apart.order, [0, 2, 1, 3, 4, 5])
    assert not order_faults(apart.lowered, early, 3, per_chunk=True)
    found = order_faults(apart.lowered, early, 2, per_chunk=True)
    assert ["right after it is sent" in fault.expected for fault in found] == [True]
    fused = Stages.of(program)
    assert not fused.faults()
    found = order_faults(fused.lowered, fused.order, 2, per_chunk=True)
    assert any("in unfused instructions" in fault.expected for fault in found)


@pytest.mark.parametrize("stages", STAGES.values(), ids=STAGES)
def test_blocks_of_other_ranks_and_blocks_that_do_not_exist(stages: Stages) -> None:
    low, order, blocks = stages.lowered, stages.order, stages.blocks
    for values in changes(blocks.rank, (-9, -1, 1, 9)):
        assert block_faults(low, order, replace(blocks, rank=values))
    for values in changes(blocks.instruction_block, (-99, 99)):
        assert block_faults(low, order, replace(blocks, instruction_block=values))
    shorter = replace(blocks, instruction_block=blocks.instruction_block[:-1])
    assert block_faults(low, order, shorter)
    more = replace(blocks, rank=np.append(blocks.rank, 2))
    assert block_faults(low, order, more)


def expected_of_blocks(stages: Stages, rank: list[int], block: list[int]) -> set[str]:
    blocks = Blocks(np.array(rank), np.array(block))
    return {fault.expected for fault in block_faults(stages.lowered, stages.order, blocks)}


def test_blocks_whose_ranks_descend() -> None:
    stages = Stages.of(TWO_MESSAGES, slots=1)
    assert stages.order.send.tolist() == [0, NONE, 1, NONE]
    assert not expected_of_blocks(stages, [0, 1], [0, 1, 0, 1])
    assert expected_of_blocks(stages, [1, 0], [1, 0, 1, 0]) == {"ranks in ascending order"}


def test_a_connection_with_two_blocks_at_one_end() -> None:
    stages = Stages.of(TWO_MESSAGES, slots=1)
    sending, receiving = (f"one {word} block for a connection" for word in ("sending", "receiving"))
    assert expected_of_blocks(stages, [0, 0, 1], [0, 2, 1, 2]) == {sending}
    assert expected_of_blocks(stages, [0, 1, 1], [0, 1, 0, 2]) == {receiving}


@pytest.mark.parametrize(("asked", "right"), [((2, 2), [0, 0, 1]), ((2, 3), [0, 1, 1])])
def test_blocks_by_hand_are_those_asked_for(asked: tuple[int, int], right: list[int]) -> None:
    """Two local operations that ask for blocks, and one that doesn't."""

    def body(p: ChunkProgram) -> None:
        for index, block in enumerate((*asked, None)):
            p.chunk(0, "in", index).copy(0, "out", index, send_block=block)

    stages = Stages.of(sley.trace(sley.Custom("any", 1, 3, 3, lambda rank, index: None), body))
    assert stages.order.receive.tolist() == [0, 1, 2]
    assert not expected_of_blocks(stages, [0, 0], right)
    assert expected_of_blocks(stages, [0, 0], [0, 1 - right[1], 1]) == {
        "one block for each that the program asks for"
    }


# Damage at random: what has no faults must still become a right plan.


@examples(14)
@given(random_programs(max_operations=12), st.sampled_from([1, 2]), st.booleans(), st.data())
def test_a_damaged_stage_without_faults_makes_a_right_plan(
    random: RandomProgram, slots: int, per_chunk: bool, data: st.DataObject
) -> None:
    stages = Stages.of(random.program, slots=slots, per_chunk=per_chunk)
    if not len(stages.order):
        return
    damaged = damage(stages, data)
    if damaged.faults():
        return
    p = stages.plan
    made = emit(
        damaged.lowered,
        damaged.order,
        damaged.blocks,
        p.protocol,
        slots,
        p.loop_order,
        per_chunk=per_chunk,
    )
    sley.verify(made)


def damage(stages: Stages, data: st.DataObject) -> Stages:
    """The stages with two rows of the order exchanged, or a row moved to another place or block."""
    rows = np.arange(len(stages.order))
    row, other = (data.draw(st.integers(0, len(rows) - 1)) for _ in range(2))
    match data.draw(st.sampled_from(["exchange", "move", "block"])):
        case "block":
            blocks = stages.blocks.instruction_block.copy()
            blocks[row] = data.draw(st.integers(0, len(stages.blocks.rank) - 1))
            return replace(stages, blocks=replace(stages.blocks, instruction_block=blocks))
        case "exchange":
            rows[[row, other]] = rows[[other, row]]
        case _:
            rows = np.insert(np.delete(rows, row), other, row)
    moved = replace(stages.blocks, instruction_block=stages.blocks.instruction_block[rows])
    return replace(stages, order=picked_rows(stages.order, rows), blocks=moved)
