"""Bins: sums of executions over intervals of time, for timelines with too many to draw each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sley.ir.tables import FloatArray, LongArray
from sley.model.simulation.result import Cause, Simulation, TileExecutions

MOST_EXECUTIONS = 20_000
"""The most executions that a timeline draws one by one; more are summed in bins of time."""


def block_bins(
    s: Simulation, e: TileExecutions, row: NDArray[np.integer], bins: int
) -> tuple[FloatArray, FloatArray, LongArray]:
    """The share of each bin that thread blocks spend moving data, and waiting.

    row: integer (blocks,), the row of the picture for each thread block, negative for none; a row
        of several blocks shows their average.
    bins: number of bins from the call to the end.
    Returns moving and waiting, float64 (rows, bins), and the cause of the longest waits, int64
    (rows, bins).
    """
    rows = int(row.max(initial=-1)) + 1
    of = row[s.plan.block[e.instruction]].astype(np.int64)
    shown = of >= 0
    width = s.time_us / bins
    moving = _spread(of[shown], e.start_us[shown], e.end_us[shown], rows, bins, width)
    waits = np.stack(
        [
            _spread(of[m], e.turn_us[m], e.start_us[m], rows, bins, width)
            for m in (shown & (e.cause == c) for c in Cause)
        ]
    )
    blocks = np.bincount(row[row >= 0], minlength=rows)[:, None] * width
    part = np.maximum(blocks, 1e-12)
    return moving / part, waits.sum(axis=0) / part, waits.argmax(axis=0)


def _spread(
    row: LongArray, start_us: FloatArray, end_us: FloatArray, rows: int, bins: int, width: float
) -> FloatArray:
    """float64 (rows, bins): the total length of each row's intervals within each bin."""
    # The length before a time t is the sum of max(0, t - start) - max(0, t - end). Both terms are
    # ramps, which begin in one bin and have their full slope in all later bins.
    total = np.zeros((rows, bins))
    for time_us, sign in ((start_us, 1.0), (end_us, -1.0)):
        at = np.clip(np.floor(time_us / width).astype(np.int64), 0, bins - 1)
        begun = np.clip((at + 1) * width - time_us, 0, width)
        key = row * bins + at
        first = np.bincount(key, begun, rows * bins).reshape(rows, bins)
        slope = np.bincount(key, minlength=rows * bins).reshape(rows, bins) * width
        later = np.zeros((rows, bins))
        later[:, 1:] = np.cumsum(slope, axis=1)[:, :-1]
        total += sign * (first + later)
    return np.clip(total, 0, None)
