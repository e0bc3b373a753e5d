"""One-sided plans: right ones of each action are proven, and each kind of damage has its code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import sley
from sley.errors import SleyError
from sley.ir.one_sided import Action, OneSidedPlan
from sley.ir.words import Protocol
from support.inputs.one_sided_plans import At, Block, plan_of

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


def packets_of_all(copies: int, adding: tuple[int, ...] = (0, 1)) -> OneSidedPlan:
    """An AllReduce: each rank sends its input to the other one as a packet, and ranks in `adding`
    add up both."""
    blocks = [Block(rank).move([At(rank, "i", 0)], [packet(1 - rank, 0)]).join() for rank in (0, 1)]
    for rank in adding:
        blocks[rank].move([At(rank, "i", 0), packet(rank, 0)], [At(rank, "i", 0)])
    return plan_of(sley.AllReduce(2, 1, in_place=True), blocks, scratch=2, copies=copies)


def test_packets_in_one_copy_are_accepted_though_a_rank_may_be_a_call_ahead():
    assert codes(packets_of_all(copies=1)) == {"V215"}
    assert codes(packets_of_all(copies=2)) == set()


def test_a_missing_sum_is_reported_before_the_order_of_calls_which_cannot_mend_it():
    with pytest.raises(sley.SleyError) as caught:
        sley.verify(packets_of_all(copies=1, adding=(1,)))
    wrong, *others = caught.value.diagnostics
    assert (wrong.code, {other.code for other in others}) == ("V206", {"V215"})
    assert "no operation writes rank 0" in wrong.notes[0]


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


def test_the_caller_of_a_rank_without_blocks_races_with_itself():
    waiting = Block(1).move([packet(1, 0, 2)], [At(1, "i", 0, 2)])
    plan = plan_of(PAIR, [waiting], scratch=4, copies=2, protocol=Protocol.LL)
    assert codes(plan) == {"V203"}


def test_more_signals_than_waits_are_accepted():
    blocks = [Block(0).post(1).post(1), Block(1).wait(1)]
    assert codes(plan_of(PAIR, blocks, counters=TO_OTHERS)) == {"V212"}


def test_two_blocks_that_wait_for_one_counter_are_accepted():
    """Also if a semaphore orders them, which is not proven."""
    blocks = [Block(0).post(1).post(1), Block(1).wait(1), Block(1).wait(1)]
    ordered = [blocks[0], Block(1).wait(1).join().post(2), Block(1).wait(2).join().wait(1)]
    semaphore = [*TO_OTHERS, (1, 1, 0)]
    for plan in (
        plan_of(PAIR, blocks, counters=TO_OTHERS),
        plan_of(PAIR, ordered, counters=semaphore),
    ):
        assert codes(plan) == {"V213"}
        with pytest.raises(SleyError) as error:
            sley.verify(plan)
        assert "of one block" in error.value.diagnostics[0].expected
        assert error.value.diagnostics[0].found == "2 blocks"


@pytest.mark.parametrize(("join", "code"), [(True, set()), (False, {"V213"})])
def test_two_threads_that_wait_for_one_counter_are_accepted(join, code):
    last = Block(1).wait(0, thread=0)
    if join:
        last.join()
    blocks = [Block(0).post(0).post(0), last.wait(0, thread=1)]
    none = sley.Custom("none", 2, 1, 1, lambda rank, index: None)
    assert codes(plan_of(none, blocks, counters=[(1, 0, 0)])) == code


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


HERE, THERE, SPARE = At(0, "i", 0), At(1, "i", 0), At(0, "s", 0)
PACKET = At(0, "s", 0, 1, packet=True)


@pytest.mark.parametrize(
    ("block", "expected", "found"),
    [
        (Block(0).post(7), "one of 2 counters", "7"),
        (Block(0).post(0), "a counter of its rank", "1"),
        (Block(0).push(3, [HERE], [THERE]), "one of 1 ports", "3"),
        (Block(0).push(0, [HERE], [THERE]), "a port of its rank", "1"),
        (Block(0).post(1, thread=-1), "a thread", "-1"),
        (Block(0).move([At(0, "i", 1, 2)], []), "chunks inside their buffer", "3"),
        (Block(0).move([At(0, "s", 1, 1, packet=True)], []), "chunks inside their buffer", "4"),
        (Block(0).move([At(0, "i", 0, 1, packet=True)], []), "packets in scratch", "0"),
        (Block(0).move([], [SPARE]), "a move with sources", "0"),
        (
            Block(0).move([At(0, "i", 0, 2)], [SPARE]),
            "ranges of one length in a move",
            "1",
        ),
        (Block(1).push(0, [HERE, THERE], [SPARE]), "one source of what a port copies", "2"),
        (Block(1).push(0, [HERE], [PACKET]), "packets that a port makes of packets", "True"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_a_row_that_names_what_does_not_exist_is_accepted(block, expected, found):
    plan = plan_of(PAIR, [block], counters=TO_OTHERS, ports=[1], scratch=2)
    with pytest.raises(SleyError) as error:
        sley.verify(plan)
    reported = {(one.code, one.expected, one.found) for one in error.value.diagnostics}
    assert ("V201", expected, found) in reported
    assert {code for code, *_ in reported} == {"V201"}


def test_ranges_of_an_operation_that_moves_nothing_are_accepted():
    plan = plan_of(PAIR, [Block(0).move([HERE], [SPARE]), Block(1)], scratch=2)
    action = np.full_like(plan.operations.action, Action.JOIN)
    joined = replace(plan, operations=replace(plan.operations, action=action))
    assert codes(joined) == {"V201"}


def first_to_both(*, packets_alone: bool) -> OneSidedPlan:
    """Rank 0 puts data into scratch of rank 1, and sends a packet, after which rank 1 reads both;
    `packets_alone`: without a signal for the data."""
    collective = sley.Custom("first", 2, 1, 2, lambda rank, index: [(0, 0)] if rank else None)
    first = Block(0).wait(0).join().move([At(0, "i", 0)], [At(1, "s", 2)]).join()
    first.move([At(0, "i", 0)], [packet(1, 0)])
    second = Block(1).post(0).move([packet(1, 0)], [At(1, "o", 0)])
    if not packets_alone:
        first.post(1)
        second.wait(1)
    second.join().move([At(1, "s", 2)], [At(1, "o", 1)]).join().post(2)
    first.wait(2)
    counters = [(0, 1, 0), (1, 0, 0), (0, 1, 0)]
    return plan_of(collective, [first, second], counters=counters, scratch=3)


def test_a_packet_is_taken_for_a_signal_that_publishes_memory():
    assert codes(first_to_both(packets_alone=False)) == set()
    assert codes(first_to_both(packets_alone=True)) == {"V211"}


def test_data_that_are_put_before_a_packet_are_taken_to_be_overwritten_by_its_reader():
    collective = sley.Custom("first", 2, 1, 1, lambda rank, index: [(0, 0)] if rank else None)
    first = Block(0).wait(0).join().move([At(0, "i", 0)], [At(1, "o", 0)]).join()
    first.move([At(0, "i", 0)], [packet(1, 0)])
    second = Block(1).post(0).move([packet(1, 0)], [At(1, "o", 0)])
    plan = plan_of(collective, [first, second], counters=[(0, 1, 0)], scratch=2, copies=2)
    assert codes(plan) == {"V204"}


def test_the_second_push_of_a_port_is_taken_to_end_with_the_first():
    def plan(*, flush_twice: bool) -> OneSidedPlan:
        first = Block(0).wait(0).join().push(0, [At(0, "i", 0)], [At(0, "s", 0)]).flush(0)
        first.push(0, [At(0, "i", 0)], [At(0, "o", 0)])
        if flush_twice:
            first.flush(0)
        second = Block(1).post(0).move([At(1, "i", 0)], [At(1, "o", 0)])
        collective = copies_by_two_blocks("barrier").collective
        return plan_of(collective, [first, second], counters=[(0, 1, 0)], ports=[0], scratch=1)

    assert codes(plan(flush_twice=True)) == set()
    assert codes(plan(flush_twice=False)) == {"V215"}


def test_a_rank_that_may_be_two_calls_ahead_is_not_noticed():
    """Two copies of scratch don't suffice if rank 0 never waits for rank 1."""
    collective = sley.Custom("first", 2, 1, 1, lambda rank, index: [(0, 0)] if rank else None)
    blocks = [
        Block(0).move([At(0, "i", 0)], [packet(1, 0)]),
        Block(1).move([packet(1, 0)], [At(1, "o", 0)]),
    ]
    assert codes(plan_of(collective, blocks, scratch=2, copies=2)) == {"V215"}


def test_a_wait_for_one_of_two_blocks_shows_what_both_did():
    def plan(*, waits_before: int) -> OneSidedPlan:
        collective = sley.Custom(
            "second", 2, 2, 2, lambda rank, index: [(0, index)] if rank else None
        )
        blocks = [
            Block(0).wait(1 + k).join().move([At(0, "i", k)], [At(1, "s", k)]).join().post(0)
            for k in (0, 1)
        ]
        last = Block(1).post(1).post(2)
        for _ in range(waits_before):
            last.wait(0)
        last.join().move([At(1, "s", 0, 2)], [At(1, "o", 0, 2)])
        for _ in range(2 - waits_before):
            last.wait(0)
        counters = [(1, 0, 0), (0, 1, 0), (0, 1, 0)]
        return plan_of(collective, [*blocks, last], counters=counters, scratch=2)

    assert codes(plan(waits_before=2)) == set()
    assert "V204" in codes(plan(waits_before=1))


@pytest.mark.parametrize(("read", "code"), [(2, set()), (1, {"V204"})])
def test_one_of_two_packets_shows_that_both_were_computed(read, code):
    """Rank 1 overwrites a chunk of rank 0 when it has read packets that were computed from it."""
    collective = sley.Custom("none", 2, 2, 2, lambda rank, index: None)
    first = Block(0).move([At(0, "i", 0, 2)], [packet(1, 0, 2)]).wait(0)
    second = Block(1).move([packet(1, 0, read)], []).join()
    second.move([At(1, "i", 1)], [At(0, "i", 1)]).join().post(0)
    plan = plan_of(collective, [first, second], counters=[(0, 1, 0)], scratch=4, copies=2)
    assert codes(plan) == code


@pytest.mark.parametrize(("rank", "code"), [(2, set()), (1, {"V215"})])
def test_a_packet_shows_the_begin_of_another_rank(rank, code):
    """Rank 0 sends two packets on to rank 2, of which rank 2 or rank 1 has sent the first."""
    collective = sley.Custom(
        "back", 3, 2, 2, lambda at, index: [((rank, 2)[index], index)] if at == 2 else None
    )
    first = Block(0).move([packet(0, 0, 2)], [packet(2, 0, 2)]).join().post(0)
    second, third = Block(1), Block(2)
    (second if rank == 1 else third).move([At(rank, "i", 0)], [packet(0, 0)])
    third.move([At(2, "i", 1)], [packet(0, 1)])
    third.move([packet(2, 0, 2)], [At(2, "o", 0, 2)])
    second.wait(0)
    plan = plan_of(collective, [first, second, third], counters=[(1, 0, 0)], scratch=4)
    assert codes(plan) == code


@pytest.mark.parametrize("relaxed", [False, True])
def test_what_relaxed_signals_showed_is_published_by_the_end_of_a_call(relaxed):
    """Rank 0 tells rank 1 of its write, and rank 1 tells rank 2 in the next call."""
    collective = sley.Custom("none", 3, 1, 1, lambda rank, index: None)
    first = Block(0).wait(0).join().move([At(0, "i", 0)], [At(2, "s", 0)]).join()
    first.post(1, relaxed=relaxed)
    second = Block(1).post(2, relaxed=True).wait(1, relaxed=relaxed)
    third = Block(2).wait(2, relaxed=True).join()
    third.move([At(2, "i", 0)], [At(2, "s", 0)]).join().post(0)
    counters = [(0, 2, 0), (1, 0, 0), (2, 1, 0)]
    plan = plan_of(collective, [first, second, third], counters=counters, scratch=1)
    assert (codes(plan) == set()) is not relaxed


@pytest.mark.parametrize(("initial", "code"), [(0, set()), (1, {"V204"})])
def test_a_wait_shows_a_post_more_than_it_needs(initial, code):
    blocks = [
        Block(0).post(0).join().move([At(0, "i", 0)], [At(0, "s", 0)]).join().post(0),
        Block(0).wait(0).wait(0).join().move([At(0, "s", 0)], [At(0, "o", 0)]),
        Block(1).move([At(1, "i", 0)], [At(1, "o", 0)]),
    ]
    collective = copies_by_two_blocks("barrier").collective
    assert codes(plan_of(collective, blocks, counters=[(0, 0, initial)], scratch=1)) == code


@pytest.mark.parametrize(
    "block",
    [
        Block(0).move([], [At(0, "o", 0)]),
        Block(0).move([At(0, "i", 0, 2)], [At(0, "o", 0)]),
        Block(0).push(0, [At(0, "i", 0), At(0, "i", 1)], [At(1, "o", 0)]),
        Block(0).push(0, [At(0, "i", 0)], [packet(1, 0)]),
    ],
    ids=["no source", "two lengths", "a sum through a port", "packets made by a port"],
)
def test_a_move_that_no_machine_performs_is_accepted(block):
    plan = plan_of(sley.AllReduce(2, 2), [block, Block(1)], ports=[0], scratch=2)
    assert codes(plan) == {"V201"}


def test_plain_reads_of_packets_find_their_data():
    collective = copies_by_two_blocks("barrier").collective

    def plan(*, overwritten: bool) -> OneSidedPlan:
        block = Block(0).move([At(0, "i", 0)], [packet(0, 0)]).join()
        if overwritten:
            block.move([At(0, "i", 0)], [At(0, "s", 0)]).join()
        block.move([At(0, "s", 0)], [At(0, "o", 0)])
        blocks = [block, Block(1).move([At(1, "i", 0)], [At(1, "o", 0)])]
        return plan_of(collective, blocks, scratch=2)

    assert codes(plan(overwritten=False)) == {"V205"}
    assert codes(plan(overwritten=True)) == set()


def test_a_barrier_of_three_blocks_opens_for_two():
    blocks = [
        Block(0).barrier(0),
        Block(0).barrier(0).move([At(0, "s", 0)], [At(0, "o", 0)]),
        Block(0).move([At(0, "i", 0)], [At(0, "s", 0)]).barrier(0),
        Block(1).move([At(1, "i", 0)], [At(1, "o", 0)]),
    ]
    collective = copies_by_two_blocks("barrier").collective
    assert codes(plan_of(collective, blocks, scratch=1)) == set()


@pytest.mark.parametrize("relaxed", ["nothing", "post", "wait"])
def test_one_relaxed_end_of_a_signal_publishes_memory(relaxed):
    first = Block(0).move([At(0, "i", 0)], [At(0, "s", 0)]).join()
    first.post(0, relaxed=relaxed == "post")
    second = Block(0).wait(0, relaxed=relaxed == "wait").join()
    second.move([At(0, "s", 0)], [At(0, "o", 0)])
    blocks = [first, second, Block(1).move([At(1, "i", 0)], [At(1, "o", 0)])]
    collective = copies_by_two_blocks("barrier").collective
    plan = plan_of(collective, blocks, counters=[(0, 0, 0)], scratch=1)
    assert codes(plan) == (set() if relaxed == "nothing" else {"V211"})
