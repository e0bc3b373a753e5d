"""Copies: chunks that a rank has copied are read where they came from.

An out-of-place algorithm copies its input to where it works. If the chunks that were copied don't
change afterwards, they can be read instead of the copy: a send needn't wait for the copy, and a
reduction combines them with the data that arrive, and overwrites the copy. A copy that nothing
reads any more is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sley.ir.dag import Forwarded, Operands
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, BoolArray, ByteArray, IntArray, LongArray, spans
from sley.ir.words import TransferKind


def forward_copies(program: Program) -> Forwarded:
    """The program in which reads of copies are reads of the chunks that were copied, if no transfer
    overwrites these after the copy; without the copies that only such reads needed.

    So a read depends on no more than the copy did, and no transfer has to wait for more. The
    operand of a local reduction remains its destination. A copy that is left out overwrites
    nothing, so further reads may follow: the result is that of the pass applied until nothing
    changes.
    """
    t = program.transfers
    found = Forwarded(program, Operands(t.dst_buffer, t.dst_index))
    copies = ~t.remote & (t.kind == TransferKind.COPY)
    if not copies.any():
        return found
    writes = _Writes.of(program, copies)
    removable = copies & _needed(found, writes, np.ones(len(t), bool))
    while True:
        found = _read_at_sources(found, writes)
        present = _present(found, writes, removable)
        if present.all():
            return found
        found, removable = _without(found, ~present), removable[present]
        t = found.program.transfers
        writes = _Writes.of(found.program, ~t.remote & (t.kind == TransferKind.COPY))


def _read_at_sources(found: Forwarded, writes: _Writes) -> Forwarded:
    """The program in which reads of copies are reads of what was copied, where they can be."""
    program, operands = found.program, found.operands
    t = program.transfers
    combining = t.remote & (t.kind == TransferKind.REDUCE)
    while True:
        reads = _Reads(program.source_cells, t.src_buffer, t.src_index)
        sources, moved = _forward(program, writes, reads, np.ones(len(t), bool))
        reads = _Reads(operands.cells(program), operands.buffer, operands.index)
        own, moved_own = _forward(program, writes, reads, combining)
        if not moved and not moved_own:
            return Forwarded(program, operands)
        t = replace(t, src_buffer=sources.buffer, src_index=sources.index)
        program, operands = replace(program, transfers=t), Operands(own.buffer, own.index)


@dataclass(frozen=True)
class _Writes:
    """All writes of a program.

    key: int64 (cells written,), cell * transfers + transfer, ascending.
    copies: bool (transfers,), those that copy within a rank.
    copied: bool (cells,), the cells that they write.
    """

    key: LongArray
    copies: BoolArray
    copied: BoolArray

    @classmethod
    def of(cls, program: Program, copies: BoolArray) -> _Writes:
        writer, cell = spans(program.destination_cells, program.transfers.count)
        copied = np.zeros(program.layout.cells, bool)
        copied[cell[copies[writer]]] = True
        return cls(np.sort(cell * len(copies) + writer), copies, copied)

    def last_before(self, cell: LongArray, transfer: LongArray) -> LongArray:
        """The last transfer before `transfer` that writes each cell, or NONE."""
        transfers = len(self.copies)
        at = np.searchsorted(self.key, cell * transfers + transfer) - 1
        last = np.append(self.key, NONE)[at]  # row -1 is NONE
        return np.where(last // transfers == cell, last % transfers, NONE)

    def none_after(self, cell: LongArray, transfer: LongArray) -> BoolArray:
        """Whether no transfer after `transfer` writes each cell."""
        transfers = len(self.copies)
        at = np.searchsorted(self.key, cell * transfers + transfer, side="right")
        following = np.append(self.key, NONE)[at]
        return np.asarray(following // transfers != cell)

    def final(self, cells: LongArray) -> LongArray:
        """The last transfers that write these cells."""
        last = self.last_before(cells, np.full(len(cells), len(self.copies)))
        return np.asarray(last[last != NONE])


@dataclass(frozen=True)
class _Reads:
    """A range that each transfer reads: its first cell, and the buffer and first chunk there."""

    cell: LongArray
    buffer: ByteArray
    index: IntArray


def _forward(
    program: Program, writes: _Writes, reads: _Reads, chosen: BoolArray
) -> tuple[_Reads, bool]:
    """The reads with those of copies among the `chosen` ones at the places that were copied, and
    whether there are any such."""
    t = program.transfers
    rows = np.flatnonzero(chosen & writes.copied[reads.cell])
    if not len(rows):
        return reads, False
    owner, cell = spans(reads.cell[rows], t.count[rows])
    writer = writes.last_before(cell, rows[owner])
    copied = (writer != NONE) & writes.copies[writer]
    origin = cell + (program.source_cells - program.destination_cells)[writer]
    fits = copied & (origin != cell) & writes.none_after(np.where(copied, origin, 0), writer)
    first = np.cumsum(t.count[rows]) - t.count[rows]
    shift = np.where(fits, origin - cell, 0)
    whole = fits[first]
    for value in (fits, shift, t.src_buffer[writer]):
        whole &= np.minimum.reduceat(value, first) == np.maximum.reduceat(value, first)
    place = origin[first]
    # A transfer's operands and its destination are the same chunks or share none.
    whole &= np.abs(place - program.destination_cells[rows]) >= t.count[rows]
    moved, of = rows[whole], writer[first][whole]
    cells, buffer, index = reads.cell.copy(), reads.buffer.copy(), reads.index.copy()
    cells[moved], buffer[moved] = place[whole], t.src_buffer[of]
    index[moved] = t.src_index[of] + (reads.cell[moved] - program.destination_cells[of])
    return _Reads(cells, buffer, index), bool(len(moved))


def _needed(found: Forwarded, writes: _Writes, present: BoolArray) -> BoolArray:
    """bool (transfers,): whether what a transfer copied within its rank is read by a transfer that
    is `present`, or part of the result; for other transfers undefined."""
    program, operands = found.program, found.operands
    t = program.transfers
    needed = np.zeros(len(t), bool)
    combines = t.kind == TransferKind.REDUCE
    for cells, read in ((program.source_cells, present), (operands.cells(program), combines)):
        owner, cell = spans(cells[read], t.count[read])
        among = writes.copied[cell]
        last = writes.last_before(cell[among], np.flatnonzero(read)[owner[among]])
        needed[last[last != NONE]] = True
    promised = program.collective.promised_cells(program.layout) & writes.copied
    needed[writes.final(np.flatnonzero(promised))] = True
    return needed


def _present(found: Forwarded, writes: _Writes, removable: BoolArray) -> BoolArray:
    """bool (transfers,): all but those of the `removable` copies that nothing needs, one after the
    other."""
    present = np.ones(len(removable), bool)
    while (unneeded := removable & present & ~_needed(found, writes, present)).any():
        present &= ~unneeded
    return present


def _without(found: Forwarded, removed: BoolArray) -> Forwarded:
    """The program without some of its transfers."""
    t, operands, present = found.program.transfers, found.operands, ~removed
    kept = Transfers(**{name: getattr(t, name)[present] for name in t.column_names()})
    own = Operands(operands.buffer[present], operands.index[present])
    return Forwarded(replace(found.program, transfers=kept), own)
