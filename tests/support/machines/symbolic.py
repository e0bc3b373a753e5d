"""A machine on symbolic values: one instruction after another, in an order that the plan allows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.words import READS_SOURCE, RECEIVES, SENDS, WRITES_DESTINATION, Op
from sley.verification.hangs import run_of

V = TypeVar("V")


def _as_it_is(value: V, row: int, is_source: bool) -> V:
    return value


def run(
    plan: Plan,
    input_of: Callable[[int], V],
    combined: Callable[[V, V], V],
    read: Callable[[V, int, bool], V] = _as_it_is,
) -> list[V | None]:
    """What every output chunk holds after a call; None for nothing.

    input_of: the value of an input chunk. read: what an instruction makes of a value that it reads
    at its source, or at its destination.
    """
    t, c, messages = plan.instructions, plan.collective, Messages.of(plan)
    cells = {
        int(c.input_cells(plan.layout)[chunk]): input_of(chunk)
        for chunk in np.flatnonzero(c.initial).tolist()
    }
    channels = defaultdict[int, deque[list[V]]](deque)
    for row in np.argsort(run_of(plan, messages).level, kind="stable").tolist():
        op, numbers, at = int(t.op[row]), range(int(t.count[row])), np.array([row])
        src, dst = (int(of(at)[0]) for of in (plan.source_cells, plan.destination_cells))
        made = [read(cells[src + k], row, True) for k in numbers if READS_SOURCE[op]]
        if RECEIVES[op] or op == Op.REDUCE:
            other = (
                [read(cells[dst + k], row, False) for k in numbers]
                if op == Op.REDUCE
                else channels[int(messages.send_of[row])].popleft()
            )
            made = [combined(a, b) for a, b in zip(made, other, strict=True)] if made else other
        for k in numbers if WRITES_DESTINATION[op] else ():
            cells[dst + k] = made[k]
        if SENDS[op]:
            channels[row].append(made)
    return [cells.get(cell) for cell in c.output_cells(plan.layout).tolist()]
