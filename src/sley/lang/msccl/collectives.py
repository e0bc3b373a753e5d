"""Collectives of msccl.language.collectives: the standard ones, and the base of a script's own."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from sley.ir import collectives as standard
from sley.ir.collective import Collective as SleyCollective
from sley.lang.msccl.buffers import Buffer
from sley.lang.msccl.chunks import Chunk, parts

if TYPE_CHECKING:
    from sley.lang.msccl.programs import MSCCLProgram

Buffers = list[dict[Any, Any]]
"""For each rank, the chunks of its buffers by their names."""


class Collective:
    """A collective: the chunks before the program, and a check of those after it.

    num_ranks: number of ranks. chunk_factor: number of chunks of a rank's part of the data.
    inplace: whether input and output are one buffer.
    """

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        self.num_ranks = num_ranks
        self.chunk_factor = chunk_factor
        self.inplace = inplace
        self.name = "custom"

    def init_buffers(self) -> Buffers | None:
        """The buffers before the program, for each rank; a script's class defines them."""
        return None

    def check(self, prog: MSCCLProgram) -> bool | None:
        """Whether the program has left the right chunks; a script's class defines it."""
        return None

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        """The buffer and index that stand for a place of a rank."""
        return buffer, index


class StandardCollective(Collective):
    """A collective that sley knows as well.

    build: makes sley's collective.
    """

    build: ClassVar[Callable[..., SleyCollective]]

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = type(self).build.__name__.lower()

    def promise(self) -> SleyCollective:
        """sley's collective. Errors: L102, L112."""
        return type(self).build(self.num_ranks, self.chunk_factor, bool(self.inplace))

    def destination(self, rank: int, index: int) -> tuple[int, int]:
        """Rank and index where an input chunk ends; rank -1: on all of them."""
        return -1, index

    def init_buffers(self) -> Buffers:
        promise = self.promise()
        found = []
        for rank in range(self.num_ranks):
            size = int(promise.input_chunks[rank])
            data = [Chunk(rank, i, *self.destination(rank, i)) for i in range(size)]
            found.append(self._buffers(data, int(promise.output_chunks[rank]), rank))
        return found

    def _buffers(self, data: list[Any], outputs: int, rank: int) -> dict[Any, Any]:
        """The buffers of a rank with the input `data`."""
        return {Buffer.input: data, Buffer.output: data if self.inplace else [None] * outputs}

    def check(self, prog: MSCCLProgram) -> bool:
        promise = self.promise()
        starts = promise.input_offset
        wanted = [promise.values.target[a:b] for a, b in pairwise(promise.values.offset.tolist())]
        for rank in range(self.num_ranks):
            first, last = promise.output_offset[rank : rank + 2]
            for index, value in enumerate(promise.expected[first:last].tolist()):
                buffer, place = self.get_buffer_index(rank, Buffer.output, index)
                chunk = prog.buffers[rank][buffer][place]
                origins = [] if chunk is None else [part.origin for part in parts(chunk)]
                if sorted(starts[r] + i for r, i in origins) != wanted[value].tolist():
                    return False
        return True


class AllReduce(StandardCollective):
    """Every rank gets the reduction of all ranks' chunks."""

    build = standard.AllReduce

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        if self.inplace and buffer is Buffer.output:
            return Buffer.input, index
        return buffer, index


class AllGather(StandardCollective):
    """Every rank gets the chunks of all ranks."""

    build = standard.AllGather

    def destination(self, rank: int, index: int) -> tuple[int, int]:
        return -1, rank * self.chunk_factor + index

    def _buffers(self, data: list[Any], outputs: int, rank: int) -> dict[Any, Any]:
        output: list[Any] = [None] * outputs
        if self.inplace:
            first = rank * self.chunk_factor
            output[first : first + len(data)] = data
        return {Buffer.input: data, Buffer.output: output}

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        if self.inplace and buffer is Buffer.input:
            return Buffer.output, rank * self.chunk_factor + index
        return buffer, index


class ReduceScatter(StandardCollective):
    """Every rank gets the reduction of its part of all ranks' chunks."""

    build = standard.ReduceScatter

    def __init__(self, num_ranks: int, chunk_factor: int, inplace: bool) -> None:
        super().__init__(num_ranks, chunk_factor, inplace)
        self.name = "reduce_scatter"

    def destination(self, rank: int, index: int) -> tuple[int, int]:
        return divmod(index, self.chunk_factor)

    def _buffers(self, data: list[Any], outputs: int, rank: int) -> dict[Any, Any]:
        if self.inplace:
            return {Buffer.input: data}
        return super()._buffers(data, outputs, rank)

    def get_buffer_index(self, rank: int, buffer: Any, index: int) -> tuple[Any, int]:
        if self.inplace and buffer is Buffer.output:
            return Buffer.input, rank * self.chunk_factor + index
        return buffer, index


class AllToAll(StandardCollective):
    """Every rank gets its part of each rank's chunks."""

    build = standard.AllToAll

    def destination(self, rank: int, index: int) -> tuple[int, int]:
        part, within = divmod(index, self.chunk_factor)
        return part, rank * self.chunk_factor + within
