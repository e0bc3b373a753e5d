"""Parallelize: cuts transfers into instances that run side by side (MSCCLang 5.1)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sley.errors.compiler import C304
from sley.ir.program import Program, Transfers
from sley.ir.words import MAX_NUMBER


def parallelize(program: Program, instances: int = 1) -> Program:
    """The program with every transfer cut into its instances, times `instances`.

    All chunks are cut finer, by the least common multiple of the numbers of instances, and part i
    of a transfer moves the i-th equal part of its range. Dependencies are taken from the finer
    chunks afterwards, so parts of transfers with different counts or instances, which cover
    different pieces of memory, still wait for one another where they must. `lane` says which part
    a transfer is.
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
    row = np.repeat(np.arange(len(t)), parts)
    lane = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    count = t.count.astype(np.int64)[row] * factor // parts[row]
    columns = {name: getattr(t, name)[row] for name in Transfers.column_names()}
    columns["src_index"] = columns["src_index"].astype(np.int64) * factor + lane * count
    columns["dst_index"] = columns["dst_index"].astype(np.int64) * factor + lane * count
    columns |= {"count": count, "lane": lane, "instances": np.ones(len(row))}
    return replace(
        program,
        collective=program.collective.refined(factor),
        transfers=Transfers(**columns),
        scratch_chunks=program.scratch_chunks * factor,
    )
