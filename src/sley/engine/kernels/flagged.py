"""Flagged: the waits that plans with LL and LL128 need in addition to their own.

A message of LL or LL128 orders only its own words: its receiver need not see other writes that its
sender had seen. So if only messages order two conflicting instructions of a rank, for example when
a chunk is sent to another rank and back to another block, the second instruction must wait for the
first. The wait takes no time, since the first has ended by then.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sley.ir.happens_before import hazards
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, IntArray, LongArray, ordered_by
from sley.verification.hangs import run_of
from sley.verification.structure import messages_of


def needed_waits(plan: Plan) -> Edges:
    """The waits of a verified plan, and additional ones between conflicting instructions that
    neither their blocks nor waits order: CSR, instruction -> instructions of the same rank.
    SleyError (V202, V203) for an incorrect plan."""
    level = run_of(plan, messages_of(plan)).level
    first, second, *_ = hazards(plan, level, unordered=True)
    pairs = np.unique(np.stack([first, second], axis=1), axis=0)
    missing = _unordered(plan, level, pairs[:, 0], pairs[:, 1])
    source = np.concatenate([plan.waits.source, [after for _, after in missing]])
    target = np.concatenate([plan.waits.target, [before for before, _ in missing]])
    return Edges.from_pairs(
        len(plan.instructions), source.astype(np.int64), target.astype(np.int64)
    )


def _unordered(
    plan: Plan, level: IntArray, first: LongArray, second: LongArray
) -> list[tuple[int, int]]:
    """The pairs (first, second) that are ordered neither by a plan's blocks, nor by its waits, nor
    by pairs found before.

    Uses vector clocks: for each block, the known progress of every block of the rank.
    """
    waits: dict[int, list[int]] = defaultdict(list)
    conflicting: dict[int, list[int]] = defaultdict(list)
    for after, before in zip(plan.waits.source.tolist(), plan.waits.target.tolist(), strict=True):
        waits[after].append(before)
    for before, after in zip(first.tolist(), second.tolist(), strict=True):
        conflicting[after].append(before)
    rows = np.unique(np.concatenate([plan.waits.source, plan.waits.target, first, second]))
    step, block, number = plan.step, plan.block, plan.block_number
    blocks = np.diff(plan.rank_block)[plan.block_rank]
    clocks: dict[int, IntArray] = {}
    seen: dict[int, IntArray] = {}
    missing = []
    for row in rows[ordered_by(level[rows], rows)].tolist():
        own = int(block[row])
        clock = clocks.setdefault(own, np.full(blocks[own], NONE, np.int32))
        for before in waits[row]:
            np.maximum(clock, seen[before], out=clock)
        # The latest first: it may imply the others.
        for before in sorted(conflicting[row], key=lambda r: -int(level[r])):
            if clock[number[block[before]]] < step[before]:
                missing.append((before, row))
                np.maximum(clock, seen[before], out=clock)
        clock[number[own]] = step[row]
        seen[row] = clock.copy()
    return missing
