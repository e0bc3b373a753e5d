"""Connections, messages and their faults, compared with a twin of dictionaries, on right and
damaged plans."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import sley
from sley.ir.connections import Connections, Messages, connection_faults
from sley.ir.faults import LIMIT, faults
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.ir.words import RECEIVES, SENDS, Op
from support.generators.examples import examples
from support.generators.random_plans import random_plan
from support.generators.random_programs import RandomProgram, random_programs
from support.inputs.small_plans import IN, OUT, Hand
from support.mutants.plan_edits import as_nop, moved_to_block, with_columns

Key = tuple[int, int, int]
"""Source rank, destination rank, channel."""


@dataclass
class Twin:
    """put, take: for each connection the instructions that send on it, and that receive."""

    plan: Plan
    put: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))
    take: dict[Key, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for row, i in enumerate(self.plan.instructions):
            rank = int(self.plan.rank[row])
            if SENDS[i.op]:
                self.put[rank, i.send_peer, i.channel].append(row)
            if RECEIVES[i.op]:
                self.take[i.recv_peer, rank, i.channel].append(row)

    @property
    def keys(self) -> list[Key]:
        return sorted(self.put.keys() | self.take.keys())

    def ends(self, key: Key) -> tuple[list[int], list[int]]:
        return self.put.get(key, []), self.take.get(key, [])

    def messages(self) -> list[tuple[Key, int, int, int]]:
        """Connection, place, send and receive of each message."""
        return [
            (key, place, *pair)
            for key in self.keys
            for place, pair in enumerate(zip(*self.ends(key), strict=False))
        ]

    def happens_before(self) -> set[tuple[int, int]]:
        """Pairs of instructions, the first of which happens before the second."""
        pairs = {(send, receive) for _, _, send, receive in self.messages()}
        for row in range(len(self.plan.instructions)):
            pairs |= {(target, row) for target in self.plan.waits[row].tolist()}
            if row and self.plan.block[row] == self.plan.block[row - 1]:
                pairs.add((row - 1, row))
        return pairs

    def faults(self) -> list[tuple[int, ...]]:
        """The rows of each fault."""
        block, count = self.plan.block, self.plan.instructions.count
        shared = []
        for end in (0, 1):
            here = []
            for key in self.keys:
                rows = self.ends(key)[end]
                others = [row for row in rows if block[row] != block[rows[0]]]
                if others:
                    here.append((others[0], rows[0]))
            shared += here[:LIMIT]
        if shared:
            return shared
        uneven = [
            (min(put + take),) for put, take in map(self.ends, self.keys) if len(put) != len(take)
        ]
        lengths = [(a, b) for _, _, a, b in self.messages() if count[a] != count[b]]
        return (uneven or lengths)[:LIMIT]


def compare(plan: Plan) -> None:
    """Everything that is derived of a plan, beside the twin."""
    twin, messages = Twin(plan), Messages.of(plan)
    c = messages.connections
    assert c == Connections.of(plan)
    rows = [(i.src, i.dst, i.channel, i.sends, i.receives, i.sender, i.receiver) for i in c]
    expected = []
    for key in twin.keys:
        put, take = twin.ends(key)
        blocks = [int(plan.block[end[0]]) if end else NONE for end in (put, take)]
        expected.append((*key, len(put), len(take), *blocks))
    assert rows == expected
    for number, key in enumerate(twin.keys):
        assert np.flatnonzero(c.uses.send == number).tolist() == twin.ends(key)[0]
        assert np.flatnonzero(c.uses.receive == number).tolist() == twin.ends(key)[1]
        assert c.first_user(number) == min(chain(*twin.ends(key)))
    found = [
        (twin.keys[m.connection], place, m.send, m.receive)
        for m, place in zip(messages, messages.number.tolist(), strict=True)
    ]
    assert found == twin.messages()
    receive_of = {send: receive for _, _, send, receive in twin.messages()}
    send_of = {receive: send for send, receive in receive_of.items()}
    every = range(len(plan.instructions))
    assert messages.receive_of.tolist() == [receive_of.get(row, NONE) for row in every]
    assert messages.send_of.tolist() == [send_of.get(row, NONE) for row in every]
    before, after = messages.happens_before(plan)
    assert set(zip(before.tolist(), after.tolist(), strict=True)) == twin.happens_before()
    assert [fault.rows for fault in connection_faults(plan, messages)] == twin.faults()


@examples(14)
@given(st.integers(0, 2**32))
def test_connections_and_messages_of_random_plans(seed: int) -> None:
    plan = random_plan(seed)
    compare(plan)
    assert not connection_faults(plan, Messages.of(plan))


@examples(14)
@given(random_programs(), st.sampled_from(["msccl", "hpds"]), st.integers(1, 3))
def test_connections_and_messages_of_compiled_plans(
    random: RandomProgram, schedule: str, channels: int
) -> None:
    allocate = "state" if schedule == "hpds" else "connection"
    plan = sley.compile(
        random.program, schedule=schedule, allocate=allocate, channels=channels, verify=False
    )
    compare(plan)
    assert not connection_faults(plan, Messages.of(plan))


@examples(27)
@given(st.integers(0, 2**32), st.data())
def test_connections_messages_and_faults_of_damaged_plans(seed: int, data: st.DataObject) -> None:
    """Up to three instructions left out, moved to another block or connection, or made longer."""
    plan = random_plan(seed)
    for _ in range(data.draw(st.integers(1, 3))):
        plan = damaged(plan, data)
    compare(plan)


def damaged(plan: Plan, data: st.DataObject) -> Plan:
    used = np.flatnonzero(plan.instructions.channel != NONE).tolist()
    if not used:
        return plan
    row = data.draw(st.sampled_from(used))
    rank = int(plan.rank[row])
    blocks = range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1]))
    ranks = [r for r in range(plan.collective.ranks) if r != rank]
    changed = plan
    match data.draw(st.sampled_from(["nop", "block", "channel", "send", "receive", "count"])):
        case "nop":
            changed = as_nop(plan, row)
        case "block":
            changed = moved_to_block(plan, row, data.draw(st.sampled_from(blocks)), 0)
        case "channel":
            changed = with_columns(plan, row, channel=data.draw(st.integers(0, 2)))
        case "send" if SENDS[plan.instructions.op[row]]:
            changed = with_columns(plan, row, send_peer=data.draw(st.sampled_from(ranks)))
        case "receive" if RECEIVES[plan.instructions.op[row]]:
            changed = with_columns(plan, row, recv_peer=data.draw(st.sampled_from(ranks)))
        case "count":
            changed = with_columns(plan, row, count=data.draw(st.integers(1, 2)))
    return plan if faults(changed) else changed


def test_connections_on_a_very_high_channel() -> None:
    plan = sley.compile(sley.algorithms.all_pairs_allreduce(3), channels=2)
    send, receive = (int(rows[0]) for rows in (Messages.of(plan).send, Messages.of(plan).receive))
    for row in (send, receive):
        plan = with_columns(plan, row, channel=2**31 - 2)
    compare(plan)


def test_a_plan_without_messages_has_no_connections() -> None:
    plan = Hand().plan(sley.Custom("nothing", 2, 0, 1, lambda rank, index: None))
    compare(plan)
    assert len(Messages.of(plan)) == len(Connections.of(plan)) == 0


def faults_of(*instructions: tuple[int, int, Op, int]) -> list[tuple[str, str]]:
    """What is expected and found where these (rank, block, operation, count) meet: rank 0 sends to
    rank 1."""
    hand = Hand()
    for rank, block, op, count in instructions:
        if op == Op.SEND:
            hand.add(rank, block, op, (IN, 0), count=count, to=1)
        else:
            hand.add(rank, block, op, dst=(OUT, 0), count=count, of=0)
    plan = hand.plan(sley.AllReduce(2, chunks=2))
    return [(f.expected, f.found) for f in connection_faults(plan, Messages.of(plan))]


def test_faults_name_the_connection_and_the_numbers() -> None:
    send, receive = (0, 0, Op.SEND, 1), (1, 0, Op.RECV, 1)
    name = "the connection from rank 0 to rank 1, channel 0"
    assert not faults_of(send, receive)
    assert faults_of(send, (0, 1, Op.SEND, 1), receive, receive) == [
        (f"one sending block for {name}", "blocks 0 and 1 of rank 0")
    ]
    assert faults_of(send, send, receive, (1, 1, Op.RECV, 1)) == [
        (f"one receiving block for {name}", "blocks 0 and 1 of rank 1")
    ]
    assert faults_of(send, send, receive) == [
        (f"as many receives as sends on {name}", "2 sends, 1 receive")
    ]
    assert faults_of(receive) == [(f"as many receives as sends on {name}", "0 sends, 1 receive")]
    assert faults_of(send, (1, 0, Op.RECV, 2)) == [
        ("the same count at both ends of a message", "1 chunk sent, 2 received")
    ]


def test_of_many_faults_only_the_first_are_reported() -> None:
    plan = sley.compile(sley.algorithms.all_pairs_allreduce(5))
    for row in plan.sends.tolist():
        plan = as_nop(plan, row) if plan.instructions.op[row] == Op.SEND else plan
    compare(plan)
    assert len(connection_faults(plan, Messages.of(plan))) == LIMIT
    hand = Hand()
    for peer in range(1, LIMIT + 2):
        for block in (0, 1):
            hand.add(0, block, Op.SEND, (IN, 0), to=peer)
            hand.add(peer, block, Op.RECV, dst=(OUT, 0), of=0)
    plan = hand.plan(sley.AllReduce(LIMIT + 2))
    compare(plan)
    assert len(connection_faults(plan, Messages.of(plan))) == 2 * LIMIT
