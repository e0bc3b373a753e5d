"""Butterflies: ReduceScatter and AllGather in steps, in each of which two ranks exchange data.

Recursive halving and doubling, Swing and Bine differ in the distance between the two alone. `peers`
is int64 (steps, ranks): each rank's peer in each step of a ReduceScatter, whose peer it is as well.
An AllGather takes the steps back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike

from sley.algorithms.algorithm import is_positive
from sley.algorithms.rings import accumulator
from sley.errors import Place
from sley.errors.language import L102, L121
from sley.ir.tables import BoolArray, LongArray
from sley.lang import ChunkProgram


def hypercube_peers(ranks: int) -> LongArray:
    """Peers whose numbers differ in one bit, the highest first. `ranks` is a power of two."""
    bits = range(int(ranks).bit_length() - 1)
    return np.array([np.arange(ranks) ^ (1 << bit) for bit in reversed(bits)], np.int64)


def swing_peers(sides: Sequence[int], first: int = 0, *, mirrored: bool = False) -> LongArray:
    """Swing's peers on a torus: in step s of a dimension, even places exchange with the place
    (1 - (-2)^(s + 1)) / 3 further, which is 1, -1, 3, -5, 11, ...: each about twice as far as the
    one before, on the other side.

    sides: the torus's, each even or 1, with ranks row by row. first: the dimension of the first
    step; steps take the dimensions in turn, as long as they have any. mirrored: whether even places
    begin to the left.
    """
    rank = np.arange(math.prod(sides))
    place = np.array(np.unravel_index(rank, sides))
    left = [(side - 1).bit_length() for side in sides]
    peers = []
    for turn in range(max(left)):
        distance = (1 - (-2) ** (turn + 1)) // (-3 if mirrored else 3)
        for axis in (np.arange(len(sides)) + first) % len(sides):
            if turn < left[axis]:
                to = place.copy()
                to[axis] += np.where(place[axis] % 2, -distance, distance)
                peers.append(np.ravel_multi_index(tuple(to), sides, mode="wrap"))
    return np.array(peers, np.int64)


def swing(algorithm: str, ranks: int, sides: Sequence[int] | None) -> list[Butterfly]:
    """Swing's butterflies, each for a part of the data: one on a ring without `sides`, else one for
    each direction along each side of a torus. Errors: L102, L121."""
    at = Place(detail=algorithm)
    if sides is None:
        return [_swing([ranks])]
    if not all(is_positive(side) for side in sides):
        raise L102.error(at=at, expected="positive integers for sides", found=f"sides={sides!r}")
    if math.prod(sides) != ranks or (len(sides) > 1 and any(s % 2 and s > 1 for s in sides)):
        raise L121.error(
            at=at,
            expected=f"sides with a product of {ranks}, each even or 1, or one side",
            found=f"sides={sides!r}",
        )
    directions = ((axis, way) for way in (False, True) for axis in range(len(sides)))
    return [_swing(sides, first, mirrored=mirrored) for first, mirrored in directions]


def _swing(sides: Sequence[int], first: int = 0, *, mirrored: bool = False) -> Butterfly:
    """A butterfly of Swing, of all ranks or, on a ring of an odd number, all but the last."""
    extra = len(sides) == 1 and sides[0] % 2 == 1
    peers = swing_peers([sides[0] - 1] if extra else sides, first, mirrored=mirrored)
    return Butterfly(peers, extra=extra, in_order=False)


class Butterfly:
    """The messages of a ReduceScatter or AllGather along a butterfly, with a block for each rank.

    peers: as in this file. extra: whether there is one rank more, without peers and without a
        block, which sends its data to, and receives the result from, the block's rank (Swing's for
        an odd number).
    in_order: whether blocks are in the order of the ranks; else in one in which a message is one
        run of blocks, if the number of ranks is a power of two.
    """

    def __init__(self, peers: LongArray, *, extra: bool = False, in_order: bool = True) -> None:
        rank = np.arange(peers.shape[1])
        reached = np.eye(len(rank), dtype=bool)
        least = []
        steps = []
        # Backwards: a block takes the last steps that lead to its rank, so that a rank sends it
        # once, after it has received it from all others. Blocks that two ways lead to exist if the
        # number of ranks is no power of two.
        for peer in reversed(peers):
            least.append(reached.argmax(axis=1))
            sent = reached[peer] & ~reached
            sender, block = np.nonzero(sent)
            steps.append(np.column_stack((sender, peer[sender], block)))
            reached |= sent
        # A rank reaches the same ranks in the steps from s on as each of them does.
        order = rank if in_order else np.lexsort(least)
        place = np.argsort(order)
        if extra:
            steps.insert(0, np.column_stack((np.full_like(rank, len(rank)), rank, rank)))
        self.steps = [np.column_stack((s[:, :2], place[s[:, 2]])) for s in reversed(steps)]
        self.ranks, self.blocks = len(rank) + extra, len(rank)

    def reduce_scatter(
        self,
        p: ChunkProgram,
        ranks: ArrayLike,
        offset: int = 0,
        *,
        buffer: str,
        source: str,
        result: str | None = None,
        channel: int | None = None,
    ) -> None:
        """Reduces each block to its rank. The blocks begin at chunk `offset`.

        ranks: the rank at each place. buffer: the buffer of the sums. source: the buffer of the
        contributions; another one than `buffer` is not changed. result: another buffer, whose first
        chunk gets the whole sum.
        """
        rank = np.asarray(ranks)
        summed = np.full((self.ranks, self.blocks), source == buffer)
        for step in self.steps:
            for sender, receiver, first, count in _runs(step, summed):
                at = (offset + first, count)
                own = buffer if summed[sender[0], first[0]] else source
                into = buffer if summed[receiver[0], first[0]] else source
                sent = p.chunk(rank[sender], own, *at)
                if result is not None and step is self.steps[-1]:  # of one block each
                    total = p.chunk(rank[receiver], into, *at).copy(rank[receiver], result, 0)
                else:
                    total = accumulator(p, rank[receiver], into, buffer, *at)
                total.reduce(sent, channel=channel)
            summed[step[:, 1], step[:, 2]] = True

    def all_gather(
        self,
        p: ChunkProgram,
        ranks: ArrayLike,
        offset: int = 0,
        *,
        buffer: str,
        channel: int | None = None,
    ) -> None:
        """Copies each block of `buffer` from its rank to all others. Parameters: as for
        `reduce_scatter`."""
        rank = np.asarray(ranks)
        same = np.full((self.ranks, self.blocks), True)
        for step in reversed(self.steps):
            for sender, receiver, first, count in _runs(step[:, [1, 0, 2]], same):
                held = p.chunk(rank[sender], buffer, offset + first, count)
                held.copy(rank[receiver], buffer, offset + first, channel=channel)


def _runs(
    step: LongArray, summed: BoolArray
) -> Iterator[tuple[LongArray, LongArray, LongArray, int]]:
    """Senders, receivers, first blocks and number of blocks of the messages with neighbouring
    blocks, which both ranks have summed in part or not; those of a number of blocks at once."""
    sender, receiver, block = step[np.lexsort(step.T[[2, 1, 0]])].T
    kind = 2 * summed[sender, block] + summed[receiver, block]
    parts = np.column_stack((sender, receiver, block - np.arange(len(block)), kind))
    first = np.flatnonzero(np.r_[True, (parts[1:] != parts[:-1]).any(axis=1)])
    count = np.diff(np.r_[first, len(block)])
    for size, state in sorted(set(zip(count.tolist(), kind[first].tolist(), strict=True))):
        own = first[(count == size) & (kind[first] == state)]
        yield sender[own], receiver[own], block[own], size
