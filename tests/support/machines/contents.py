"""What transfers leave in memory when they run one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np

from sley.ir.dag import Forwarded
from sley.ir.words import TransferKind


def meaning(found: Forwarded) -> dict[int, Counter[int]]:
    """The contents of each promised cell after the transfers one by one: how often it has each
    input cell."""
    program, t = found.program, found.program.transfers
    memory: dict[int, Counter[int]] = {}
    c, layout = program.collective, program.layout
    for cell in c.input_cells(layout)[np.flatnonzero(c.initial)].tolist():
        memory[cell] = Counter({cell: 1})
    cells = (program.source_cells, program.destination_cells, found.operands.cells(program))
    for row, (source, target, own) in enumerate(zip(*(x.tolist() for x in cells), strict=True)):
        values = [memory[source + k] for k in range(t.count[row])]
        if t.kind[row] == TransferKind.REDUCE:
            values = [value + memory[own + k] for k, value in enumerate(values)]
        memory |= {target + k: value for k, value in enumerate(values)}
    promised = np.flatnonzero(c.promised_cells(layout)).tolist()
    return {cell: memory[cell] for cell in promised}
