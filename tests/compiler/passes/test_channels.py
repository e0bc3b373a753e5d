"""Channels: the channel of each transfer, and which transfers stay fused."""

from __future__ import annotations

from sley.compiler.passes.channels import MAX_CHANNELS, assign_channels
from sley.compiler.passes.fuse import fuse
from sley.ir.dependencies import dependencies
from support.inputs.written_programs import lower, program_of


def test_chunks_are_spread_by_their_place() -> None:
    text = """
        0 in[0] -> 1 out[0]
        0 in[1] -> 1 out[1]
        0 in[2] -> 1 out[2]
        0 in[4:6] -> 1 out[4]
        0 in[6:8] -> 1 out[6]
        1 in[0] -> 1 scratch[0]
    """
    for fusion in (True, False):
        assert lower(text, fusion=fusion).channel.tolist() == [0, 0, 0, 0, 0, -1]
        assert lower(text, 2, fusion=fusion).channel.tolist() == [0, 1, 0, 0, 1, -1]


def test_a_channel_that_is_asked_for_is_kept() -> None:
    text = """
        0 in[0] -> 1 out[0]   channel 5
        0 in[1] -> 1 out[1]
    """
    for fusion in (True, False):
        assert lower(text, 2, fusion=fusion).channel.tolist() == [5, 1]


def test_a_block_by_hand_without_a_channel_is_on_channel_0() -> None:
    text = """
        0 in[1] -> 1 out[1]   send_block 0
        0 in[3] -> 1 out[3]   recv_block 0
        0 in[3] -> 1 out[4]   recv_block 0 channel 1
        0 in[5] -> 1 out[5]
    """
    for fusion in (True, False):
        assert lower(text, 2, fusion=fusion).channel.tolist() == [0, 0, 1, 1]


def test_a_fused_chain_is_on_the_channel_of_its_first_chunk() -> None:
    low = lower(
        """
            0 in[1] -> 1 out[2]
            1 out[2] -> 2 out[4]
            2 out[4] -> 3 out[6]
        """,
        2,
    )
    assert low.channel.tolist() == [1, 1, 1]
    assert low.forward.tolist() == [1, 2, -1]


def test_without_fusion_every_transfer_is_on_its_own() -> None:
    low = lower("0 in[1] -> 1 out[2]\n 1 out[2] -> 2 out[4]", 2, fusion=False)
    assert low.channel.tolist() == [1, 0]
    assert low.forward.tolist() == [-1, -1]


def test_a_channel_that_is_asked_for_anywhere_in_a_chain_is_that_of_all() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]   channel 3
        2 out[0] -> 3 out[0]
    """)
    assert low.channel.tolist() == [3, 3, 3]
    assert low.forward.tolist() == [1, 2, -1]


def test_a_chain_is_cut_where_two_channels_asked_for_meet() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]    channel 1
        1 out[0] -> 2 out[0]
        2 out[0] -> 3 out[0]   channel 2
        3 out[0] -> 4 out[0]
        4 out[0] -> 5 out[0]   channel 2
    """)
    assert low.channel.tolist() == [1, 1, 2, 2, 2]
    assert low.forward.tolist() == [1, -1, 3, 4, -1]
    low = lower("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]   channel 1
        2 out[0] -> 3 out[0]
        3 out[0] -> 4 out[0]   channel 2
    """)
    assert low.channel.tolist() == [1, 1, 1, 2]
    assert low.forward.tolist() == [1, 2, -1, -1]


def test_the_fused_transfers_are_not_changed_in_place() -> None:
    text = "0 in[0] -> 1 out[0] channel 1\n 1 out[0] -> 2 out[0]"
    dag = dependencies(program_of(text))
    apart = dependencies(program_of(f"{text} channel 2"))
    forward = fuse(dag)
    assert assign_channels(apart, forward).forward.tolist() == [-1, -1]
    assert forward.tolist() == [1, -1]


def test_a_chain_that_binds_a_connection_otherwise_takes_another_channel() -> None:
    """One block would have to receive from rank 0 for two ranks, and one to send to rank 2."""
    text = """
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        0 in[2] -> 1 out[2]
        1 out[2] -> 3 out[2]
        4 in[4] -> 1 out[4]
        1 out[4] -> 2 out[4]
    """
    low = lower(text)
    assert low.channel.tolist() == [0, 0, 1, 1, 1, 1]
    assert (low.forward >= 0).sum() == 3
    # The channels that are there anyway come first, from the chunk's own on.
    assert lower(text, 3).channel.tolist() == [0, 0, 2, 2, 1, 1]
    assert lower(text.replace("[2]", "[0]"), 2).channel.tolist()[2:4] == [1, 1]


def test_chains_of_the_same_connections_share_a_channel() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        0 in[1] -> 1 out[1]
        1 out[1] -> 2 out[1]
    """)
    assert low.channel.tolist() == [0, 0, 0, 0]
    assert low.forward.tolist() == [1, -1, 3, -1]


def test_a_chain_fits_with_all_its_hops_or_goes_elsewhere() -> None:
    low = lower("""
        2 in[0] -> 3 out[0]
        3 out[0] -> 5 out[0]
        0 in[1] -> 1 out[1]
        1 out[1] -> 2 out[1]
        2 out[1] -> 3 out[1]
        3 out[1] -> 4 out[1]
    """)
    assert low.channel.tolist() == [0, 0, 1, 1, 1, 1]
    assert low.forward.tolist() == [1, -1, 3, 4, 5, -1]


def test_chains_that_cannot_choose_come_first() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]
        1 out[0] -> 2 out[0]
        0 in[1] -> 1 out[1]    channel 0
        1 out[1] -> 3 out[1]   channel 0
    """)
    assert low.channel.tolist() == [1, 1, 0, 0]
    assert low.forward.tolist() == [1, -1, 3, -1]


def test_a_chain_that_fits_nowhere_is_cut() -> None:
    lines = "".join(
        f"0 in[{k}] -> 1 out[{k}]\n 1 out[{k}] -> {k + 2} out[{k}]\n"
        for k in range(MAX_CHANNELS + 2)
    )
    low = lower(lines, 2)
    assert sorted(low.channel.tolist()[:-4:2]) == list(range(MAX_CHANNELS))
    assert low.channel.tolist()[-4:] == [0, 0, 1, 1]
    assert low.forward.tolist()[-4:] == [-1, -1, -1, -1]
    assert (low.forward >= 0).sum() == MAX_CHANNELS


def test_a_chain_on_a_channel_by_hand_is_cut_where_it_does_not_fit() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]    channel 0
        1 out[0] -> 2 out[0]   channel 0
        0 in[1] -> 1 out[1]    channel 0
        1 out[1] -> 3 out[1]   channel 0
        3 out[1] -> 4 out[1]
        0 in[2] -> 1 out[2]    channel 0
        1 out[2] -> 2 out[2]   channel 0
    """)
    assert low.channel.tolist() == [0] * 7
    assert low.forward.tolist() == [1, -1, -1, 4, -1, 6, -1], "the first binding holds"


def test_a_block_by_hand_is_no_place_for_a_chain_with_another_end() -> None:
    """The block by hand, on channel 0, receives from rank 0 and does not send to rank 2."""
    low = lower("""
        0 in[0] -> 1 out[0]    recv_block 0
        0 in[1] -> 1 out[1]
        1 out[1] -> 2 out[1]
    """)
    assert low.channel.tolist() == [0, 1, 1]
    low = lower("""
        1 in[0] -> 2 out[0]    send_block 0
        0 in[1] -> 1 out[1]
        1 out[1] -> 2 out[1]
    """)
    assert low.channel.tolist() == [0, 1, 1]


def test_a_block_by_hand_is_one_of_its_channel_and_of_its_end_alone() -> None:
    low = lower(
        """
            0 in[0] -> 1 out[0]    recv_block 0 channel 1
            0 in[1] -> 1 out[1]
            1 out[1] -> 2 out[1]
        """,
        2,
    )
    assert low.channel.tolist() == [1, 0, 0]
    low = lower("""
        0 in[0] -> 1 out[0]    recv_block 0
        2 in[1] -> 0 out[1]
        0 out[1] -> 1 out[1]
    """)
    assert low.channel.tolist() == [0, 0, 0]
    low = lower("""
        0 in[0] -> 1 out[0]    send_block 0
        0 in[1] -> 1 out[1]
        1 out[1] -> 2 out[1]
    """)
    assert low.channel.tolist() == [0, 0, 0]


def test_a_chain_may_use_a_block_by_hand_that_has_both_its_ends() -> None:
    low = lower("""
        0 in[0] -> 1 out[0]    recv_block 3
        1 in[0] -> 2 out[0]    send_block 3
        0 in[1] -> 1 out[1]
        1 out[1] -> 2 out[1]
    """)
    assert low.channel.tolist() == [0, 0, 0, 0]
    assert low.forward.tolist() == [-1, -1, 3, -1]


def test_lanes_never_share_a_channel() -> None:
    text = """
        0 in[0] -> 1 out[0]
        0 in[1] -> 1 out[1]    lane 1
        0 in[2] -> 1 out[2]    lane 2
        1 in[3] -> 0 out[3]    lane 1 channel 7
        1 in[5] -> 1 out[5]    lane 1 channel 2
        0 in[4] -> 1 out[4]    channel 3
    """
    for fusion in (True, False):
        low = lower(text, fusion=fusion)
        # Lane 0 is on the channels as such; the others follow, as many as are in use.
        assert low.channel.tolist() == [0, 8, 10, 9, -1, 3]
        assert low.chunks.program.transfers.lanes == 3


def test_lanes_bind_connections_each_for_itself() -> None:
    for other in (
        "0 in[1] -> 1 out[1] lane 1\n 1 out[1] -> 3 out[1] lane 1",
        "3 in[1] -> 1 out[1] lane 1\n 1 out[1] -> 2 out[1] lane 1",
    ):
        low = lower(f"0 in[0] -> 1 out[0]\n 1 out[0] -> 2 out[0]\n {other}")
        assert low.channel.tolist() == [0, 0, 1, 1]
        assert low.forward.tolist() == [1, -1, 3, -1]


def test_lanes_share_the_most_channels_that_there_are() -> None:
    lines = "".join(
        f"0 in[{k}] -> 1 out[{k}] lane {k % 2}\n 1 out[{k}] -> {k + 2} out[{k}] lane {k % 2}\n"
        for k in range(MAX_CHANNELS + 4)
    )
    low = lower(lines)
    assert low.channel.max() == MAX_CHANNELS - 1
    assert (low.forward >= 0).sum() == MAX_CHANNELS
