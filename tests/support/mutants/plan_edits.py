"""Edits of plans, for tests that damage them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from sley.ir.plan import Instructions, Plan
from sley.ir.tables import NONE, Edges


def with_columns(plan: Plan, row: int, **values: int) -> Plan:
    """The plan with columns of one instruction changed."""
    columns = {name: getattr(plan.instructions, name) for name in Instructions.column_names()}
    for name, value in values.items():
        columns[name] = columns[name].copy()
        columns[name][row] = value
    return replace(plan, instructions=Instructions(**columns))


def as_nop(plan: Plan, row: int) -> Plan:
    """The plan with an instruction replaced by a nop that keeps its waits."""
    return with_columns(plan, row, op=0, count=0, send_peer=NONE, recv_peer=NONE, channel=NONE)


def with_waits(plan: Plan, pairs: Iterable[tuple[int, int]]) -> Plan:
    """The plan with these waits: (instruction, instruction that it waits for)."""
    rows = np.array(sorted(pairs), np.int64).reshape(-1, 2)
    waits = Edges.from_pairs(len(plan.instructions), rows[:, 0], rows[:, 1])
    return replace(plan, waits=waits)


def wait_pairs(plan: Plan) -> list[tuple[int, int]]:
    """The waits of a plan: (instruction, instruction that it waits for)."""
    return list(zip(plan.waits.source.tolist(), plan.waits.target.tolist(), strict=True))


def swapped(plan: Plan, one: int, other: int) -> Plan:
    """The plan with two instructions and their waits exchanged."""
    order = np.arange(len(plan.instructions))
    order[[one, other]] = other, one
    columns = {n: getattr(plan.instructions, n)[order] for n in Instructions.column_names()}
    moved = replace(plan, instructions=Instructions(**columns))
    return with_waits(moved, [(int(order[a]), int(order[b])) for a, b in wait_pairs(plan)])


def moved_to_block(plan: Plan, row: int, block: int, step: int) -> Plan:
    """The plan with an instruction moved into another block of its rank, as step `step`."""
    rows = list(range(len(plan.instructions)))
    rows.remove(row)
    start = int(plan.block_offset[block])
    at = start + step - (1 if row < start else 0)
    rows.insert(at, row)
    order = np.array(rows)
    position = np.argsort(order)
    columns = {n: getattr(plan.instructions, n)[order] for n in Instructions.column_names()}
    sizes = np.diff(plan.block_offset)
    sizes[plan.block[row]] -= 1
    sizes[block] += 1
    moved = replace(
        plan,
        instructions=Instructions(**columns),
        block_offset=np.concatenate([[0], np.cumsum(sizes)]),
    )
    pairs = [(int(position[a]), int(position[b])) for a, b in wait_pairs(plan)]
    return with_waits(moved, pairs)
