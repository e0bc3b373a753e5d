"""Reader: the OneSidedPlan of an execution plan's file."""

from __future__ import annotations

import os
from dataclasses import replace

from sley.errors import Diagnostic, counted
from sley.errors.formats import F403, F409, F411, F424, F432, F434, F463
from sley.formats.format import (
    Execution,
    Executions,
    Imported,
    Target,
    root_conditions,
    target_among,
)
from sley.formats.mscclpp.checks import check
from sley.formats.mscclpp.conditions import conditions, own_chunks
from sley.formats.mscclpp.lowering import Cutting, cut, lower
from sley.formats.mscclpp.parse import ignored_notes, parse
from sley.formats.mscclpp.raw import RawPlan, place_of
from sley.formats.mscclpp.targets import MSCCLPP, TARGETS, PlanTarget
from sley.formats.mscclpp.words import COLLECTIVES, CUSTOM, FLUSH, PORT
from sley.ir.collective import Collective
from sley.ir.collectives import SIZED, STANDARD
from sley.ir.conditions import contradiction
from sley.ir.one_sided import OneSidedPlan

MAX_CHUNKS = 1 << 22
"""Limit of the chunks of all ranks together, scratch included, in parts."""

MAX_BLOCKS = 6000
"""Limit of the blocks and port channels of all ranks together: the verifier compares all of them
with one another."""

MODELLED_UNITS = 3
"""The number of sizes of chunks, in units of its pipelines, for which a plan is proven: the first
ones in its range of sizes."""


def read(
    source: str | os.PathLike[str],
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    file: str | None = None,
    units: int = 1,
) -> Imported:
    """The plan of an execution plan's file (a path, or its text), as the newest version of MSCCL++
    executes it, with remarks on the file and its size range.

    collective: the algorithm's collective, instead of the file's; required for "custom".
    in_place: whether the algorithm is in place, by default as the file says.
    root: the root of a rooted collective, by default 0.
    file: the file's name in messages.
    units: the size of a chunk in units of the plan's pipelines.
    Errors: F403, F404, F409, F424, F463, F470 to F496.
    """
    target = MSCCLPP
    raw, notes, collective = _read(source, target, collective, in_place, root, file)
    cutting = cut(raw, units, target)
    _check_calls(raw, collective, cutting)
    plan = _plan_of(raw, collective, cutting, target)
    return Imported(plan, notes, raw.min_bytes, raw.max_bytes)


def executions(
    source: str | os.PathLike[str] | RawPlan,
    target: str | Target,
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    file: str | None = None,
) -> Executions:
    """What a target executes of a file, or of a raw plan: one plan, or with pipelines one for each
    of the first MODELLED_UNITS sizes of chunks that calls can have.

    The settings and errors are those of `read`, and F440.
    """
    target = target_among(TARGETS, target, PlanTarget)
    raw, notes, collective = _read(source, target, collective, in_place, root, file)
    least = cut(raw, 1, target)
    _check_calls(raw, collective, least)
    units = [1]
    if least.chunk_bytes:
        chunk_bytes = -(-raw.min_bytes // own_chunks(raw, collective))
        first = max(-(-chunk_bytes // least.most_bytes), 1)
        units = list(range(first, first + MODELLED_UNITS))
    about_root = root_conditions(collective, target)
    cuttings = [cut(raw, number, target) for number in units]
    holds = [conditions(raw, collective, one, target) + about_root for one in cuttings]
    called = [k for k, one in enumerate(holds) if not contradiction(one, collective)]
    # Without any, the proof of the first one is refused, and says what contradicts what.
    found = [
        Execution(_plan_of(raw, collective, cuttings[k], target), conditions=holds[k])
        for k in called or [0]
    ]
    return Executions(tuple(found), notes)


def _read(
    source: str | os.PathLike[str] | RawPlan,
    target: PlanTarget,
    collective: Collective | None,
    in_place: bool | None,
    root: int | None,
    file: str | None,
) -> tuple[RawPlan, tuple[Diagnostic, ...], Collective]:
    """The raw plan, which obeys all rules that need no ranges; remarks; and its collective."""
    if isinstance(source, RawPlan):
        raw = source if file is None else replace(source, file=file)
    else:
        raw = parse(source, file)
    check(raw, target)
    notes = [*ignored_notes(raw), *_about_flushes(raw)]
    if collective is None:
        collective = _collective(raw, in_place, root, notes)
    elif collective.ranks != len(raw.gpus):
        expected = f"a collective of {len(raw.gpus)} ranks, the GPUs of the plan"
        raise F424.error(at=raw.whole, expected=expected, found=str(collective))
    _check_chunks(raw, collective)
    return raw, tuple(notes), collective


def _check_calls(raw: RawPlan, collective: Collective, cutting: Cutting) -> None:
    """Refuses a range without a size that the chunks divide; with pipelines, one of any number of
    iterations. Errors: F463."""
    own, unit, least = own_chunks(raw, collective), raw.alignment, 0
    if not cutting.chunk_bytes:
        unit, least = cutting.multiple_bytes, cutting.least_bytes
    # The least multiple from the begin of the range on: if it is beyond the end, so are all others.
    first = -(-max(raw.min_bytes, least * own, 1) // (unit * own)) * unit * own
    if first > raw.max_bytes:
        raise F463.error(
            at=raw.whole,
            expected=f"a multiple of {counted(unit * own, 'byte')}, as {counted(own, 'chunk')} "
            f"of a multiple of {unit}, from min_message_size to max_message_size",
            found=f"none from {raw.min_bytes} to {raw.max_bytes}",
        )


def _plan_of(
    raw: RawPlan, collective: Collective, cutting: Cutting, target: PlanTarget
) -> OneSidedPlan:
    """The plan of a cutting. Errors: F403, F420, F493."""
    _check_size(raw, cutting.parts)
    return lower(raw, collective, cutting, target)


def _check_size(raw: RawPlan, parts: int, copies: int = 1) -> None:
    """Refuses more chunks than any plan needs. copies: of all buffers. Errors: F403."""
    agents = sum(len(gpu.blocks) + len(gpu.peers[PORT]) for gpu in raw.gpus)
    if agents > MAX_BLOCKS:
        expected = f"at most {MAX_BLOCKS} blocks and port channels on all ranks together"
        raise F403.error(at=raw.whole, expected=expected, found=str(agents))
    chunks = sum(
        (gpu.input_chunks + gpu.output_chunks) * copies + 4 * gpu.scratch_chunks for gpu in raw.gpus
    )
    if chunks * parts > MAX_CHUNKS:
        raise F403.error(
            at=raw.whole,
            expected=f"at most {MAX_CHUNKS} chunks on all ranks together, in parts",
            found=f"{chunks * parts}",
        )


def _collective(
    raw: RawPlan, in_place: bool | None, root: int | None, notes: list[Diagnostic]
) -> Collective:
    """The collective of the file's name and sizes. Errors: F403, F409, F411, L101."""
    at, ranks, name = raw.whole, len(raw.gpus), raw.collective
    if name == CUSTOM or (name in SIZED and name not in COLLECTIVES):
        expected = "a collective passed by the caller"
        raise F409.error(at=at, expected=expected, found=f"collective: {name}")
    if name not in COLLECTIVES:
        known = ", ".join(COLLECTIVES)
        raise F409.error(at=at, expected=f"collective to be one of {known}", found=ascii(name[:40]))
    row = STANDARD[name]
    row.check_root(root)
    if row.roles and root is None:
        expected = "a root, which an execution plan does not contain"
        notes.append(F434.diagnostic(at=at, expected=expected, found="none; rank 0 assumed"))
    lead = root or 0
    own = raw.gpus[lead if 0 <= lead < ranks else 0].input_chunks
    chunks, rest = divmod(own, ranks if row.input_parts else 1)
    if rest:
        expected = f"input_chunks to be a multiple of {ranks}"
        raise F411.error(at=place_of(raw.file, lead), expected=expected, found=str(own))
    # Before the collective is made, whose values may name a chunk of every rank.
    _check_size(raw, 1, copies=ranks)
    return row.of(ranks, chunks, in_place=raw.in_place if in_place is None else in_place, root=lead)


def _check_chunks(raw: RawPlan, collective: Collective) -> None:
    """Refuses other buffers than the collective's. A rank without the buffer has any number, since
    the executor needs one. Errors: F411."""
    for rank, gpu in enumerate(raw.gpus):
        for word in ("input_chunks", "output_chunks"):
            found, expected = getattr(gpu, word), int(getattr(collective, word)[rank])
            if found != expected and expected:
                raise F411.error(
                    at=place_of(raw.file, rank),
                    expected=f"{word} to be {expected}, as in {collective}",
                    found=str(found),
                )


def _about_flushes(raw: RawPlan) -> list[Diagnostic]:
    """A remark at the first flush (F432)."""
    places = [one.at for one in raw.operations if one.op.name == FLUSH]
    if not places:
        return []
    found = f"a flush, {len(places)} in all" if len(places) > 1 else "a flush"
    return [F432.diagnostic(at=places[0], expected="an operation with an effect", found=found)]
