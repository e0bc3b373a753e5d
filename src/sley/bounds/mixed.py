"""Bounds of collectives of any kind, from cuts around natural groups of GPUs."""

from __future__ import annotations

import numpy as np

from sley.bounds.cuts import Cuts, Limit, best, sides
from sley.bounds.needs import Mixed
from sley.ir.tables import BoolArray

WORK = 2**29
"""Groups times input chunks of values: beyond, the rest of the groups is left out."""


def mixed(cuts: Cuts, needs: Mixed) -> Limit:
    """The best bound of simple cuts: what the ranks of a group need and don't have must enter,
    and what the others need and only the group has must leave."""
    limits: list[Limit] = []
    left = WORK
    for level in reversed(cuts.levels):
        for gpus in sides(level, cuts.ranks):
            for inside, inward in ((gpus, True), (~gpus, False)):
                left -= len(needs.inputs) + len(needs.value)
                if left < 0:
                    return best(limits)
                chunks = entering(needs, inside[: cuts.ranks])
                if chunks:
                    limits.append(cuts.limit(chunks, gpus, into=inward))
    return best(limits)


def entering(needs: Mixed, inside: BoolArray) -> int:
    """How many chunks at least must come to the ranks of a set from the others.

    Values whose parts from outside are linearly independent need a message each. Of those parts
    we know as independent the ones with different first input chunks, or with different last
    ones: put in order, each has a chunk that those after it haven't.

    inside: bool (ranks,).
    """
    values = np.unique(needs.value[inside[needs.rank]])
    outside = ~inside[needs.owner]
    most = int(needs.inputs.max(initial=0)) + 1
    first = np.minimum.reduceat(np.where(outside, needs.inputs, most), needs.start[:-1])[values]
    last = np.maximum.reduceat(np.where(outside, needs.inputs, -1), needs.start[:-1])[values]
    return max(len(np.unique(first[first < most])), len(np.unique(last[last >= 0])))
