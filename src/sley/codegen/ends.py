"""Ends: the numbers of connections within each thread block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray, LongArray, Value


@dataclass(frozen=True, eq=False, repr=False)
class Ends(Value):
    """The sending or the receiving ends of a plan's connections.

    order: int32 (connections,), all connections sorted by the block at this end: those of a block
        are consecutive, and so are those of a rank.
    offset: int64 (blocks + 1,), the first connection of each block in this order.
    peer: int32 (instructions,), the number, within the block, of the connection that an instruction
        uses; NONE for instructions without one.
    message: int32 (instructions,), the message's number within a tile, on that connection; NONE
        likewise.
    """

    order: IntArray
    offset: LongArray
    peer: IntArray
    message: IntArray

    @classmethod
    def of(cls, plan: Plan, messages: Messages, *, sends: bool) -> Ends:
        """The sending or the receiving ends of a verified plan."""
        c = messages.connections
        block, connection_of, rows = (
            (c.sender, c.uses.send, messages.send)
            if sends
            else (c.receiver, c.uses.receive, messages.receive)
        )
        order = np.argsort(block, kind="stable")
        offset = np.searchsorted(block[order], np.arange(len(plan.block_rank) + 1))
        number = np.empty(len(block) + 1, np.int32)
        number[order] = np.arange(len(block)) - offset[block[order]]
        number[NONE] = NONE
        message = np.full(len(plan.instructions), NONE, np.int32)
        message[rows] = messages.number
        return cls(order.astype(np.int32), offset, number[connection_of], message)

    @property
    def most(self) -> int:
        """The most connections of a block at this end."""
        return int(np.diff(self.offset).max(initial=0))
