"""Cuts: a copy within a rank is cut at the borders of sends of its chunks, so that each part can be
one instruction with a send (`fuse_copies`)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.compiler.passes.loops import Loop
from sley.ir.dag import Forwarded, Operands
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, IntArray, LongArray, spans
from sley.ir.words import TransferKind


def cut_copies(forwarded: Forwarded, widest: int | None = None) -> Forwarded:
    """The program with its copies cut where sends read parts of what they copy.

    A copy stays whole if a send reads all of its chunks. It also stays whole where the chunks that
    sends read were received before: then the send may be one instruction with that receive. Of
    sends that share chunks, the one with the lowest first chunk counts, of these the widest; of
    copies of the same chunks, the first. So there are at most two parts more for each send.

    widest: the most chunks of a send that may be fused; None for any number.
    """
    program, operands = forwarded.program, forwarded.operands
    copy, send = _within(program, widest)
    if not len(copy):
        return forwarded
    t, source = program.transfers, program.source_cells
    order = np.lexsort((-t.count[send], source[send], copy))
    copy, send = copy[order], send[order]
    begin, end = source[send], source[send] + t.count[send]
    taken, kept = np.zeros(len(t), np.int32), np.zeros(len(copy), np.int32)
    _pair(len(copy), copy, send, begin, end, taken, kept)
    chosen = kept == 1
    return Forwarded(*_cut(program, operands, copy[chosen], begin[chosen], end[chosen]))


def _within(program: Program, widest: int | None) -> tuple[LongArray, LongArray]:
    """(copy, send), pairs of transfers: each send can be one instruction with a part of the copy,
    and none with the whole of it."""
    t, source = program.transfers, program.source_cells
    copies = np.flatnonzero(~t.remote & (t.kind == TransferKind.COPY) & (t.count > 1))
    if not len(copies):
        return copies, copies
    sends = t.remote & (t.sender == np.arange(len(t)))
    if widest is not None:
        sends &= t.count <= widest
    send = np.flatnonzero(sends)
    send = send[np.argsort(source[send], kind="stable")]
    first = np.searchsorted(source[send], source[copies])
    past = np.searchsorted(source[send], source[copies] + t.count[copies])
    owner, at = spans(first, past - first)
    copy, send = copies[owner], send[at]
    written = _first_writes(program, send)
    fits = source[send] + t.count[send] <= source[copy] + t.count[copy]
    # Without a write before the later of the two, both read the same data, and no receive wrote
    # them.
    fits &= (t.lane[copy] == t.lane[send]) & (written > np.maximum(copy, send))
    fits &= (t.send_block[copy] == NONE) | (t.send_block[copy] == t.send_block[send])
    copy, send = copy[fits], send[fits]
    whole = np.zeros(len(t), bool)
    whole[copy[t.count[send] == t.count[copy]]] = True
    return copy[~whole[copy]], send[~whole[copy]]


def _first_writes(program: Program, rows: LongArray) -> LongArray:
    """int64 (rows,): the first transfer that writes to what each of `rows` reads, or their
    number."""
    t = program.transfers
    first = np.full(program.layout.cells, len(t))
    writer, cell = spans(program.destination_cells, t.count)
    np.minimum.at(first, cell, writer)
    _, cell = spans(program.source_cells[rows], t.count[rows])
    starts = np.cumsum(t.count[rows]) - t.count[rows]
    return np.minimum.reduceat(first[cell], starts) if len(rows) else starts


@Loop
def _pair(
    copy: LongArray,
    send: LongArray,
    begin: LongArray,
    end: LongArray,
    taken: IntArray,
    kept: IntArray,
) -> None:
    """Sets `kept`, 0 at first, to 1 for pairs of which no two share a send, and no two of a copy
    overlap. The pairs are in the order of the copies, and of the `begin` of the sends' ranges.

    taken: int32 (transfers,), 0 at first.
    """
    last, free = NONE, 0
    for k in range(len(copy)):
        # Ranges ascend by `begin`, so one that clears the last kept range clears all before it.
        if taken[send[k]] == 0 and (copy[k] != last or begin[k] >= free):
            kept[k], taken[send[k]] = 1, 1
            last, free = copy[k], end[k]


def _cut(
    program: Program, operands: Operands, copy: LongArray, begin: LongArray, end: LongArray
) -> tuple[Program, Operands]:
    """The program and its operands with copies cut at the begin and end of ranges of their source
    cells, which lie inside them."""
    t, source = program.transfers, program.source_cells
    rows = np.arange(len(t))
    # Borders as (transfer, chunks before): each transfer's begin, and those inside the copies.
    row, chunk = np.tile(copy, 2), np.concatenate([begin, end]) - np.tile(source[copy], 2)
    inside = chunk < t.count[row]
    pairs = np.stack(
        [np.append(rows, row[inside]), np.append(np.zeros(len(t), np.int64), chunk[inside])]
    )
    row, chunk = np.unique(pairs, axis=1)
    past = np.append(chunk[1:], 0)
    last = np.append(row[1:] != row[:-1], True)
    columns = {name: getattr(t, name)[row] for name in Transfers.column_names()}
    columns["count"] = np.where(last, t.count[row], past) - chunk
    columns["src_index"] = t.src_index[row] + chunk
    columns["dst_index"] = t.dst_index[row] + chunk
    own = Operands(operands.buffer[row], operands.index[row] + chunk)
    return replace(program, transfers=Transfers(**columns)), own
