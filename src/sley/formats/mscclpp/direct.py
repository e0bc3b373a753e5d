"""Direct: which sends write to where the receiver stores their data, and which switches read and
write the buffers of their ranks. All others go through scratch.

A direct access is right only if all earlier accesses to the same chunks have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sley.formats.mscclpp.analysis import Analysis
from sley.ir.tables import NONE, BoolArray
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Buffer, Op, Protocol

Start = tuple[Buffer, int]
"""A buffer, and the chunk in it at which a range begins, the same on several ranks."""


@dataclass(frozen=True)
class Direct:
    """The sends and switches that use no scratch.

    writes: bool (instructions,), the sends whose data go where the receiver stores them.
    reads: by instruction that reduces in a switch, where on all its ranks the switch reads their
        operands, if these are at one place.
    stores: by instruction with a switch, where on all its ranks the switch writes the result, if
        they store it at one place.
    """

    writes: BoolArray
    reads: Mapping[int, Start]
    stores: Mapping[int, Start]


def find_direct(analysis: Analysis, *, zero_copy: bool) -> Direct:
    """The sends and switches of a plan that need no scratch; none with packets.

    zero_copy: as in `place`.
    """
    plan, messages, switching = analysis.plan, analysis.messages, analysis.switching
    t, writes = plan.instructions, np.zeros(len(plan.instructions), bool)
    if plan.protocol is Protocol.LL:
        return Direct(writes, {}, {})
    search = _Search(analysis, zero_copy)
    reads = {row: at for row in switching.offers if (at := search.read(row)) is not None}
    stores = {row: at for row in switching.stores if (at := search.stored(row, reads)) is not None}
    writes[list(stores)] = True
    stored = np.isin(t.op, [Op.RECV, Op.RECV_COPY_SEND])
    stored &= zero_copy | (t.dst_buffer == Buffer.SCRATCH)
    for send, receive in zip(messages.send.tolist(), messages.receive.tolist(), strict=True):
        if stored[receive] and send not in switching.stores:
            writes[send] = search.is_free(receive, send, reads)
    return Direct(writes, reads, stores)


class _Search:
    """The accesses to a plan's memory, and questions about their order."""

    def __init__(self, analysis: Analysis, zero_copy: bool) -> None:
        self.plan, self.messages = analysis.plan, analysis.messages
        self.switching, self.ports = analysis.switching, analysis.ports
        self.zero_copy = zero_copy
        conflicts = analysis.conflicts
        self.reaches = conflicts.order.reaches
        self.earlier: dict[int, list[int]] = defaultdict(list)
        self.later: dict[int, list[int]] = defaultdict(list)
        for first, second in zip(conflicts.first.tolist(), conflicts.second.tolist(), strict=True):
            self.earlier[second].append(first)
            self.later[first].append(second)

    def is_free(self, receive: int, send: int, reads: Mapping[int, Start]) -> bool:
        """Whether all earlier accesses to what a receive stores have ended when its sender
        sends."""
        return all(self.reaches(self._end(row, reads), send) for row in self.earlier[receive])

    def _end(self, row: int, reads: Mapping[int, Start]) -> int:
        """The instruction after which no data of an instruction are read any more."""
        if self.ports[row]:
            return int(self.messages.receive_of[row])
        total = self.switching.sum_of.get(row, NONE)
        return total if total in reads else row

    def _start(self, row: int, *, source: bool) -> Start:
        """Where an operand begins; in place its chunk of the output, if it is there."""
        t, c, rank = self.plan.instructions, self.plan.collective, int(self.plan.rank[row])
        buffer = Buffer(int((t.src_buffer if source else t.dst_buffer)[row]))
        index = int((t.src_index if source else t.dst_index)[row])
        if buffer is Buffer.INPUT and c.in_place:
            of_output = index + int(c.input_base[rank] - c.output_base[rank])
            if 0 <= of_output <= int(c.output_chunks[rank]) - int(t.count[row]):
                return Buffer.OUTPUT, of_output
        return buffer, index

    def _is_common(self, row: int, start: Start) -> bool:
        """Whether a switch may access what begins there, and whether it is one memory on all its
        ranks."""
        c, ranks = self.plan.collective, list(self.switching.ranks[row])
        if start[0] is Buffer.SCRATCH:
            last = start[1] + int(self.plan.instructions.count[row])
            return bool((self.plan.scratch_chunks[ranks] >= last).all())
        base = c.input_base if start[0] is Buffer.INPUT else c.output_base
        return self.zero_copy and (not c.in_place or len(set(base[ranks].tolist())) == 1)

    def read(self, row: int) -> Start | None:
        """Where a switch reads the operands of a reduction, if every rank sends its data from there
        and does not overwrite them before they are read."""
        t, start = self.plan.instructions, self._start(row, source=True)
        sends = self.switching.offers[row]
        stored = self._start(row, source=False) if WRITES_DESTINATION[t.op[row]] else None
        if not self._is_common(row, start) or any(
            t.op[send] != Op.SEND or self._start(send, source=True) != start for send in sends
        ):
            return None
        for later in (later for send in sends for later in self.later[send]):
            sender = int(self.messages.send_of[later])
            writer = later if later in self.switching.offers or sender == NONE else sender
            # An element is read before it is written by the same operation.
            if not self.reaches(row, writer) or (writer == row and stored != start):
                return None
        return start

    def stored(self, row: int, reads: Mapping[int, Start]) -> Start | None:
        """Where a switch writes a result, if every rank stores it there and all earlier accesses
        have ended before."""
        t, op, receives = self.plan.instructions, self.plan.instructions.op, self.switching.stores
        if not WRITES_DESTINATION[op[row]] and (op[row] != Op.SEND or self._is_shared(row)):
            return None
        start = self._start(row, source=op[row] == Op.SEND)
        read = reads.get(row)
        if not self._is_common(row, start) or any(
            op[receive] not in (Op.RECV, Op.RECV_COPY_SEND)
            or self._start(receive, source=False) != start
            for receive in receives[row]
        ):
            return None
        own = read if row in self.switching.offers else self._own_source(row)
        if own is not None and own[0] is start[0] and 0 < abs(own[1] - start[1]) < t.count[row]:
            return None
        for first in (first for one in (row, *receives[row]) for first in self.earlier[one]):
            end = self._end(first, reads)
            if not self.reaches(end, row) or (end == row and read != start):
                return None
        return start

    def _own_source(self, row: int) -> Start | None:
        reads = self.plan.instructions.op[row] in (Op.SEND, Op.COPY_SEND)
        return self._start(row, source=True) if reads else None

    def _is_shared(self, row: int) -> bool:
        """Whether other instructions access what an instruction reads: a switch that stores it
        there again would disturb them."""
        t, plan = self.plan.instructions, self.plan
        first, count = int(plan.source_cells(np.array([row]))[0]), int(t.count[row])
        others = np.flatnonzero(plan.rank == plan.rank[row])
        others = others[others != row]
        for accesses, cells in (
            (READS_SOURCE, plan.source_cells(others)),
            (WRITES_DESTINATION, plan.destination_cells(others)),
        ):
            near = (cells < first + count) & (cells + t.count[others] > first)
            if (accesses[t.op[others]] & near).any():
                return True
        return False
