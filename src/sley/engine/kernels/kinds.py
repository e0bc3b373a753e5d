"""Kinds: thread blocks that run the same code.

Blocks are of one kind if their instructions differ only in the numbers of chunks, other blocks and
steps. These numbers become formulas of the rank, or tables, so that the size of the code grows with
the distinct blocks of a plan, not with ranks times blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.engine.kernels.operands import Operands
from sley.ir.tables import NONE, IntArray, frozen_array


@dataclass(frozen=True)
class Kinds:
    """The kinds of a plan's blocks.

    kind: int32 (blocks,), each block's kind, NONE for a block without instructions. member: int32
    (blocks,), its number within its kind. members: for each kind its blocks, ascending.
    """

    kind: IntArray
    member: IntArray
    members: tuple[IntArray, ...]


def kinds(operands: Operands) -> Kinds:
    """The kinds of the blocks, in the order of their first blocks."""
    plan = operands.plan
    structure = _structure(operands)
    conditions = operands.conditions
    kind = np.full(len(plan.block_rank), NONE, np.int32)
    member = np.zeros(len(plan.block_rank), np.int32)
    found: dict[bytes, list[int]] = {}
    for block in range(len(plan.block_rank)):
        first, last = int(plan.block_offset[block]), int(plan.block_offset[block + 1])
        if first == last:
            continue
        held = slice(int(conditions.offset[first]), int(conditions.offset[last]))
        key = structure[first:last].tobytes() + conditions.held[held].tobytes()
        same = found.setdefault(key, [])
        member[block] = len(same)
        same.append(block)
    for number, blocks in enumerate(found.values()):
        kind[blocks] = number
    return Kinds(
        frozen_array(kind, np.int32),
        frozen_array(member, np.int32),
        tuple(frozen_array(blocks, np.int32) for blocks in found.values()),
    )


def _structure(operands: Operands) -> NDArray[np.int32]:
    """int32 (instructions, columns): the columns that are equal in blocks of one kind."""
    o, t = operands, operands.plan.instructions
    columns: list[NDArray[Any]] = [
        t.op,
        t.count,
        o.src.memory,
        o.dst.memory,
        o.pulled.memory,
        o.stays,
        o.posts,
        o.averages.by_instruction,
        o.runs.length,
        o.runs.first,
        o.runs.second,
        o.runs.kept,
    ]
    for ends in (o.sends, o.receives):
        columns += [ends.peer, ends.members, ends.message]
    columns += [np.diff(o.conditions.offset), t.pipeline]
    return np.stack(columns, axis=1).astype(np.int32)
