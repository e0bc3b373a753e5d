"""Leaving nops out of a plan, exactly: in MSCCL XML a nop can only pass its wait on.

The runtimes don't run nops: they give a nop's wait to the step that follows, and publish nothing
for the nop itself. So a wait of a nop becomes one of the instruction that follows it in the block,
and who waits for a nop waits for what the nop had to wait for: the instruction before it in its
block, and the nop's own waits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors.formats import F452
from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, Edges, offsets_of
from sley.ir.words import Op


def without_nops(plan: Plan) -> Plan:
    """`plan` without nops, and without waits for earlier instructions of the same block, which
    hold anyway; it means the same. Raises F452 for nops that wait in a cycle."""
    nop = plan.instructions.op == Op.NOP
    own = plan.block[plan.waits.source] == plan.block[plan.waits.target]
    if not nop.any() and not own.any():
        return plan
    finished = _Finished(plan, nop)
    follower = _followers(plan, nop)
    pairs: list[tuple[int, int]] = []
    for source, target in zip(
        follower[plan.waits.source].tolist(), plan.waits.target.tolist(), strict=True
    ):
        if source == NONE:
            continue
        rows = finished.rows(target) if nop[target] else [target]
        pairs += [
            (source, row) for row in rows if plan.block[row] != plan.block[source] or row >= source
        ]
    kept = np.flatnonzero(~nop)
    new_row = np.cumsum(~nop) - 1
    source_rows, target_rows = np.array(pairs, np.int64).reshape(-1, 2).T
    t = plan.instructions
    return replace(
        plan,
        instructions=Instructions(**{name: getattr(t, name)[kept] for name in t.column_names()}),
        block_offset=offsets_of(np.bincount(plan.block[kept], minlength=len(plan.block_rank))),
        waits=Edges.from_pairs(len(kept), new_row[source_rows], new_row[target_rows]),
    )


def _followers(plan: Plan, nop: np.ndarray) -> np.ndarray:
    """int64: each row that is no nop; for a nop the next such row of its block, or NONE."""
    kept = np.flatnonzero(~nop)
    row = np.append(kept, NONE)[np.searchsorted(kept, np.arange(len(nop)))]
    same_block = (row != NONE) & (plan.block[row] == plan.block)
    return np.where(same_block, row, NONE)


class _Finished:
    """For each nop, the other instructions that have finished exactly when the nop has."""

    def __init__(self, plan: Plan, nop: np.ndarray) -> None:
        self._plan = plan
        self._nop = nop
        self._known: dict[int, list[int]] = {}

    def rows(self, nop: int) -> list[int]:
        """The rows of those instructions, ascending."""
        if nop not in self._known:
            self._known[nop] = self._search(nop)
        return self._known[nop]

    def _search(self, nop: int) -> list[int]:
        rows: set[int] = set()
        seen: set[int] = set()
        stack = self._before(nop)
        while stack:
            row = stack.pop()
            if not self._nop[row]:
                rows.add(row)
            elif row == nop:
                raise F452.error(
                    at=self._plan.place(nop),
                    expected="nops whose waits form no cycle",
                    found="a nop that waits, by way of others, for itself",
                )
            elif row not in seen:
                seen.add(row)
                stack += self._before(row)
        return sorted(rows)

    def _before(self, row: int) -> list[int]:
        """What must have finished for the nop `row` to finish."""
        first = row == self._plan.block_offset[self._plan.block[row]]
        waits: list[int] = self._plan.waits[row].tolist()
        return waits if first else [*waits, row - 1]
