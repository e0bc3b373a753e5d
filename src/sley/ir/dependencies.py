"""Dependencies: the chunk DAG of a program, derived from the memory that transfers access."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.ir.dag import ChunkDag, Dependencies, Operands
from sley.ir.program import Program, Transfers
from sley.ir.tables import (
    NONE,
    BoolArray,
    IntArray,
    LongArray,
    distinct,
    inverse,
    neighbouring_writes,
    ordered_by,
    spans,
)
from sley.ir.words import TransferKind


@dataclass(frozen=True)
class _Accesses:
    """One row an access to one cell, sorted by cell, and at a cell in the order of the program.

    at_dst: whether the access is at the transfer's destination or at its source. write: whether it
    writes. combines: whether it is a write that also reads. last_write, next_write: the row of the
    nearest write to the same cell before and after it, or NONE. read: `last_write` of the chunks
    that the transfers read at their sources, in the order of the program.
    """

    cell: LongArray
    transfer: IntArray
    at_dst: BoolArray
    write: BoolArray
    combines: BoolArray
    last_write: IntArray
    next_write: IntArray
    read: IntArray


def dependencies(program: Program, operands: Operands | None = None) -> ChunkDag:
    """The chunk DAG of `program` (MSCCLang 4.1).

    True dependencies come from moving chunks, false ones from reusing memory. Both are tracked on
    cells of memory, so input and output in place are one. Linear in the chunks moved, up to a sort.

    operands: where reductions read their operands, by default at their destinations.
    """
    operands = operands or Operands.at_destinations(program)
    accesses = _accesses(program, operands)
    found = _dependencies(accesses)
    if (program.transfers.group != NONE).any():
        found = _by_leaders(program.transfers, found)
        operands = _of_leaders(program.transfers, operands)
    readers = np.bincount(found.before[found.true == 1], minlength=len(program.transfers))
    return ChunkDag(
        program=program,
        operands=operands,
        dependencies=found,
        origin=_origin(program, accesses).astype(np.int32),
        version=_version(program, accesses),
        readers=readers.astype(np.int32),
        kept=_kept(program, accesses),
    )


def _accesses(program: Program, operands: Operands) -> _Accesses:
    t = program.transfers
    destination, own = program.destination_cells, operands.cells(program)
    reduces = t.kind == TransferKind.REDUCE
    apart = np.flatnonzero(reduces & (own != destination))
    read_by, read = spans(program.source_cells, t.count)
    of, operand = spans(own[apart], t.count[apart])
    written_by, written = spans(destination, t.count)
    cell = np.concatenate([read, operand, written])
    transfer = np.concatenate([read_by, apart[of], written_by], dtype=np.int32)
    lengths = [len(read), len(operand), len(written)]
    at_dst = np.repeat([False, True, True], lengths)
    write = np.repeat([False, False, True], lengths)
    # A transfer reads before it writes; it reads and writes a cell only if it combines there.
    order = ordered_by(cell, transfer, at_dst)
    cell, transfer, at_dst, write = cell[order], transfer[order], at_dst[order], write[order]
    last_write, next_write = neighbouring_writes(cell, write)
    combines = reduces & (own == destination)
    return _Accesses(
        cell=cell,
        transfer=transfer,
        at_dst=at_dst,
        write=write,
        combines=write & combines[transfer],
        last_write=last_write,
        next_write=next_write,
        read=last_write[inverse(order)[: len(read)]],
    )


def _dependencies(a: _Accesses) -> Dependencies:
    rows = np.arange(len(a.cell))
    has_before, has_after = a.last_write != NONE, a.next_write != NONE
    true = np.flatnonzero(has_before & (~a.write | a.combines))
    # A write depends on the reads before it, and through them on the write before those.
    reused = np.flatnonzero(has_after & ~a.write)
    overwritten = np.flatnonzero(has_before & a.write & ~a.combines & (a.last_write == rows - 1))
    before = np.concatenate([a.last_write[true], reused, a.last_write[overwritten]])
    after = np.concatenate([true, a.next_write[reused], overwritten])
    by_value = np.arange(len(before)) < len(true)
    half = 2 * a.transfer.astype(np.int64) + a.at_dst
    bits = int(half.max(initial=0)).bit_length()
    key = distinct((half[before] << bits | half[after]) << 1 | by_value)
    earlier, later = key >> (bits + 1), key >> 1
    return Dependencies(
        before=earlier >> 1,
        before_at_dst=earlier & 1,
        after=(later & ((1 << bits) - 1)) >> 1,
        after_at_dst=later & 1,
        true=key & 1,
    )


def _by_leaders(t: Transfers, d: Dependencies) -> Dependencies:
    """The dependencies with those of a group at the end that its transfers share between its sender
    or receiver and others; none within it."""
    before = np.where(d.before_at_dst == 1, t.receiver[d.before], t.sender[d.before])
    after = np.where(d.after_at_dst == 1, t.receiver[d.after], t.sender[d.after])
    apart = (before != after) | (d.before_at_dst != d.after_at_dst)
    rows = np.stack([before, d.before_at_dst, after, d.after_at_dst, d.true])[:, apart]
    rows = np.unique(rows, axis=1)
    return Dependencies(*rows)


def _of_leaders(t: Transfers, operands: Operands) -> Operands:
    """The operands, with that of the first of each group's reductions also for the last, which is
    the reduction of all."""
    first = np.arange(len(t))
    np.minimum.at(first, t.receiver, np.arange(len(t)))
    return Operands(operands.buffer[first], operands.index[first])


def _origin(program: Program, a: _Accesses) -> LongArray:
    """See `ChunkDag.origin`."""
    t = program.transfers
    writer = np.where(a.read == NONE, NONE, a.transfer[a.read])
    first = np.cumsum(t.count) - t.count
    origin = np.minimum.reduceat(writer, first)
    same = origin == np.maximum.reduceat(writer, first)
    # One writer of as many cells as are read wrote exactly these.
    return np.where(same & (t.count[origin] == t.count), origin, NONE)


def _version(program: Program, a: _Accesses) -> LongArray:
    """See `ChunkDag.version`."""
    count = program.transfers.count
    # At each cell the last write never comes earlier for a later read: equal sums, equal rows.
    return np.asarray(np.add.reduceat(a.read, np.cumsum(count) - count, dtype=np.int64))


def _kept(program: Program, a: _Accesses) -> BoolArray:
    """See `ChunkDag.kept`."""
    promised = program.collective.promised_cells(program.layout)
    kept = np.zeros(len(program.transfers), bool)
    final = a.write & (a.next_write == NONE) & promised[a.cell]
    kept[a.transfer[final]] = True
    return kept
