"""Runtime: what a target executes when it reads an MSCCL XML file, by the target's own rules.

`reader` reads what a file means, so that sley can write it again. Here a file is refused if the
target refuses it, never runs it, or runs it otherwise than a plan can say.

The parsers drop nops, and give their waits to the next transmission of the block. They merge re
steps into one transmission. The kernels number transmissions anew, and a block announces the number
of a transmission with hasdep="1" when it has finished it; a wait ends when the block that it names
has announced its number or a greater one, in the same tile.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sley.errors import Diagnostic, Place, SleyError
from sley.errors.formats import (
    F406,
    F417,
    F422,
    F424,
    F436,
    F443,
    F451,
    F463,
    F464,
    F465,
    F466,
    F467,
    F468,
)
from sley.formats.format import (
    Execution,
    Executions,
    Problems,
    Target,
    root_conditions,
    target_among,
)
from sley.formats.msccl_xml.checks import check_raw
from sley.formats.msccl_xml.lexical import check_text
from sley.formats.msccl_xml.raw import Header, RawFile, parse
from sley.formats.msccl_xml.reader import (
    about_ignored,
    about_nops,
    about_own_waits,
    beyond_declared,
    collective_of,
    operands_of,
    plan_of,
    scratch_of,
)
from sley.formats.msccl_xml.targets import OPERATION_WORDS, TARGETS, XmlTarget, name_and_chunks
from sley.formats.msccl_xml.writer import check_limits, check_memory
from sley.ir.collective import Collective
from sley.ir.conditions import Choice, ChunkBytes, Condition
from sley.ir.plan import Plan
from sley.ir.sizes import SizeRange, size_text
from sley.ir.tables import NONE, BoolArray, LongArray
from sley.ir.words import SENDS, Op, Protocol, is_integer

_WARP = 32


def _only(*ops: Op) -> NDArray[np.bool_]:
    return np.isin(np.arange(len(Op)), ops)


_SOURCE_COMPARED = _only(Op.SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.COPY, Op.REDUCE)
_DESTINATION_COMPARED = _only(
    Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY_SEND, Op.COPY, Op.REDUCE
)
"""The operations whose offsets the parsers compare with the declared sizes."""


@dataclass(frozen=True)
class _Calls:
    """The calls for which a target chooses a file.

    sizes: of the calls.
    places: whether input and output are the same memory, for each of the places.
    declares_both: whether the file is for both places, of which the user may have chosen one.
    """

    sizes: SizeRange
    places: tuple[bool, ...]
    declares_both: bool


# More than eight parameters: what a user may say about a file.
def executions(
    source: str | os.PathLike[str],
    target: str | Target,
    *,
    collective: Collective | None = None,
    in_place: bool | None = None,
    root: int | None = None,
    slots: int | None = None,
    max_bytes: int | None = None,
    slot_bytes: int | None = None,
    file: str | None = None,
) -> Executions:
    """The ways in which a target (msccl, executor, rccl) executes an MSCCL XML file (a path, or its
    text): one for each place that the file allows.

    collective, root, slots, file: as of `read`.
    in_place: only this place.
    max_bytes: only calls up to this size, in bytes.
    slot_bytes: the bytes of data that a slot holds; the target's default, by protocol.
    Errors: F401 to F424, F436, F441 to F444, F454, F462 to F468, V201, V202, V208, with up to
    20 problems at once; F451 for sizes below 1.
    """
    target = target_among(TARGETS, target, XmlTarget)
    for word, value in (("max_bytes", max_bytes), ("slot_bytes", slot_bytes)):
        if value is not None and (not is_integer(value) or value < 1):
            at = Place(detail=word)
            raise F451.error(at=at, expected=f"{word} of at least 1", found=repr(value))
    raw, problems = parse(source, file)
    check_text(raw.text, raw.file, target.name, problems)
    waits = check_raw(raw, problems)
    calls = _calls(raw, target, in_place, max_bytes, problems)
    _check_target(raw, target, problems)
    problems.raise_any()
    steps = transmissions_of(raw, target.reduce_run)
    announcers = announcements(raw, steps)
    _check_waits(raw, steps, announcers, problems)
    _check_merged(raw, steps, target, problems)
    problems.raise_any()
    other = steps.block[announcers] != steps.block[steps.owner]  # waits within a block end
    ends = steps.first[steps.owner[other]], steps.last[announcers[other]]
    remarks = about_ignored(raw) + about_nops(raw, steps.dropped)
    remarks += about_own_waits(raw, waits)
    found = []
    for place in calls.places:
        aim = _collective(raw, target, collective, place, root, problems, remarks)
        operands = operands_of(raw, aim, problems)
        problems.raise_any()
        _check_merged_operands(raw, aim, operands, steps, problems)
        plan = plan_of(raw, aim, operands, steps.rows, ends, slots)
        check_memory(plan, target, problems, declares_both=calls.declares_both)
        found.append(_execution(plan, raw.header, target, calls, slot_bytes))
    problems.raise_any()
    return Executions(tuple(found), tuple(dict.fromkeys(remarks)))


def _calls(
    raw: RawFile,
    target: XmlTarget,
    in_place: bool | None,
    max_bytes: int | None,
    problems: Problems,
) -> _Calls:
    """The calls for which the target chooses the file; a problem if there are none."""
    header, at = raw.header, raw.whole
    inside, outside = header.inplace == 1, header.outofplace == 1
    if not target.reads_both_places:
        outside = not inside
    allowed = [place for place, on in ((True, inside), (False, outside)) if on]
    places = tuple(place for place in allowed if in_place in (None, place))
    if not places:
        words = {True: "in place", False: "out of place", None: "in or out of place"}
        expected = f"a file for calls {words[in_place]}, for {target.name}"
        found = f"inplace={header.inplace}, outofplace={header.outofplace}"
        problems.add(F463, at, expected, found)
    least, most = header.minBytes or 0, target.last_size(header.maxBytes)
    if most is not None and most < max(least, 1):
        expected = f"a size of calls from minBytes to maxBytes, for {target.name}"
        found = f"minBytes={header.minBytes}, maxBytes={header.maxBytes}"
        found += ", of which it serves sizes below maxBytes" * (most != header.maxBytes)
        problems.add(F463, at, expected, found)
    if max_bytes is not None and (most is None or max_bytes < most):
        most = max_bytes
        if most < least:
            expected = f"a file for calls of at most {max_bytes} bytes"
            problems.add(F463, at, expected, f"minBytes={header.minBytes}")
    _check_multiple(raw, least, most, problems)
    return _Calls(SizeRange(least, most), places, len(allowed) > 1)


def _check_multiple(raw: RawFile, least: int, most: int | None, problems: Problems) -> None:
    """A problem if the chunks divide no size of a range, for elements of any type."""
    multiple = max(raw.header.nchunksperloop, 1)
    first = -(-max(least, 1) // multiple) * multiple
    if most is not None and max(least, 1) <= most < first:
        expected = f"a multiple of {multiple}, by nchunksperloop, among the sizes"
        problems.add(F463, raw.whole, expected, f"none from {least} to {most}")


def _check_target(raw: RawFile, target: XmlTarget, problems: Problems) -> None:
    """Refuses what the target's parser refuses, and what doesn't fit into its tables."""
    _check_header(raw, target, problems)
    ops = raw.steps["type"]
    names = " ".join(OPERATION_WORDS[op] for op in sorted(target.operations))
    raw.steps.report(
        problems,
        ~np.isin(ops, [int(op) for op in target.operations]),
        F468,
        f"one of {names}, for {target.name}",
        lambda row: f'type="{OPERATION_WORDS[Op(ops[row])]}"',
    )
    beyond = beyond_declared(raw, _SOURCE_COMPARED, _DESTINATION_COMPARED)
    expected = "offsets below the declared size of the buffer"
    raw.steps.report(problems, beyond, F464, expected, "srcoff dstoff")
    idle = np.bincount(raw.blocks["gpu"], minlength=len(raw.gpus)) == 0
    raw.gpus.report(problems, idle, F436, "a GPU with a block", lambda row: "none")
    check_limits(raw, target, problems)
    _check_halves(raw, problems)


def _check_header(raw: RawFile, target: XmlTarget, problems: Problems) -> None:
    header, at = raw.header, raw.whole
    required = ["inplace", "outofplace" if target.reads_both_places else "name"]
    if target.default_max_bytes is None:
        required += ["minBytes", "maxBytes"]
    for name in required:
        if getattr(header, name) is None:
            expected = f"the attribute {name}, for {target.name}"
            problems.add(F406, at, expected, "<algo> without it")
    known = sorted(target.collectives.values())
    if target.custom_collective is not None:
        known.append(target.custom_collective)
    if header.coll not in known:
        expected = f"coll to be one of {', '.join(known)}, for {target.name}"
        problems.add(F443, at, expected, f"coll={header.coll!a}")
    if target.takes_threads and (header.nthreads or 0) % _WARP:
        expected, found = f"nthreads to be a multiple of {_WARP}", f"nthreads={header.nthreads}"
        problems.add(F422, at, expected, found)
    if target.compares_sizes and header.coll != target.custom_collective:
        _check_declared(raw, problems)


def _check_declared(raw: RawFile, problems: Problems) -> None:
    """Refuses declared sizes that contradict nchunksperloop, where the target compares them."""
    header = raw.header
    for name, of_part in (("i_chunks", "allgather"), ("o_chunks", "reduce_scatter")):
        size = raw.gpus[name]
        factor = header.ngpus if header.coll == of_part else 1
        wrong = (size > 0) & (size * factor != header.nchunksperloop)
        expected = f"{name}={header.nchunksperloop // factor} or 0, by nchunksperloop"
        raw.gpus.report(problems, wrong, F464, expected, name)


def _check_halves(raw: RawFile, problems: Problems) -> None:
    """Refuses peers that don't name the GPU in return."""
    rank, send, recv = raw.block_rank, raw.blocks["send"], raw.blocks["recv"]
    ends = []
    for peer, own, other in ((send, rank, send), (recv, recv, rank)):
        key = (own * raw.header.ngpus + other) * raw.header.nchannels + raw.blocks["chan"]
        ends.append(np.where(peer == NONE, NONE, key))
    for word, other_word, (mine, other) in (("send", "recv", ends), ("recv", "send", ends[::-1])):
        # Both ends of a connection have one key: the sender, the receiver and the channel.
        lonely = (mine != NONE) & ~np.isin(mine, other)
        expected = f"a block of the peer with this GPU as {other_word}, on the channel"
        raw.blocks.report(problems, lonely, F417, expected, f"{word} chan")


def _check_waits(
    raw: RawFile, steps: Transmissions, announcers: NDArray[np.int64], problems: Problems
) -> None:
    """Refuses chains of nops that end without a wait, and waits that never end."""
    bare = steps.first[(steps.waits > 0) & (raw.steps["depid"][steps.first] == NONE)]
    expected = "a wait of the step itself, after a nop with a wait"
    raw.steps.report(problems, bare, F465, expected, "depid")
    own = steps.block[announcers] == steps.block[steps.owner]
    silent = steps.dependency[(announcers == NONE) | (own & (announcers >= steps.owner))]
    raw.steps.report(
        problems,
        silent,
        F466,
        'hasdep="1" at the step that it waits for, or at a later one of that block',
        lambda row: f"depid={raw.steps['depid'][row]}, deps={raw.steps['deps'][row]}: none has it",
    )


def _check_merged(
    raw: RawFile, steps: Transmissions, target: XmlTarget, problems: Problems
) -> None:
    """Refuses merged reductions with different counts, and too many of them."""
    count = raw.steps["cnt"]
    mixed = steps.rows[count[steps.rows] != count[steps.last[steps.group]]]
    longer = steps.first[steps.size > target.reduce_run]
    raw.steps.report(
        problems,
        mixed,
        F467,
        "one count of all re steps that run at once",
        lambda row: f"cnt={count[row]} here, and another one at the last of them",
    )
    expected = f"at most {target.reduce_run} re steps that run at once"
    raw.steps.report(problems, longer, F467, expected, lambda row: "more")


def _check_merged_operands(
    raw: RawFile,
    collective: Collective,
    operands: dict[str, NDArray[np.int64]],
    steps: Transmissions,
    problems: Problems,
) -> None:
    """Refuses later sources of merged reductions that overlap the destination: the kernel reads
    them before it writes what the first one changes."""
    rows = steps.rows[steps.first[steps.group] != steps.rows]
    rank, layout = raw.block_rank[raw.steps["tb"][rows]], collective.layout(scratch_of(raw))
    source, destination = (
        layout.cell(rank, operands[f"{side}_buffer"][rows], operands[f"{side}_index"][rows])
        for side in ("src", "dst")
    )
    overlaps = rows[np.abs(source - destination) < raw.steps["cnt"][rows]]
    expected = "a source apart from the destination, in re steps that run at once"
    raw.steps.report(problems, overlaps, F467, expected, "srcoff dstoff")


def _collective(
    raw: RawFile,
    target: XmlTarget,
    given: Collective | None,
    in_place: bool,
    root: int | None,
    problems: Problems,
    remarks: list[Diagnostic],
) -> Collective:
    """The collective of the calls for which the target chooses the file."""
    if given is None:
        found = collective_of(raw, problems, in_place, root, remarks)
        if found is None:
            raise SleyError(problems.ordered())
        return found
    header = raw.header
    word, chunks = name_and_chunks(given, target)
    same = (word, chunks) == (header.coll, header.nchunksperloop)
    if not same or given.ranks != header.ngpus or given.in_place != in_place:
        problems.add(
            F424,
            raw.whole,
            expected=f"a collective with coll={header.coll!r}, ngpus={header.ngpus} and "
            f"nchunksperloop={header.nchunksperloop} for {target.name}, "
            f"{'in' if in_place else 'out of'} place",
            found=str(given),
        )
        raise SleyError(problems.ordered())
    return given


def _execution(
    plan: Plan, header: Header, target: XmlTarget, calls: _Calls, slot_bytes: int | None
) -> Execution:
    """The execution of a plan, with the conditions that the target adds."""
    sizes, end = calls.sizes, calls.sizes.end_bytes
    chunks = header.nchunksperloop
    of_chunks = ChunkBytes(
        least=-(-sizes.begin_bytes // chunks), most=None if end is None else end // chunks
    )
    conditions = [Condition("sizes", f"{sizes}, in elements a multiple of {chunks}", of_chunks)]
    if plan.reduces:
        allowed = Choice.one_of("reduction", "sum", "prod", "min", "max")
        conditions.append(Condition("calls", "sum, prod, min or max", allowed))
    conditions += root_conditions(plan.collective, target)
    longest = int(plan.instructions.count[SENDS[plan.instructions.op]].max(initial=1))
    slot_bytes = slot_bytes or _slot_bytes(header, target)
    per_chunk = True
    if longest > 1 and calls.sizes.end_bytes is not None:
        needed = longest * -(-calls.sizes.end_bytes // header.nchunksperloop)
        per_chunk = needed > slot_bytes
        if not per_chunk:
            text = f"slots of {size_text(needed)} bytes or more, for messages of {longest} chunks"
            conditions.append(Condition("slot sizes", text))
    # Up to this size every message takes one slot; the notes of a hang name it.
    small = slot_bytes // longest * header.nchunksperloop
    one_slot_bytes = small if per_chunk and small >= calls.sizes.begin_bytes else None
    return Execution(
        plan, plan.slots, per_chunk, tuple(conditions), one_slot_bytes, sizes=calls.sizes
    )


def _slot_bytes(header: Header, target: XmlTarget) -> int:
    """The bytes of data that a slot holds by default."""
    protocol = Protocol(header.proto)
    size = target.slot_bytes[protocol]
    short = protocol is Protocol.SIMPLE and header.coll in target.short_slots
    return size // 4 if short else size


@dataclass(frozen=True, eq=False)
class Transmissions:
    """The transmissions of a file, block after block.

    rows: the steps that are no nops; group: (rows,), the transmission of each.
    first, last: (transmissions,), the first and the last step of each.
    size, waits: (transmissions,), the number of steps and of waits of each.
    block: (transmissions,), the block of each. number: its number in the kernels.
    announced: whether its block announces it.
    dependency: the steps whose waits count; owner: (dependencies,), the transmission that waits.
    dropped: (steps,), whether the step is a nop without effect.
    """

    rows: LongArray
    group: LongArray
    first: LongArray
    last: LongArray
    size: LongArray
    waits: LongArray
    block: LongArray
    number: LongArray
    announced: BoolArray
    dependency: LongArray
    owner: LongArray
    dropped: BoolArray


def transmissions_of(raw: RawFile, reduce_run: int) -> Transmissions:
    """The transmissions of a file whose blocks have their steps in order.

    reduce_run: the number of a block's reductions after which the parser ends a run.
    """
    ops, block = raw.steps["type"], raw.steps["tb"]
    rows = np.flatnonzero(ops != Op.NOP)
    starts = ~_continues(raw, rows, reduce_run)
    group = np.cumsum(starts) - 1
    first = rows[starts]
    last = rows[np.append(np.flatnonzero(starts)[1:], len(rows)) - 1] if len(rows) else first
    waiting = np.flatnonzero(raw.steps["depid"] != NONE)
    # The first transmission from a step on is the step's own, or the one that follows a nop; a nop
    # at the end of its block finds one of another block, or none.
    owner = np.searchsorted(first, waiting)
    attached = owner < len(first)
    attached[attached] = block[first[owner[attached]]] == block[waiting[attached]]
    dependency, owner = waiting[attached], owner[attached]
    dropped = ops == Op.NOP
    dropped[dependency] = False
    waits = np.bincount(owner, minlength=len(first))
    size = np.bincount(group, minlength=len(first))
    # In the kernels each wait after the first takes a number, and each merged step.
    steps = np.maximum(waits, 1) + size - 1
    return Transmissions(
        rows=rows,
        group=group,
        first=first,
        last=last,
        size=size,
        waits=waits,
        block=block[first],
        number=_ends(block[first], steps) - 1,
        announced=raw.steps["hasdep"][last] == 1,
        dependency=dependency,
        owner=owner,
        dropped=dropped,
    )


def announcements(raw: RawFile, found: Transmissions) -> LongArray:
    """int64 (dependencies,): the transmission whose announcement ends each wait, or NONE.

    The waits must name blocks and steps that exist.
    """
    gpu, ids = raw.blocks["gpu"], raw.blocks["id"]
    by_id = np.lexsort((ids, gpu))
    start = np.searchsorted(gpu[by_id], np.arange(len(raw.gpus)))
    own = gpu[raw.steps["tb"][found.dependency]]
    named = by_id[start[own] + raw.steps["depid"][found.dependency]]
    goal = raw.steps["deps"][found.dependency]
    announcing = np.flatnonzero(found.announced)
    # Numbers ascend within a block, and blocks ascend, so the keys are sorted.
    scale = int(max(found.number.max(initial=0), goal.max(initial=0))) + 1
    keys = found.block[announcing] * scale + found.number[announcing]
    at = np.searchsorted(keys, named * scale + goal)
    result = np.full(len(goal), NONE, np.int64)
    inside = at < len(announcing)
    inside[inside] = found.block[announcing[at[inside]]] == named[inside]
    result[inside] = announcing[at[inside]]
    return result


def _continues(raw: RawFile, rows: LongArray, reduce_run: int) -> BoolArray:
    """Whether each of `rows` is merged into the step before it."""
    block = raw.steps["tb"][rows]
    reduces = raw.steps["type"][rows] == Op.REDUCE
    joins = np.zeros(len(rows), np.bool_)
    joins[1:] = reduces[1:] & reduces[:-1] & (block[1:] == block[:-1])
    for name in ("dstbuf", "dstoff", "srcbuf"):
        column = raw.steps[name][rows]
        joins[1:] &= column[1:] == column[:-1]
    joins &= raw.steps["depid"][rows] == NONE
    joins[1:] &= raw.steps["hasdep"][rows[:-1]] == 0
    # The parser counts all reductions of the block, and ends a run once at this number.
    joins[1:] &= _ends(block, reduces.astype(np.int64))[:-1] != reduce_run
    return joins


def _ends(group: LongArray, amounts: LongArray) -> LongArray:
    """Sums of `amounts` up to and with each row, within consecutive rows of one group."""
    total = np.cumsum(amounts)
    starts = np.flatnonzero(np.diff(group, prepend=NONE) != 0)
    before = total[starts] - amounts[starts]
    return total - np.repeat(before, np.diff(np.append(starts, len(group))))
