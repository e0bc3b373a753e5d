"""Cutting: the parts of a chunk that blocks with tbg_info and iterations of pipelines move.

The executor cuts ranges in units of buffer_alignment (MSCCL++, by reading): part g of k
begins at unit g * (n // k) + min(g, n % k) of the range's n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sley.errors.formats import F403, F422
from sley.formats.mscclpp.raw import RawOperation, RawPlan
from sley.formats.mscclpp.targets import PlanTarget
from sley.formats.mscclpp.words import MOVES
from sley.formats.problems import Problems
from sley.ir.words import MAX_NUMBER


@dataclass(frozen=True)
class Cutting:
    """How the chunks of a plan are cut in a modelled call.

    parts: parts of a chunk.
    chunk_bytes: the size of a chunk if the plan has pipelines, otherwise 0.
    least_bytes: the least size of a chunk.
    multiple_bytes: a chunk's size is a multiple of it.
    most_bytes: the largest size of a chunk, or 0 if any is possible.
    """

    parts: int
    chunk_bytes: int
    least_bytes: int
    multiple_bytes: int
    most_bytes: int

    def iterations(self, pipeline: RawOperation) -> int:
        """The iterations of a pipeline in the modelled call."""
        return pipeline.chunks * self.chunk_bytes // pipeline.unit_bytes


def cut(raw: RawPlan, units: int, target: PlanTarget) -> Cutting:
    """The cutting for chunks of `units` units of the pipelines. Errors: F403, F422."""
    shared = [
        (item.size, one.op.shares)
        for one in raw.operations
        if one.op.name in MOVES and one.pipeline is None
        for item in one.op.sources + one.op.destinations
        if item.size % one.op.shares
    ]
    parts = 1
    for size, shares in set(shared):
        parts = math.lcm(parts, shares // math.gcd(shares, size))
        _check_parts(raw, parts)
    alignment = raw.alignment
    pipelines = [one.op for one in raw.operations if one.op.unit_bytes]
    if not pipelines:
        # The parts of single chunks, cut by one number of blocks, are the same parts everywhere.
        exact = len({shares for _, shares in shared}) <= 1 and all(size == 1 for size, _ in shared)
        multiple = alignment if exact else parts * alignment
        return Cutting(parts, 0, parts * alignment, multiple, 0)
    sizes = {pipeline.unit_bytes for pipeline in pipelines}
    ones = all(pipeline.chunks == 1 for pipeline in pipelines)
    if len(sizes) == 1 and ones and parts == 1:
        (unit,) = sizes
        found = Cutting(units, units * unit, (units - 1) * unit + 1, alignment, units * unit)
    else:
        chunk = units * math.lcm(*sizes, parts * alignment)
        parts = math.lcm(parts, chunk // math.gcd(*sizes, chunk))
        found = Cutting(parts, chunk, chunk, chunk, chunk)
    _check_parts(raw, found.parts)
    _check_iterations(raw, found, target)
    return found


def _check_parts(raw: RawPlan, parts: int) -> None:
    if parts > MAX_NUMBER:
        raise F403.error(
            at=raw.whole,
            expected=f"chunks cut into at most {MAX_NUMBER} parts, by tbg_size and unit_size",
            found=str(parts),
        )


def _check_iterations(raw: RawPlan, cutting: Cutting, target: PlanTarget) -> None:
    problems, limit = Problems(), target.iterations
    for one in raw.operations:
        if one.op.unit_bytes and (found := cutting.iterations(one.op)) > limit:
            expected = f"at most {limit} iterations of a pipeline"
            problems.add(F422, one.at, expected, str(found))
            problems.raise_full()
    problems.raise_any()
