"""Groups: instructions that receive from several ranks at once, or send to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import sley
from sley.ir.connections import Connections, Messages
from sley.ir.groups import without_groups
from sley.ir.plan import Instructions, Plan
from sley.ir.tables import Edges
from sley.ir.words import Buffer, Op, Protocol
from support.generators.sampling import each_value
from support.inputs.small_plans import Hand
from support.mutants.plan_edits import swapped

IN, OUT = Buffer.INPUT, Buffer.OUTPUT
RANKS = 3
OTHERS = Edges(np.array([0, 2, 4, 6]), np.array([1, 2, 0, 2, 0, 1], np.int32))
"""The group of each rank: all others."""


def allreduce(kind: Op = Op.RECV_REDUCE_COPY_SEND, *, ordered: bool = True) -> Plan:
    """In place: each rank reduces its part in the switch, and multicasts it. The part of a rank is
    on the channel of its number. ordered: whether it is multicast by the block that reduces it."""
    hand = Hand()
    for rank in range(RANKS):
        others = [part for part in range(RANKS) if part != rank]
        block = 0
        for part in others:
            hand.add(rank, block, Op.SEND, (IN, part), to=part, channel=part)
            block += 1
        own = (IN, rank)
        group = RANKS + rank
        if kind is Op.RECV_REDUCE_COPY_SEND:
            hand.add(rank, block, kind, own, own, of=group, to=group, channel=rank)
        else:
            hand.add(rank, block, Op.RECV_REDUCE_COPY, own, own, of=group, channel=rank)
            last = block if ordered else 2 * RANKS
            hand.add(rank, last, Op.SEND, own, to=group, channel=rank)
        for k, part in enumerate(others):
            hand.add(rank, block + 1 + k, Op.RECV, dst=(IN, part), of=part, channel=part)
    plan = hand.plan(sley.AllReduce(RANKS, RANKS, in_place=True))
    return replace(plan, groups=OTHERS)


def allgather() -> Plan:
    hand = Hand()
    for rank in range(RANKS):
        hand.add(rank, 0, Op.COPY_SEND, (IN, 0), (OUT, rank), to=RANKS + rank)
        for k, part in enumerate(p for p in range(RANKS) if p != rank):
            hand.add(rank, 1 + k, Op.RECV, dst=(OUT, part), of=part)
    return replace(hand.plan(sley.AllGather(RANKS)), groups=OTHERS)


def dropped() -> Plan:
    """Rank 0 reduces both parts of others in the switch, and sends them on without storing them."""
    hand = Hand()
    for rank in (1, 2):
        hand.add(rank, 0, Op.SEND, (IN, 0), to=0)
        hand.add(rank, 1, Op.RECV, dst=(OUT, 0), of=0)
    hand.add(0, 0, Op.RECV_REDUCE_SEND, (IN, 0), of=3, to=3)
    hand.add(0, 1, Op.RECV, dst=(OUT, 0), of=1, channel=1)
    hand.add(1, 2, Op.SEND, (OUT, 0), to=0, channel=1, waits=((1, 0),))
    plan = hand.plan(sley.AllReduce(RANKS))
    return replace(plan, groups=OTHERS)


PLANS = {
    "allreduce": allreduce(),
    "allreduce, unfused": allreduce(Op.SEND),
    "allgather": allgather(),
    "not stored": dropped(),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_with_groups_is_proven(name: str) -> None:
    plan = PLANS[name]
    sley.verify(plan)
    messages = Messages.of(plan)
    assert len(messages) > len(plan.sends), "a group's send is several messages"


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_without_its_groups_is_proven(name: str) -> None:
    plan = without_groups(PLANS[name])
    assert not len(plan.groups)
    assert plan.collective == PLANS[name].collective
    sley.verify(plan)
    assert plan == without_groups(plan)
    assert len(Connections.of(plan)) == len(Connections.of(PLANS[name]))


@pytest.mark.parametrize(
    ("name", "protocol"), each_value(PLANS, [Protocol.SIMPLE, Protocol.DIRECT])
)
def test_a_plan_with_groups_runs_on_cpus(name: str, protocol: Protocol) -> None:
    plan = replace(PLANS[name], protocol=protocol)
    count = 10
    c = plan.collective
    sizes = [-(-int(n) // c.chunks) * count for n in c.input_chunks]
    inputs = [np.arange(n, dtype=np.int64) * (r + 1) for r, n in enumerate(sizes)]
    outputs = sley.execute(plan, inputs, count=count)
    wanted = np.concatenate(inputs) if c.name == "allgather" else sum(inputs)
    for rank, output in enumerate(outputs):
        assert output.tolist() == wanted.tolist(), f"rank {rank} has a wrong result"


def refusal(plan: Plan) -> list[str]:
    with pytest.raises(sley.SleyError) as caught:
        sley.verify(plan)
    return [d.rule.code for d in caught.value.diagnostics]


def shortened_group(plan: Plan) -> Plan:
    """Rank 0's group without rank 2."""
    return replace(plan, groups=Edges(np.array([0, 1, 3, 5]), OTHERS.target[[0, 2, 3, 4, 5]]))


def own_group(plan: Plan) -> Plan:
    return replace(plan, groups=Edges(OTHERS.offset, np.array([0, 2, 0, 2, 0, 1], np.int32)))


def descending(plan: Plan) -> Plan:
    return replace(plan, groups=Edges(OTHERS.offset, np.array([2, 1, 0, 2, 0, 1], np.int32)))


def empty_group(plan: Plan) -> Plan:
    return replace(plan, groups=Edges(np.array([0, 0, 2, 4]), OTHERS.target[2:]))


def beyond(plan: Plan) -> Plan:
    return replace(plan, groups=Edges(OTHERS.offset[:-1], OTHERS.target[:-2]))


def flagged(plan: Plan) -> Plan:
    return replace(plan, protocol=Protocol.LL)


def longer_message(plan: Plan) -> Plan:
    row = int(np.argmax(plan.instructions.op == Op.SEND))
    wide = replace(plan, collective=plan.collective.refine(2))
    t = wide.instructions
    names = t.column_names()
    columns = {n: getattr(t, n).copy() for n in names}
    columns["src_index"] *= 2
    columns["dst_index"] *= 2
    columns["count"] *= 2
    columns["count"][row] = 1
    return replace(wide, instructions=Instructions(**columns))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (shortened_group, "V202"),
        (own_group, "V201"),
        (descending, "V201"),
        (empty_group, "V201"),
        (beyond, "V201"),
        (flagged, "C314"),
        (longer_message, "V202"),
    ],
)
def test_a_damaged_group_is_refused(damage: Callable[[Plan], Plan], code: str) -> None:
    assert set(refusal(damage(PLANS["allreduce"]))) == {code}


def test_a_group_takes_all_messages_at_once() -> None:
    """Rank 0 takes two messages of each member, which are in opposite orders at the members: the
    first of one is combined with the first of the other."""

    def plan(first: int) -> Plan:
        hand = Hand()
        for rank in (1, 2):
            order = (0, 1) if rank == 1 else (first, 1 - first)
            for part in order:
                hand.add(rank, 0, Op.SEND, (IN, part), to=0)
        for part in (0, 1):
            own = (IN, part)
            hand.add(0, 0, Op.RECV_REDUCE_COPY, own, own, of=RANKS)
        for rank in (1, 2):
            for part in (0, 1):
                hand.add(0, 0, Op.SEND, (IN, part), to=rank)
                hand.add(rank, 0, Op.RECV, dst=(IN, part), of=0)
        made = hand.plan(sley.AllReduce(RANKS, 2, in_place=True), slots=2)
        return replace(made, groups=OTHERS)

    sley.verify(plan(0))
    assert set(refusal(plan(1))) == {"V206"}, "the parts of the members are mixed up"


def test_two_groups_that_need_one_another_hang() -> None:
    """Each of two ranks receives from a group before it sends into the other's."""
    hand = Hand()
    for rank, other in ((0, 1), (1, 0)):
        own = (IN, rank)
        hand.add(rank, 0, Op.RECV_REDUCE_COPY, own, own, of=RANKS + rank, channel=rank)
        hand.add(rank, 0, Op.SEND, (IN, other), to=other, channel=other)
        hand.add(2, rank, Op.SEND, (IN, rank), to=rank, channel=rank)
    plan = replace(hand.plan(sley.AllReduce(RANKS, RANKS, in_place=True)), groups=OTHERS)
    assert set(refusal(plan)) == {"V203"}


def test_a_group_that_sends_while_its_chunk_is_written_races() -> None:
    assert set(refusal(allreduce(Op.SEND, ordered=False))) == {"V204"}


def test_steps_in_the_wrong_order_are_refused() -> None:
    plan = PLANS["allreduce, unfused"]
    row = int(np.argmax(plan.instructions.op == Op.RECV_REDUCE_COPY))
    assert refusal(swapped(plan, row, row + 1))
