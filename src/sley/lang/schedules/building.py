"""Building: a schedule's sends as a `Program`; its transfers point at the lines of the schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath

import numpy as np

from sley.errors import Place
from sley.errors.formats import F403
from sley.ir.collective import Collective
from sley.ir.program import Program, Transfers
from sley.ir.sources import Sources
from sley.ir.tables import NONE
from sley.ir.words import Buffer, TransferKind

MAX_CELLS = 1 << 24
"""Limit of the output chunks of all ranks together, and of the scratch chunks of each rank."""


def check_size(file: str, cells: int) -> None:
    """Refuses a schedule whose collective has more chunks than `MAX_CELLS`. Errors: F403."""
    if cells > MAX_CELLS:
        expected = f"at most {MAX_CELLS} chunks on all ranks together"
        raise F403.error(at=Place(file), expected=expected, found=str(cells))


@dataclass(frozen=True)
class Cells:
    """`count` consecutive chunks of a rank's buffer, the first one at `index`."""

    rank: int
    buffer: Buffer
    index: int
    count: int = 1


@dataclass
class ProgramBuilder:
    """The transfers of a program, in their order.

    file: the schedule's file. rows: a row for each transfer. scratch: the scratch chunks of ranks
    so far.
    """

    file: str
    collective: Collective
    rows: list[tuple[int, ...]] = field(default_factory=list)
    scratch: dict[int, int] = field(default_factory=dict)

    def copy(self, source: Cells, target: Cells, line: int) -> None:
        """Copies `source` to `target`. line: the line of the schedule."""
        self._add(TransferKind.COPY, source, target, line)

    def reduce(self, source: Cells, target: Cells, line: int) -> None:
        """Reduces `source` into `target`. line: the line of the schedule."""
        self._add(TransferKind.REDUCE, source, target, line)

    def new_scratch(self, rank: int, count: int) -> Cells:
        """Scratch chunks of a rank that no other transfer uses. Errors: F403."""
        index = self.scratch.get(rank, 0)
        check_size(self.file, index + count)
        self.scratch[rank] = index + count
        return Cells(rank, Buffer.SCRATCH, index, count)

    def _add(self, kind: TransferKind, source: Cells, target: Cells, line: int) -> None:
        ends = (source.rank, source.buffer, source.index, target.rank, target.buffer, target.index)
        self.rows.append((kind, *ends, source.count, line))

    def program(self) -> Program:
        """The program, with the name of the file."""
        table = np.array(self.rows, np.int64).reshape(-1, 9).astype(np.int32)
        kind, src, src_buffer, src_index, dst, dst_buffer, dst_index, count, line = table.T
        lines, source = np.unique(line, return_inverse=True)
        none, zero = np.full(len(table), NONE, np.int32), np.zeros(len(table), np.int32)
        scratch = np.zeros(self.collective.ranks, np.int32)
        for rank, chunks in self.scratch.items():
            scratch[rank] = chunks
        return Program(
            name=PurePath(self.file).stem,
            collective=self.collective,
            transfers=Transfers(
                kind=kind.astype(np.int8),
                src=src,
                src_buffer=src_buffer.astype(np.int8),
                src_index=src_index,
                dst=dst,
                dst_buffer=dst_buffer.astype(np.int8),
                dst_index=dst_index,
                count=count,
                channel=none,
                instances=zero + 1,
                lane=zero,
                send_block=none,
                recv_block=none,
                step=none,
                group=none,
                source=source.astype(np.int32),
            ),
            scratch_chunks=scratch,
            protocol=None,
            sources=Sources.of_file(self.file, lines),
        )
