"""Connections: the FIFOs of a plan, their messages, and the faults of both.

The k-th receive on a connection takes the message of the k-th send (docs/machine.md). No other
module derives connections or messages from a plan; each reports the faults found here under a rule
of its own. Every function takes a plan in which `faults` finds nothing.
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
    Edges,
    IntArray,
    LongArray,
    Table,
    frozen_array,
    kept,
    numbering,
    offsets_of,
    ordered_by,
    spans,
)


@dataclass(frozen=True, eq=False, repr=False)
class Uses(Table):
    """One row an instruction of a plan without groups: the connections that it uses.

    send: the row of the connection on which it sends, NONE if it doesn't.
    receive: the row of the connection from which it receives, NONE if it doesn't.
    """

    send: IntArray
    receive: IntArray


@dataclass(frozen=True, eq=False, repr=False)
class Ends(Table):
    """One row a use of a connection: an instruction that sends on it, or one that receives from it.
    Instruction after instruction; one whose peer is a group has a row for each of its ranks.

    instruction: the instruction.
    connection: the row of the connection.
    """

    instruction: LongArray
    connection: IntArray

    def first_of_each(self, instructions: int) -> IntArray:
        """int32 (instructions,): the first connection of each instruction, NONE without."""
        found = np.full(instructions, NONE, np.int32)
        found[self.instruction[::-1]] = self.connection[::-1]  # the first one is written last
        return found

    def by_instruction(self, instructions: int) -> Edges:
        """CSR, instruction -> its connections."""
        counts = np.bincount(self.instruction, minlength=instructions)
        return Edges(offsets_of(counts), self.connection)


@dataclass(frozen=True, eq=False, repr=False)
class Connections(Table):
    """One row a connection: each (src, dst, channel) on which any instruction of a plan sends or
    receives, in ascending order.

    src, dst: the ranks at its ends.
    channel: its channel.
    sends, receives: the number of instructions that send on it, and that receive from it.
    sender, receiver: the block of the first of these instructions, in a correct plan the block of
        all; NONE if there are none.
    sending, receiving: the uses of connections by instructions that send, and that receive.
    instructions: the number of instructions of the plan.
    """

    src: IntArray
    dst: IntArray
    channel: IntArray
    sends: IntArray
    receives: IntArray
    sender: IntArray
    receiver: IntArray
    sending: Ends
    receiving: Ends
    instructions: int

    @staticmethod
    @kept
    def of(plan: Plan) -> Connections:
        t, ranks, channels = plan.instructions, plan.collective.ranks, plan.channels
        (s, to), (r, of) = plan.ends(plan.sends, t.send_peer), plan.ends(plan.receives, t.recv_peer)
        key = np.append(_keys(plan, s, plan.rank[s], to), _keys(plan, r, of, plan.rank[r]))
        keys, number = numbering(key, ranks * ranks * channels)
        pair, channel = np.divmod(keys, channels)
        src, dst = np.divmod(pair, ranks)
        sending, receiving = Ends(s, number[: len(s)]), Ends(r, number[len(s) :])
        sends, sender = _end(plan, sending, len(keys))
        receives, receiver = _end(plan, receiving, len(keys))
        return Connections(
            src=src,
            dst=dst,
            channel=channel,
            sends=sends,
            receives=receives,
            sender=sender,
            receiver=receiver,
            sending=sending,
            receiving=receiving,
            instructions=len(t),
        )

    @cached_property
    def uses(self) -> Uses:
        """The connections of each instruction of a plan without groups."""
        return Uses(
            self.sending.first_of_each(self.instructions),
            self.receiving.first_of_each(self.instructions),
        )

    @cached_property
    def keys(self) -> LongArray:
        """int64 (connections,): a number of each connection, the same in every plan that has it."""
        return self.channel.astype(np.int64) << 40 | self.src.astype(np.int64) << 20 | self.dst

    def name(self, connection: int) -> str:
        """A connection for messages to people."""
        return (
            f"the connection from rank {self.src[connection]} to rank {self.dst[connection]}, "
            f"channel {self.channel[connection]}"
        )

    def first_user(self, connection: int) -> int:
        """The first instruction that sends on a connection or receives from it."""
        rows = [e.instruction[e.connection == connection] for e in (self.sending, self.receiving)]
        return int(np.concatenate(rows).min())


def _keys(plan: Plan, rows: LongArray, src: IntArray, dst: IntArray) -> LongArray:
    """int64 (rows,): a number for a connection of each of the instructions `rows`, from rank `src`
    to rank `dst`."""
    pair = src.astype(np.int64) * plan.collective.ranks + dst
    return pair * plan.channels + plan.instructions.channel[rows]


def _end(plan: Plan, ends: Ends, connections: int) -> tuple[IntArray, IntArray]:
    """One end of all connections: the number of instructions that use it, and the block of the
    first one."""
    number = np.bincount(ends.connection, minlength=connections).astype(np.int32)
    block = np.full(connections, NONE, np.int32)
    block[ends.connection[::-1]] = plan.block[ends.instruction[::-1]]  # the first one last
    return number, block


@dataclass(frozen=True, eq=False, repr=False)
class Messages(Table):
    """One row a message of a tile: connection after connection, in FIFO order. A send without a
    receive is no message, nor is a receive without a send.

    connection: row of `connections`.
    send, receive: the instructions that send and receive it.
    connections: the connections of the plan.
    """

    connection: IntArray
    send: LongArray
    receive: LongArray
    connections: Connections

    @staticmethod
    @kept
    def of(plan: Plan) -> Messages:
        c = Connections.of(plan)
        both = np.minimum(c.sends, c.receives)
        send = _first_of_each(c.sending, c.sends, both)
        receive = _first_of_each(c.receiving, c.receives, both)
        return Messages(np.repeat(np.arange(len(c), dtype=np.int32), both), send, receive, c)

    @property
    def number(self) -> LongArray:
        """int64 (messages,): the number of each message on its connection, from 0."""
        return _numbers(np.bincount(self.connection, minlength=len(self.connections)))

    @cached_property
    def receive_of(self) -> IntArray:
        """int32 (instructions,): for each send the receive of its message, NONE for other
        instructions; of a plan without groups."""
        return self._partners(self.send, self.receive)

    @cached_property
    def send_of(self) -> IntArray:
        """int32 (instructions,): for each receive the send of its message, NONE for other
        instructions; of a plan without groups."""
        return self._partners(self.receive, self.send)

    def _partners(self, rows: LongArray, others: LongArray) -> IntArray:
        partners = np.full(self.connections.instructions, NONE, np.int32)
        partners[rows] = others
        return frozen_array(partners, np.int32)

    def happens_before(self, plan: Plan) -> tuple[LongArray, LongArray]:
        """Pairs (earlier, later) of instructions that generate the happens-before order of a tile:
        neighbours in a block, waits, and messages."""
        follows = np.flatnonzero(plan.step > 0)
        return (
            np.concatenate([follows - 1, plan.waits.target, self.send]),
            np.concatenate([follows, plan.waits.source, self.receive]),
        )


def _first_of_each(ends: Ends, number: IntArray, most: IntArray) -> LongArray:
    """The instructions of `ends` sorted by connection, the first `most` of each connection.

    The rows of a block ascend in the order of execution, so a stable sort gives FIFO order.
    number: (connections,), their number on each.
    """
    ordered = ends.instruction[ordered_by(ends.connection)]
    # Correct plans have as many receives as sends, and need no second pass over all messages.
    if np.array_equal(number, most):
        return ordered
    return ordered[_numbers(number) < np.repeat(most, number)]


def _numbers(sizes: NDArray[Any]) -> LongArray:
    """The numbers from 0 within consecutive groups of these sizes."""
    return spans(np.zeros(len(sizes)), sizes)[1]


def connection_faults(plan: Plan, messages: Messages) -> list[Fault]:
    """Connections whose ends disagree: two blocks at one end; without those, different numbers of
    sends and receives; without those, different counts at the ends of a message. `messages` are
    meaningless if there are any."""
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
    for word, ends, first_block in (
        ("sending", c.sending, c.sender),
        ("receiving", c.receiving, c.receiver),
    ):
        rows, on = ends.instruction, ends.connection
        others = np.flatnonzero(plan.block[rows] != first_block[on])
        if not len(others):  # of most plans: `np.unique` imports more than a rank's start takes
            continue
        _, firsts = np.unique(on[others], return_index=True)
        for at in others[firsts[:LIMIT]].tolist():
            connection, other = int(on[at]), int(rows[at])
            numbers = plan.block_number[[first_block[connection], plan.block[other]]]
            found.append(
                Fault(
                    (other, int(rows[np.argmax(on == connection)])),
                    f"one {word} block for {c.name(connection)}",
                    f"blocks {numbers[0]} and {numbers[1]} of rank {plan.rank[other]}",
                )
            )
    return found
