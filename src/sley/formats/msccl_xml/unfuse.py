"""Taking fused instructions apart, for runtimes that run only plain ones.

The pieces of an instruction stand where it stood: what it waited for, its first piece waits for,
and who waited for it waits for its last piece. So every access stays in its place in the order.
A piece needs a message or a free slot where the fused instruction needed both at once; whatever
order runs the fused plan runs the pieces as well, so no plan hangs for being taken apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, Edges, frozen_array, offsets_of
from sley.ir.words import RECEIVES, SENDS, WRITES_DESTINATION, Buffer, Op

_Longs = NDArray[np.int64]


class _Range(IntEnum):
    """What chunks a piece works on: the instruction's own, or the block's scratch."""

    ABSENT = 0
    SOURCE = 1
    DESTINATION = 2
    SPARE = 3


class _Piece(NamedTuple):
    op: Op
    src: _Range
    dst: _Range


class _Overlap(IntEnum):
    """How an instruction's source and destination lie to one another."""

    APART = 0
    SAME = 1
    PARTLY = 2


_RECV_DST = _Piece(Op.RECV, _Range.ABSENT, _Range.DESTINATION)
_RECV_SPARE = _Piece(Op.RECV, _Range.ABSENT, _Range.SPARE)
_DST_PLUS_SRC = _Piece(Op.REDUCE, _Range.SOURCE, _Range.DESTINATION)
_DST_PLUS_SPARE = _Piece(Op.REDUCE, _Range.SPARE, _Range.DESTINATION)
_SPARE_PLUS_SRC = _Piece(Op.REDUCE, _Range.SOURCE, _Range.SPARE)
_SPARE_TO_DST = _Piece(Op.COPY, _Range.SPARE, _Range.DESTINATION)
_SEND_DST = _Piece(Op.SEND, _Range.DESTINATION, _Range.ABSENT)
_SEND_SPARE = _Piece(Op.SEND, _Range.SPARE, _Range.ABSENT)

_REDUCED: Mapping[_Overlap, tuple[_Piece, ...]] = MappingProxyType(
    {
        _Overlap.APART: (_RECV_DST, _DST_PLUS_SRC),
        _Overlap.SAME: (_RECV_SPARE, _DST_PLUS_SPARE),
        _Overlap.PARTLY: (_RECV_SPARE, _SPARE_PLUS_SRC, _SPARE_TO_DST),
    }
)


def _pieces(op: Op, overlap: _Overlap) -> tuple[_Piece, ...]:
    """What a fused instruction is taken apart into, in order."""
    match op:
        case Op.RECV_COPY_SEND:
            return (_RECV_DST, _SEND_DST)
        case Op.RECV_REDUCE_SEND:
            return (_RECV_SPARE, _SPARE_PLUS_SRC, _SEND_SPARE)
        case Op.RECV_REDUCE_COPY:
            return _REDUCED[overlap]
        case _:
            return (*_REDUCED[overlap], _SEND_DST)


FUSED = frozenset(
    {Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND}
)
"""What can be taken apart."""


def unfused(plan: Plan, operations: frozenset[Op]) -> Plan:
    """`plan` with the fused instructions that aren't in `operations` taken apart.

    A block that must keep what it received beside the local operand gets scratch chunks of its
    own, as many as its largest such instruction moves: nobody else touches them, and the block
    is done with them before its next instruction.
    """
    t = plan.instructions
    fused = np.isin(t.op, [op for op in FUSED if op not in operations])
    if not fused.any():
        return plan
    overlap = _overlaps(plan, fused)
    kinds = sorted(set(zip(t.op[fused].tolist(), overlap[fused].tolist(), strict=True)))
    recipes = [
        (fused & (t.op == op) & (overlap == lap), _pieces(Op(op), _Overlap(lap)))
        for op, lap in kinds
    ]
    parts = np.ones(len(t), np.int64)
    needs_spare = np.zeros(len(t), np.bool_)
    for mask, pieces in recipes:
        parts[mask] = len(pieces)
        needs_spare |= mask & any(_Range.SPARE in piece for piece in pieces)
    spare, scratch = _spare_chunks(plan, needs_spare)
    start = offsets_of(parts)
    columns = {name: np.repeat(getattr(t, name), parts) for name in t.column_names()}
    for mask, pieces in recipes:
        for position, piece in enumerate(pieces):
            _put(columns, start[:-1][mask] + position, piece, plan, mask, spare)
    return replace(
        plan,
        instructions=Instructions(**columns),
        block_offset=start[plan.block_offset],
        waits=Edges.from_pairs(
            int(start[-1]), start[plan.waits.source], start[plan.waits.target + 1] - 1
        ),
        scratch_chunks=frozen_array(scratch, np.int32),
    )


def _overlaps(plan: Plan, fused: NDArray[np.bool_]) -> NDArray[np.int8]:
    """How source and destination of each fused instruction lie; APART for the others."""
    t, layout = plan.instructions, plan.layout
    overlap = np.full(len(t), _Overlap.APART, np.int8)
    both = np.flatnonzero(fused & WRITES_DESTINATION[t.op] & (t.op != Op.RECV_COPY_SEND))
    rank = plan.rank[both]
    src = layout.cell(rank, t.src_buffer[both], t.src_index[both])
    dst = layout.cell(rank, t.dst_buffer[both], t.dst_index[both])
    overlap[both[np.abs(src - dst) < t.count[both]]] = _Overlap.PARTLY
    overlap[both[src == dst]] = _Overlap.SAME
    return overlap


def _spare_chunks(plan: Plan, needs: NDArray[np.bool_]) -> tuple[_Longs, _Longs]:
    """The first spare scratch chunk of each block, and the ranks' scratch sizes with them."""
    width = np.zeros(len(plan.block_rank), np.int64)
    np.maximum.at(width, plan.block[needs], plan.instructions.count[needs])
    ends = offsets_of(width)
    before_rank = ends[plan.rank_block[:-1]]
    first = plan.scratch_chunks[plan.block_rank] + ends[:-1] - before_rank[plan.block_rank]
    return first, plan.scratch_chunks + ends[plan.rank_block[1:]] - before_rank


def _put(
    columns: dict[str, NDArray[Any]],
    rows: _Longs,
    piece: _Piece,
    plan: Plan,
    mask: NDArray[np.bool_],
    spare: _Longs,
) -> None:
    """Write one piece of the instructions of `mask` into `rows` of the new columns."""
    t = plan.instructions
    operands = {
        _Range.ABSENT: (NONE, NONE),
        _Range.SOURCE: (t.src_buffer[mask], t.src_index[mask]),
        _Range.DESTINATION: (t.dst_buffer[mask], t.dst_index[mask]),
        _Range.SPARE: (Buffer.SCRATCH, spare[plan.block[mask]]),
    }
    columns["op"][rows] = piece.op
    columns["src_buffer"][rows], columns["src_index"][rows] = operands[piece.src]
    columns["dst_buffer"][rows], columns["dst_index"][rows] = operands[piece.dst]
    columns["forward"][rows] = NONE
    if SENDS[piece.op]:
        columns["transfer"][rows] = t.forward[mask]
    else:
        columns["send_peer"][rows] = NONE
    if not RECEIVES[piece.op]:
        columns["recv_peer"][rows] = NONE
    if not (SENDS[piece.op] or RECEIVES[piece.op]):
        columns["channel"][rows] = NONE
