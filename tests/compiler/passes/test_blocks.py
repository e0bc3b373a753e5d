"""Blocks: the thread block of each instruction."""

from __future__ import annotations

import re

import numpy as np
import pytest

import sley
from sley.algorithms import build
from sley.compiler.passes.blocks import assign_blocks
from sley.compiler.passes.order import order
from sley.ir.words import Op
from support.inputs.written_programs import instruction_word, lower


def blocks(text: str, *, fusion: bool = True) -> list[str]:
    """The blocks, each with its rank and the words of its instructions, in their order."""
    low = lower(text, fusion=fusion)
    made = order(low, 2)
    assigned = assign_blocks(low, made)
    words = [f"{rank}:" for rank in assigned.rank.tolist()]
    for row, block in zip(made, assigned.instruction_block.tolist(), strict=True):
        words[block] += f" {instruction_word(low, row.receive, row.send)}"
    return words


def test_every_end_of_a_connection_has_a_block_of_its_own() -> None:
    assert blocks("""
        0 in[0] -> 1 out[0]
        0 in[1] -> 1 out[1]
        0 in[2] -> 2 out[2]
        1 in[3] -> 0 out[3]
        0 in[4] -> 1 out[4]    channel 1
    """) == ["0: s0 s1", "0: s2", "0: s4", "0: r3", "1: s3", "1: r0 r1", "1: r4", "2: r2"]


def test_a_fused_instruction_ties_two_ends_into_one_block() -> None:
    assert blocks("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        1 in[1] -> 2 out[1]
        0 in[1] -> 1 out[2]
    """) == ["0: s0 s3", "1: s2 r0+s1 r3", "2: r2 r1"]


def test_without_fusion_a_relay_has_two_blocks() -> None:
    text = "0 in[0] -> 1 out[0]\n 1 out[0] -> 2 out[0]"
    assert blocks(text, fusion=False) == ["0: s0", "1: r0", "1: s1", "2: r1"]


def test_blocks_are_numbered_by_rank_and_by_their_first_instruction() -> None:
    assert blocks("""
        1 in[0] -> 0 out[0]
        1 in[1] -> 2 out[1]
        0 in[2] -> 2 out[2]
    """) == ["0: s2", "0: r0", "1: s0", "1: s1", "2: r1", "2: r2"]


def test_a_local_operation_goes_where_the_latest_instruction_is_the_earliest() -> None:
    assert blocks("""
        0 in[0] -> 1 out[0]
        0 in[1] -> 2 out[1]
        0 in[2] -> 0 out[2]
        0 in[3] -> 0 out[3]
        0 in[4] -> 0 out[4]
    """) == ["0: s0 l2 l4", "0: s1 l3", "1: r0", "2: r1"]


def test_local_operations_of_a_rank_without_messages_share_one_block() -> None:
    assert blocks("""
        0 in[0] -> 0 out[0]
        0 in[1] -> 0 out[1]
        1 in[0] -> 1 out[0]
    """) == ["0: l0 l1", "1: l2"]


def test_ends_with_one_block_by_hand_share_it_and_come_first_in_the_order_of_the_numbers() -> None:
    assert blocks("""
        2 in[1] -> 0 out[1]
        0 in[0] -> 1 out[0]    send_block 7 recv_block 0
        1 in[0] -> 0 out[0]    send_block 0 recv_block 4
    """) == ["0: r2", "0: s1", "0: r0", "1: s2 r1", "2: s0"]


def test_a_block_by_hand_is_one_of_its_rank() -> None:
    assert blocks("""
        0 in[0] -> 2 out[0]    send_block 0
        1 in[0] -> 3 out[0]    send_block 0
    """) == ["0: s0", "1: s1", "2: r0", "3: r1"]


def test_a_connection_is_in_the_block_that_any_of_its_transfers_asks_for() -> None:
    assert blocks("""
        0 in[0] -> 1 out[0]    channel 0
        0 in[1] -> 1 out[1]    channel 0 send_block 1
        2 in[0] -> 0 out[2]    channel 0 recv_block 1
    """) == ["0: s0 s1 r2", "1: r0 r1", "2: s2"]


def test_lanes_have_blocks_by_hand_of_their_own() -> None:
    assert blocks("""
        0 in[0] -> 1 out[0]    send_block 0 channel 0 lane 0
        0 in[1] -> 1 out[1]    send_block 0 channel 0 lane 1
        0 in[2] -> 0 out[2]    send_block 0 lane 1
        0 in[3] -> 0 out[3]    send_block 1 lane 0
    """) == ["0: s0", "0: s1 l2", "0: l3", "1: r0", "1: r1"]


def test_a_local_operation_is_where_it_is_asked_for() -> None:
    assert blocks("""
        0 in[0] -> 1 out[0]    send_block 3
        0 in[1] -> 0 out[1]    send_block 3
        0 in[2] -> 0 out[2]    send_block 2
        0 in[3] -> 0 out[3]    send_block 2
        0 in[4] -> 0 out[4]
    """) == ["0: l2 l3", "0: s0 l1 l4", "1: r0"]


@pytest.mark.parametrize(
    ("text", "code", "lines", "words"),
    [
        (
            "0 in[0] -> 1 out[0] send_block 0\n 0 in[0] -> 2 out[0] send_block 0",
            "C302",
            [1, 2],
            "block 0 of rank 0, as requested, sends to rank 1 on channel 0 and sends to rank 2 on "
            "channel 0",
        ),
        (
            "1 in[0] -> 0 out[0] recv_block 0\n 2 in[0] -> 0 out[1] recv_block 0",
            "C302",
            [1, 2],
            "block 0 of rank 0, as requested, receives from rank 1 on channel 0 and receives from "
            "rank 2 on channel 0",
        ),
        (
            "0 in[0] -> 1 out[0] send_block 0\n 1 in[0] -> 0 out[0] recv_block 0 channel 1",
            "C302",
            [1, 2],
            "block 0 of rank 0, as requested, sends to rank 1 on channel 0 and receives from rank "
            "1 on channel 1",
        ),
        (
            "0 in[0] -> 1 out[0] send_block 1\n 0 in[1] -> 1 out[1]\n"
            " 0 in[2] -> 1 out[2] send_block 2",
            "C302",
            [3, 1],
            "rank 0 is to use blocks 2 and 1 for one connection",
        ),
        (
            "0 in[0] -> 1 out[0] recv_block 3 lane 1\n 0 in[1] -> 1 out[1] recv_block 4 lane 1",
            "C302",
            [2, 1],
            "rank 1 is to use blocks 4 and 3 for one connection",
        ),
    ],
)
def test_blocks_that_cannot_be_are_refused_with_the_lines_that_ask_for_them(
    text: str, code: str, lines: list[int], words: str
) -> None:
    with pytest.raises(sley.SleyError) as caught:
        blocks(text)
    diagnostic = caught.value.diagnostics[0]
    assert diagnostic.code == code
    assert sorted(place.line for place in diagnostic.places) == sorted(lines)
    assert words in diagnostic.found


ONE_STEP = "(send |copy_send |copy )*(recv |recv_reduce_copy |reduce |copy )*"
TWO_STEPS = "(send )*(recv_reduce_copy )*(recv_reduce_copy_send )?(send )*(recv )*"


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("instances", [1, 3])
@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("one-step-allreduce", ONE_STEP),
        ("all-pairs-allreduce", TWO_STEPS),
        ("all-pairs-allgather", ONE_STEP),
        ("one-step-reducescatter", ONE_STEP),
        ("all-pairs-reducescatter", ONE_STEP),
        ("all-pairs-alltoall", ONE_STEP),
        ("flat-broadcast", ONE_STEP),
        ("all-pairs-broadcast", "(copy_send |send |copy )*(recv |recv_copy_send |send )*"),
        ("flat-reduce", ONE_STEP),
    ],
)
def test_a_block_of_an_instance_sends_to_all_peers_before_it_receives(
    name: str, pattern: str, instances: int, in_place: bool
) -> None:
    for slots in (1, 8):
        plan = sley.compile(
            build(name, ranks=4, in_place=in_place),
            allocate="instance",
            instances=instances,
            slots=slots,
        )
        assert np.bincount(plan.block_rank).tolist() == [instances] * 4
        assert not len(plan.waits)
        for begin, end in zip(plan.block_offset[:-1], plan.block_offset[1:], strict=True):
            words = "".join(f"{Op(op).name.lower()} " for op in plan.instructions.op[begin:end])
            assert re.fullmatch(pattern, words), words
