"""Waits: the waits between instructions of a rank, none of them redundant."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.compiler.passes import waits
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.written_programs import program_of
from support.mutants.plan_edits import wait_pairs, with_waits


def waiting(text: str, **options: object) -> list[str]:
    """The waits of a program: "s1 after r0" where the send of transfer 1 waits for the receive of
    transfer 0, both of one rank; "l" is a local operation."""
    plan = sley.compile(program_of(text), verify=False, **options)  # type: ignore[arg-type]
    t = plan.instructions

    def word(row: int) -> str:
        receives, sends = t.recv_peer[row] >= 0, t.send_peer[row] >= 0
        kind = "r" if receives else "s" if sends else "l"
        fused = f"+s{t.forward[row]}" if t.forward[row] >= 0 else ""
        return f"{kind}{t.transfer[row]}{fused}"

    return sorted(f"{word(after)} after {word(before)}" for after, before in wait_pairs(plan))


def test_blocks_wait_where_they_touch_the_same_memory() -> None:
    text = """
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
    """
    assert waiting(text, fusion=False) == ["s1 after r0"]
    assert waiting(text) == []


def test_a_write_waits_for_reads_before_it() -> None:
    assert waiting("""
        1 out[0] -> 2 out[0]
        0 in[0] -> 1 out[0]
    """) == ["r1 after s0"]


def test_instructions_of_one_block_need_no_wait() -> None:
    assert (
        waiting("""
        0 in[0] -> 1 out[0]
        2 in[0] -> 1 out[1]
        0 in[1] +> 1 out[0]
    """)
        == []
    )


def test_of_several_instructions_of_a_block_the_latest_is_waited_for() -> None:
    assert waiting(
        """
            0 in[0:2] -> 1 out[0]
            0 in[2:4] -> 1 out[2]
            1 out[1:3] -> 2 out[0]
        """,
        fusion=False,
    ) == ["s2 after r1"]


def test_a_wait_that_the_order_of_the_block_brings_is_left_out() -> None:
    """The block that sends has waited for the second message before."""
    assert waiting(
        """
            0 in[0] -> 1 out[0]
            0 in[1] -> 1 out[1]
            1 out[1] -> 2 out[1]
            1 out[0] -> 2 out[0]
        """,
        fusion=False,
    ) == ["s2 after r1"]


def test_a_wait_that_another_wait_brings_is_left_out() -> None:
    """Send 2 reads what both messages wrote; the second was added after the first."""
    assert waiting(
        """
            0 in[0:2] -> 1 out[0]
            3 in[1] +> 1 out[1]
            1 out[0:2] -> 2 out[0]
        """,
        fusion=False,
    ) == ["r1 after r0", "s2 after r1"]


ROUND_TRIP = """
    1 in[0] -> 2 out[0]
    2 out[0] -> 0 out[0]
    0 out[0] -> 1 in[0]
"""


def test_a_wait_that_a_message_brings_is_left_out() -> None:
    """What rank 1 writes over has been read: rank 2's answer says so."""
    assert waiting(ROUND_TRIP, fusion=False) == ["s1 after r0", "s2 after r1"]


def test_a_message_sent_before_brings_nothing() -> None:
    assert waiting(
        """
            2 in[5] -> 1 in[5]
            1 in[0] -> 2 out[0]
            2 in[6] -> 1 in[0]
        """
    ) == ["r2 after s1"]


def test_a_search_that_is_too_long_leaves_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "SEARCH", 1)
    assert "r2 after s0" in waiting(ROUND_TRIP, fusion=False)


def test_no_wait_is_redundant_and_none_is_missing() -> None:
    for n, fusion in ((3, False), (4, False), (4, True)):
        plan = sley.compile(sley.algorithms.all_pairs_allreduce(n), fusion=fusion)
        pairs = wait_pairs(plan)
        assert pairs
        for k in range(len(pairs)):
            with pytest.raises(sley.SleyError, match="V204"):
                sley.verify(with_waits(plan, pairs[:k] + pairs[k + 1 :]))


@examples(24)
@given(random_programs(), st.sampled_from([1, 2, 8]), st.booleans())
def test_no_race_is_left(random: RandomProgram, slots: int, fusion: bool) -> None:
    sley.compile(random.program, slots=slots, fusion=fusion)
