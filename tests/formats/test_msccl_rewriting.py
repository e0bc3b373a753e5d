"""Rewriting plans for MSCCL XML: nops removed, fused instructions split."""

from dataclasses import replace

import pytest

import sley
from sley.errors import SleyError
from sley.formats import msccl_xml
from sley.formats.msccl_xml.targets import EXECUTOR, RCCL
from sley.formats.rewriting import FUSED, remove_nops, unfuse
from sley.ir.words import Op
from support.inputs.xml_plans import I, O, S, Step, exchange, many_waits, plan_of, with_instructions

# Leaving nops out


def test_nops_pass_their_waits_on() -> None:
    own = [
        [Step(Op.COPY, (I, 0), (S, 0)), Step(Op.COPY, (I, 0), (S, 1))],
        [Step(Op.COPY, (I, 0), (S, 2)), Step(Op.NOP, count=0, waits=((0, 0),)),
         Step(Op.COPY, (I, 0), (S, 3), waits=((0, 1),))],
        [Step(Op.NOP, count=0, waits=((1, 1),)), Step(Op.COPY, (I, 0), (O, 0))],
        [Step(Op.NOP, count=0), Step(Op.COPY, (I, 0), (S, 4), waits=((2, 0),))],
    ]  # fmt: skip
    plan = remove_nops(plan_of(sley.AllReduce(1, 1), [own], scratch=[5]))
    assert plan.instructions.op.tolist() == [Op.COPY] * 6
    assert plan.block_offset.tolist() == [0, 2, 4, 5, 6]
    waits = {row: plan.waits[row].tolist() for row in range(6)}
    assert waits == {0: [], 1: [], 2: [], 3: [0, 1], 4: [0, 2], 5: [0, 2]}


def test_a_nop_at_the_end_of_a_block_gives_its_wait_to_nobody() -> None:
    own = [
        [Step(Op.COPY, (I, 0), (S, 0))],
        [Step(Op.COPY, (I, 0), (S, 1)), Step(Op.NOP, count=0, waits=((0, 0),))],
        [Step(Op.COPY, (I, 0), (O, 0))],
    ]
    plan = remove_nops(plan_of(sley.AllReduce(1, 1), [own], scratch=[2]))
    assert plan.block_offset.tolist() == [0, 1, 2, 3]
    assert len(plan.waits) == 0


def test_a_plan_remove_nops_is_left_as_it_is() -> None:
    plan = many_waits()
    assert remove_nops(plan) is plan


def test_nops_that_wait_in_a_circle_are_refused() -> None:
    own = [
        [Step(Op.NOP, count=0, waits=((1, 0),)), Step(Op.COPY, (I, 0), (O, 0))],
        [Step(Op.NOP, count=0, waits=((0, 0),))],
    ]
    with pytest.raises(SleyError, match="V201"):
        msccl_xml.write(plan_of(sley.AllReduce(1, 1), [own]), "msccl")


def test_waits_for_earlier_steps_of_the_block_are_left_out() -> None:
    own = [[Step(Op.COPY, (I, 0), (S, 0)), Step(Op.COPY, (S, 0), (O, 0), waits=((0, 0),))]]
    text = msccl_xml.write(plan_of(sley.AllReduce(1, 1), [own], scratch=[1]), "msccl")
    assert 'depid="0"' not in text


# Taking fused instructions apart


FUSED_CASES = {
    "rcs": (Step(Op.RECV_COPY_SEND, dst=(O, 1), count=2), "r s", 0),
    "rrs": (Step(Op.RECV_REDUCE_SEND, (I, 1), count=2), "r re s", 2),
    "rrc same": (Step(Op.RECV_REDUCE_COPY, (I, 1), (I, 1), 2), "r re", 2),
    "rrc apart": (Step(Op.RECV_REDUCE_COPY, (I, 0), (O, 0), 2), "r re", 0),
    "rrc partly": (Step(Op.RECV_REDUCE_COPY, (I, 0), (I, 1), 2), "r re cpy", 2),
    "rrcs same": (Step(Op.RECV_REDUCE_COPY_SEND, (S, 0), (S, 0), 1), "r re s", 1),
    "rrcs apart": (Step(Op.RECV_REDUCE_COPY_SEND, (S, 0), (S, 1), 1), "r re s", 0),
    "rrcs partly": (Step(Op.RECV_REDUCE_COPY_SEND, (I, 1), (I, 0), 2), "r re cpy s", 2),
    "cs": (Step(Op.COPY_SEND, (I, 1), (O, 0), 2), "s cpy", 0),
}


@pytest.mark.parametrize("case", FUSED_CASES)
def test_a_fused_instruction_is_taken_apart_into_its_pieces(case: str) -> None:
    step, words, spare = FUSED_CASES[case]
    step = replace(step, send=1, recv=2, chan=3)
    plan = plan_of(sley.AllReduce(3, 3), [[[step]], [], []], scratch=[2, 0, 0])
    apart = unfuse(plan, RCCL.operations)
    spelt = {op: word for word, op in msccl_xml.targets.OPERATIONS.items()}
    assert " ".join(spelt[Op(op)] for op in apart.instructions.op) == words
    assert apart.scratch_chunks.tolist() == [2 + spare, 0, 0]
    assert (apart.instructions.count == step.count).all()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (Step(Op.COPY, (I, 0), (S, 0)), "s cpy cpy"),
        (Step(Op.COPY, (O, 1), (S, 0)), "cpy s cpy"),
        (Step(Op.COPY, (I, 0), (O, 1)), "cpy s cpy"),
        (Step(Op.COPY, (S, 0), (I, 2)), "cpy s cpy"),
        (Step(Op.COPY, (I, 2), (S, 0)), "s cpy cpy"),
    ],
)
def test_a_copy_comes_before_its_message_if_others_touch_what_it_does(
    other: Step, words: str
) -> None:
    """The message may be all that orders them."""
    sent = Step(Op.COPY_SEND, (I, 1), (O, 0), 2, send=1, chan=0)
    plan = plan_of(sley.AllReduce(2, 3), [[[sent], [other]], []], scratch=[1, 0])
    apart = unfuse(plan, RCCL.operations)
    spelt = {op: word for word, op in msccl_xml.targets.OPERATIONS.items()}
    assert " ".join(spelt[Op(op)] for op in apart.instructions.op) == words


def test_in_place_aliases_count_as_the_same_place() -> None:
    step = Step(Op.RECV_REDUCE_COPY, (I, 1), (O, 1), recv=1, chan=0)
    for in_place, spare in ((True, 1), (False, 0)):
        plan = plan_of(sley.AllReduce(2, 2, in_place), [[[step]], []])
        assert unfuse(plan, RCCL.operations).scratch_chunks[0] == spare


def test_blocks_do_not_share_their_spare_chunks() -> None:
    def block(peer: int, count: int) -> list[Step]:
        return [Step(Op.RECV_REDUCE_SEND, (I, 0), count=count, send=peer, recv=peer, chan=0)] * 2

    ranks = [[block(1, 2), block(2, 3)], [block(0, 1)], []]
    plan = plan_of(sley.AllReduce(3, 3), ranks, scratch=[5, 1, 0])
    apart = unfuse(plan, RCCL.operations)
    assert apart.scratch_chunks.tolist() == [10, 2, 0]
    t = apart.instructions
    spare = [t.dst_index[row] for row in range(len(t)) if t.op[row] == Op.RECV]
    assert spare == [5, 5, 7, 7, 1, 1]


def test_waits_enter_at_the_first_piece_and_leave_at_the_last() -> None:
    own = [
        [Step(Op.COPY, (I, 0), (S, 0))],
        [Step(Op.RECV_REDUCE_SEND, (I, 0), send=1, recv=1, chan=0, waits=((0, 0),))],
        [Step(Op.COPY, (I, 0), (S, 1), waits=((1, 0),))],
    ]
    apart = unfuse(plan_of(sley.AllReduce(2, 1), [own, []], scratch=[2, 0]), RCCL.operations)
    assert [apart.waits[row].tolist() for row in range(5)] == [[], [0], [], [], [3]]


def test_only_what_the_target_does_not_run_is_taken_apart() -> None:
    plan = exchange()
    assert unfuse(plan, EXECUTOR.operations) is plan
    assert not FUSED & {Op(op) for op in unfuse(plan, RCCL.operations).instructions.op}


def test_pieces_keep_their_transfers() -> None:
    step = Step(Op.RECV_REDUCE_SEND, (I, 0), send=1, recv=1, chan=0)
    plan = plan_of(sley.AllReduce(2, 1), [[[step]], []])
    t = unfuse(with_instructions(plan, transfer=[7], forward=[8]), RCCL.operations).instructions
    assert t.transfer.tolist() == [7, 7, 8]
    assert t.forward.tolist() == [-1] * 3
    assert t.send_peer.tolist() == [-1, -1, 1]
    assert t.recv_peer.tolist() == [1, -1, -1]
    assert t.channel.tolist() == [0, -1, 0]


@pytest.mark.parametrize("per_chunk", [False, True])
def test_rewriting_keeps_the_rule_for_slots(per_chunk: bool) -> None:
    plan = replace(exchange(), per_chunk=per_chunk, slots=3)
    apart = unfuse(plan, RCCL.operations)
    assert apart is not plan
    assert (apart.per_chunk, apart.slots) == (per_chunk, 3)
    nop = Step(Op.NOP, count=0)
    with_nop = plan_of(sley.AllReduce(1, 1), [[[nop, Step(Op.COPY, (I, 0), (O, 0))]]])
    without = remove_nops(replace(with_nop, per_chunk=per_chunk, slots=3))
    assert len(without.instructions) == 1
    assert (without.per_chunk, without.slots) == (per_chunk, 3)


def test_what_is_read_takes_a_slot_for_each_chunk() -> None:
    for target in (EXECUTOR, RCCL):
        assert msccl_xml.read(msccl_xml.write(exchange(), target)).plan.per_chunk
