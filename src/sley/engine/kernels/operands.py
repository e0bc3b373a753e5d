"""Operands: a plan's instructions as arguments of the primitives, for both engines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.engine.kernels.averages import Averages
from sley.engine.kernels.switches import bundles
from sley.errors import SleyError
from sley.ir.connections import Connections, Messages
from sley.ir.cut import Homes
from sley.ir.groups import in_pieces
from sley.ir.plan import Plan
from sley.ir.tables import (
    NONE,
    BoolArray,
    ByteArray,
    Edges,
    IntArray,
    LongArray,
    Value,
    offsets_of,
)
from sley.ir.words import READS_SOURCE, SENDS, WRITES_DESTINATION, Buffer
from sley.verification.direct import pulls
from sley.verification.flagged import kernel_waits
from sley.verification.runs import Runs
from sley.verification.scales import Scales

NOWHERE = 3
"""The memory number of data in no buffer; the other numbers are those of Buffer."""


@dataclass(frozen=True, eq=False, repr=False)
class BlockEnds(Value):
    """The sending or the receiving ends of a plan's connections.

    order: int32 (connections,), all connections sorted by the block at this end: those of a block
        are consecutive, and so are those of a rank, and within a block those of a bundle.
    offset: int64 (blocks + 1,), the first connection of each block in this order.
    bundle: int32 (connections,), the first connection of each one's bundle at this end: those that
        instructions with a group use together with it (`sley.engine.kernels.switches`).
    peer: int32 (instructions,), the number, within the block, of the first connection that an
        instruction uses; NONE for instructions without one.
    members: int32 (instructions,), the number of connections that it uses.
    message: int32 (instructions,), the message's number within a tile, on these connections; NONE
        without one.
    """

    order: IntArray
    offset: LongArray
    bundle: IntArray
    peer: IntArray
    members: IntArray
    message: IntArray

    @classmethod
    def of(cls, plan: Plan, messages: Messages, *, sends: bool) -> BlockEnds:
        """The sending or the receiving ends of a verified plan."""
        c = messages.connections
        block, ends, rows = (
            (c.sender, c.sending, messages.send)
            if sends
            else (c.receiver, c.receiving, messages.receive)
        )
        bundle = bundles(ends, len(c))
        order = np.lexsort((np.arange(len(c)), bundle, block))
        offset = np.searchsorted(block[order], np.arange(len(plan.block_rank) + 1))
        number = np.empty(len(block) + 1, np.int32)
        number[order] = np.arange(len(block)) - offset[block[order]]
        number[NONE] = NONE
        instructions = len(plan.instructions)
        message = np.full(instructions, NONE, np.int32)
        message[rows] = messages.number
        return cls(
            order=order.astype(np.int32),
            offset=offset,
            bundle=bundle,
            peer=number[ends.first_of_each(instructions)],
            members=np.bincount(ends.instruction, minlength=instructions).astype(np.int32),
            message=message,
        )


@dataclass(frozen=True)
class Places:
    """Positions of chunks in a rank's memory. memory: int8, a Buffer (in place: INPUT for all of
    the data) or NOWHERE; chunk: int32, the number of the first chunk in it."""

    memory: ByteArray
    chunk: IntArray


@dataclass(frozen=True)
class Conditions:
    """The conditions that instructions wait for, CSR by instruction.

    offset: int64 (instructions + 1,). held: bool, whether the condition is the receiver's read of a
    pulled message; otherwise it is a step of another block. target: int32, that block's number in
    the rank, or the connection's number among those on which the rank sends. number: int32, the
    step in the block, or the message on the connection.
    """

    offset: LongArray
    held: BoolArray
    target: IntArray
    number: IntArray


@dataclass(frozen=True)
class Operands:
    """A plan as arguments of the primitives; columns have a row for each instruction.

    connections: the connections of the plan. sends, receives: their numbers within blocks.
    src, dst: the operands. pulled: the position, at the sender, of the received message; NOWHERE
    for a message in a slot. stays: bool, whether the sent message is pulled from the buffer.
    posts: bool, whether other blocks wait for the instruction. averages: the divisors of AVG.
    scales: the reads that can multiply inputs by a factor; None for plans that can't.
    homes: of the plan's scratch. runs: what kernels execute at once.
    """

    plan: Plan
    connections: Connections
    sends: BlockEnds
    receives: BlockEnds
    src: Places
    dst: Places
    pulled: Places
    stays: BoolArray
    conditions: Conditions
    posts: BoolArray
    averages: Averages
    scales: Scales | None
    homes: Homes
    runs: Runs


def operands(plan: Plan) -> Operands:
    """The operands of a verified plan, whose groups must be bundles (`switches`)."""
    messages = Messages.of(plan)
    sends, receives = (BlockEnds.of(plan, messages, sends=sends) for sends in (True, False))
    t = plan.instructions
    found = pulls(plan)
    sent = messages.send_of
    has_source = (sent != NONE) & found.pulled[np.maximum(sent, 0)]
    at = np.where(has_source, sent, 0)
    waits = kernel_waits(plan)
    posts = np.zeros(len(t), bool)
    posts[waits.target] = True
    return Operands(
        plan=plan,
        connections=messages.connections,
        sends=sends,
        receives=receives,
        src=_places(plan, plan.rank, t.src_buffer, t.src_index, READS_SOURCE[t.op]),
        dst=_places(plan, plan.rank, t.dst_buffer, t.dst_index, WRITES_DESTINATION[t.op]),
        pulled=_places(plan, plan.rank[at], found.buffer[at], found.index[at], has_source),
        stays=found.pulled & SENDS[t.op],
        conditions=_conditions(plan, messages.connections, sends, waits, found.holds),
        posts=posts,
        averages=_averages(plan, messages),
        scales=_scales(plan),
        homes=Homes.of(plan, messages),
        runs=Runs.of(plan, messages, waits, found),
    )


def _averages(plan: Plan, messages: Messages) -> Averages:
    """The divisors of AVG; an instruction with a group divides as its pieces do."""
    alone, pieces = in_pieces(plan)
    if alone is plan:
        return Averages.of(plan, messages)
    found = Averages.of(alone, Messages.of(alone))
    by_instruction = np.maximum.reduceat(found.by_instruction, pieces[:-1])
    return Averages(by_instruction, found.at_end)


def is_sum(plan: Plan) -> bool:
    """Whether a plan sums inputs, also that of a single rank."""
    return plan.reduces or plan.collective.ranks == 1


def _scales(plan: Plan) -> Scales | None:
    try:
        return Scales.of(plan) if is_sum(plan) else None
    except SleyError:
        return None


def _places(
    plan: Plan, rank: IntArray, buffer: ByteArray, index: IntArray, used: BoolArray
) -> Places:
    """Chunks of a rank's buffers as Places; NOWHERE for rows that are not `used`."""
    c = plan.collective
    memory, chunk = buffer.astype(np.int8), index.astype(np.int32)
    if c.in_place:
        bases = np.stack([c.input_base, c.output_base, np.zeros_like(c.input_base)])
        chunk = (chunk + bases[buffer, rank]).astype(np.int32)
        memory = np.where(memory == Buffer.OUTPUT, Buffer.INPUT, memory)
    return Places(
        np.where(used, memory, NOWHERE).astype(np.int8), np.where(used, chunk, 0).astype(np.int32)
    )


def _conditions(
    plan: Plan, connections: Connections, sends: BlockEnds, waits: Edges, holds: Edges
) -> Conditions:
    """Waits and holds as conditions."""
    message = holds.target
    source = np.concatenate([waits.source, holds.source])
    is_held = np.concatenate([np.zeros(len(waits.target), bool), np.ones(len(message), bool)])
    first = sends.offset[plan.rank_block[plan.rank[message]]]
    position = np.empty(len(connections), np.int64)
    position[sends.order] = np.arange(len(connections))
    connection = position[connections.uses.send[message]] - first
    target = np.concatenate([plan.block_number[plan.block[waits.target]], connection])
    number = np.concatenate([plan.step[waits.target], sends.message[message]])
    order = np.argsort(source, kind="stable")
    return Conditions(
        offsets_of(np.bincount(source, minlength=len(plan.instructions))),
        is_held[order],
        target[order].astype(np.int32),
        number[order].astype(np.int32),
    )
