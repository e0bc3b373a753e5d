"""Transmissions: what the targets' parsers make of the steps of a file, and how their kernels wait.

The parsers drop nops, and give their waits to the next transmission of the block. They merge re
steps into one transmission. The kernels number transmissions anew, and a block announces the number
of a transmission with hasdep="1" when it has finished it; a wait ends when the block that it names
has announced its number or a greater one, in the same tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sley.formats.msccl_xml.raw import RawFile
from sley.ir.tables import NONE, BoolArray, LongArray
from sley.ir.words import Op


@dataclass(frozen=True, eq=False)
class Transmissions:
    """The transmissions of a file, block after block.

    rows: the steps that are no nops; group: (rows,), the transmission of each.
    first, last: (transmissions,), the first and the last step of each.
    size, waits: (transmissions,), the number of steps and of waits of each.
    block: (transmissions,), the block of each. number: its number in the kernels.
    announced: whether its block announces it.
    dependency: the steps whose waits count; owner: (dependencies,), the transmission that waits.
    dropped: (steps,), whether the step is a nop without effect.
    """

    rows: LongArray
    group: LongArray
    first: LongArray
    last: LongArray
    size: LongArray
    waits: LongArray
    block: LongArray
    number: LongArray
    announced: BoolArray
    dependency: LongArray
    owner: LongArray
    dropped: BoolArray


def transmissions_of(raw: RawFile, reduce_run: int) -> Transmissions:
    """The transmissions of a file whose blocks have their steps in order.

    reduce_run: the number of a block's reductions after which the parser ends a run.
    """
    ops, block = raw.steps["type"], raw.steps["tb"]
    rows = np.flatnonzero(ops != Op.NOP)
    starts = ~_continues(raw, rows, reduce_run)
    group = np.cumsum(starts) - 1
    first = rows[starts]
    last = rows[np.append(np.flatnonzero(starts)[1:], len(rows)) - 1] if len(rows) else first
    waiting = np.flatnonzero(raw.steps["depid"] != NONE)
    owner = np.searchsorted(first, waiting)
    attached = owner < len(first)
    attached[attached] = block[first[owner[attached]]] == block[waiting[attached]]
    dependency, owner = waiting[attached], owner[attached]
    dropped = ops == Op.NOP
    dropped[dependency] = False
    waits = np.bincount(owner, minlength=len(first))
    size = np.bincount(group, minlength=len(first))
    steps = np.maximum(waits, 1) + size - 1
    return Transmissions(
        rows=rows,
        group=group,
        first=first,
        last=last,
        size=size,
        waits=waits,
        block=block[first],
        number=_ends(block[first], steps) - 1,
        announced=raw.steps["hasdep"][last] == 1,
        dependency=dependency,
        owner=owner,
        dropped=dropped,
    )


def announcements(raw: RawFile, found: Transmissions) -> LongArray:
    """int64 (dependencies,): the transmission whose announcement ends each wait, or NONE.

    The waits must name blocks and steps that exist.
    """
    gpu, ids = raw.blocks["gpu"], raw.blocks["id"]
    by_id = np.lexsort((ids, gpu))
    start = np.searchsorted(gpu[by_id], np.arange(len(raw.gpus)))
    own = gpu[raw.steps["tb"][found.dependency]]
    named = by_id[start[own] + raw.steps["depid"][found.dependency]]
    goal = raw.steps["deps"][found.dependency]
    announcing = np.flatnonzero(found.announced)
    # Numbers ascend within a block, and blocks ascend, so the keys are sorted.
    scale = int(max(found.number.max(initial=0), goal.max(initial=0))) + 1
    keys = found.block[announcing] * scale + found.number[announcing]
    at = np.searchsorted(keys, named * scale + goal)
    result = np.full(len(goal), NONE, np.int64)
    inside = at < len(announcing)
    inside[inside] = found.block[announcing[at[inside]]] == named[inside]
    result[inside] = announcing[at[inside]]
    return result


def _continues(raw: RawFile, rows: LongArray, reduce_run: int) -> BoolArray:
    """Whether each of `rows` is merged into the step before it."""
    block = raw.steps["tb"][rows]
    reduces = raw.steps["type"][rows] == Op.REDUCE
    joins = np.zeros(len(rows), np.bool_)
    joins[1:] = reduces[1:] & reduces[:-1] & (block[1:] == block[:-1])
    for name in ("dstbuf", "dstoff", "srcbuf"):
        column = raw.steps[name][rows]
        joins[1:] &= column[1:] == column[:-1]
    joins &= raw.steps["depid"][rows] == NONE
    joins[1:] &= raw.steps["hasdep"][rows[:-1]] == 0
    joins[1:] &= _ends(block, reduces.astype(np.int64))[:-1] != reduce_run
    return joins


def _ends(group: LongArray, amounts: LongArray) -> LongArray:
    """Sums of `amounts` up to and with each row, within consecutive rows of one group."""
    total = np.cumsum(amounts)
    starts = np.flatnonzero(np.diff(group, prepend=NONE) != 0)
    before = total[starts] - amounts[starts]
    return total - np.repeat(before, np.diff(np.append(starts, len(group))))
