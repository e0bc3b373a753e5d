"""Connections: the FIFOs of a plan, the messages that they carry, and where their ends disagree.

On a connection the k-th receive takes what the k-th send puts there (docs/machine.md). Whoever
needs a plan's messages takes them from here, and refuses what `connection_faults` finds under a
rule of its own. Every plan here must be one in which `faults` finds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import counted
from sley.ir.faults import LIMIT, Fault
from sley.ir.plan import Plan
from sley.ir.tables import (
    NONE,
    IntArray,
    LongArray,
    Table,
    frozen_array,
    numbering,
    offsets_of,
)


@dataclass(frozen=True, eq=False, repr=False)
class Uses(Table):
    """One row an instruction of a plan: its connections, NONE where it doesn't use any.

    send: the row of the connection on which it sends.
    receive: the row of the connection from which it receives.
    """

    send: IntArray
    receive: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Connections(Table):
    """One row a connection: a (src, dst, channel) on which any instruction of a plan sends or
    receives; in ascending order.

    src, dst: the ranks at its ends.
    channel: its channel.
    sends, receives: how many instructions send on it and receive from it.
    sender, receiver: the block of the first of these; in a right plan of all. NONE without.
    uses: which instruction uses which.
    """

    src: IntArray
    dst: IntArray
    channel: IntArray
    sends: IntArray
    receives: IntArray
    sender: IntArray
    receiver: IntArray
    uses: Uses

    @classmethod
    def of(cls, plan: Plan) -> Connections:
        t, ranks, channels = plan.instructions, plan.collective.ranks, plan.channels
        s, r = plan.sends.astype(np.intp), plan.receives.astype(np.intp)
        key = np.append(
            _keys(plan, s, plan.rank, t.send_peer), _keys(plan, r, t.recv_peer, plan.rank)
        )
        keys, number = numbering(key, ranks * ranks * channels)
        pair, channel = np.divmod(keys, channels)
        src, dst = np.divmod(pair, ranks)
        sends, sender, send_use = _end(plan, s, number[: len(s)], len(keys))
        receives, receiver, receive_use = _end(plan, r, number[len(s) :], len(keys))
        return cls(
            src=src,
            dst=dst,
            channel=channel,
            sends=sends,
            receives=receives,
            sender=sender,
            receiver=receiver,
            uses=Uses(send_use, receive_use),
        )

    def name(self, connection: int) -> str:
        """A connection for messages to people."""
        return (
            f"the connection from rank {self.src[connection]} to rank {self.dst[connection]}, "
            f"channel {self.channel[connection]}"
        )

    def first_user(self, connection: int) -> int:
        """The first instruction that sends on a connection or receives from it."""
        uses = (self.uses.send == connection) | (self.uses.receive == connection)
        return int(np.argmax(uses))


def _keys(plan: Plan, rows: NDArray[np.intp], src: IntArray, dst: IntArray) -> LongArray:
    """int64 (rows,): a number for the connection that each of some instructions uses.

    src, dst: int32 (instructions,), the ranks at the ends.
    """
    pair = src[rows].astype(np.int64) * plan.collective.ranks + dst[rows]
    return pair * plan.channels + plan.instructions.channel[rows]


def _end(
    plan: Plan, rows: NDArray[np.intp], connection: NDArray[Any], connections: int
) -> tuple[IntArray, IntArray, IntArray]:
    """One end of all connections: how many of the instructions `rows` use each, the block of the
    first of them, and the connection of every instruction of the plan.

    connection: of each of `rows`.
    """
    number = np.bincount(connection, minlength=connections).astype(np.int32)
    block = np.full(connections, NONE, np.int32)
    block[connection[::-1]] = plan.block[rows[::-1]]  # the first row is written last
    connection_of = np.full(len(plan.instructions), NONE, np.int32)
    connection_of[rows] = connection
    return number, block, connection_of


@dataclass(frozen=True, eq=False, repr=False)
class Messages(Table):
    """One row a message of a tile; connection after connection, in the order of each. What is sent
    and never received, or received and never sent, is none.

    connection: row of `connections`.
    send, receive: the instructions that put and take it.
    connections: those of the plan.
    """

    connection: IntArray
    send: LongArray
    receive: LongArray
    connections: Connections

    @classmethod
    def of(cls, plan: Plan) -> Messages:
        c = Connections.of(plan)
        both = np.minimum(c.sends, c.receives)
        send = _first_of_each(plan.sends, c.uses.send[plan.sends], c.sends, both)
        receive = _first_of_each(plan.receives, c.uses.receive[plan.receives], c.receives, both)
        return cls(np.repeat(np.arange(len(c), dtype=np.int32), both), send, receive, c)

    @property
    def place(self) -> LongArray:
        """int64 (messages,): each one's place among those of its connection, from 0."""
        return _places(np.bincount(self.connection, minlength=len(self.connections)))

    @cached_property
    def receive_of(self) -> IntArray:
        """int32 (instructions,): the receive that takes the message of each send; NONE for what
        sends none."""
        return self._partners(self.send, self.receive)

    @cached_property
    def send_of(self) -> IntArray:
        """int32 (instructions,): the send whose message each receive takes; NONE for what receives
        none."""
        return self._partners(self.receive, self.send)

    def _partners(self, rows: LongArray, others: LongArray) -> IntArray:
        partners = np.full(len(self.connections.uses), NONE, np.int32)
        partners[rows] = others
        return frozen_array(partners, np.int32)

    def happens_before(self, plan: Plan) -> tuple[LongArray, LongArray]:
        """Pairs of instructions, the first of which happens before the second in every tile, and
        from which the whole happens-before order follows: neighbours in a block, waits, messages.
        """
        follows = np.flatnonzero(plan.step > 0)
        return (
            np.concatenate([follows - 1, plan.waits.target, self.send]),
            np.concatenate([follows, plan.waits.source, self.receive]),
        )


def _first_of_each(
    rows: IntArray, connection: IntArray, number: IntArray, most: IntArray
) -> LongArray:
    """The rows by connection, of each in their own order as many as `most` says.

    Rows of a block ascend in the order of execution, and so do those of one end of a connection.
    connection: of each row. number: how many rows each connection has.
    """
    ordered = rows[np.argsort(connection, kind="stable")].astype(np.int64)
    if np.array_equal(number, most):
        return ordered
    return ordered[_places(number) < np.repeat(most, number)]


def _places(number: NDArray[Any]) -> LongArray:
    """Places from 0 in groups that follow one another. number: of places in each group."""
    return np.arange(number.sum()) - np.repeat(offsets_of(number)[:-1], number)


def connection_faults(plan: Plan, messages: Messages) -> list[Fault]:
    """Where the ends of connections disagree, so that `messages` are not what the plan means: two
    blocks at one end, more messages sent than received or fewer, and messages of two lengths."""
    c = messages.connections
    found = shared_ends(plan, c) or [
        Fault(
            (c.first_user(k),),
            f"as many receives as sends on {c.name(k)}",
            f"{counted(int(c.sends[k]), 'send')}, {counted(int(c.receives[k]), 'receive')}",
        )
        for k in np.flatnonzero(c.sends != c.receives)[:LIMIT].tolist()
    ]
    count, send, receive = plan.instructions.count, messages.send, messages.receive
    return found or [
        Fault(
            (int(send[k]), int(receive[k])),
            "the same count at both ends of a message",
            f"{counted(int(count[send[k]]), 'chunk')} sent, {count[receive[k]]} received",
        )
        for k in np.flatnonzero(count[send] != count[receive])[:LIMIT].tolist()
    ]


def shared_ends(plan: Plan, c: Connections) -> list[Fault]:
    """Connections with several blocks at one end."""
    found = []
    for word, on, first_block in (
        ("sending", c.uses.send, c.sender),
        ("receiving", c.uses.receive, c.receiver),
    ):
        rows = np.flatnonzero(on != NONE)
        others = rows[plan.block[rows] != first_block[on[rows]]]
        _, firsts = np.unique(on[others], return_index=True)
        for other in others[firsts[:LIMIT]].tolist():
            connection = int(on[other])
            numbers = plan.block_number[[first_block[connection], plan.block[other]]]
            found.append(
                Fault(
                    (other, int(rows[np.argmax(on[rows] == connection)])),
                    f"one {word} block for {c.name(connection)}",
                    f"blocks {numbers[0]} and {numbers[1]} of rank {plan.rank[other]}",
                )
            )
    return found
