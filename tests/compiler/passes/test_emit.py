"""Emit: the instructions of a plan's blocks, and their operands."""

from __future__ import annotations

import numpy as np
import pytest

import sley
from sley.compiler.passes.blocks import assign_blocks
from sley.compiler.passes.emit import emit
from sley.compiler.passes.order import order
from sley.compiler.passes.pipelines import whole_transfers
from sley.ir.words import Buffer, LoopOrder, Op, Protocol
from support.inputs.written_programs import lower, program_of

WORDS = {Buffer.INPUT: "in", Buffer.OUTPUT: "out", Buffer.SCRATCH: "scratch", -1: ""}


def emitted(
    text: str, *, fusion: bool = True, result: str = "", loop_order: LoopOrder = LoopOrder.TILE
) -> sley.Plan:
    low = lower(text, fusion=fusion, result=result)
    made = order(low, 2)
    return emit(low, made, assign_blocks(low, made), Protocol.LL, 2, loop_order, per_chunk=True)


def listed(plan: sley.Plan, rank: int) -> list[str]:
    """The instructions of a rank, block after block: "send in[0] -> 1" and the like; the receive's
    source stands first, the send's destination last."""
    words = []
    for row, t in enumerate(plan.instructions):
        if plan.rank[row] != rank:
            continue
        src, dst = (
            f"{WORDS[buffer]}[{index}]" if buffer >= 0 else ""
            for buffer, index in ((t.src_buffer, t.src_index), (t.dst_buffer, t.dst_index))
        )
        source = f"{t.recv_peer} ->" if t.recv_peer >= 0 else ""
        sent = f"-> {t.send_peer}" if t.send_peer >= 0 else ""
        parts = (Op(t.op).name.lower(), source, src, f"= {dst}" if dst else "", sent)
        words.append(" ".join(part for part in parts if part))
    return words


def test_transfers_become_sends_and_receives_and_local_operations() -> None:
    plan = emitted("""
        0 in[1] -> 1 out[2]
        0 in[3] +> 1 scratch[4]
        0 in[5] -> 0 out[6]
        0 scratch[7] +> 0 out[8]
    """)
    assert listed(plan, 0) == [
        "send in[1] -> 1",
        "send in[3] -> 1",
        "copy in[5] = out[6]",
        "reduce scratch[7] = out[8]",
    ]
    assert listed(plan, 1) == [
        "recv 0 -> = out[2]",
        "recv_reduce_copy 0 -> scratch[4] = scratch[4]",
    ]


def test_a_fused_copy_is_stored_and_sent_on() -> None:
    plan = emitted("0 in[0] -> 1 out[1]\n 1 out[1] -> 2 out[2]")
    assert listed(plan, 1) == ["recv_copy_send 0 -> = out[1] -> 2"]


SUM = "0 in[0] +> 1 in[1]\n 1 in[1] -> 2 out[2]"


def test_a_fused_sum_that_only_the_send_reads_is_not_stored() -> None:
    assert listed(emitted(SUM), 1) == ["recv_reduce_send 0 -> in[1] -> 2"]


@pytest.mark.parametrize(
    ("more", "result"),
    [
        ("1 in[1] -> 1 out[5]", ""),  # somebody else reads it
        ("0 in[4] +> 1 in[1]", ""),
        ("", "1 out[1]"),  # it is part of the result
    ],
)
def test_a_fused_sum_that_is_read_again_or_promised_is_stored(more: str, result: str) -> None:
    text = SUM.replace("in[1]", "out[1]") if result else SUM
    place = "out[1]" if result else "in[1]"
    found = listed(emitted(f"{text}\n{more}", result=result), 1)
    assert f"recv_reduce_copy_send 0 -> {place} = {place} -> 2" in found


def test_a_sum_that_is_written_over_is_not_stored() -> None:
    found = listed(emitted(f"{SUM}\n 3 in[4] -> 1 in[1]", result="1 out[1]"), 1)
    assert "recv_reduce_send 0 -> in[1] -> 2" in found


def test_every_instruction_says_where_it_comes_from() -> None:
    plan = emitted("""
        0 in[0:2] -> 1 out[0]    channel 3
        1 out[0:2] -> 2 out[0]
        2 in[2] -> 2 out[2]
    """)
    found = {
        Op(t.op).name: (t.transfer, t.forward, t.source, t.count, t.channel, t.pipeline)
        for t in plan.instructions
    }
    assert found == {
        "SEND": (0, -1, 0, 2, 3, -1),
        "RECV_COPY_SEND": (0, 1, 0, 2, 3, -1),
        "RECV": (1, -1, 1, 2, 3, -1),
        "COPY": (2, -1, 2, 1, -1, -1),
    }


def test_sub_pipelines_go_along() -> None:
    low = lower("0 in[0] -> 1 out[0]\n 0 in[1] -> 1 out[1]", fusion=False)
    made = whole_transfers(low, np.array([1, 0]), np.array([4, 3]))
    blocks = assign_blocks(low, made)
    plan = emit(low, made, blocks, Protocol.SIMPLE, 2, LoopOrder.INSTRUCTION, per_chunk=False)
    assert [(t.transfer, t.pipeline) for t in plan.instructions] == [(1, 3), (0, 4)] * 2


def test_blocks_list_their_instructions_in_the_order_given() -> None:
    plan = emitted("""
        1 in[0] -> 0 out[0]
        0 in[1] -> 1 out[1]
        0 in[2] -> 1 out[2]
    """)
    assert plan.block_rank.tolist() == [0, 0, 1, 1]
    assert plan.block_offset.tolist() == [0, 2, 3, 4, 6]
    assert plan.instructions.transfer.tolist() == [1, 2, 0, 0, 1, 2]


def test_waits_name_rows_of_the_plan() -> None:
    plan = emitted("1 in[0] -> 2 out[0]\n 0 in[0] -> 1 out[0]\n 1 out[0] -> 2 out[1]", fusion=False)
    (after,), (before,) = plan.waits.source, plan.waits.target
    assert [plan.instructions.transfer[row] for row in (before, after)] == [1, 2]
    assert (plan.instructions.recv_peer[before], plan.instructions.send_peer[after]) == (0, 2)


def test_the_plan_is_about_the_program() -> None:
    program = program_of("0 in[0] -> 1 scratch[3]", chunks=512)
    plan = emitted("0 in[0] -> 1 scratch[3]")
    assert (plan.name, plan.protocol, plan.slots) == ("written", Protocol.LL, 2)
    assert (plan.loop_order, plan.per_chunk) == (LoopOrder.TILE, True)
    assert plan.collective == program.collective
    assert plan.scratch_chunks.tolist() == [0, 4]
    assert plan.sources == program.sources
