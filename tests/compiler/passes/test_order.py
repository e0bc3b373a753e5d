"""Order: one order of instructions that runs to its end within the slots."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes.channels import assign_channels
from sley.compiler.passes.fuse import fuse
from sley.compiler.passes.order import eager, order
from sley.ir.dag import InstructionDag
from sley.ir.dependencies import dependencies
from support.checks.invariants import order_faults
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.generators.random_transfers import RandomTransfers, random_transfers, random_trees
from support.inputs.written_programs import instruction_word, lower


def steps(low: InstructionDag, slots: int, *, per_chunk: bool = False, soon: bool = False) -> str:
    """The words of the instructions, in their order, or in the eager one."""
    made = order(low, slots, per_chunk=per_chunk)
    made = made.pick(eager(low, made, slots)) if soon else made
    assert all(row.pipeline == -1 for row in made)
    return " ".join(instruction_word(low, row.receive, row.send) for row in made)


THREE = """
    0 in[0] -> 1 out[0]
    0 in[1] -> 1 out[1]
    0 in[2] -> 1 out[2]
"""


def test_sends_come_before_receives_as_far_as_the_slots_allow() -> None:
    low = lower(THREE)
    assert steps(low, 3) == steps(low, 8) == "s0 s1 s2 r0 r1 r2"
    assert steps(low, 2) == "s0 s1 r0 s2 r1 r2"
    assert steps(low, 1) == "s0 r0 s1 r1 s2 r2"


def test_connections_have_slots_each_for_itself() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]
        0 in[1] -> 2 out[1]
        1 in[2] -> 0 out[2]
        0 in[3] -> 1 out[3]    channel 1
    """)
    assert steps(low, 1) == "s0 s1 s2 s3 r0 r1 r2 r3"


def test_deeper_instructions_come_later_and_longer_paths_first() -> None:
    low = lower(
        """
            1 in[0] -> 2 out[0]
            0 in[0] -> 1 out[0]
            1 out[0] -> 2 out[1]
        """,
        fusion=False,
    )
    assert steps(low, 2) == "s1 s0 r1 r0 s2 r2"


def test_equals_are_in_the_order_of_the_program() -> None:
    low = lower("""
        2 in[0] -> 3 out[0]
        0 in[0] -> 1 out[0]
        1 in[0] -> 2 out[0]
    """)
    assert steps(low, 2) == "s0 s1 s2 r0 r1 r2"


def test_a_transfer_is_sent_only_when_its_receive_waits_for_nothing() -> None:
    """Otherwise its message could stand before one that the receiver needs first."""
    low = lower(
        """
        0 in[0] -> 1 out[0]
        2 in[0] -> 1 out[1]
        1 out[1] -> 3 out[0]
        0 in[1] -> 1 out[1]
    """,
        fusion=False,
    )
    assert steps(low, 2).split().index("s3") > steps(low, 2).split().index("s2")


def test_messages_are_received_in_the_order_in_which_they_are_sent() -> None:
    low = lower(
        """
        2 in[0] -> 0 out[0]
        0 out[0] -> 1 out[0]
        0 in[1] -> 1 out[1]
        1 out[1] -> 3 out[1]
    """,
        fusion=False,
    )
    found = steps(low, 8).split()
    assert sorted(found, key=found.index) == found
    sent = [word[1:] for word in found if word in ("s1", "s2")]
    received = [word[1:] for word in found if word in ("r1", "r2")]
    assert sent == received == ["2", "1"]


def test_a_fused_instruction_receives_and_sends_at_once() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        1 in[1] -> 1 out[1]
    """)
    assert steps(low, 1) == "s0 l2 r0+s1 r1"


def test_a_fused_instruction_waits_for_a_slot_of_its_send() -> None:
    low = lower("""
        1 in[1] -> 2 out[1]
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
    """)
    assert steps(low, 1) == "s1 s0 r0 r1+s2 r2"


def test_a_fused_instruction_waits_for_what_its_receiver_waits_for() -> None:
    low = lower("""
        2 out[1] -> 3 out[0]
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[1]
    """)
    found = steps(low, 2).split()
    assert found.index("s0") < found.index("r1+s2")


TWO_RELAYS = """
    1 in[0] -> 2 out[0]
    2 out[0] -> 1 out[1]
    2 in[1] -> 1 out[0]
    1 out[0] -> 2 out[1]
"""


def test_a_fused_instruction_that_cannot_run_is_split() -> None:
    """Each relay waits for a slot that the other one's message takes, so both receive first."""
    low = lower(TWO_RELAYS)
    assert low.forward.tolist() == [1, -1, 3, -1]
    assert steps(low, 2) == "s0 s2 r0+s1 r2+s3 r1 r3"
    assert steps(low, 1) == "s0 s2 r0 r2 s1 s3 r1 r3"
    assert low.forward.tolist() == [1, -1, 3, -1]


def test_a_message_that_waits_behind_a_split_instruction_is_ordered() -> None:
    """Message 1, alone by now, waits for the slot that its fused instruction waited for."""
    low = lower(TWO_RELAYS + "1 in[5] -> 2 out[5]\n 2 out[5] -> 1 out[5]")
    assert low.forward.tolist() == [1, -1, 3, -1, 5, -1]
    assert steps(low, 1) == "s0 s2 r0 r2 s4 r4+s5 s3 r3 r5 s1 r1"


def test_a_fused_instruction_waits_until_its_message_is_the_oldest_and_its_receiver_ready() -> None:
    """Transfer 5 may be received once rank 2 has sent on what it writes over; 8 may be earlier, but
    its message stands behind."""
    low = lower("""
        0 in[0] -> 1 out[0]
        5 in[0] -> 6 out[0]
        6 out[0] -> 2 out[0]
        2 out[0] -> 3 out[0]
        2 out[1] -> 3 out[1]
        1 out[0] -> 2 out[0]
        0 in[7] -> 0 out[7]
        0 out[7] -> 1 out[1]
        1 out[1] -> 2 out[1]
    """)
    assert low.forward.tolist() == [5, 2, 3, -1, -1, -1, -1, 8, -1]
    assert steps(low, 2) == "s1 s0 s4 l6 r1+s2 s7 r4 r2+s3 r0+s5 r7+s8 r3 r5 r8"


def test_wide_messages_take_a_slot_for_each_chunk_where_they_do() -> None:
    low = lower("""
        0 in[0:2] -> 1 out[0]
        0 in[2] -> 1 out[2]
        0 in[3] -> 1 out[3]
    """)
    assert steps(low, 3) == steps(low, 3, per_chunk=True).replace("s1 r0 s2", "s1 s2 r0")
    assert steps(low, 3, per_chunk=True) == "s0 s1 r0 s2 r1 r2"
    assert steps(low, 2, per_chunk=True) == "s0 r0 s1 r1 s2 r2"
    low = lower("""
        0 in[0:2] -> 1 out[0]
        0 in[2:4] -> 1 out[2]
        0 in[4:6] -> 1 out[4]
    """)
    assert steps(low, 3, per_chunk=True) == "s0 r0 s1 r1 s2 r2"
    assert steps(low, 4, per_chunk=True) == "s0 s1 r0 s2 r1 r2"


def test_a_message_wider_than_the_slots_is_received_before_anything_else_happens() -> None:
    low = lower("""
        0 in[1:4] -> 1 out[1]
        0 in[0] -> 2 out[0]
    """)
    assert steps(low, 2, per_chunk=True) == "s0 r0 s1 r1"
    assert steps(low, 3, per_chunk=True) == "s0 s1 r0 r1"


def test_a_message_wider_than_the_slots_goes_alone_and_is_received_at_once() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]
        0 in[1:4] -> 1 out[1]
        0 in[4] -> 1 out[4]
    """)
    assert steps(low, 2, per_chunk=True) == "s0 s2 r0 r2 s1 r1"
    assert steps(low, 2) == "s0 s1 r0 s2 r1 r2"


@examples(24)
@given(
    st.one_of(random_transfers(max_transfers=24), random_trees(), random_programs()),
    st.sampled_from([1, 2, 3]),
    st.integers(1, 2),
    st.booleans(),
)
def test_every_order_runs_to_its_end_within_the_slots(
    found: RandomProgram | RandomTransfers, slots: int, channels: int, per_chunk: bool
) -> None:
    dag = dependencies(found.program)
    low = assign_channels(dag, fuse(dag, slots if per_chunk else None), channels)
    made = order(low, slots, per_chunk=per_chunk)
    assert not order_faults(low, made, slots, per_chunk=per_chunk)
    if per_chunk:
        return
    rows = eager(low, made, slots)
    soon = made.pick(rows)
    assert not order_faults(low, soon, slots)
    # What receives no message comes right after what it needs, or after another such instruction.
    receives = np.isin(np.arange(len(soon)), low.receives(soon))
    for row in np.flatnonzero(receives[:-1] & ~receives[1:]).tolist():
        swapped = np.arange(len(soon))
        swapped[[row, row + 1]] = row + 1, row
        assert order_faults(low, soon.pick(swapped), slots)


def test_eager_instructions_come_right_after_what_they_need() -> None:
    low = lower(
        """
        1 in[0] -> 0 out[0]
        2 in[0] +> 0 out[0]
        2 in[1] -> 0 out[1]
        0 out[1] -> 0 out[2]
        0 out[0] -> 1 out[0]
        """,
        fusion=False,
    )
    assert steps(low, 2) == "s0 s2 r0 s1 r2 r1 l3 s4 r4"
    assert steps(low, 2, soon=True) == "s0 s2 s1 r0 r2 l3 r1 s4 r4"
    # With one slot, message 1 leaves only when message 2 was received.
    assert steps(low, 1, soon=True) == "s0 s2 r0 r2 s1 l3 r1 s4 r4"


def switch_program(seed: int) -> sley.Program:
    """Reductions of a switch whose totals go to groups or to a rank, all on one channel, between
    chains of copies: many fused instructions that can't run and have to be split."""
    chance = random.Random(seed)
    ranks, chunks = chance.choice([3, 4]), chance.choice([4, 8, 12])
    collective = sley.Custom("any", ranks, chunks, chunks, lambda rank, i: None, in_place=True)

    def others(rank: int) -> list[int]:
        group = [other for other in range(ranks) if other != rank]
        return sorted(chance.sample(group, chance.choice([2, len(group)])))

    def say(p: sley.lang.ChunkProgram) -> None:
        for chunk in range(chunks):
            rank = chance.randrange(ranks)
            total = p.chunk(rank, "in", chunk).load_reduce(
                p.chunk(others(rank), "in", chunk), channel=0
            )
            if chance.random() < 0.8:
                total.multicast(others(rank), "in", chunk, channel=0)
            else:
                total.copy(others(rank)[0], "in", chunk, channel=0)
            if chance.random() < 0.4:
                first = chance.randrange(ranks)
                moved = p.chunk(first, "in", chance.randrange(chunks))
                for hop in (1, 2):
                    moved = moved.copy((first + hop) % ranks, "scratch", hop - 1, channel=0)

    return sley.trace(collective, say, name="switches")


@examples(24)
@given(st.integers(0, 1 << 32), st.integers(1, 3))
def test_groups_on_one_channel_never_wait_in_a_circle(seed: int, slots: int) -> None:
    assert len(sley.compile(switch_program(seed), slots=slots).instructions)
