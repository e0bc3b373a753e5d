"""Pulls: the messages of a plan that receivers pull from the senders' memory, and the holds that
protect them from being overwritten (docs/machine.md, protocol Direct)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.direct.holds import all_holds, needed_holds
from sley.direct.staging import staged_messages, without_staged
from sley.ir.plan import Plan
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    Edges,
    IntArray,
    Value,
)
from sley.ir.words import SENDS, Op, Protocol
from sley.verify.hangs import run_of
from sley.verify.structure import messages_of


@dataclass(frozen=True, eq=False, repr=False)
class Pulls(Value):
    """The transport of a plan's messages: one row an instruction.

    pulled: bool, sends whose message the receiver reads in the sender's buffer; False for sends
        through a slot, and for other instructions.
    buffer: int8, index: int32, for a pulled message the first chunk of its data at the sender;
        NONE for others.
    holds: CSR, instruction -> pulled sends of the same rank whose messages must have been
        consumed, for the same tile, before it starts.
    """

    pulled: BoolArray
    buffer: ByteArray
    index: IntArray
    holds: Edges


def pulls(plan: Plan) -> Pulls:
    """The pulls and holds of a plan; none if its protocol isn't DIRECT.

    Every message whose data are in a buffer of the sender is pulled, except those whose holds would
    make the plan hang (`staging`). The plan must have been verified; SleyError (V202, V203) if its
    messages don't match or it hangs.
    """
    messages = messages_of(plan)
    rows, t = len(plan.instructions), plan.instructions
    holds, pulled = Edges.empty(rows), np.zeros(rows, bool)
    if plan.protocol is Protocol.DIRECT:
        # A recv_reduce_send leaves its result in no buffer of the sender.
        lies = SENDS[t.op] & (t.op != Op.RECV_REDUCE_SEND)
        holds = all_holds(plan, lies, run_of(plan, messages).level)
        staged = staged_messages(plan, messages, holds)
        pulled = lies & ~staged
        holds = needed_holds(plan, messages, without_staged(holds, staged))
    own = t.op == Op.SEND
    return Pulls(
        pulled=pulled,
        buffer=np.where(pulled, np.where(own, t.src_buffer, t.dst_buffer), NONE),
        index=np.where(pulled, np.where(own, t.src_index, t.dst_index), NONE),
        holds=holds,
    )
