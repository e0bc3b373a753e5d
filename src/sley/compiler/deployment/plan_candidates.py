"""Plan candidates: execution plans as MSCCL++ reads them, before any call."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from sley.compiler.deployment.candidates import (
    CandidateFile,
    PlaceSupport,
    prove,
    unused,
    why_unused,
)
from sley.compiler.deployment.consequences import PLAN_CONSEQUENCES
from sley.compiler.deployment.runtimes import Grid, Runtime
from sley.errors import Diagnostic, Place, Rule
from sley.errors.deployment import F508, F515, F516
from sley.formats.mscclpp.header import MAX_SIZE, PlanHeader, read_header
from sley.formats.mscclpp.targets import MSCCLPP
from sley.ir.sizes import SizeRange

_INT_MAX = (1 << 31) - 1

PLANNED = ("allreduce", "allgather", "reducescatter", "broadcast")
"""The collectives for which MSCCL++'s NCCL interface looks for a plan."""


def read_plan(path: Path, runtime: Runtime) -> CandidateFile:
    """An execution plan of MSCCL++. Errors: F506."""
    head = read_header(path)
    grid = Grid(head.ranks) if runtime.names is None else runtime.names[path.name]
    found = CandidateFile(
        path,
        head.collective,
        head.name,
        head.ranks,
        grid,
        PlaceSupport(not head.in_place, head.in_place),
        SizeRange(head.min_bytes, None if head.max_bytes == MAX_SIZE else head.max_bytes),
        _multiple(head),
        faults=tuple(_faults(path, head, grid)),
    )
    reason = _why_unused(found)
    is_hopeless = any(fault.rule is not F508 for fault in found.faults)
    if reason is not None or is_hopeless:
        return replace(found, unused=reason)
    return prove(found, runtime, PLAN_CONSEQUENCES)


def _why_unused(found: CandidateFile) -> Diagnostic | None:
    """Why no call chooses a plan; None if some may."""
    if found.sizes.begin_bytes > _INT_MAX:
        expected = f"min_message_size up to {_INT_MAX}, which MSCCL++ reads as 32 bits"
        return unused(found, expected, "more")
    if found.collective not in PLANNED:
        return unused(found, f"a collective of {', '.join(PLANNED)}", found.collective)
    return why_unused(found)


def _multiple(head: PlanHeader) -> int:
    """The bytes of which the largest buffer of a call must be a multiple, for all ranks."""
    inner = head.ranks if head.collective == "allgather" else 1
    outer = head.ranks if head.collective == "reducescatter" else 1
    parts = (math.lcm(inner * max(one.input, 1), outer * max(one.output, 1)) for one in head.chunks)
    return head.alignment * math.lcm(*parts)


def _faults(path: Path, head: PlanHeader, grid: Grid) -> list[Diagnostic]:
    """What happens to calls that choose a plan, whatever their size is."""
    found: list[Diagnostic] = []

    def add(rule: Rule, expected: str, text: str) -> None:
        found.append(rule.diagnostic(at=Place(str(path)), expected=expected, found=text))

    if grid.ranks != head.ranks:
        add(
            F508,
            f"a plan for {grid}, as the name is registered",
            f"one for {head.ranks} ranks",
        )
    for rank, chunks in enumerate(head.chunks):
        for word, number in (("input_chunks", chunks.input), ("output_chunks", chunks.output)):
            if number == 0 and not any(one.rule is F515 for one in found):
                add(F515, f"{word} of at least 1 on every rank", f"0 on rank {rank}")
    if head.operations > MSCCLPP.operations:
        add(
            F516,
            f"at most {MSCCLPP.operations} operations in a thread block",
            str(head.operations),
        )
    return found
