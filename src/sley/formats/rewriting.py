"""Rewriting: the same plan without instructions that a runtime doesn't run.

Nops: in MSCCL XML a nop can only pass on its wait. The runtimes give this wait to the step that
follows, and never announce that the nop has finished. So a nop's wait becomes one of the
instruction that follows it in the block, and a wait for a nop becomes waits for the instruction
before the nop in its block and for those that the nop waits for.

Fused instructions are split into plain ones in the same place of the block: the first piece has the
instruction's waits, and waits for the instruction become waits for the last piece. So the order of
all accesses stays. A piece needs either a message or a free slot, the fused instruction both at
once; any order that runs the fused plan also runs the pieces, so splitting never makes a plan hang.
Instructions with groups stay whole: a switch does all they do at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.errors.verifier import V201
from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, Edges, frozen_array, offsets_of
from sley.ir.words import RECEIVES, SENDS, WRITES_DESTINATION, Buffer, Op

_Longs = NDArray[np.int64]


def remove_nops(plan: Plan) -> Plan:
    """The plan without nops and without waits for earlier instructions of the same block, which are
    redundant. Errors: V201 for a cycle of waits between nops."""
    nop = plan.instructions.op == Op.NOP
    own = plan.block[plan.waits.source] == plan.block[plan.waits.target]
    if not nop.any() and not own.any():
        return plan
    finished = _Finished(plan, nop)
    follower = _followers(plan, nop)
    pairs: list[tuple[int, int]] = []
    for source, target in zip(
        follower[plan.waits.source].tolist(), plan.waits.target.tolist(), strict=True
    ):
        if source == NONE:
            continue
        rows = finished.rows(target) if nop[target] else [target]
        pairs += [
            (source, row) for row in rows if plan.block[row] != plan.block[source] or row >= source
        ]
    kept = np.flatnonzero(~nop)
    new_row = np.cumsum(~nop) - 1
    source_rows, target_rows = np.array(pairs, np.int64).reshape(-1, 2).T
    t = plan.instructions
    return replace(
        plan,
        instructions=Instructions(**{name: getattr(t, name)[kept] for name in t.column_names()}),
        block_offset=offsets_of(np.bincount(plan.block[kept], minlength=len(plan.block_rank))),
        waits=Edges.from_pairs(len(kept), new_row[source_rows], new_row[target_rows]),
    )


def _followers(plan: Plan, nop: np.ndarray) -> np.ndarray:
    """int64 (rows,): each row itself; for a nop the next row of its block that isn't one, or
    NONE."""
    kept = np.flatnonzero(~nop)
    row = np.append(kept, NONE)[np.searchsorted(kept, np.arange(len(nop)))]
    same_block = (row != NONE) & (plan.block[row] == plan.block)
    return np.where(same_block, row, NONE)


class _Finished:
    """For each nop, the instructions that must finish for the nop to finish."""

    def __init__(self, plan: Plan, nop: np.ndarray) -> None:
        self._plan = plan
        self._nop = nop
        self._known: dict[int, list[int]] = {}

    def rows(self, nop: int) -> list[int]:
        """The rows of those instructions, ascending."""
        if nop not in self._known:
            self._known[nop] = self._search(nop)
        return self._known[nop]

    def _search(self, nop: int) -> list[int]:
        rows: set[int] = set()
        seen: set[int] = set()
        stack = self._before(nop)
        while stack:
            row = stack.pop()
            if not self._nop[row]:
                rows.add(row)
            elif row == nop:
                raise V201.error(
                    at=self._plan.place(nop),
                    expected="nops whose waits form no cycle",
                    found="a nop that waits, by way of others, for itself",
                )
            elif row not in seen:
                seen.add(row)
                stack += self._before(row)
        return sorted(rows)

    def _before(self, row: int) -> list[int]:
        """The rows that the nop `row` waits for."""
        first = row == self._plan.block_offset[self._plan.block[row]]
        waits: list[int] = self._plan.waits[row].tolist()
        return waits if first else [*waits, row - 1]


class _Range(IntEnum):
    """The chunks of a piece: the instruction's own, or spare scratch of the block."""

    ABSENT = 0
    SOURCE = 1
    DESTINATION = 2
    SPARE = 3


class _Piece(NamedTuple):
    op: Op
    src: _Range
    dst: _Range


class _Overlap(IntEnum):
    """How an instruction's source and destination overlap."""

    APART = 0
    SAME = 1
    PARTLY = 2


_RECV_DST = _Piece(Op.RECV, _Range.ABSENT, _Range.DESTINATION)
_RECV_SPARE = _Piece(Op.RECV, _Range.ABSENT, _Range.SPARE)
_DST_PLUS_SRC = _Piece(Op.REDUCE, _Range.SOURCE, _Range.DESTINATION)
_DST_PLUS_SPARE = _Piece(Op.REDUCE, _Range.SPARE, _Range.DESTINATION)
_SPARE_PLUS_SRC = _Piece(Op.REDUCE, _Range.SOURCE, _Range.SPARE)
_SPARE_TO_DST = _Piece(Op.COPY, _Range.SPARE, _Range.DESTINATION)
_COPY = _Piece(Op.COPY, _Range.SOURCE, _Range.DESTINATION)
_SEND_SRC = _Piece(Op.SEND, _Range.SOURCE, _Range.ABSENT)
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
    """The pieces of a fused instruction, in order."""
    match op:
        case Op.COPY_SEND:
            return (_COPY, _SEND_SRC)
        case Op.RECV_COPY_SEND:
            return (_RECV_DST, _SEND_DST)
        case Op.RECV_REDUCE_SEND:
            return (_RECV_SPARE, _SPARE_PLUS_SRC, _SEND_SPARE)
        case Op.RECV_REDUCE_COPY:
            return _REDUCED[overlap]
        case _:
            return (*_REDUCED[overlap], _SEND_DST)


FUSED = frozenset(
    {
        Op.COPY_SEND,
        Op.RECV_COPY_SEND,
        Op.RECV_REDUCE_SEND,
        Op.RECV_REDUCE_COPY,
        Op.RECV_REDUCE_COPY_SEND,
    }
)
"""The operations that can be split."""


def unfuse(plan: Plan, operations: frozenset[Op]) -> Plan:
    """The plan with its fused instructions split, except `operations`.

    A block that must keep a received message beside the local operand gets spare scratch chunks of
    its own, enough for its largest such instruction. No other block accesses them, and the block
    doesn't need them after that instruction.
    """
    t = plan.instructions
    fused = np.isin(t.op, [op for op in FUSED if op not in operations])
    fused[plan.grouped] = False
    if not fused.any():
        return plan
    overlap = _overlaps(plan, fused)
    kinds = sorted(set(zip(t.op[fused].tolist(), overlap[fused].tolist(), strict=True)))
    recipes = [
        (fused & (t.op == op) & (overlap == lap), _pieces(Op(op), _Overlap(lap)))
        for op, lap in kinds
    ]
    own = fused & (t.op == Op.COPY_SEND) & ~_shared_copies(plan)
    recipes = [*((mask & ~own, pieces) for mask, pieces in recipes), (own, (_SEND_SRC, _COPY))]
    parts = np.ones(len(t), np.int64)
    needs_spare = np.zeros(len(t), np.bool_)
    for mask, pieces in recipes:
        parts[mask] = len(pieces)
        needs_spare |= mask & any(_Range.SPARE in piece[1:] for piece in pieces)
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
    """int8 (rows,): the _Overlap of each fused instruction; APART for the others."""
    t = plan.instructions
    overlap = np.full(len(t), _Overlap.APART, np.int8)
    both = np.flatnonzero(fused & WRITES_DESTINATION[t.op] & (t.op != Op.RECV_COPY_SEND))
    src, dst = plan.source_cells(both), plan.destination_cells(both)
    overlap[both[np.abs(src - dst) < t.count[both]]] = _Overlap.PARTLY
    overlap[both[src == dst]] = _Overlap.SAME
    return overlap


def _shared_copies(plan: Plan) -> NDArray[np.bool_]:
    """bool (rows,): the copy_sends of which another instruction accesses what they write, or writes
    what they read. Their message, which leaves after the copy, may be all that orders these
    accesses; a copy that nobody else sees can come after the message."""
    t, found = plan.instructions, np.zeros(len(plan.instructions), np.bool_)
    rows = [np.flatnonzero(t.src_buffer != NONE), np.flatnonzero(WRITES_DESTINATION[t.op])]
    first = [plan.source_cells(rows[0]), plan.destination_cells(rows[1])]
    read, written = (
        np.cumsum(
            np.bincount(cells, minlength=plan.layout.cells + 1)
            - np.bincount(cells + t.count[one], minlength=plan.layout.cells + 1)
        )
        for one, cells in zip(rows, first, strict=True)
    )
    sums = [offsets_of(read + written), offsets_of(written)]
    own = np.flatnonzero(t.op == Op.COPY_SEND)
    source, target = plan.source_cells(own), plan.destination_cells(own)
    accesses = sums[0][target + t.count[own]] - sums[0][target]
    writes = sums[1][source + t.count[own]] - sums[1][source]
    found[own] = (accesses > t.count[own]) | (writes > 0)
    return found


def _spare_chunks(plan: Plan, needs: NDArray[np.bool_]) -> tuple[_Longs, _Longs]:
    """The first spare chunk of each block, and the ranks' sizes of scratch with these chunks."""
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
    """Writes one piece of the instructions of `mask` into `rows` of the new columns."""
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
