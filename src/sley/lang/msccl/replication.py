"""Replication: parallel parts of a script's program, as `instances` of MSCCLProgram makes them.

Interleaved parts divide each chunk: part k of every chunk is the k-th piece of it, as
`parallelize` cuts it. Batched parts divide the buffers: part k is the whole program, on the k-th
section of each buffer.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors.language import L133
from sley.ir.collective import Collective as SleyCollective
from sley.ir.collectives import AllReduce, standard, with_results
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE
from sley.lang.msccl.promises import Value


def interleaved(program: Program, instances: int) -> Program:
    """The program with each transfer in `instances` parts."""
    parts = np.full(len(program.transfers), instances)
    return replace(program, transfers=replace(program.transfers, instances=parts))


def batched(program: Program, instances: int) -> Program:
    """The program on each of `instances` sections of all buffers, each section in its own lane.
    Errors: L133."""
    t = program.transfers
    part = np.repeat(np.arange(instances), len(t))
    columns = {name: np.tile(getattr(t, name), instances) for name in Transfers.column_names()}
    size = program.layout.size
    for side in ("src", "dst"):
        section = size[columns[f"{side}_buffer"], columns[side]]
        columns[f"{side}_index"] = columns[f"{side}_index"] + part * section
    columns["lane"] = part
    return replace(
        program,
        collective=_sections(program, instances),
        transfers=Transfers(**columns),
        scratch_chunks=program.scratch_chunks * instances,
    )


def _sections(program: Program, instances: int) -> SleyCollective:
    """The collective whose buffers have `instances` sections, each of which is the program's.
    Errors: L133."""
    c = program.collective
    row = standard(c)
    if row is not None and row.name == "allreduce":
        return AllReduce(c.ranks, c.chunks * instances, c.in_place)
    one_memory = (c.input_chunks == c.output_chunks).all() and not c.input_base.any()
    if row is not None or (c.in_place and not one_memory):
        raise L133.error(
            at=program.sources.whole,
            expected="interleaved parts, or an AllReduce",
            found=f"interleaved_replication=False with {instances} instances of {c.name}",
        )
    rank = np.repeat(np.arange(c.ranks), c.input_chunks)
    first = c.input_offset[rank] * (instances - 1)
    results: list[Value | None] = []
    for r in range(c.ranks):
        for k in range(instances):
            for value in c.expected[c.output_offset[r] : c.output_offset[r + 1]].tolist():
                ids = c.values.target[c.values.offset[value] : c.values.offset[value + 1]]
                # An id counts the input chunks before it. Lower ranks have `instances` times as
                # many of them now, and the rank itself has k sections before this one.
                moved = ids + first[ids] + k * c.input_chunks[rank[ids]]
                results.append(None if value == NONE else tuple(sorted(moved.tolist())))
    starts = np.split(c.initial, c.input_offset[1:-1])
    larger = replace(
        c,
        input_chunks=c.input_chunks * instances,
        output_chunks=c.output_chunks * instances,
        initial=np.concatenate([np.tile(start, instances) for start in starts]),
        expected=np.full(len(results), NONE, np.int32),
    )
    return with_results(larger, results, c.chunks)
