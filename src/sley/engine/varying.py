"""Varying counts: the elements of every part of a call (docs/machine.md, "Varying counts")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from sley.engine.types import Array
from sley.errors import Place, Rule
from sley.errors.runtime import R503
from sley.ir.collective import Collective
from sley.ir.tables import NONE, LongArray


class Counts(NamedTuple):
    """The counts of a call on all ranks.

    input, output: int64 (ranks, blocks), the elements of each block of every rank's buffers.
    """

    input: LongArray
    output: LongArray

    @classmethod
    def of(cls, c: Collective, given: ArrayLike) -> Counts:
        """The counts of a call of `c` whose inputs have the `given` ones.

        given: integers (ranks, blocks): for AllToAllV what rank s sends to rank r in row s, column
        r; for AllGatherV also (ranks,). Errors: R503.
        """
        blocks = blocks_of(c, c.input_chunks)
        shape = (c.ranks, blocks)
        try:
            counts = np.asarray(given)
            found = f"{counts.dtype} of shape {counts.shape}"
        except ValueError:
            counts, found = np.zeros(0), "lists of different lengths"
        if blocks == 1 and counts.ndim == 1:
            counts = counts[:, None]
        if not c.varies or counts.shape != shape or counts.dtype.kind not in "iu":
            words = f"integers of shape {shape}"
            if not c.varies:
                words = "no counts of parts, which are all equal"
            raise R503.error(
                at=Place(detail=f"counts of {c}"),
                expected=words,
                found=found,
                remedy="Give one row of counts for each rank, of an AllToAllV one count for each "
                "receiver; or leave counts out if all are equal.",
            )
        for extreme in (counts.argmin(), counts.argmax()):
            rank, block = np.unravel_index(int(extreme), shape)
            check_count(c, int(counts[rank, block]), f"rank {rank}", R503)
        counts = counts.astype(np.int64)
        return cls(counts, counts.ravel()[_sources(c)])


def blocks_of(c: Collective, chunks: Any) -> int:
    """The number of blocks of a buffer of every rank, of `chunks` (ranks,) chunks."""
    return -(-int(chunks.max()) // c.chunks)


def check_count(c: Collective, count: int, where: str, rule: Rule) -> None:
    """Refuses a count of a part outside the range that `c` allows. Errors: `rule`."""
    if c.varies and not 0 <= count <= c.max_count:
        raise rule.error(
            at=Place(detail=where),
            expected=f"counts from 0 to {c.max_count}, the max_count of {c}",
            found=f"{count} elements",
            remedy="Give counts in this range, or the collective a larger max_count.",
        )


def places_in(memory: Array, counts: Sequence[int], item_bytes: int) -> list[tuple[int, int]]:
    """The address and the elements of parts that follow one another in memory."""
    address, places = memory.ctypes.data, []
    for count in counts:
        places.append((address, count))
        address += count * item_bytes
    return places


def _sources(c: Collective) -> LongArray:
    """int64 (ranks, blocks): for each block of every rank's output, the row of the input block that
    it receives."""
    first = np.arange(0, len(c.expected), c.chunks)
    value = c.expected[first].astype(np.int64)
    assert (value != NONE).all()  # all output of these collectives is promised
    chunk = c.values.target[c.values.offset[value]].astype(np.int64)
    return (chunk // c.chunks).reshape(c.ranks, -1)
