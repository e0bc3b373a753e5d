"""Rings: ReduceScatter and AllGather along rings of ranks, which are parts of many algorithms.

Source: MSCCLang, figure 3b. `ranks` is one ring, or an array (rings, members) of rings of equal
length, which make each step in one call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from sley.ir.tables import LongArray
from sley.lang import ChunkProgram, Ref


def accumulator(
    p: ChunkProgram, ranks: ArrayLike, source: str, buffer: str, index: ArrayLike, count: int = 1
) -> Ref:
    """The ranks' own data in `buffer`, where other ranks' data may be reduced into it.

    Copies the data there if `source` is another buffer, so that an out-of-place algorithm doesn't
    change its input.
    """
    own = p.chunk(ranks, source, index, count)
    return own if source == buffer else own.copy(ranks, buffer, index)


def ring_reduce_scatter(
    p: ChunkProgram,
    ranks: ArrayLike,
    offset: ArrayLike,
    count: int,
    *,
    buffer: str = "in",
    source: str | None = None,
    channels: Sequence[int | None] = (None,),
) -> None:
    """Reduces part k over each ring to its member k. Part k has `count` chunks from
    ``offset + k * count`` (MSCCLang, figure 3b).

    offset: one for all rings, or one for each. buffer: the buffer of the sums. source: the buffer
    of the contributions, by default `buffer`; another one is not changed. channels: the channels
    that the parts use in turn.
    """
    rings = np.atleast_2d(ranks)
    size = rings.shape[1]
    for part, channel in _spread(size, channels):
        index = _places(rings, offset, part, count)
        c = p.chunk(rings[:, (part + 1) % size].ravel(), source or buffer, index, count)
        for step in range(1, size):
            following = rings[:, (part + step + 1) % size].ravel()
            own = accumulator(p, following, source or buffer, buffer, index, count)
            c = own.reduce(c, channel=channel)


def ring_all_gather(
    p: ChunkProgram,
    ranks: ArrayLike,
    offset: ArrayLike,
    count: int,
    *,
    buffer: str = "in",
    channels: Sequence[int | None] = (None,),
) -> None:
    """Copies part k of member k to every member of each ring. Part k has `count` chunks from
    ``offset + k * count`` of `buffer` (MSCCLang, figure 3b).

    offset: one for all rings, or one for each. channels: the channels that the parts use in turn.
    """
    rings = np.atleast_2d(ranks)
    size = rings.shape[1]
    for part, channel in _spread(size, channels):
        index = _places(rings, offset, part, count)
        c = p.chunk(rings[:, part].ravel(), buffer, index, count)
        for step in range(1, size):
            following = rings[:, (part + step) % size].ravel()
            c = c.copy(following, buffer, index, channel=channel)


def _spread(size: int, channels: Sequence[int | None]) -> Iterator[tuple[LongArray, int | None]]:
    """The parts of each channel; part k uses channel k modulo the number of channels."""
    for turn, channel in enumerate(channels[:size]):
        yield np.arange(turn, size, len(channels)), channel


def _places(rings: LongArray, offset: ArrayLike, part: LongArray, count: int) -> LongArray:
    """The first chunk of every part, for one ring after the other."""
    first = np.asarray(offset).reshape(-1, 1) + part * count
    return np.broadcast_to(first, (len(rings), len(part))).ravel()
