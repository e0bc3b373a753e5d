"""Needs: the data that a collective must move, independent of the route."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sley.ir.collective import Collective
from sley.ir.tables import NONE, LongArray, distinct, numbering


@dataclass(frozen=True, eq=False)
class Spread:
    """Each rank has chunks that every other rank needs: AllGather, Broadcast.

    chunks: int64 (ranks,), number of chunks that each rank has.
    """

    chunks: LongArray


@dataclass(frozen=True, eq=False)
class Collect:
    """Each rank needs chunks that are reductions over all ranks: ReduceScatter, Reduce.

    chunks: int64 (ranks,), number of chunks that each rank needs.
    """

    chunks: LongArray


@dataclass(frozen=True, eq=False)
class Everywhere:
    """Every rank needs the same chunks, reductions over all ranks: AllReduce.

    chunks: number of chunks.
    """

    chunks: int


@dataclass(frozen=True, eq=False)
class Exchange:
    """Every chunk that moves has one destination: AllToAll, Scatter, Gather, SendRecv, AllToNext.

    src, dst: int64 (pairs,), distinct pairs of different ranks.
    chunks: int64 (pairs,), number of chunks that move from src to dst.
    """

    src: LongArray
    dst: LongArray
    chunks: LongArray


@dataclass(frozen=True, eq=False)
class Mixed:
    """Any other needs: reductions of any ranks' chunks, on any ranks.

    rank, value: int64 (wants,), a rank and a value that it needs; each pair once.
    start: int64 (values + 1,), the first row of each value in `inputs` and `owner`.
    inputs: int64, ids of the input chunks that are reduced to each value.
    owner: int64, the rank that has each of these chunks at the start.
    """

    rank: LongArray
    value: LongArray
    start: LongArray
    inputs: LongArray
    owner: LongArray


Needs: TypeAlias = Spread | Collect | Everywhere | Exchange | Mixed


def needs_of(collective: Collective) -> Needs:
    """The needs of a collective, derived from its pre- and postcondition, not from its name."""
    ranks = collective.ranks
    rank = np.repeat(np.arange(ranks, dtype=np.int64), collective.output_chunks)
    wanted = collective.expected != NONE
    values = len(collective.values.offset) - 1
    key = distinct(rank[wanted] * max(values, 1) + collective.expected[wanted])
    rank, value = np.divmod(key, max(values, 1))
    used, value = numbering(value, values)
    owners = np.repeat(np.arange(ranks, dtype=np.int64), collective.input_chunks)
    size = np.diff(collective.values.offset)[used]
    inputs = collective.values.pick(used).target.astype(np.int64)
    owner = owners[inputs]
    if (size == 1).all():
        copied = _copy_needs(ranks, rank, inputs[value], owner[value])
        if copied is not None:
            return copied
    elif (size == ranks).all() and len(distinct(inputs)) == len(inputs):
        reduced = _reduction_needs(ranks, rank, value, owner)
        if reduced is not None:
            return reduced
    return Mixed(rank, value, np.concatenate([[0], np.cumsum(size)]), inputs, owner)


def accesses(needs: Needs, ranks: int) -> int:
    """How many chunks are read or written at least: each that moves is read where it is, each
    result is written where it is needed, and no more if all ranks share a memory."""
    match needs:
        case Spread(chunks):
            return ranks * int(chunks.sum())
        case Collect(chunks):
            return (ranks + 1) * int(chunks.sum())
        case Everywhere(count):
            return 2 * ranks * count if ranks > 1 else 0
        case Exchange():
            return 2 * int(needs.chunks.sum())
        case Mixed():
            return 0


def _copy_needs(
    ranks: int, rank: LongArray, chunk: LongArray, owner: LongArray
) -> Spread | Exchange | None:
    """The needs if rank[i] needs input chunk[i], which owner[i] has; None if they are neither
    Spread nor Exchange."""
    moves = rank != owner
    key = distinct(chunk[moves] * ranks + rank[moves])
    if not len(key):
        return Exchange(*np.zeros((3, 0), np.int64))
    ids, times = np.unique(key // ranks, return_counts=True)
    owner_of = np.zeros(int(ids.max()) + 1, np.int64)
    owner_of[chunk[moves]] = owner[moves]
    if (times == 1).all():
        pair, count = np.unique(owner_of[key // ranks] * ranks + key % ranks, return_counts=True)
        return Exchange(pair // ranks, pair % ranks, count.astype(np.int64))
    if (times == ranks - 1).all():
        return Spread(np.bincount(owner_of[ids], minlength=ranks))
    return None


def _reduction_needs(
    ranks: int, rank: LongArray, value: LongArray, owner: LongArray
) -> Collect | Everywhere | None:
    """The needs if each value reduces `ranks` chunks and no chunk is part of two values; None if
    they are neither Collect nor Everywhere."""
    if (np.sort(owner.reshape(-1, ranks), axis=1) != np.arange(ranks)).any():
        return None
    times = np.bincount(value)
    if (times == 1).all():
        return Collect(np.bincount(rank, minlength=ranks))
    return Everywhere(len(times)) if (times == ranks).all() else None
