"""Cut: the elements of a block's chunks, and the chunk of a block that each place is for
(docs/machine.md, "Memory")."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import IntArray, LongArray, Value, distinct, offsets_of, spans
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Buffer

UNIT_BYTES = 16
"""Borders of chunks are at multiples of it from the begin of their block."""


def border(chunk: Any, chunks: int, count: int, item_bytes: int) -> Any:
    """The first element of a chunk, or of several, of a block that `chunks` of them share; for
    `chunks` itself the end of the block.

    chunk: int, or an array of them. count: elements of the block. item_bytes: of an element.
    """
    unit = UNIT_BYTES // item_bytes
    # Units left over are spread: chunks differ by one unit, and short of the end none is cut.
    size, left_over = divmod(-(-count // unit), chunks)
    return np.minimum((chunk * size + chunk * left_over // chunks) * unit, count)


def longest_chunk(chunks: int, count: int, item_bytes: int) -> int:
    """The most elements of a chunk, in whole units: the last one of the block may have fewer.

    Arguments: as for `border`. Blocks of one chunk are one chunk of any number of elements.
    """
    unit = UNIT_BYTES // item_bytes
    return count if chunks == 1 else -(-count // (unit * chunks)) * unit


@dataclass(frozen=True, eq=False, repr=False)
class Homes(Value):
    """Which chunk of a block the data in each place belong to. In input and output it is the chunk
    at that place of the block.

    offset: int64 (ranks + 1,), the rows of `scratch` of each rank.
    scratch: the chunk of a block that each chunk of a rank's scratch holds, up to the last one that
        an instruction uses.
    misplaced: whether the plan keeps a chunk at the place of another one, or several, one after
        another, in a chunk of scratch; `scratch` then means nothing.
    """

    offset: LongArray
    scratch: IntArray
    misplaced: bool

    @classmethod
    def of(cls, plan: Plan, messages: Messages) -> Homes:
        """The homes of a plan without faults.

        Places between which data move are for one chunk; the order of the moves doesn't matter.
        """
        chunks = plan.collective.chunks
        offset = offsets_of(_used_scratch(plan))
        label = np.arange(chunks + offset[-1])  # the chunks of a block, then all scratch
        # A block of one chunk has no other chunk that a place could be for.
        if chunks > 1:
            label = _joined(label, *_moves(plan, messages, offset))
        return cls(
            offset,
            np.where(label < chunks, label, 0)[chunks:].astype(np.int32),
            bool((label[:chunks] != np.arange(chunks)).any()),
        )


def _used_scratch(plan: Plan) -> LongArray:
    """int64 (ranks,): the scratch chunks up to the last one that an instruction uses."""
    t, used = plan.instructions, np.zeros(plan.collective.ranks, np.int64)
    for buffer, index, is_used in (
        (t.src_buffer, t.src_index, READS_SOURCE[t.op]),
        (t.dst_buffer, t.dst_index, WRITES_DESTINATION[t.op]),
    ):
        rows = np.flatnonzero(is_used & (buffer == Buffer.SCRATCH))
        np.maximum.at(used, plan.rank[rows], index[rows].astype(np.int64) + t.count[rows])
    return used


def _moves(plan: Plan, messages: Messages, offset: LongArray) -> tuple[LongArray, LongArray]:
    """Pairs of different places between which data move: chunks of a block, or chunks + a chunk of
    all ranks' scratch."""
    t, chunks = plan.instructions, plan.collective.chunks

    def places(rows: NDArray[Any], buffer: NDArray[Any], index: NDArray[Any]) -> LongArray:
        """The place of every chunk of the instructions `rows`."""
        owner, chunk = spans(index[rows], t.count[rows])
        row = rows[owner]
        scratch = chunks + offset[plan.rank[row]] + chunk
        found: LongArray = np.where(buffer[row] == Buffer.SCRATCH, scratch, chunk % chunks)
        return found

    reads, writes = READS_SOURCE[t.op], WRITES_DESTINATION[t.op]
    both = np.flatnonzero(reads & writes)
    buffer = np.where(reads, t.src_buffer, t.dst_buffer)
    index = np.where(reads, t.src_index, t.dst_index)
    pairs = [
        (places(both, t.src_buffer, t.src_index), places(both, t.dst_buffer, t.dst_index)),
        (places(messages.send, buffer, index), places(messages.receive, buffer, index)),
    ]
    first, second = (np.concatenate(ends) for ends in zip(*pairs, strict=True))
    differ, places_of_all = first != second, chunks + int(offset[-1])
    found = distinct(first[differ] * places_of_all + second[differ])
    return found // places_of_all, found % places_of_all


def _joined(label: LongArray, first: LongArray, second: LongArray) -> LongArray:
    """The least number of all that pairs (first, second) join to each, one after another."""
    # Ends: labels only fall. Looking up labels of labels makes the rounds few even for long chains.
    while True:
        least = np.minimum(label[first], label[second])
        joined = label.copy()
        for end in (first, second):
            np.minimum.at(joined, end, least)
            np.minimum.at(joined, label[end], least)
        joined = joined[joined]
        if (joined == label).all():
            return label
        label = joined
