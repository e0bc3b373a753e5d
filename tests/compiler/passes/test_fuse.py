"""Fuse: the receive and the send of each fused instruction."""

from __future__ import annotations

import pytest

from sley.compiler.passes.fuse import fuse, fuse_copies
from sley.compiler.passes.order import order
from sley.ir.dependencies import dependencies
from support.checks.invariants import order_faults
from support.inputs.written_programs import lower, program_of


def fused(text: str, widest: int | None = None) -> dict[int, int]:
    """The transfers whose receive is fused, each with the one whose send it is fused with."""
    forward = fuse(dependencies(program_of(text)), widest).tolist()
    return {row: after for row, after in enumerate(forward) if after >= 0}


def test_a_relay_is_one_chain() -> None:
    assert fused("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        2 out[0] -> 3 out[0]
    """) == {0: 1, 1: 2}


def test_a_reduction_and_its_send_are_fused() -> None:
    assert fused("""
        0 in[0] +> 1 in[0]
        1 in[0] -> 2 out[0]
    """) == {0: 1}


@pytest.mark.parametrize(
    "text",
    [
        "0 in[0] -> 1 out[0]\n 1 out[0] -> 1 out[1]",
        "1 in[0] -> 1 out[0]\n 1 out[0] -> 2 out[0]",
    ],
)
def test_local_operations_stay_alone(text: str) -> None:
    assert fused(text) == {}


def test_a_write_in_between_prevents_it() -> None:
    """The send's source is not what the receive left there."""
    assert (
        fused("""
        0 in[0:2] -> 1 scratch[0]
        1 in[0] -> 1 scratch[1]
        1 scratch[0:2] -> 2 out[0]
    """)
        == {}
    )


def test_of_several_sends_the_one_on_the_longest_path_is_taken() -> None:
    assert fused("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        1 out[0] -> 3 out[0]
        3 out[0] -> 4 out[0]
    """) == {0: 2, 2: 3}


def test_paths_go_through_local_operations() -> None:
    assert fused("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        1 out[0] -> 3 out[0]
        3 out[0] -> 3 out[1]
    """) == {0: 2}


def test_of_equally_long_paths_the_earlier_line_is_taken() -> None:
    assert fused("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 3 out[0]
        1 out[0] -> 2 out[0]
    """) == {0: 1}


@pytest.mark.parametrize(
    ("received", "sent", "together"),
    [
        ("lane 0", "lane 1", False),
        ("lane 1", "lane 1", True),
        ("channel 1", "channel 2", False),
        ("channel 1", "channel 1", True),
        ("channel 1", "", True),
        ("", "channel 2", True),
        ("recv_block 1", "send_block 2", False),
        ("recv_block 1", "send_block 1", True),
        ("recv_block 1", "", True),
        ("", "send_block 2", True),
        ("send_block 1", "send_block 2", True),
        ("recv_block 1", "recv_block 2", True),
    ],
)
def test_transfers_are_fused_only_if_their_explicit_options_agree(
    received: str, sent: str, together: bool
) -> None:
    text = f"0 in[0] -> 1 out[0] {received}\n 1 out[0] -> 2 out[0] {sent}"
    assert fused(text) == ({0: 1} if together else {})


def test_another_send_is_taken_where_the_best_one_does_not_agree() -> None:
    assert fused("""
        0 in[0] -> 1 out[0]     channel 1
        1 out[0] -> 2 out[0]    channel 2
        1 out[0] -> 3 out[0]
        2 out[0] -> 4 out[0]    channel 2
    """) == {0: 2, 1: 3}


def test_transfers_wider_than_the_slots_stay_alone() -> None:
    text = """
        0 in[0:3] -> 1 out[0]
        1 out[0:3] -> 2 out[0]
    """
    assert fused(text) == fused(text, 3) == {0: 1}
    assert fused(text, 2) == {}


def sent_copies(text: str, widest: int | None = None) -> dict[int, int]:
    """The copies that are one instruction with a send, each with the send."""
    copied = fuse_copies(lower(text), widest).copied.tolist()
    return {copy: send for send, copy in enumerate(copied) if copy >= 0}


def test_a_copy_and_a_send_of_the_same_chunks_are_one_instruction() -> None:
    assert sent_copies("""
        0 in[0:2] -> 0 out[4]
        0 in[0:2] -> 1 out[4]
    """) == {0: 1}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("0 in[0] -> 0 out[4]\n 0 in[1] -> 1 out[4]", id="other chunks"),
        pytest.param("0 in[0:2] -> 0 out[4]\n 0 in[0] -> 1 out[4]", id="a part"),
        pytest.param("0 in[0] -> 0 out[4]\n 0 in[0] -> 1 out[4] lane 1", id="another lane"),
        pytest.param(
            "0 in[0] -> 0 out[4] send_block 1\n 0 in[0] -> 1 out[4] send_block 2 channel 0",
            id="another block",
        ),
        pytest.param("0 in[1] +> 0 out[0]\n 0 in[1] -> 1 out[1]", id="a reduction"),
        pytest.param(
            "0 in[0] -> 1 out[4]\n 1 in[1] -> 0 in[0]\n 0 in[0] -> 0 out[4]",
            id="overwritten in between",
        ),
        pytest.param(
            "2 in[0] -> 0 in[0]\n 0 in[0] -> 1 out[4]\n 0 in[0] -> 0 out[4]",
            id="a send that is fused with a receive",
        ),
    ],
)
def test_other_copies_stay_alone(text: str) -> None:
    assert sent_copies(text) == {}


def test_several_copies_go_with_several_sends_the_longest_path_first() -> None:
    assert sent_copies("""
        0 in[0] -> 0 out[4]
        0 in[0] -> 0 out[5]
        0 in[0] -> 1 out[4]
        0 in[0] -> 2 out[4]
        2 out[4] -> 3 out[4]
    """) == {0: 3, 1: 2}


def test_a_wide_copy_stays_alone_where_each_chunk_takes_a_slot() -> None:
    text = "0 in[0:3] -> 0 out[4]\n 0 in[0:3] -> 1 out[4]"
    assert (sent_copies(text, 2), sent_copies(text, 3)) == ({}, {0: 1})


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "1 in[3] -> 0 out[4]\n 0 out[4] -> 2 out[4]\n0 in[0] -> 0 out[4]\n 0 in[0] -> 1 out[5]",
            id="the copy comes later",
        ),
        pytest.param(
            "0 in[0] -> 0 out[4]\n 0 out[4:6] -> 1 out[4]\n 1 out[4] -> 2 out[4]\n"
            "0 in[0] -> 1 out[4]",
            id="the receiver waits for the copy",
        ),
    ],
)
def test_the_order_undoes_what_does_not_fit(text: str) -> None:
    low = fuse_copies(lower(text))
    assert (low.copied != -1).sum() == 1
    found = order(low, 1)
    assert not order_faults(low, found, 1)
    assert not (found.fused & ~low.remote[found.receive]).any()
