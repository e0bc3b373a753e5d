"""Needs: what a collective asks to be moved, whoever moves it and on whatever way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from sley.ir.collective import Collective
from sley.ir.tables import NONE, LongArray, distinct


@dataclass(frozen=True, eq=False)
class Spread:
    """Each rank has chunks that every other rank needs: AllGather, Broadcast.

    chunks: int64 (ranks,), how many each has.
    """

    chunks: LongArray


@dataclass(frozen=True, eq=False)
class Collect:
    """Each rank needs chunks that are reductions over all ranks: ReduceScatter, Reduce.

    chunks: int64 (ranks,), how many each needs.
    """

    chunks: LongArray


@dataclass(frozen=True, eq=False)
class Everywhere:
    """Every rank needs the same chunks, reductions over all ranks: AllReduce.

    chunks: how many.
    """

    chunks: int


@dataclass(frozen=True, eq=False)
class Exchange:
    """Every chunk that moves has one destination: AllToAll, Scatter, Gather, SendRecv, AllToNext.

    src, dst: int64 (pairs,), distinct pairs of different ranks.
    chunks: int64 (pairs,), how many go from one to the other.
    """

    src: LongArray
    dst: LongArray
    chunks: LongArray


@dataclass(frozen=True, eq=False)
class Mixed:
    """None of these: any reductions of any ranks' chunks, anywhere.

    rank, value: int64 (wants,), which rank needs which value, each pair once.
    start: int64 (values + 1,), where each value's inputs begin in `owner` and `inputs`.
    inputs: int64, ids of the input chunks that each value is the reduction of.
    owner: int64, the rank that has each of them at the start.
    """

    rank: LongArray
    value: LongArray
    start: LongArray
    inputs: LongArray
    owner: LongArray


Needs: TypeAlias = Spread | Collect | Everywhere | Exchange | Mixed


def needs_of(collective: Collective) -> Needs:
    """What a collective asks for, told from its pre- and postcondition, not from its name."""
    ranks = collective.ranks
    rank = np.repeat(np.arange(ranks, dtype=np.int64), collective.output_chunks)
    wanted = collective.expected != NONE
    values = len(collective.values.offset) - 1
    key = distinct(rank[wanted] * max(values, 1) + collective.expected[wanted])
    rank, value = np.divmod(key, max(values, 1))
    used = np.unique(value)
    value = np.searchsorted(used, value)
    owners = np.repeat(np.arange(ranks, dtype=np.int64), collective.input_chunks)
    size = np.diff(collective.values.offset)[used]
    inputs = collective.values.picked(used).target.astype(np.int64)
    owner = owners[inputs]
    if (size == 1).all():
        copied = _copied(ranks, rank, inputs[value], owner[value])
        if copied is not None:
            return copied
    elif (size == ranks).all() and len(np.unique(inputs)) == len(inputs):
        reduced = _reduced(ranks, rank, value, owner)
        if reduced is not None:
            return reduced
    return Mixed(rank, value, np.concatenate([[0], np.cumsum(size)]), inputs, owner)


def _copied(
    ranks: int, rank: LongArray, chunk: LongArray, owner: LongArray
) -> Spread | Exchange | None:
    """Needs of copies alone: rank[i] needs input chunk[i], which owner[i] has."""
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


def _reduced(
    ranks: int, rank: LongArray, value: LongArray, owner: LongArray
) -> Collect | Everywhere | None:
    """Needs of reductions of `ranks` chunks each, no chunk in two of them."""
    if (np.sort(owner.reshape(-1, ranks), axis=1) != np.arange(ranks)).any():
        return None
    times = np.bincount(value)
    if (times == 1).all():
        return Collect(np.bincount(rank, minlength=ranks))
    return Everywhere(len(times)) if (times == ranks).all() else None
