"""Conditions: the circumstances under which MSCCL++ 0.9.0 executes a plan as it was read."""

from __future__ import annotations

from collections.abc import Iterator

from sley.errors import counted
from sley.formats.mscclpp.accesses import accesses_of, all_operations
from sley.formats.mscclpp.cutting import Cutting
from sley.formats.mscclpp.header import MAX_SIZE
from sley.formats.mscclpp.raw import RawPlan
from sley.formats.mscclpp.targets import PlanTarget
from sley.formats.mscclpp.words import GET, MOVES, PORT, REDUCTIONS, Operand
from sley.ir.conditions import Condition
from sley.ir.sizes import sizes_text
from sley.ir.words import Buffer


def conditions(raw: RawPlan, cutting: Cutting, target: PlanTarget) -> tuple[Condition, ...]:
    """The conditions of a file: about sizes, buffers and calls."""
    about_buffers = sorted(set(_about_buffers(raw)))
    return tuple(
        Condition(about, text)
        for about, texts in (
            ("sizes", list(_about_sizes(raw, cutting, target))),
            ("buffers", about_buffers),
            ("calls", list(_about_calls(raw))),
        )
        for text in texts
    )


def _about_sizes(raw: RawPlan, cutting: Cutting, target: PlanTarget) -> Iterator[str]:
    least, most, multiple = cutting.least_bytes, cutting.most_bytes, cutting.multiple_bytes
    shared = _most_with_shared_scratch(raw, target)
    if shared is not None and (not most or shared < most):
        most = shared
    if most and least == most:
        yield f"chunks of {most} bytes"
    else:
        least = -(-least // multiple) * multiple
        span = f", {sizes_text(least, most or None)}" if most or least > multiple else ""
        yield f"chunks of a multiple of {multiple} bytes{span}"
    if raw.min_bytes or raw.max_bytes < MAX_SIZE:
        side = "an output" if raw.collective == "allgather" else "an input"
        end = raw.max_bytes if raw.max_bytes < MAX_SIZE else None
        yield f"{side} of {sizes_text(raw.min_bytes, end)}"
    yield "allocations of less than 4 GiB"


def _most_with_shared_scratch(raw: RawPlan, target: PlanTarget) -> int | None:
    """The largest chunk for which a plan with reuse_resources keeps its chunks of scratch apart,
    also in the iterations of its pipelines; None without a limit."""
    most = max(gpu.scratch_chunks for gpu in raw.gpus)
    if not raw.reuses or not most:
        return None
    room = target.shared_scratch_bytes // (2 if raw.doubles else 1) // most
    longest = max((op.chunks for *_, op in all_operations(raw) if op.unit_bytes), default=1)
    return room // longest // raw.alignment * raw.alignment


def _about_buffers(raw: RawPlan) -> Iterator[str]:
    seen: set[tuple[str, Operand, Buffer]] = set()
    for rank, number, op in all_operations(raw):
        gpu = raw.gpus[rank]
        for access in accesses_of(gpu, rank, gpu.blocks[number], op):
            pushes = op.channel_type == PORT and bool(MOVES[op.name].channels)
            case = ("push" if pushes else op.name, access.kind, access.buffer)
            if case in seen or access.buffer == Buffer.SCRATCH:
                continue
            seen.add(case)
            name = f"the {access.buffer.name.lower()}"
            local = access.kind in (Operand.LOCAL, Operand.LOCAL_PACKETS)
            if local and not pushes:
                continue
            if raw.reuses:
                yield f"{name} at the same place in all calls"
            if local or op.name == GET:
                yield f"{name} at the start of its allocation"
            else:
                yield f"{name} at the same offset of its allocation on all ranks"


def _about_calls(raw: RawPlan) -> Iterator[str]:
    if any(op.name in REDUCTIONS for *_, op in all_operations(raw)):
        yield "sum"
    packets = any(
        operand.packet
        for *_, op in all_operations(raw)
        if op.name in MOVES
        for operand in (*MOVES[op.name].sources, *MOVES[op.name].destinations)
    )
    if packets or raw.doubles:
        yield "all ranks execute the same plans in the same order"
    scratch = any(gpu.scratch_chunks for gpu in raw.gpus)
    if raw.doubles and scratch:
        same = "" if raw.reuses else " with the same buffers"
        yield f"between two calls{same} no other execution, or one in which all ranks meet"
    if raw.reuses and scratch:
        yield "no execution of another plan with reuse_resources"
    blocks = max(len(gpu.blocks) for gpu in raw.gpus)
    if blocks > 1:
        # Blocks wait for one another, and the executor's launch is not a cooperative one.
        yield f"GPUs that run {blocks} blocks of {counted(raw.threads, 'thread')} at once"
