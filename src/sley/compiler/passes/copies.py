"""Copies: chunks that a rank has copied are read where they came from.

An out-of-place algorithm copies its input to where it works. If the chunks that were copied don't
change afterwards, they can be read instead of the copy: a send needn't wait for the copy, and a
reduction combines them with the data that arrive, and overwrites the copy. A copy that nothing
reads any more is left out.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sley.ir.dag import Forwarded, Operands
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, LongArray, offsets_of, spans
from sley.ir.words import TransferKind


def forward_copies(program: Program, operands: Operands | None = None) -> Forwarded:
    """The program in which reads of copies are reads of the chunks that were copied, if no transfer
    overwrites these after the copy; without the copies that only such reads needed.

    So a read depends on no more than the copy did, and no transfer has to wait for more. The
    operand of a local reduction remains its destination. A copy that is left out overwrites
    nothing, so further reads may move: the result is that of the pass applied until nothing
    changes.

    operands: where reductions read their operands, by default at their destinations.
    """
    found = Forwarded(program, operands or Operands.at_destinations(program))
    t = program.transfers
    if not (~t.remote & (t.kind == TransferKind.COPY)).any():
        return found
    search = _CopySearch(found)
    search.move_all()
    return search.found()


class _CopySearch:
    """The reads of a program, which move, and its copies, of which the needless ones are removed.

    Read k is transfer k's of its source, read transfers + k that of its operand. A read is looked
    at again only if what prevented its move has changed: the copy that it reads got another source,
    or a transfer that overwrote the chunks that were copied was removed.
    """

    def __init__(self, found: Forwarded) -> None:
        program, t = found.program, found.program.transfers
        self._program, self._transfers = program, len(t)
        self._copies = (~t.remote & (t.kind == TransferKind.COPY)).tolist()
        self._count = t.count.tolist()
        self._written: list[int] = program.destination_cells.tolist()
        cells = np.concatenate([program.source_cells, found.operands.cells(program)])
        self._cell: list[int] = cells.tolist()
        self._buffer = t.src_buffer.tolist() + found.operands.buffer.tolist()
        self._index = t.src_index.tolist() + found.operands.index.tolist()
        self._removed = [False] * len(t)
        # The writers of each cell, ascending; those from `last` on have been removed.
        self._writers, self._first, self._last = _writes(program)
        # How many chunks that a transfer wrote are read from it, or part of the result.
        self._uses = [0] * len(t)
        # For each read of copies, the last writer of each of its chunks before it.
        self._sources: dict[int, list[int]] = {}
        self._readers: defaultdict[int, list[int]] = defaultdict(list)
        # The reads that a later write to a cell prevents from moving there.
        self._prevented: defaultdict[int, list[int]] = defaultdict(list)
        self._find_reads(cells)
        combining = t.remote & (t.kind == TransferKind.REDUCE)
        self._movable = [True] * len(t) + combining.tolist()
        self._queue: deque[int] = deque()
        self._queued = [False] * len(cells)

    def _find_reads(self, cells: LongArray) -> None:
        program, t = self._program, self._program.transfers
        reads = np.flatnonzero(np.append(np.ones(len(t), bool), t.kind == TransferKind.REDUCE))
        owner, writer = _last_writers(program, reads % len(t), cells[reads])
        of_copy = np.append(self._copies, False)[writer]  # row -1 is NONE
        touching = np.zeros(len(reads), bool)
        touching[owner[of_copy]] = True
        chosen = touching[owner]
        count = t.count[reads[touching] % len(t)]
        start, writers = offsets_of(count).tolist(), writer[chosen].tolist()
        for k, read in enumerate(reads[touching].tolist()):
            self._read_from(read, writers[start[k] : start[k + 1]])
        for cell in np.flatnonzero(program.collective.promised_cells(program.layout)).tolist():
            if (last := self._last_writer(cell)) != NONE:
                self._uses[last] += 1

    def _read_from(self, read: int, writers: list[int]) -> None:
        self._sources[read] = writers
        for writer in writers:
            if writer != NONE:
                self._uses[writer] += 1
        for writer in set(writers):
            if writer != NONE and self._copies[writer]:
                self._readers[writer].append(read)

    def _last_writer(self, cell: int) -> int:
        """The last transfer that writes a cell, or NONE."""
        # A removed transfer never returns, so over all calls each writer is passed once.
        while self._last[cell] > self._first[cell]:
            writer = self._writers[self._last[cell] - 1]
            if not self._removed[writer]:
                return writer
            self._last[cell] -= 1
        return NONE

    def move_all(self) -> None:
        """Moves reads until none can move."""
        self._look_at(sorted(self._sources, key=lambda read: read % self._transfers))
        # Ends: a moved read has an earlier writer for each chunk than before, and a copy is removed
        # only once.
        while self._queue:
            read = self._queue.popleft()
            self._queued[read] = False
            # A moved read may be one of another copy, so it is tried until it stays.
            while not self._removed[read % self._transfers] and self._move(read):
                pass

    def _look_at(self, reads: Iterable[int]) -> None:
        for read in reads:
            if self._movable[read] and not self._queued[read]:
                self._queued[read] = True
                self._queue.append(read)

    def _move(self, read: int) -> bool:
        """Moves a read to what was copied to where it is, if that is possible; whether it was."""
        sources = self._sources[read]
        copy, cell, transfer = sources[0], self._cell[read], read % self._transfers
        shift = self._shift(copy)
        place = cell + shift
        # A transfer's operands and its destination are the same chunks or share none.
        if shift == 0 or abs(place - self._written[transfer]) < self._count[transfer]:
            return False
        for writer in set(sources) - {copy}:
            same = self._buffer[writer] == self._buffer[copy] and self._shift(writer) == shift
            if not same:
                return False
        # Chunk by chunk: each must still hold, in the place that was copied, what the copy read.
        for k, writer in enumerate(sources):
            if self._last_writer(place + k) > writer:
                self._prevented[place + k].append(read)
                return False
        self._index[read] = self._index[copy] + cell - self._written[copy]
        self._cell[read], self._buffer[read] = place, self._buffer[copy]
        self._read_from(read, [self._last_writer(place + k) for k in range(len(sources))])
        self._release(sources)
        if read == transfer and self._copies[transfer]:
            self._look_at(self._readers[transfer])
        return True

    def _shift(self, writer: int) -> int:
        """How far from what a transfer wrote the chunks are that it copied; 0 if it copied none
        within its rank."""
        if writer == NONE or not self._copies[writer]:
            return 0
        return self._cell[writer] - self._written[writer]

    def _release(self, writers: Iterable[int]) -> None:
        """Takes reads from transfers, a chunk each, and removes copies that have no reads left."""
        released = list(writers)
        # Ends: only a removed copy adds its sources, and no copy is removed twice.
        while released:
            writer = released.pop()
            if writer == NONE:
                continue
            self._uses[writer] -= 1
            if self._uses[writer] or not self._copies[writer]:
                continue
            first = self._written[writer]
            cells = range(first, first + self._count[writer])
            # At other cells a later write still prevents the moves.
            free = [cell for cell in cells if self._last_writer(cell) == writer]
            self._removed[writer] = True
            released += self._sources.get(writer, ())
            for cell in free:
                self._look_at(self._prevented.pop(cell, ()))

    def found(self) -> Forwarded:
        """The program with its reads where they are now, without the copies that were removed."""
        n, present = self._transfers, ~np.array(self._removed)
        t = replace(
            self._program.transfers,
            src_buffer=np.array(self._buffer[:n]),
            src_index=np.array(self._index[:n]),
        )
        left = Transfers(**{name: getattr(t, name)[present] for name in t.column_names()})
        own = Operands(np.array(self._buffer[n:])[present], np.array(self._index[n:])[present])
        return Forwarded(replace(self._program, transfers=left), own)


def _writes(program: Program) -> tuple[list[int], list[int], list[int]]:
    """The writers of all cells, cell by cell, ascending, and the first and the end of those of each
    cell."""
    writer, cell = spans(program.destination_cells, program.transfers.count)
    order = np.argsort(cell, kind="stable")
    offset = offsets_of(np.bincount(cell, minlength=program.layout.cells)).tolist()
    return writer[order].tolist(), offset[:-1], offset[1:]


def _last_writers(
    program: Program, transfers: LongArray, cells: LongArray
) -> tuple[LongArray, LongArray]:
    """For every chunk that `transfers` read from `cells` on, in order: the row of the read, and the
    last transfer before it that writes the chunk, or NONE."""
    n, count = len(program.transfers), program.transfers.count
    writer, written = spans(program.destination_cells, count)
    # Of the keys below (cell, reader) the greatest is the last write before the read, if its cell
    # is the same one.
    key = np.sort(written * n + writer)
    owner, cell = spans(cells, count[transfers])
    last = np.append(key, NONE)[np.searchsorted(key, cell * n + transfers[owner]) - 1]
    return owner, np.where(last // n == cell, last % n, NONE)
