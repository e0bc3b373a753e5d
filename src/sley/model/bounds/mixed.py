"""Bounds of any other collective, from cuts around natural groups of GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sley.ir.tables import BoolArray, distinct
from sley.model.bounds.cuts import Cuts, RateLimit, sides
from sley.model.bounds.needs import Mixed

WORK = 2**29
"""The largest product of groups and input chunks; groups beyond it are not tried."""


def mixed(cuts: Cuts, needs: Mixed) -> RateLimit:
    """The tightest bound of the simple cuts: the chunks that a group's ranks need and do not have
    must enter it, and those that the other ranks need and only the group has must leave it."""
    return cuts.tightest(_crossings(cuts, needs))


def _crossings(cuts: Cuts, needs: Mixed) -> Iterator[tuple[float, BoolArray, bool]]:
    """The chunks that must enter and leave natural groups of GPUs, as for `Cuts.tightest`."""
    left = WORK
    for level in reversed(cuts.levels):
        for gpus in sides(level, cuts.ranks):
            for inside, inward in ((gpus, True), (~gpus, False)):
                left -= len(needs.inputs) + len(needs.value)
                if left < 0:
                    return
                chunks = entering_chunks(needs, inside[: cuts.ranks])
                if chunks:
                    yield chunks, gpus, inward


def entering_chunks(needs: Mixed, inside: BoolArray) -> int:
    """A lower bound on the number of chunks that the ranks of a set must receive from the others.

    Values whose parts from outside are linearly independent need a message each. Parts with
    different first input chunks are independent, and so are parts with different last ones: in
    sorted order, each has a chunk that the parts after it lack.

    inside: bool (ranks,).
    """
    values = distinct(needs.value[inside[needs.rank]])
    outside = ~inside[needs.owner]
    most = int(needs.inputs.max(initial=0)) + 1
    first = np.minimum.reduceat(np.where(outside, needs.inputs, most), needs.start[:-1])[values]
    last = np.maximum.reduceat(np.where(outside, needs.inputs, -1), needs.start[:-1])[values]
    return max(len(distinct(first[first < most])), len(distinct(last[last >= 0])))
