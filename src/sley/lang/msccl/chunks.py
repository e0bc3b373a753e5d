"""Chunks: the contents of buffers as a script's own checks see them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(eq=False)
class Chunk:
    """An input chunk: where it starts, and where it shall end; -1 stands for several ranks.

    Chunks are equal if they start at the same place.
    """

    origin_rank: int
    origin_index: int
    dst_rank: int = -1
    dst_index: int = -1

    @property
    def origin(self) -> tuple[int, int]:
        """Rank and index at which it starts."""
        return self.origin_rank, self.origin_index

    def reduce(self, dst: int, chunk: Chunk | ReduceChunk) -> ReduceChunk:
        """The reduction of both, made on rank `dst`."""
        return ReduceChunk(dst, [self, *parts(chunk)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chunk) and self.origin == other.origin

    def __hash__(self) -> int:
        return hash(self.origin)

    def __lt__(self, other: Chunk) -> bool:
        return self.origin < other.origin


@dataclass(eq=False)
class ReduceChunk:
    """A reduction of input chunks, made on rank `creation_rank`; equal to others of the same input
    chunks."""

    creation_rank: int
    chunks: list[Chunk]

    def reduce(self, dst: int, chunk: Chunk | ReduceChunk) -> ReduceChunk:
        """The reduction with another chunk as well."""
        return ReduceChunk(self.creation_rank, [*self.chunks, *parts(chunk)])

    def sort(self) -> None:
        """Orders the input chunks by their places."""
        self.chunks.sort()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReduceChunk) and sorted(self.chunks) == sorted(other.chunks)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.chunks)))


def parts(chunk: Any) -> list[Chunk]:
    """The input chunks of a chunk or a reduction."""
    return list(chunk.chunks) if isinstance(chunk, ReduceChunk) else [chunk]
