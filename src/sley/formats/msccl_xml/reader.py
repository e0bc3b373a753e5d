"""Reader: the Plan of an MSCCL XML file, and remarks on its oddities (F430 to F434)."""

from __future__ import annotations

import os
from pathlib import PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.errors import Diagnostic, SleyError
from sley.errors.formats import F409, F411, F420, F424, F430, F431, F432, F433, F434
from sley.formats.format import Imported, Problems
from sley.formats.msccl_xml.checks import check_raw
from sley.formats.msccl_xml.raw import RawFile, parse
from sley.formats.msccl_xml.targets import COLLECTIVE_NAMES, CUSTOM, parts_per_loop
from sley.ir.collective import Collective
from sley.ir.collectives import STANDARD, Standard
from sley.ir.plan import Instructions, Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, BoolArray, Edges, IntArray, LongArray, inverse, offsets_of
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    LoopOrder,
    Op,
    Protocol,
)

Operands = dict[str, NDArray[Any]]
"""The columns of operands, as in Instructions."""


def read(
    source: str | os.PathLike[str],
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    slots: int | None = None,
    file: str | None = None,
) -> Imported:
    """The plan of an MSCCL XML file (a path, or its text), with remarks on the file and its size
    range.

    collective: the algorithm's collective, instead of the file's; required for "custom".
    in_place: whether the algorithm is in place, by default as the file says.
    root: the root of a rooted collective, by default the rank that the buffer sizes show.
    slots: slots of a connection; the protocol's number by default.
    file: the file's name in messages.
    Errors: F401 to F424, with up to 20 problems at once.
    """
    raw, problems = parse(source, file)
    target = check_raw(raw, problems)
    remarks = about_ignored(raw)
    if collective is None:
        collective = collective_of(raw, problems, in_place, root, remarks)
    elif collective.ranks != raw.header.ngpus:
        expected = f"a collective of {raw.header.ngpus} ranks, as ngpus says"
        problems.add(F424, raw.whole, expected, str(collective))
        collective = None
    if collective is None:
        raise SleyError(problems.ordered())
    operands = operands_of(raw, collective, problems)
    problems.raise_any()
    kept, folded, idle = _fold_nops(raw, target)
    remarks += about_silent_waits(raw, target) + about_own_waits(raw, target)
    remarks += about_idle_numbers(raw) + about_nops(raw, idle)
    past_declared = beyond_declared(raw, READS_SOURCE, WRITES_DESTINATION)
    remarks += about_sizes(raw, collective, past_declared)
    header = raw.header
    plan = plan_of(raw, collective, operands, kept, folded, slots)
    return Imported(plan, tuple(remarks), header.minBytes, header.maxBytes)


def collective_of(
    raw: RawFile,
    problems: Problems,
    in_place: bool | None,
    root: int | None,
    remarks: list[Diagnostic],
) -> Collective | None:
    """The collective that the header names, or None and a problem."""
    header, at = raw.header, raw.whole
    if header.coll == CUSTOM:
        problems.add(F409, at, "a collective passed by the caller", 'coll="custom"')
        return None
    name = COLLECTIVE_NAMES.get(header.coll)
    if name is None:
        known = ", ".join(COLLECTIVE_NAMES)
        problems.add(F409, at, expected=f"coll to be one of {known}", found=ascii(header.coll))
        return None
    row = STANDARD[name]
    row.check_root(root)
    parts = parts_per_loop(row, header.ngpus)
    chunks, rest = divmod(header.nchunksperloop, parts)
    if chunks < 1 or rest:
        expected = f"a multiple of {parts}" if parts > 1 else "at least 1"
        found = f"nchunksperloop={header.nchunksperloop}"
        problems.add(F411, at, expected=f"nchunksperloop to be {expected}", found=found)
        return None
    if in_place is None:
        in_place = _in_place(raw, remarks)
    if root is None:
        root = _root(raw, row, remarks) if row.roles else 0
    return row.of(header.ngpus, chunks, in_place=in_place, root=root)


def _in_place(raw: RawFile, remarks: list[Diagnostic]) -> bool:
    """Whether the file is in place; adds a remark if it allows both or neither."""
    inside, outside = raw.header.inplace, raw.header.outofplace
    chosen = outside == 0 if inside is None else inside == 1
    if inside is None or inside == outside:
        found = f"inplace={inside}, outofplace={outside}".replace("None", "missing")
        expected = "inplace or outofplace to be 1, and the other 0"
        found += f"; read as {'in' if chosen else 'out of'} place"
        remarks.append(F434.diagnostic(at=raw.whole, expected=expected, found=found))
    return chosen


def _root(raw: RawFile, row: Standard, remarks: list[Diagnostic]) -> int:
    """The only rank that has the root's buffer; without one rank 0, with a remark."""
    sizes = raw.gpus["i_chunks" if row.input_of else "o_chunks"]
    holders = raw.gpus["id"][sizes > 0]
    if len(holders) == 1:
        return int(holders[0])
    expected, found = "a root that the sizes show", "none; rank 0 assumed"
    remarks.append(F434.diagnostic(at=raw.whole, expected=expected, found=found))
    return 0


def _int32(values: NDArray[Any]) -> IntArray:
    return values.astype(np.int32)


def scratch_of(raw: RawFile) -> LongArray:
    """int64 (ranks,): scratch chunks of each rank."""
    scratch = np.zeros(len(raw.gpus), np.int64)
    scratch[raw.gpus["id"]] = raw.gpus["s_chunks"]
    return scratch


def operands_of(
    raw: RawFile, collective: Collective, problems: Problems
) -> dict[str, NDArray[Any]]:
    """The operand columns of all steps, NONE for operands that an operation doesn't have; reports
    chunks outside the buffers (F420).

    In place, a file may use either name for all of the memory; chunks outside the collective's
    buffer of one name get the other name.
    """
    rank, ops = raw.block_rank[raw.steps["tb"]], raw.steps["type"]
    count = raw.steps["cnt"]
    size = collective.layout(scratch_of(raw)).size.astype(np.int64)
    base = np.stack([collective.input_base, collective.output_base]).astype(np.int64)
    columns: Operands = {}
    for side, uses in (("src", READS_SOURCE), ("dst", WRITES_DESTINATION)):
        buffer, index = raw.steps[f"{side}buf"].copy(), raw.steps[f"{side}off"].copy()
        used = uses[ops]
        outside = used & ((index < 0) | (index + count > size[buffer, rank]))
        if collective.in_place:
            rows = np.flatnonzero(outside & (buffer != Buffer.SCRATCH))
            other = 1 - buffer[rows]
            moved = index[rows] + base[buffer[rows], rank[rows]] - base[other, rank[rows]]
            # Both names count from their own base in the same memory.
            fits = (moved >= 0) & (moved + count[rows] <= size[other, rank[rows]])
            buffer[rows[fits]], index[rows[fits]] = other[fits], moved[fits]
            outside[rows[fits]] = False
        raw.steps.report(
            problems,
            outside,
            F420,
            lambda row, buffer=buffer: (  # type: ignore[misc]
                f"chunks of rank {rank[row]}'s {Buffer(buffer[row]).name.lower()}, "
                f"which has {size[buffer[row], rank[row]]}"
            ),
            lambda row, side=side, index=index: (  # type: ignore[misc]
                f"{side}off={index[row]}, cnt={count[row]}"
            ),
        )
        columns[f"{side}_buffer"] = np.where(used, buffer, NONE)
        columns[f"{side}_index"] = np.where(used, index, NONE)
    return columns


def beyond_declared(raw: RawFile, of_source: BoolArray, of_destination: BoolArray) -> BoolArray:
    """Whether an offset of each step is beyond the declared size of its buffer, for the operations
    whose source, and those whose destination, is looked at."""
    gpu, ops = raw.blocks["gpu"][raw.steps["tb"]], raw.steps["type"]
    declared = np.stack([raw.gpus[name] for name in ("i_chunks", "o_chunks", "s_chunks")])
    return (of_source[ops] & (raw.steps["srcoff"] >= declared[raw.steps["srcbuf"], gpu])) | (
        of_destination[ops] & (raw.steps["dstoff"] >= declared[raw.steps["dstbuf"], gpu])
    )


def _fold_nops(
    raw: RawFile, target: LongArray
) -> tuple[LongArray, tuple[LongArray, LongArray], BoolArray]:
    """The remaining steps, the waits between them as (rows, targets), and the nops without effect.

    A nop's wait becomes one of the step that follows it. A nop that others wait for stays.
    """
    block, nop = raw.steps["tb"], raw.steps["type"] == Op.NOP
    waiting = np.flatnonzero((target != NONE) & (block[target] != block))
    needed = np.zeros(len(nop), np.bool_)
    needed[target[waiting]] = True
    kept = np.flatnonzero(~nop | needed)
    # `kept` is ascending: its first entry from a row on is the step that follows a dropped nop, and
    # each step that stays follows itself.
    following = np.searchsorted(kept, np.arange(len(nop)))
    follower = np.append(kept, NONE)[following]
    has_follower = (follower != NONE) & (block[follower] == block)
    idle = nop & ~needed & ((target == NONE) | ~has_follower)
    waiting = waiting[has_follower[waiting]]
    return kept, (follower[waiting], target[waiting]), idle


def plan_of(
    raw: RawFile,
    collective: Collective,
    operands: Operands,
    kept: LongArray,
    waits: tuple[LongArray, LongArray],
    slots: int | None,
) -> Plan:
    """The plan of the steps `kept`, blocks ordered by rank and id."""
    block_rank = raw.block_rank
    block_order = np.lexsort((raw.blocks["id"], block_rank))
    place = inverse(block_order)
    block = raw.steps["tb"][kept]
    # Stable: steps of a block stay in their order.
    rows = kept[np.argsort(place[block], kind="stable")]
    new_row = np.full(len(raw.steps), NONE, np.int64)
    new_row[rows] = np.arange(len(rows))
    block, ops = raw.steps["tb"][rows], raw.steps["type"][rows]
    sends, receives = SENDS[ops], RECEIVES[ops]
    lines, source = np.unique(raw.steps["line"][rows], return_inverse=True)
    none = np.full(len(rows), NONE, np.int32)
    protocol = Protocol(raw.header.proto)
    return Plan(
        name=PurePath(raw.file).stem if raw.header.name is None else raw.header.name,
        collective=collective,
        protocol=protocol,
        loop_order=LoopOrder.TILE,
        slots=protocol.slots if slots is None else slots,
        instructions=Instructions(
            op=ops.astype(np.int8),
            **{name: column[rows] for name, column in operands.items()},
            count=_int32(np.where(ops == Op.NOP, 0, raw.steps["cnt"][rows])),
            send_peer=_int32(np.where(sends, raw.blocks["send"][block], NONE)),
            recv_peer=_int32(np.where(receives, raw.blocks["recv"][block], NONE)),
            channel=_int32(np.where(sends | receives, raw.blocks["chan"][block], NONE)),
            transfer=none,
            forward=none,
            pipeline=none,
            source=_int32(source),
        ),
        block_rank=_int32(block_rank[block_order]),
        block_offset=offsets_of(np.bincount(place[block], minlength=len(block_order))),
        waits=Edges.from_pairs(len(rows), new_row[waits[0]], new_row[waits[1]]),
        scratch_chunks=_int32(scratch_of(raw)),
        sources=Sources.of_file(raw.file, lines, whole=raw.whole),
        per_chunk=True,
    )


def about_ignored(raw: RawFile) -> list[Diagnostic]:
    """Remarks on what the parser ignored."""
    return [
        F431.diagnostic(
            at=first,
            expected="only elements and attributes that define the steps",
            found=f"{what}, {times} times" if times > 1 else what,
        )
        for what, (times, first) in raw.ignored.items()
    ]


def about_silent_waits(raw: RawFile, target: NDArray[np.int64]) -> list[Diagnostic]:
    """Remarks on waits for steps without hasdep, read as waits for these steps."""
    return raw.steps.remark(
        (target != NONE) & ~_own_waits(raw, target) & (raw.steps["hasdep"][target] == 0),
        F430,
        'a wait for a step with hasdep="1"',
        'a wait for a step with hasdep="0", read as a wait for this step; a runtime waits for a '
        "later step, or for ever: --target proves which",
    )


def about_own_waits(raw: RawFile, target: NDArray[np.int64]) -> list[Diagnostic]:
    """Remarks on waits for steps of the same block: those that end in runtimes too, since the
    block has announced the step or a later one, and the others."""
    own = _own_waits(raw, target)
    announced = np.concatenate([[0], np.cumsum(raw.steps["hasdep"] != 0)])
    ends = announced[: len(target)] > announced[target]
    expected, found = "waits for other blocks", "a wait for the block's own step"
    silent = f"{found}, which it has not announced: a runtime may wait for ever (--target)"
    return [
        *raw.steps.remark(own & ends, F432, expected, found),
        *raw.steps.remark(own & ~ends, F432, expected, silent),
    ]


def _own_waits(raw: RawFile, target: NDArray[np.int64]) -> BoolArray:
    block = raw.steps["tb"]
    own: BoolArray = (target != NONE) & (block[target] == block)
    return own


def about_idle_numbers(raw: RawFile) -> list[Diagnostic]:
    """Remarks on numbers of steps that nothing waits for: deps without depid."""
    return raw.steps.remark(
        (raw.steps["depid"] == NONE) & (raw.steps["deps"] != NONE),
        F431,
        'deps="-1" where depid="-1"',
        "a number in deps, which is ignored: the step waits for nothing",
    )


def about_nops(raw: RawFile, dropped: BoolArray) -> list[Diagnostic]:
    """Remarks on nops without effect, which were left out."""
    expected = "nops that wait, each followed by a step"
    return raw.steps.remark(dropped, F432, expected, "a nop without effect")


def about_sizes(raw: RawFile, collective: Collective, past_declared: BoolArray) -> list[Diagnostic]:
    """Remarks on declared buffer sizes other than the collective's, and on offsets beyond them.

    In place, a file may use one name for all data: then a size is 0, or that of all data.
    """
    rank, notes = raw.gpus["id"], list[Diagnostic]()
    for name, sizes in (
        ("i_chunks", collective.input_chunks),
        ("o_chunks", collective.output_chunks),
    ):
        declared, wanted = raw.gpus[name], sizes[rank]
        same = declared == wanted
        if collective.in_place:
            same |= (declared == 0) | (declared == collective.data_chunks[rank])
        row = int(np.argmin(same))
        expected = f"{name}={wanted[row]}, as in {collective}"
        notes += raw.gpus.remark(~same, F433, expected, f"{name}={declared[row]}")
    return notes + raw.steps.remark(
        past_declared,
        F433,
        "offsets below the declared size",
        "an offset beyond it, but inside the collective's buffer",
    )
