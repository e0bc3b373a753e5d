"""Connections: the FIFOs of a plan, and their numbers within each thread block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray, LongArray, frozen_array


@dataclass(frozen=True)
class Connections:
    """The connections of a plan in the order of (source rank, destination rank, channel).

    src, dst: int32 (connections,), the ranks at the ends. channel: int32, its channel.
    messages: int32 (connections,), its messages in a tile.
    sender, receiver: int32 (connections,), the blocks at its ends.
    send_order, receive_order: int32 (connections,), all connections sorted by sending block, by
        receiving block: those of a block are consecutive, and so are those of a rank.
    send_offset, receive_offset: int64 (blocks + 1,), the first of each block in these orders.
    """

    src: IntArray
    dst: IntArray
    channel: IntArray
    messages: IntArray
    sender: IntArray
    receiver: IntArray
    send_order: IntArray
    receive_order: IntArray
    send_offset: LongArray
    receive_offset: LongArray

    def __len__(self) -> int:
        return len(self.src)

    @property
    def most(self) -> int:
        """The most connections of a block in one direction, at least 1."""
        counts = (np.diff(self.send_offset), np.diff(self.receive_offset))
        return max(1, *(int(c.max(initial=0)) for c in counts))


@dataclass(frozen=True)
class Ends:
    """The connection of each instruction in one direction; NONE for instructions without one.

    connection: int32 (instructions,), row of the Connections. peer: int32, the connection's number
    within the block. message: int32, the message's number within a tile, on the connection.
    """

    connection: IntArray
    peer: IntArray
    message: IntArray


def connections(plan: Plan) -> tuple[Connections, Ends, Ends]:
    """The connections of a verified plan, and the ends of its sends and of its receives."""
    send_key, receive_key = plan.connection_keys()
    keys, first = np.unique(send_key, return_index=True)
    pair, channel = np.divmod(keys, plan.channels)
    src, dst = np.divmod(pair, plan.collective.ranks)
    sending = np.searchsorted(keys, send_key)
    receiving = np.searchsorted(keys, receive_key)
    _, first_receive = np.unique(receive_key, return_index=True)
    sender = plan.block[plan.sends[first]]
    receiver = plan.block[plan.receives[first_receive]]
    send_order, send_offset, send_peer = _by_block(sender, len(plan.block_rank))
    receive_order, receive_offset, receive_peer = _by_block(receiver, len(plan.block_rank))
    table = Connections(
        src=src.astype(np.int32),
        dst=dst.astype(np.int32),
        channel=channel.astype(np.int32),
        messages=np.bincount(sending, minlength=len(keys)).astype(np.int32),
        sender=sender,
        receiver=receiver,
        send_order=send_order,
        receive_order=receive_order,
        send_offset=send_offset,
        receive_offset=receive_offset,
    )
    sends = _ends(plan, plan.sends, sending, send_peer)
    return table, sends, _ends(plan, plan.receives, receiving, receive_peer)


def _by_block(block: IntArray, blocks: int) -> tuple[IntArray, LongArray, IntArray]:
    """The connections sorted by the block at one end, the first connection of each block, and each
    connection's number within its block."""
    order = np.argsort(block, kind="stable")
    offset = np.searchsorted(block[order], np.arange(blocks + 1))
    number = np.empty(len(block), np.int32)
    number[order] = np.arange(len(block)) - offset[block[order]]
    return frozen_array(order, np.int32), frozen_array(offset, np.int64), number


def _ends(plan: Plan, rows: IntArray, connection: LongArray, peer: IntArray) -> Ends:
    columns = [np.full(len(plan.instructions), NONE, np.int32) for _ in range(3)]
    order = np.argsort(connection, kind="stable")
    ordered = connection[order]
    start = np.searchsorted(ordered, ordered)
    columns[0][rows] = connection
    columns[1][rows] = peer[connection]
    columns[2][rows[order]] = np.arange(len(rows)) - start
    return Ends(*columns)
