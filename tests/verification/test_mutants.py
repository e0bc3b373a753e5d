"""Mutants: a correct plan with one damage must be refused.

Each kind is a function from a plan to damaged plans. Each has chosen plans of which every mutant is
wrong; on random programs every mutant that the verifier accepts must run correctly
(`test_accepted_mutants_run_right`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.plan import Plan
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op
from sley.lang import ChunkProgram
from support.generators.examples import examples
from support.generators.random_programs import RandomProgram, random_programs, run
from support.inputs.xml_plans import I, O, Step, plan_of
from support.mutants.plan_edits import (
    as_nop,
    moved_to_block,
    swapped,
    wait_pairs,
    with_columns,
    with_waits,
)

Mutator = Callable[[Plan], Iterator[Plan]]


def ring(n: int) -> sley.Program:
    def body(p: ChunkProgram) -> None:
        rank = np.arange(n)
        c = p.chunk((rank + 1) % n, "in", rank)
        for step in range(1, n):
            c = p.chunk((rank + 1 + step) % n, "in", rank).reduce(c)
        for step in range(1, n):
            c = c.copy((rank + step) % n, "in", rank)

    return sley.trace(sley.AllReduce(n, n, in_place=True), body, name="ring")


def all_pairs(n: int) -> sley.Program:
    """Everybody sends to everybody's scratch, reduces locally, sends the result: waits matter."""

    def body(p: ChunkProgram) -> None:
        for owner in range(n):
            for step in range(1, n):
                p.chunk((owner + step) % n, "in", owner).copy(owner, "scratch", step - 1)
        for owner in range(n):
            c = p.chunk(owner, "in", owner)
            for step in range(1, n):
                c = c.reduce(p.chunk(owner, "scratch", step - 1))
            for step in range(1, n):
                c.copy((owner + step) % n, "in", owner)

    return sley.trace(sley.AllReduce(n, n, in_place=True), body, name="all-pairs")


PLANS = {
    "fused ring": sley.compile(ring(4)),
    "unfused ring": sley.compile(ring(3), fusion=False),
    "all pairs": sley.compile(all_pairs(3)),
}


def rows_of(plan: Plan, *ops: Op) -> list[int]:
    return np.flatnonzero(np.isin(plan.instructions.op, ops)).tolist()


def drop_wait(plan: Plan) -> Iterator[Plan]:
    pairs = wait_pairs(plan)
    for k in range(len(pairs)):
        yield with_waits(plan, pairs[:k] + pairs[k + 1 :])


def swap_steps(plan: Plan) -> Iterator[Plan]:
    for row in range(len(plan.instructions) - 1):
        if plan.block[row] == plan.block[row + 1]:
            yield swapped(plan, row, row + 1)


def shift_source(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(READS_SOURCE[plan.instructions.op]).tolist():
        index = int(plan.instructions.src_index[row])
        yield with_columns(plan, row, src_index=index + 1 if index == 0 else index - 1)


def shift_destination(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(WRITES_DESTINATION[plan.instructions.op]).tolist():
        index = int(plan.instructions.dst_index[row])
        yield with_columns(plan, row, dst_index=index + 1 if index == 0 else index - 1)


def change_count(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        yield with_columns(plan, row, count=int(plan.instructions.count[row]) + 1)


def drop_local(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.COPY, Op.REDUCE):
        yield as_nop(plan, row)


def drop_send(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.SEND):
        yield as_nop(plan, row)


def drop_receive(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.RECV, Op.RECV_REDUCE_COPY):
        yield as_nop(plan, row)


def wrong_channel_at_one_end(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(RECEIVES[plan.instructions.op]).tolist():
        yield with_columns(plan, row, channel=int(plan.instructions.channel[row]) + 1)


def wrong_send_peer(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        peer, ranks = int(plan.instructions.send_peer[row]), plan.collective.ranks
        yield with_columns(plan, row, send_peer=(peer + 1) % ranks)


def send_to_oneself(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        yield with_columns(plan, row, send_peer=int(plan.rank[row]))


def store_without_reducing(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.RECV_REDUCE_COPY):
        yield with_columns(plan, row, op=Op.RECV)


def copy_for_reduce(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.REDUCE):
        yield with_columns(plan, row, op=Op.COPY)


def reduce_twice(plan: Plan) -> Iterator[Plan]:
    """A reduce takes the operand of another one of its rank: that one counts twice."""
    reduces = rows_of(plan, Op.REDUCE)
    for row in reduces:
        for other in reduces:
            if row != other and plan.rank[row] == plan.rank[other]:
                yield with_columns(plan, row, src_index=int(plan.instructions.src_index[other]))


def forget_store(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.RECV_REDUCE_COPY_SEND):
        yield with_columns(plan, row, op=Op.RECV_REDUCE_SEND, dst_buffer=-1, dst_index=-1)


def wrong_buffer(plan: Plan) -> Iterator[Plan]:
    for row in rows_of(plan, Op.SEND):
        buffer = 2 - int(plan.instructions.src_buffer[row])
        yield with_columns(plan, row, src_buffer=buffer)


def one_connection_in_two_blocks(plan: Plan) -> Iterator[Plan]:
    for row in np.flatnonzero(SENDS[plan.instructions.op]).tolist():
        rank = int(plan.rank[row])
        for block in range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1])):
            if block != plan.block[row]:
                yield moved_to_block(plan, row, block, 0)


def wait_in_a_circle(plan: Plan) -> Iterator[Plan]:
    for row, other in wait_pairs(plan):
        yield with_waits(plan, [*wait_pairs(plan), (other, row)])


def wait_for_another_rank(plan: Plan) -> Iterator[Plan]:
    for row, other in wait_pairs(plan):
        far = int(np.argmax(plan.rank != plan.rank[row]))
        yield with_waits(plan, [*(p for p in wait_pairs(plan) if p != (row, other)), (row, far)])


def merge_connections(plan: Plan) -> Iterator[Plan]:
    """All of a rank's sends to one peer join those on another channel, without their receives."""
    for row in np.flatnonzero(
        SENDS[plan.instructions.op] & (plan.instructions.channel > 0)
    ).tolist():
        yield with_columns(plan, row, channel=0)


def aim_at_itself(plan: Plan) -> Iterator[Plan]:
    t = plan.instructions
    for row in rows_of(plan, Op.COPY, Op.REDUCE):
        buffer, index = int(t.src_buffer[row]), int(t.src_index[row])
        yield with_columns(plan, row, dst_buffer=buffer, dst_index=index)


TWO_CHANNELS = sley.compile(ring(4), channels=2, fusion=False)

KINDS: list[tuple[Mutator, list[Plan]]] = [
    (drop_wait, [PLANS["all pairs"]]),
    (swap_steps, [PLANS["fused ring"]]),
    (shift_source, list(PLANS.values())),
    (shift_destination, list(PLANS.values())),
    (change_count, list(PLANS.values())),
    (drop_local, [PLANS["all pairs"]]),
    (drop_send, list(PLANS.values())),
    (drop_receive, list(PLANS.values())),
    (wrong_channel_at_one_end, list(PLANS.values())),
    (wrong_send_peer, list(PLANS.values())),
    (send_to_oneself, list(PLANS.values())),
    (store_without_reducing, [PLANS["unfused ring"]]),
    (copy_for_reduce, [PLANS["all pairs"]]),
    (reduce_twice, [PLANS["all pairs"]]),
    (forget_store, [PLANS["fused ring"]]),
    (wrong_buffer, list(PLANS.values())),
    (one_connection_in_two_blocks, [PLANS["all pairs"]]),
    (wait_in_a_circle, [PLANS["all pairs"], PLANS["unfused ring"]]),
    (wait_for_another_rank, [PLANS["all pairs"]]),
    (merge_connections, [TWO_CHANNELS]),
    (aim_at_itself, [PLANS["all pairs"]]),
]


@pytest.mark.parametrize(("kind", "plans"), KINDS, ids=[k.__name__ for k, _ in KINDS])
def test_every_mutant_of_the_kind_is_refused(kind: Mutator, plans: list[Plan]) -> None:
    mutants = [mutant for plan in plans for mutant in kind(plan)]
    assert len(mutants) >= len(plans)
    for number, mutant in enumerate(mutants):
        with pytest.raises(sley.SleyError, match="V20") as caught:
            sley.verify(mutant)
            pytest.fail(f"{kind.__name__} {number} was accepted")
        assert all(d.expected and d.found and d.remedy for d in caught.value.diagnostics)


def test_a_plan_with_too_few_slots_is_refused_as_hanging() -> None:
    with pytest.raises(sley.SleyError, match="V203") as caught:
        sley.verify(PLANS["fused ring"], slots=1)
    notes = caught.value.diagnostics[0].notes
    assert any("waits for a free slot" in note for note in notes)
    assert notes[-1] == "the plan does not hang with 2 slots or more"


def test_a_hang_that_no_slots_end_says_so() -> None:
    ranks = [
        [
            [
                Step(Op.RECV, dst=(O, 0), recv=1 - own, chan=0),
                Step(Op.SEND, (I, 0), send=1 - own, chan=0),
            ]
        ]
        for own in range(2)
    ]
    nothing = sley.Custom("nothing", 2, 1, 1, lambda rank, index: None)
    with pytest.raises(sley.SleyError, match="V203") as caught:
        sley.verify(plan_of(nothing, ranks))
    assert caught.value.diagnostics[0].notes[-1] == "the plan hangs with any number of slots"


@examples(20)
@given(random_programs(max_operations=20), st.sampled_from(["msccl", "hpds"]), st.booleans())
def test_a_hang_names_the_least_number_of_slots_that_ends_it(
    random: RandomProgram, schedule: str, per_chunk: bool
) -> None:
    plan = sley.compile(random.program, slots=8, schedule=schedule)
    try:
        sley.verify(plan, slots=1, per_chunk=per_chunk)
    except sley.SleyError as error:
        note = next(
            note for note in error.diagnostics[0].notes if "the plan does not hang with" in note
        )
        enough = int(note.split()[6])
        sley.verify(plan, slots=enough, per_chunk=per_chunk)
        with pytest.raises(sley.SleyError, match="V203"):
            sley.verify(plan, slots=enough - 1, per_chunk=per_chunk)


@examples(23)
@given(
    random_programs(max_operations=20),
    st.sampled_from(["connection", "instance"]),
    st.sampled_from([k for k, _ in KINDS]),
    st.data(),
)
def test_accepted_mutants_run_right(
    random: RandomProgram, allocate: str, kind: Mutator, data: st.DataObject
) -> None:
    """A mutant may happen to be right; what the verifier lets pass must be."""
    mutants = list(kind(sley.compile(random.program, allocate=allocate)))
    if not mutants:
        return
    mutant = data.draw(st.sampled_from(mutants))
    try:
        sley.verify(mutant)
    except sley.SleyError as error:
        assert error.code.startswith("V20")
        return
    run(random, mutant, 3)
