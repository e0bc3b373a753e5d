"""Flagged: the waits that plans with LL and LL128 need in addition to their own.

A message of LL or LL128 orders only its own words: its receiver need not see other writes that its
sender had seen. So if only messages order two conflicting instructions of a rank, for example when
a chunk is sent to another rank and back to another block, the second instruction must wait for the
first. The wait takes no time, since the first has ended by then.
"""

from __future__ import annotations

import numpy as np

from sley.ir.happens_before import hazards
from sley.ir.plan import Plan
from sley.ir.tables import NONE, Edges, IntArray, distinct, kept, ordered_by
from sley.ir.words import Protocol
from sley.verification.hangs import run_of
from sley.verification.verifier import messages_of


def kernel_waits(plan: Plan) -> Edges:
    """The waits with which kernels execute a verified plan. Errors: as `needed_waits`."""
    return needed_waits(plan) if plan.protocol in (Protocol.LL, Protocol.LL128) else plan.waits


@kept
def needed_waits(plan: Plan) -> Edges:
    """The waits of a verified plan, and additional ones between conflicting instructions that
    neither their blocks nor waits order: CSR, instruction -> instructions of the same rank.
    SleyError (V202, V203) for an incorrect plan."""
    level = run_of(plan, messages_of(plan)).level
    first, second, *_ = hazards(plan, level, unordered=True)
    conflicts = Edges.from_pairs(len(plan.instructions), second, first)
    missing = _unordered(plan, level, conflicts)
    source = np.concatenate([plan.waits.source, [after for _, after in missing]])
    target = np.concatenate([plan.waits.target, [before for before, _ in missing]])
    return Edges.from_pairs(
        len(plan.instructions), source.astype(np.int64), target.astype(np.int64)
    )


def _unordered(plan: Plan, level: IntArray, conflicts: Edges) -> list[tuple[int, int]]:
    """The pairs (first, second) of `conflicts`, second -> first, that are ordered neither by a
    plan's blocks, nor by its waits, nor by pairs found before.

    Uses vector clocks: for each block, the known progress of every block of the rank.
    """
    ends = [end for edges in (plan.waits, conflicts) for end in (edges.source, edges.target)]
    rows = distinct(np.concatenate(ends))
    step, block, number = plan.step, plan.block, plan.block_number
    blocks = np.diff(plan.rank_block)[plan.block_rank]
    clocks: dict[int, IntArray] = {}
    seen: dict[int, IntArray] = {}
    missing = []
    for row in rows[ordered_by(level[rows], rows)].tolist():
        own = int(block[row])
        clock = clocks.setdefault(own, np.full(blocks[own], NONE, np.int32))
        for before in plan.waits[row].tolist():
            np.maximum(clock, seen[before], out=clock)
        # The latest first: it may imply the others.
        for before in sorted(conflicts[row].tolist(), key=lambda r: -int(level[r])):
            if clock[number[block[before]]] < step[before]:
                missing.append((before, row))
                np.maximum(clock, seen[before], out=clock)
        clock[number[own]] = step[row]
        seen[row] = clock.copy()
    return missing
