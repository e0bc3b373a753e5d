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
from functools import cache, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors.verifier import V201
from sley.ir.groups import cut_up, spare_chunks
from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, BoolArray, ByteArray, Edges, LongArray, offsets_of
from sley.ir.words import RECEIVES, SENDS, WRITES_DESTINATION, Buffer, Op


def remove_nops(plan: Plan) -> Plan:
    """The plan without nops and without waits for earlier instructions of the same block, which are
    redundant. Errors: V201 for a cycle of waits between nops."""
    nop = plan.instructions.op == Op.NOP
    own = plan.block[plan.waits.source] == plan.block[plan.waits.target]
    if not nop.any() and not own.any():
        return plan
    finished = cache(partial(_finished, plan, nop))
    follower = _followers(plan, nop)
    pairs: list[tuple[int, int]] = []
    for source, target in zip(
        follower[plan.waits.source].tolist(), plan.waits.target.tolist(), strict=True
    ):
        if source == NONE:
            continue
        rows = finished(target) if nop[target] else [target]
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


def _finished(plan: Plan, is_nop: np.ndarray, nop: int) -> list[int]:
    """The instructions that must finish for a nop to finish, ascending."""
    rows, seen, stack = set[int](), set[int](), _waits_of(plan, nop)
    # Each nop is looked at once, so the search ends though waits may form a cycle.
    while stack:
        row = stack.pop()
        if not is_nop[row]:
            rows.add(row)
        elif row == nop:
            raise V201.error(
                at=plan.place(nop),
                expected="nops whose waits form no cycle",
                found="a nop that waits, by way of others, for itself",
            )
        elif row not in seen:
            seen.add(row)
            stack += _waits_of(plan, row)
    return sorted(rows)


def _waits_of(plan: Plan, row: int) -> list[int]:
    """The rows that a nop waits for, with the one before it in its block."""
    waits: list[int] = plan.waits[row].tolist()
    return waits if row == plan.block_offset[plan.block[row]] else [*waits, row - 1]


class _Overlap(IntEnum):
    """How an instruction's source and destination overlap."""

    APART = 0
    SAME = 1
    PARTLY = 2


_Piece = tuple[Op, str, str]
"""An operation with its source and its destination: the instruction's own, or spare scratch of the
block; "" without one."""

_RECV_DST: _Piece = (Op.RECV, "", "dst")
_RECV_SPARE: _Piece = (Op.RECV, "", "spare")
_SPARE_PLUS_SRC: _Piece = (Op.REDUCE, "src", "spare")
_COPY: _Piece = (Op.COPY, "src", "dst")
_SEND_SRC: _Piece = (Op.SEND, "src", "")
_SEND_DST: _Piece = (Op.SEND, "dst", "")

_REDUCED: Mapping[_Overlap, tuple[_Piece, ...]] = MappingProxyType(
    {
        _Overlap.APART: (_RECV_DST, (Op.REDUCE, "src", "dst")),
        _Overlap.SAME: (_RECV_SPARE, (Op.REDUCE, "spare", "dst")),
        _Overlap.PARTLY: (_RECV_SPARE, _SPARE_PLUS_SRC, (Op.COPY, "spare", "dst")),
    }
)
_SPLIT: Mapping[Op, tuple[_Piece, ...]] = MappingProxyType(
    {
        Op.COPY_SEND: (_COPY, _SEND_SRC),
        Op.RECV_COPY_SEND: (_RECV_DST, _SEND_DST),
        Op.RECV_REDUCE_SEND: (_RECV_SPARE, _SPARE_PLUS_SRC, (Op.SEND, "spare", "")),
        # After those of `_REDUCED`:
        Op.RECV_REDUCE_COPY: (),
        Op.RECV_REDUCE_COPY_SEND: (_SEND_DST,),
    }
)
"""The pieces of a fused instruction, in order."""

FUSED = frozenset(_SPLIT)
"""The operations that can be split."""


def _pieces(op: Op, overlap: _Overlap) -> tuple[_Piece, ...]:
    reduces = op in (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND)
    return (*(_REDUCED[overlap] if reduces else ()), *_SPLIT[op])


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
    # Each instruction is in one mask, so the order of the recipes makes no difference.
    recipes = [*((mask & ~own, pieces) for mask, pieces in recipes), (own, (_SEND_SRC, _COPY))]
    parts = np.ones(len(t), np.int64)
    needs_spare = np.zeros(len(t), np.bool_)
    for mask, pieces in recipes:
        parts[mask] = len(pieces)
        needs_spare |= mask & any("spare" in piece for piece in pieces)
    spare, scratch = spare_chunks(plan, needs_spare)
    start = offsets_of(parts)
    columns = {name: np.repeat(getattr(t, name), parts) for name in t.column_names()}
    for mask, pieces in recipes:
        for position, piece in enumerate(pieces):
            _put(columns, start[:-1][mask] + position, piece, plan, mask, spare)
    return cut_up(plan, start, columns, scratch)


def _overlaps(plan: Plan, fused: BoolArray) -> ByteArray:
    """int8 (rows,): the _Overlap of each fused instruction; APART for the others."""
    t = plan.instructions
    overlap = np.full(len(t), _Overlap.APART, np.int8)
    both = np.flatnonzero(fused & WRITES_DESTINATION[t.op] & (t.op != Op.RECV_COPY_SEND))
    src, dst = plan.source_cells(both), plan.destination_cells(both)
    # Ranges of one length overlap if they begin less than a length apart, equal ones included,
    # which the next line tells apart.
    overlap[both[np.abs(src - dst) < t.count[both]]] = _Overlap.PARTLY
    overlap[both[src == dst]] = _Overlap.SAME
    return overlap


def _shared_copies(plan: Plan) -> BoolArray:
    """bool (rows,): the copy_sends of which another instruction accesses what they write, or writes
    what they read. Their message, which leaves after the copy, may be all that orders these
    accesses; a copy that nobody else sees can come after the message."""
    t, found = plan.instructions, np.zeros(len(plan.instructions), np.bool_)
    rows = [np.flatnonzero(t.src_buffer != NONE), np.flatnonzero(WRITES_DESTINATION[t.op])]
    first = [plan.source_cells(rows[0]), plan.destination_cells(rows[1])]
    # An access adds 1 where it begins and takes it away where it ends: the sums up to a cell are
    # the accesses of that cell, and sums of these are those of any range, in linear time.
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
    # The copy itself writes each of its cells once.
    found[own] = (accesses > t.count[own]) | (writes > 0)
    return found


def _put(
    columns: dict[str, NDArray[Any]],
    rows: LongArray,
    piece: _Piece,
    plan: Plan,
    mask: BoolArray,
    spare: LongArray,
) -> None:
    """Writes one piece of the instructions of `mask` into `rows` of the new columns."""
    t, (op, src, dst) = plan.instructions, piece
    operands = {
        "": (NONE, NONE),
        "src": (t.src_buffer[mask], t.src_index[mask]),
        "dst": (t.dst_buffer[mask], t.dst_index[mask]),
        "spare": (Buffer.SCRATCH, spare[plan.block[mask]]),
    }
    columns["op"][rows] = op
    columns["src_buffer"][rows], columns["src_index"][rows] = operands[src]
    columns["dst_buffer"][rows], columns["dst_index"][rows] = operands[dst]
    columns["forward"][rows] = NONE
    if SENDS[op]:
        columns["transfer"][rows] = t.forward[mask]
    else:
        columns["send_peer"][rows] = NONE
    if not RECEIVES[op]:
        columns["recv_peer"][rows] = NONE
    if not (SENDS[op] or RECEIVES[op]):
        columns["channel"][rows] = NONE
