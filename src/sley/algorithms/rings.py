"""Rings: ReduceScatter and AllGather along rings of ranks, the parts of many algorithms.

Source: MSCCLang, figure 3b. `ranks` is one ring, or an array (rings, members) of rings of one
length, of which every step is said in one call.
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
    """The ranks' own contribution where others may be reduced into it: in `buffer`.

    What lies in `source` is copied there first, so that an out-of-place algorithm leaves its
    input as it is.
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
    """Member k of each ring ends with the ring's reduction of part k, `count` chunks from
    ``offset + k * count`` (MSCCLang, figure 3b).

    offset: of all rings, or of each. buffer: where sums are formed and end. source: where the
    contributions lie, if not in `buffer`; they stay there. channels: the parts take turns on them.
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
    """Every member of each ring receives part k from member k, `count` chunks from
    ``offset + k * count`` of `buffer` (MSCCLang, figure 3b).

    offset: of all rings, or of each. channels: the parts take turns on them.
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
    """The parts that go over each channel, which take turns."""
    for turn, channel in enumerate(channels[:size]):
        yield np.arange(turn, size, len(channels)), channel


def _places(rings: LongArray, offset: ArrayLike, part: LongArray, count: int) -> LongArray:
    """The first chunk of every part, for all rings one after the other."""
    first = np.asarray(offset).reshape(-1, 1) + part * count
    return np.broadcast_to(first, (len(rings), len(part))).ravel()
