"""Rows: the transfers of a lifted program; the last part of lifting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.compiler.passes.lift.events import PlanEvents
from sley.compiler.passes.lift.times import Times
from sley.ir.plan import Plan
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, BoolArray, IntArray, LongArray, offsets_of
from sley.ir.words import RECEIVES, REDUCES, SENDS_SOURCE, Buffer, Op, TransferKind


@dataclass(frozen=True, eq=False)
class _Ranges:
    """The first chunks of ranges, one row an instruction: (buffer, index) on its rank."""

    buffer: NDArray[Any]
    index: NDArray[Any]

    def __getitem__(self, rows: LongArray) -> _Ranges:
        return _Ranges(self.buffer[rows], self.index[rows])

    def where(self, chosen: BoolArray, other: _Ranges) -> _Ranges:
        """These where `chosen`, the others elsewhere."""
        return _Ranges(
            np.where(chosen, self.buffer, other.buffer), np.where(chosen, self.index, other.index)
        )


@dataclass(frozen=True, eq=False)
class _Part:
    """Transfers of one sort: from `source` on the ranks of instructions `at_src` to `target` on
    those of `at_dst`, at the times of `event`; of one event, those of turn 0 come first."""

    turn: int
    event: LongArray
    kind: NDArray[Any]
    at_src: LongArray
    source: _Ranges
    at_dst: LongArray
    target: _Ranges


def write_rows(plan: Plan, events: PlanEvents, times: Times) -> Program:
    """The program whose transfers are in the order of `times`."""
    transfers = _transfers(plan, _parts(plan, events, times.lands), events.position, times.time)
    return Program(
        name=plan.name,
        collective=plan.collective,
        transfers=transfers,
        scratch_chunks=_used_scratch(transfers, plan.collective.ranks),
        protocol=plan.protocol,
        topology=plan.topology,
        sources=plan.sources,
    )


def _parts(plan: Plan, events: PlanEvents, lands: BoolArray) -> list[_Part]:
    """The transfers: copies of operands that a reduction must not overwrite, whole messages,
    messages into scratch, from scratch to their destination, and local instructions."""
    t = plan.instructions
    landed = np.zeros(len(t), bool)
    landed[events.receive[lands]] = True
    # Results that are sent on without being stored, and may not overwrite the operand.
    apart = (t.op == Op.RECV_REDUCE_SEND) & ~events.in_place
    source = _Ranges(t.src_buffer, t.src_index)
    own = _own_scratch(plan, landed | apart)
    target = own.where(apart, source.where(events.in_place, _Ranges(t.dst_buffer, t.dst_index)))
    sent = source.where(SENDS_SOURCE[t.op], target)
    # If both the message and the result are in `own`, the operand is reduced into it.
    taken_from = source.where(apart, own)
    kind = np.where(REDUCES[t.op], TransferKind.REDUCE, TransferKind.COPY)
    copy = np.full(len(t), TransferKind.COPY)
    put, take = events.send[~lands], events.receive[~lands]
    early, late = events.send[lands], events.receive[lands]
    local = np.flatnonzero(np.isin(t.op, [Op.COPY, Op.REDUCE, Op.COPY_SEND]))
    kept = np.flatnonzero(_reduces_elsewhere(plan) | (apart & ~landed))
    return [
        _Part(0, 2 * kept, copy[kept], kept, source[kept], kept, target[kept]),
        _Part(1, 2 * take, kind[take], put, sent[put], take, target[take]),
        _Part(1, 2 * early + 1, copy[late], early, sent[early], late, own[late]),
        _Part(1, 2 * late, kind[late], late, taken_from[late], late, target[late]),
        _Part(1, 2 * local, kind[local], local, source[local], local, target[local]),
    ]


def _own_scratch(plan: Plan, needed: BoolArray) -> _Ranges:
    """Scratch after the plan's, for the instructions that need it."""
    t = plan.instructions
    start = offsets_of(np.where(needed, t.count, 0).astype(np.int64))
    first = start[plan.block_offset[plan.rank_block[:-1]]]
    index = plan.scratch_chunks[plan.rank] + start[:-1] - first[plan.rank]
    return _Ranges(np.full(len(t), Buffer.SCRATCH), index)


def _reduces_elsewhere(plan: Plan) -> BoolArray:
    """Whether an instruction reduces its message with other chunks than those that it writes."""
    t, layout = plan.instructions, plan.layout
    combines = RECEIVES[t.op] & REDUCES[t.op] & (t.op != Op.RECV_REDUCE_SEND)
    source = layout.cell(plan.rank, t.src_buffer, t.src_index)
    target = layout.cell(plan.rank, t.dst_buffer, t.dst_index)
    return np.asarray(combines & (source != target))


def _transfers(plan: Plan, parts: list[_Part], position: LongArray, time: IntArray) -> Transfers:
    def joined(*columns: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate(columns)

    event = joined(*(part.event for part in parts))
    turn = np.repeat([part.turn for part in parts], [len(part.event) for part in parts])
    order = np.lexsort((turn, position[event], time[event]))
    at_dst = joined(*(part.at_dst for part in parts))[order]
    ones = np.ones(len(order), np.int32)
    return Transfers(
        kind=joined(*(part.kind for part in parts))[order],
        src=plan.rank[joined(*(part.at_src for part in parts))[order]],
        src_buffer=joined(*(part.source.buffer for part in parts))[order],
        src_index=joined(*(part.source.index for part in parts))[order],
        dst=plan.rank[at_dst],
        dst_buffer=joined(*(part.target.buffer for part in parts))[order],
        dst_index=joined(*(part.target.index for part in parts))[order],
        count=plan.instructions.count[at_dst],
        channel=NONE * ones,
        instances=ones,
        lane=0 * ones,
        send_block=NONE * ones,
        recv_block=NONE * ones,
        step=NONE * ones,
        group=NONE * ones,
        source=plan.instructions.source[at_dst],
    )


def _used_scratch(t: Transfers, ranks: int) -> IntArray:
    """int32 (ranks,): chunks of scratch up to the last one that a transfer uses."""
    used = np.zeros(ranks, np.int32)
    for rank, buffer, index in (
        (t.src, t.src_buffer, t.src_index),
        (t.dst, t.dst_buffer, t.dst_index),
    ):
        named = buffer == Buffer.SCRATCH
        np.maximum.at(used, rank[named], index[named] + t.count[named])
    return used
