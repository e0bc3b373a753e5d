"""Programs of scripts for msccl-tools: their plans, run on random numbers."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

import sley
from sley.ir.plan import Plan
from sley.ir.tables import NONE
from sley.lang import msccl
from support.processes.rank_threads import execute

ELEMENTS = 6
"""Elements of a chunk."""


def plan_of(script: msccl.ScriptProgram) -> Plan:
    """The proven plan of a script's program."""
    return sley.compile(script.program, fusion=script.fusion)


def count_wrong(plan: Plan) -> int:
    """Runs a plan on the CPU engine, on random numbers; returns the number of elements of the
    output that the collective doesn't promise."""
    c = plan.collective
    numbers = np.random.default_rng(len(plan.instructions))
    chunks = numbers.integers(-99, 99, (int(c.input_offset[-1]), ELEMENTS))
    inputs = []
    for rank, (first, last) in enumerate(pairwise(c.input_offset.tolist())):
        data = np.zeros(((c.data_chunks if c.in_place else c.input_chunks)[rank], ELEMENTS), int)
        base = int(c.input_base[rank])
        data[base : base + last - first] = chunks[first:last]
        inputs.append(data.ravel())
    outputs = np.concatenate(execute(plan, inputs)).reshape(-1, ELEMENTS)
    wrong = 0
    for value, found in zip(c.expected.tolist(), outputs, strict=True):
        if value != NONE:
            ids = c.values.target[c.values.offset[value] : c.values.offset[value + 1]]
            wrong += int(np.count_nonzero(found != chunks[ids].sum(axis=0)))
    return wrong
