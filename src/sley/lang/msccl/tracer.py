"""Tracer: the chunk language with any number of scratch buffers, of any names."""

from __future__ import annotations

from collections.abc import Hashable

from sley.ir.collective import Collective
from sley.ir.words import Buffer as SleyBuffer
from sley.lang.chunks import ChunkProgram
from sley.lang.memory import Cells
from sley.lang.msccl.buffers import Buffer

DATA: dict[Hashable, SleyBuffer] = {
    Buffer.input: SleyBuffer.INPUT,
    Buffer.output: SleyBuffer.OUTPUT,
}
"""The buffers of the collective."""


class Tracer(ChunkProgram):
    """A program under construction. A buffer's name is a `Buffer` or any other value; those that
    are not of the collective are scratch buffers, numbered as they are named first."""

    def __init__(self, collective: Collective) -> None:
        super().__init__(collective)
        self._numbers = {name: int(number) for name, number in DATA.items()}
        self._names: list[Hashable] = [*DATA, *([None] * (SleyBuffer.SCRATCH - len(DATA)))]

    def number(self, buffer: Hashable) -> int:
        if buffer not in self._numbers:
            self._numbers[buffer] = len(self._names)
            self._names.append(buffer)
        return self._numbers[buffer]

    def word(self, buffer: int) -> str:
        return super().word(buffer) if buffer < SleyBuffer.SCRATCH else repr(self._names[buffer])

    def memory(self, rank: int, buffer: Hashable, index: int, count: int) -> tuple[int, Cells]:
        """The memory of a place within the bounds, which may be unwritten: equal for places of one
        memory. Errors: L101 to L103, L112."""
        ref = self._range(rank, buffer, index, count, None)
        # Input and output are one memory, each scratch buffer is one of its own.
        cells = self._memory.cells(ref.rank, ref.buffer, ref.index, ref.count)
        return max(ref.buffer, SleyBuffer.OUTPUT), cells
