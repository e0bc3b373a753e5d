"""One-sided plans: right ones of each action are proven, and each kind of damage has its code."""

from __future__ import annotations

import pytest

import sley
from sley.errors import SleyError
from sley.ir.one_sided import OneSidedPlan
from sley.ir.words import Protocol
from support.one_sided_plans import At, Block, plan_of

PAIR = sley.AllReduce(ranks=2, chunks=2, in_place=True)
TO_OTHERS = [(0, 1, 0), (1, 0, 0)]  # counter r: rank r waits for the other rank


def codes(plan: OneSidedPlan) -> set[str]:
    try:
        sley.verify(plan)
    except SleyError as error:
        return {found.code for found in error.diagnostics}
    return set()


def packet(rank: int, index: int, count: int = 1) -> At:
    return At(rank, "s", index, count, packet=True)


def read_reduce_send(**without: bool) -> OneSidedPlan:
    """Each rank reads a chunk of the other one, and writes the sum to both. `without` leaves out
    parts, or makes signals relaxed."""
    blocks = []
    for rank in (0, 1):
        other, block = 1 - rank, Block(rank)
        if not without.get("begin"):
            block.post(other, relaxed=True).wait(rank, relaxed=True)
        if not without.get("join_after_wait"):
            block.join()
        sides = [At(rank, "i", rank), At(other, "i", rank)]
        block.move(sides, sides)
        if not without.get("join_before_post"):
            block.join()
        if not without.get("end"):
            relaxed = bool(without.get("memory"))
            block.post(other, relaxed=relaxed).wait(rank, relaxed=relaxed)
        blocks.append(block)
    return plan_of(PAIR, blocks, counters=TO_OTHERS)


def two_blocks_of_packets(copies: int = 2, last: int = 3) -> OneSidedPlan:
    """An AllReduce whose data go as packets, by two blocks on each rank."""
    collective = sley.AllReduce(ranks=2, chunks=4, in_place=True)
    blocks = [
        Block(0)
        .move([At(0, "i", 2, 2)], [packet(1, 0, 2)])
        .move([At(0, "i", 0), packet(0, 0)], [At(0, "i", 0), packet(1, 2)]),
        Block(0)
        .move([At(0, "i", 1), packet(0, 1)], [At(0, "i", 1), packet(1, last)])
        .move([packet(0, 2, 2)], [At(0, "i", 2, 2)]),
        Block(1)
        .move([At(1, "i", 0, 2)], [packet(0, 0, 2)])
        .move([At(1, "i", 2), packet(1, 0)], [At(1, "i", 2), packet(0, 2)])
        .move([packet(1, 2, 2)], [At(1, "i", 0, 2)]),
        Block(1).move([At(1, "i", 3), packet(1, 1)], [At(1, "i", 3), packet(0, 3)]),
    ]
    return plan_of(collective, blocks, scratch=8, copies=copies, protocol=Protocol.LL)


def exchange(*, flush: bool = True, order: str = "put first") -> OneSidedPlan:
    """An AllGather of two ranks through ports."""
    blocks = []
    for rank in (0, 1):
        other, block = 1 - rank, Block(rank)
        block.push_post(rank, 2 + other).wait(2 + rank).join()
        block.move([At(rank, "i", 0)], [At(rank, "o", rank)]).join()
        if order == "put first":
            block.push(rank, [At(rank, "o", rank)], [At(other, "o", rank)])
            block.push_post(rank, other)
        else:
            block.push_post(rank, other)
            block.push(rank, [At(rank, "o", rank)], [At(other, "o", rank)])
        if flush:
            block.flush(rank)
        blocks.append(block.wait(rank))
    counters = [*TO_OTHERS, *TO_OTHERS]
    return plan_of(sley.AllGather(2), blocks, counters=counters, ports=[0, 1])


def test_a_plan_that_exchanges_signals_at_begin_and_end_is_not_proven():
    proof = sley.verify(read_reduce_send())
    assert str(proof) == "proven: plan is a correct allreduce on 2 ranks; no race; no hang"
    assert (proof.slots, [str(c) for c in proof.conditions]) == (None, ["in place"])


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ("begin", "V215"),
        ("end", "V215"),
        ("memory", "V211"),
        ("join_after_wait", "V215"),
        ("join_before_post", "V215"),
    ],
)
def test_a_plan_without_a_part_of_its_synchronisation_is_accepted(part, code):
    assert codes(read_reduce_send(**{part: True})) == {code}


def test_packets_in_two_copies_of_scratch_are_refused():
    assert codes(two_blocks_of_packets()) == set()


def test_packets_in_one_copy_are_refused_though_each_shows_that_the_last_call_has_ended():
    assert codes(two_blocks_of_packets(copies=1)) == set()


def packets_of_all(copies: int) -> OneSidedPlan:
    """An AllReduce: each rank sends its input to the other one as a packet, and adds up both."""
    blocks = [
        Block(rank)
        .move([At(rank, "i", 0)], [packet(1 - rank, 0)])
        .join()
        .move([At(rank, "i", 0), packet(rank, 0)], [At(rank, "i", 0)])
        for rank in (0, 1)
    ]
    return plan_of(sley.AllReduce(2, 1, in_place=True), blocks, scratch=2, copies=copies)


def test_packets_in_one_copy_are_accepted_though_a_rank_may_be_a_call_ahead():
    assert codes(packets_of_all(copies=1)) == {"V215"}
    assert codes(packets_of_all(copies=2)) == set()


def test_packets_that_two_moves_write_are_accepted():
    assert codes(two_blocks_of_packets(last=2)) == {"V214"}


def test_an_exchange_through_ports_with_flushes_is_refused():
    assert codes(exchange()) == set()


def test_a_port_that_may_read_the_buffer_after_the_call_is_not_noticed():
    assert codes(exchange(flush=False)) == {"V215"}


def test_a_signal_that_a_port_sends_before_the_data_is_not_noticed():
    assert codes(exchange(order="signal first")) == {"V215"}


def copies_by_two_blocks(middle: str) -> OneSidedPlan:
    """One block copies the input into scratch, another one from there into the output."""
    first = Block(0).move([At(0, "i", 0)], [At(0, "s", 0)])
    second = Block(0)
    if middle == "barrier":
        first.barrier(0)
        second.barrier(0)
    elif middle == "semaphore":
        first.join().post(0)
        second.wait(0).join()
    elif middle == "semaphore without joins":
        first.post(0)
        second.wait(0)
    second.move([At(0, "s", 0)], [At(0, "o", 0)])
    counters = [(0, 0, 0)] if middle.startswith("semaphore") else []
    blocks = [first, second, Block(1).move([At(1, "i", 0)], [At(1, "o", 0)])]
    own = sley.Custom("own", 2, 1, 1, lambda rank, index: [(rank, index)])
    return plan_of(own, blocks, counters=counters, scratch=1)


@pytest.mark.parametrize("middle", ["barrier", "semaphore"])
def test_blocks_that_meet_are_refused(middle):
    assert codes(copies_by_two_blocks(middle)) == set()


@pytest.mark.parametrize("middle", ["nothing", "semaphore without joins"])
def test_blocks_that_do_not_meet_are_accepted(middle):
    assert codes(copies_by_two_blocks(middle)) == {"V204"}


def test_a_semaphore_with_an_initial_value_orders_the_post_before_its_first_wait():
    blocks = [Block(0).wait(0).join().move([At(0, "i", 0)], [At(0, "o", 0)]).join().post(0)]
    blocks += [Block(1).move([At(1, "i", 0)], [At(1, "o", 0)])]
    collective = copies_by_two_blocks("barrier").collective
    assert codes(plan_of(collective, blocks, counters=[(0, 0, 1)])) == set()
    assert codes(plan_of(collective, blocks, counters=[(0, 0, 0)])) == {"V203"}


def test_two_ranks_that_wait_before_they_signal_do_not_hang():
    blocks = [Block(rank).wait(rank).post(1 - rank) for rank in (0, 1)]
    with pytest.raises(SleyError) as error:
        sley.verify(plan_of(PAIR, blocks, counters=TO_OTHERS))
    (hang,) = error.value.diagnostics
    assert hang.code == "V203"
    assert hang.notes == (
        "rank 0 block 0 operation 0 (wait) waits for rank 1 block 0 operation 1 (post)",
        "rank 1 block 0 operation 0 (wait) waits for rank 0 block 0 operation 1 (post)",
    )


def test_more_signals_than_waits_are_accepted():
    blocks = [Block(0).post(1).post(1), Block(1).wait(1)]
    assert codes(plan_of(PAIR, blocks, counters=TO_OTHERS)) == {"V212"}


def test_two_blocks_that_wait_for_one_counter_are_accepted():
    blocks = [Block(0).post(1).post(1), Block(1).wait(1), Block(1).wait(1)]
    assert codes(plan_of(PAIR, blocks, counters=TO_OTHERS)) == {"V213"}


def test_a_move_onto_itself_with_an_offset_is_accepted():
    blocks = [Block(0).move([At(0, "i", 0)], [At(0, "i", 0)]), Block(1)]
    assert codes(plan_of(PAIR, blocks)) == {"V206"}
    blocks = [Block(0).move([At(0, "s", 0, 2)], [At(0, "s", 1, 2)]), Block(1)]
    assert codes(plan_of(PAIR, blocks, scratch=3)) == {"V208"}


def test_a_read_of_empty_scratch_is_accepted():
    blocks = [Block(0).move([At(0, "s", 0, 2)], [At(0, "o", 0, 2)]), Block(1)]
    assert codes(plan_of(PAIR, blocks, scratch=2)) == {"V205"}


def test_data_of_the_call_before_count_as_data_of_this_call():
    """Scratch is read before it is written, so the second call finds the data of the first one."""
    blocks = [
        Block(0)
        .move([At(0, "s", 0)], [At(0, "o", 0)])
        .join()
        .move([At(0, "i", 0)], [At(0, "s", 0)]),
        Block(1).move([At(1, "i", 0)], [At(1, "o", 0)]),
    ]
    collective = copies_by_two_blocks("barrier").collective
    assert codes(plan_of(collective, blocks, scratch=1)) == {"V205"}


@pytest.mark.parametrize(
    "blocks",
    [
        [Block(0).post(7), Block(1)],
        [Block(0).post(0), Block(1)],
        [Block(0).push(0, [At(0, "i", 0)], [At(1, "i", 0)]), Block(1)],
        [Block(0).move([At(0, "i", 1, 2)], [At(0, "s", 0, 2)]), Block(1)],
        [Block(0).move([At(0, "i", 0, 1, packet=True)], []), Block(1)],
        [Block(0).post(1, thread=-1), Block(1)],
    ],
    ids=["counter", "counter of another rank", "port", "chunks", "packets", "thread"],
)
def test_a_row_that_names_what_does_not_exist_is_accepted(blocks):
    assert codes(plan_of(PAIR, blocks, counters=TO_OTHERS, scratch=2)) == {"V201"}
