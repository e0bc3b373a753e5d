"""Mailboxes: each rank's memory for messages and progress, and where the parts of it lie.

A rank's mailbox holds what lasts from call to call: the state of its blocks, the counters that
others write, and the slots of the connections that it receives on. `published` and the slots of a
connection lie with the receiver, `consumed` with the sender, so that each end polls memory of its
own device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sley.codegen.connections import Connections
from sley.devices.layout import BLOCK_MEMORY, PEER
from sley.devices.tables import Rows
from sley.ir.plan import Plan
from sley.ir.tables import LongArray

_COUNTER_STRIDE = 64  # a cache line for each counter that another rank writes
_SLOT_ALIGNMENT = 256


@dataclass(frozen=True)
class Mailboxes:
    """Offsets in bytes, each within the mailbox of the rank that owns the part.

    memory: int64 (blocks,), each block's own. progress: int64 (ranks,), of a rank's blocks by
    number. consumed: int64 (connections,), with the sender. published, slots: int64 (connections,),
    with the receiver. size: int64 (ranks,), of the whole mailbox.
    """

    memory: LongArray
    progress: LongArray
    consumed: LongArray
    published: LongArray
    slots: LongArray
    size: LongArray

    @classmethod
    def of(cls, plan: Plan, connections: Connections, slots: int, slot_bytes: int) -> Mailboxes:
        """Where everything lies; the same on every process."""
        ranks, c = plan.collective.ranks, connections
        count = np.diff(plan.rank_block)
        memory = plan.block_number.astype(np.int64) * BLOCK_MEMORY.itemsize
        progress = count * BLOCK_MEMORY.itemsize
        counters = _aligned(progress + count * 8, _COUNTER_STRIDE)
        out, into = (np.bincount(end, minlength=ranks) for end in (c.src, c.dst))
        consumed = counters[c.src] + _number(c.src) * _COUNTER_STRIDE
        published = counters[c.dst] + (out[c.dst] + _number(c.dst)) * _COUNTER_STRIDE
        first = _aligned(counters + (out + into) * _COUNTER_STRIDE, _SLOT_ALIGNMENT)
        room = -(-slots * slot_bytes // _SLOT_ALIGNMENT) * _SLOT_ALIGNMENT
        size = first + into * room
        return cls(
            memory, progress, consumed, published, first[c.dst] + _number(c.dst) * room, size
        )

    def peers(
        self, connections: Connections, addresses: Mapping[int, int], device_ranks: set[int]
    ) -> Rows:
        """PEER rows, senders by block and then receivers by block, for the ranks of a device.

        addresses: of each rank's mailbox, as the device sees them.
        """
        c = connections
        rows = np.zeros(2 * len(c), PEER)
        for start, order, own, other in (
            (0, c.send_order, c.src, c.dst),
            (len(c), c.receive_order, c.dst, c.src),
        ):
            here = np.flatnonzero([int(rank) in device_ranks for rank in own[order]])
            at, connection = start + here, order[here]
            src = np.array([addresses[int(rank)] for rank in c.src[connection]], np.int64)
            dst = np.array([addresses[int(rank)] for rank in c.dst[connection]], np.int64)
            rows["consumed"][at] = src + self.consumed[connection]
            rows["published"][at] = dst + self.published[connection]
            rows["slots"][at] = dst + self.slots[connection]
            rows["rank"][at] = other[connection]
            rows["messages"][at] = c.messages[connection]
        return rows


def _aligned(size: LongArray, alignment: int) -> LongArray:
    return -(-size // alignment) * alignment


def _number(owner: np.ndarray) -> LongArray:
    """Each row's number among those of the same owner."""
    order = np.argsort(owner, kind="stable")
    ordered = owner[order]
    number = np.empty(len(owner), np.int64)
    number[order] = np.arange(len(owner)) - np.searchsorted(ordered, ordered)
    return number
