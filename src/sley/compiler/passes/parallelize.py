"""Parallelize: transfers cut into instances that run in parallel (MSCCLang 5.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors.compiler import C304
from sley.ir.program import Program, Transfers
from sley.ir.tables import NONE, spans
from sley.ir.words import MAX_NUMBER


def parallelize(program: Program, instances: int = 1) -> Program:
    """The program with each transfer cut into its own instances times `instances`.

    Each chunk is cut into as many finer chunks as the least common multiple of all numbers of
    instances, and part i of a transfer moves the i-th equal part of its range. Part i of lane k
    gets lane k * n + i, where n is the largest number of instances: parts share a lane if both
    their lane and their number are the same.
    Dependencies are derived from the finer chunks afterwards, so they are right even between
    transfers that are cut differently. Errors: C304.
    """
    t = program.transfers
    parts = t.instances.astype(np.int64) * instances
    factor = int(np.lcm.reduce(parts)) if len(parts) else 1
    if factor == 1:
        return program
    if factor > MAX_NUMBER:
        raise C304.error(
            at=program.sources.whole,
            expected=f"instances whose least common multiple is at most {MAX_NUMBER}",
            found=f"{sorted(set(parts.tolist()))}, which cut every chunk into {factor} parts",
        )
    # The factor is a multiple of each number of parts, so that every part is whole chunks.
    row, part = spans(np.zeros(len(t), np.int64), parts)
    count = t.count.astype(np.int64)[row] * factor // parts[row]
    columns = {name: getattr(t, name)[row] for name in Transfers.column_names()}
    columns["src_index"] = columns["src_index"].astype(np.int64) * factor + part * count
    columns["dst_index"] = columns["dst_index"].astype(np.int64) * factor + part * count
    lane = columns["lane"].astype(np.int64) * int(parts.max()) + part
    group = np.where(t.group == NONE, NONE, t.group * int(parts.max()))[row]
    columns["group"] = np.where(group == NONE, NONE, group + part)
    columns |= {"count": count, "lane": lane, "instances": np.ones(len(row))}
    return replace(
        program,
        collective=program.collective.refine(factor),
        transfers=Transfers(**columns),
        scratch_chunks=program.scratch_chunks * factor,
    )
