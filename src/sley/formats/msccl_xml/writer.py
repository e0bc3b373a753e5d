"""Writer: the MSCCL XML of a Plan, for a target."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place
from sley.errors.formats import F443, F451
from sley.formats.format import Target, refuse_varying_counts, target_among
from sley.formats.msccl_xml.limits import (
    check_limits,
    check_memory,
    check_order,
    check_peers,
    check_tables,
    refuse_groups,
)
from sley.formats.msccl_xml.raw import ATTRIBUTES, PARENT, Elements, Header, RawFile
from sley.formats.msccl_xml.targets import (
    OPERATION_WORDS,
    TARGETS,
    XmlTarget,
    name_and_chunks,
)
from sley.formats.problems import Problems
from sley.ir.plan import Plan
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE, LongArray, offsets_of
from sley.ir.words import (
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    Op,
    is_integer,
)

_NOT_XML_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_IN_ATTRIBUTE = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_OTHER_NAME = "Pass another name: sley.save(plan, path, name=...)."
_LARGEST_BYTES = (1 << 62) - 1


def write(
    plan: Plan,
    target: str | Target,
    *,
    name: str | None = None,
    min_bytes: int | str = 0,
    max_bytes: int | str | None = None,
    threads: int | None = None,
) -> str:
    """The MSCCL XML of a plan, for a target (msccl, executor, rccl). It depends on the arguments
    alone.

    name: the algorithm's name; the plan's by default.
    min_bytes, max_bytes: the least and the greatest size for the algorithm, both included, as a
        number or a text such as "64K"; None is no limit.
    threads: threads of a block, for targets that read it.
    Errors: F437, F440 to F454, V201, V202, V208, with up to 20 problems at once.
    """
    target = target_among(TARGETS, target, XmlTarget)
    problems = Problems()
    name = plan.name if name is None else name
    least, most = text_in_bytes(min_bytes), text_in_bytes(max_bytes)
    _check_arguments(target, name, least, most, threads, problems)
    raw = _raw(plan, target, problems)
    limit = target.no_limit_bytes
    if most is not None:
        limit = most if target.max_is_inclusive else most + 1
    header = replace(raw.header, name=name, minBytes=least, maxBytes=limit, nthreads=threads)
    return "\n".join(_lines(header, raw)) + "\n"


def check(plan: Plan, target: str | Target) -> None:
    """Refuses a plan that the target (msccl, executor, rccl) can't run. Errors: those of `write`
    but F451."""
    _raw(plan, target_among(TARGETS, target, XmlTarget), Problems())


def _raw(plan: Plan, target: XmlTarget, problems: Problems) -> RawFile:
    """The file of a plan, for all sizes; raises the problems, earlier ones included."""
    refuse_varying_counts(plan.collective)
    word, chunks = _collective(plan, target, problems)
    check_order(plan, problems)
    check_tables(plan, problems)
    problems.raise_any()
    refuse_groups(plan)
    plain, in_place = target.simulated(plan), int(plan.collective.in_place)
    header = Header(
        name=plan.name,
        proto=plan.protocol.value,
        nchannels=plain.channels,
        nchunksperloop=chunks,
        ngpus=plan.collective.ranks,
        coll=word,
        inplace=in_place,
        outofplace=1 - in_place,
        minBytes=None,
        maxBytes=None,
        nthreads=None,
    )
    parts = _gpus(plain), _blocks(plain), _steps(plain, target.reduce_run)
    raw = RawFile("", Place(), header, *parts)
    check_peers(plain, raw, problems)
    check_memory(plain, target, problems)
    check_limits(raw, target, problems)
    problems.raise_any()
    return raw


def _collective(plan: Plan, target: XmlTarget, problems: Problems) -> tuple[str, int]:
    """The target's name of the plan's collective, and the number of chunks of a call's count; adds
    a problem if the target has no name."""
    collective = plan.collective
    word, chunks = name_and_chunks(collective, target)
    if word is None:
        known = target.collectives.get(collective.name)
        expected = f"one of {', '.join(sorted(target.collectives))}, for {target.name}"
        other = "" if known is None else f", which isn't what {target.name} means by that name"
        problems.add(F443, Place(detail=plan.name), expected, f"{collective}{other}")
    return word or "", chunks


def _check_arguments(
    target: XmlTarget,
    name: str,
    min_bytes: Any,
    max_bytes: Any,
    threads: int | None,
    problems: Problems,
) -> None:
    at = Place(detail="write")
    bad = _NOT_XML_TEXT.search(name)
    if bad is not None:
        expected, found = "a name of XML's characters", ascii(bad.group())
        problems.add(F451, at, expected, found, remedy=_OTHER_NAME)
    most = target.attribute_chars
    if most is not None and bad is None and len(_attribute(name).encode()) > most:
        expected = f"a name of at most {most} characters, for {target.name}"
        problems.add(F451, at, expected, f"{len(_attribute(name).encode())}", _OTHER_NAME)
    greatest = _LARGEST_BYTES if max_bytes is None else max_bytes
    are_sizes = is_integer(min_bytes) and is_integer(greatest)
    if not are_sizes or not 0 <= min_bytes <= greatest <= _LARGEST_BYTES or greatest < 1:
        expected = f"0 <= min_bytes <= max_bytes, max_bytes from 1 to {_LARGEST_BYTES}"
        problems.add(F451, at, expected, f"min_bytes={min_bytes!r}, max_bytes={max_bytes!r}")
    if threads is not None and not (target.takes_threads and is_integer(threads) and threads >= 1):
        expected = f"no threads: {target.name} doesn't read it"
        if target.takes_threads:
            expected = "threads of at least 1, for a target that reads it"
        problems.add(F451, at, expected, f"threads={threads!r}")


def _attribute(text: str) -> str:
    """Text, escaped for the value of an attribute."""
    return escape(text, _IN_ATTRIBUTE)


def _gpus(plan: Plan) -> Elements:
    c = plan.collective
    ranks, sizes = np.arange(c.ranks), (c.input_chunks, c.output_chunks, plan.scratch_chunks)
    columns = (ranks, *sizes, np.zeros_like(ranks))
    return _elements("gpu", columns, lambda rank: Place(detail=f"rank {rank}"))


def _blocks(plan: Plan) -> Elements:
    """Each block with its peers and channel; the last ones if it has several, which `limits`
    refuses. A channel is 0 without peers."""
    t = plan.instructions
    send, recv = (np.full(len(plan.block_rank), NONE) for _ in range(2))
    chan = np.zeros(len(plan.block_rank), np.int64)
    sends, receives = SENDS[t.op], RECEIVES[t.op]
    send[plan.block[sends]] = t.send_peer[sends]
    recv[plan.block[receives]] = t.recv_peer[receives]
    chan[plan.block[sends | receives]] = t.channel[sends | receives]

    def place(block: int) -> Place:
        detail = f"rank {plan.block_rank[block]}, block {plan.block_number[block]}"
        first = int(plan.block_offset[block])
        if first == plan.block_offset[block + 1]:
            return Place(detail=detail)
        return plan.sources.place(int(plan.instructions.source[first]), detail)

    return _elements("tb", (plan.block_number, send, recv, chan, plan.block_rank), place)


def _steps(plan: Plan, reduce_run: int) -> Elements:
    """The steps of a plan without nops: one for an instruction, which has its last wait, and before
    it a nop for each other wait. A step has hasdep if another one waits for it, or to break a run.
    If an operation has only one operand, the other repeats it, since that is always inside its
    buffer.

    reduce_run: the target's limit of consecutive reductions into one place.
    """
    t, waits, total = plan.instructions, plan.waits, len(plan.instructions)
    lines = np.maximum(np.diff(waits.offset), 1)
    start = offsets_of(lines)
    last = start[1:] - 1
    instruction = np.repeat(np.arange(total), lines)
    is_nop = np.arange(len(instruction)) != last[instruction]
    block = plan.block[instruction]
    position = np.arange(len(instruction)) - start[plan.block_offset][block]
    order = np.lexsort((waits.target, waits.source))
    target = waits.target[order]
    line = start[waits.source] + np.arange(len(target)) - waits.offset[waits.source]
    depid, deps = (np.full(len(instruction), NONE) for _ in range(2))
    depid[line] = plan.block_number[plan.block[target]]
    deps[line] = position[last[target]]
    hasdep = np.zeros(len(instruction), np.int64)
    hasdep[last[target]] = 1
    hasdep[last[_run_ends(plan, depid[last], reduce_run)]] = 1
    has_src, has_dst = READS_SOURCE[t.op], WRITES_DESTINATION[t.op]
    operands = (
        (t.op, Op.NOP),
        (np.where(has_src, t.src_buffer, t.dst_buffer), Buffer.INPUT),
        (np.where(has_src, t.src_index, t.dst_index), NONE),
        (np.where(has_dst, t.dst_buffer, t.src_buffer), Buffer.OUTPUT),
        (np.where(has_dst, t.dst_index, t.src_index), NONE),
        (t.count, 0),
    )
    of_nop = (np.where(is_nop, nop, values[instruction]) for values, nop in operands)
    columns = (position, *of_nop, depid, deps, hasdep, block)
    return _elements("step", columns, lambda row: plan.place(int(instruction[row])))


def _elements(
    name: str, columns: Iterable[NDArray[np.integer]], place: Callable[[int], Place]
) -> Elements:
    """Elements with the values of their attributes, and of the rows around them."""
    words = (*ATTRIBUTES[name], PARENT[name])
    found = zip(words, columns, strict=True)
    return Elements({word: column.astype(np.int64) for word, column in found}, place)


def _run_ends(plan: Plan, depid: LongArray, reduce_run: int) -> LongArray:
    """The reductions after which a run of reductions must be broken.

    The runtimes run consecutive reductions between the same buffers into the same place, the later
    ones without a wait, at once, with the count of one of them. So all counts of a run must be
    equal, and its length is limited.
    """
    t = plan.instructions
    joins = np.zeros(len(t), np.bool_)
    joins[1:] = (
        (t.op[1:] == Op.REDUCE)
        & (t.op[:-1] == Op.REDUCE)
        & (plan.block[1:] == plan.block[:-1])
        & (t.dst_buffer[1:] == t.dst_buffer[:-1])
        & (t.dst_index[1:] == t.dst_index[:-1])
        & (t.src_buffer[1:] == t.src_buffer[:-1])
        & (depid[1:] == NONE)
    )
    mixed = np.zeros(len(t), np.bool_)
    mixed[1:] = joins[1:] & (t.count[1:] != t.count[:-1])
    rows = np.arange(len(t))
    run_start = np.maximum.accumulate(np.where(joins & ~mixed, 0, rows))
    too_long = joins & ~mixed & ((rows - run_start) % reduce_run == 0)
    return np.flatnonzero(mixed | too_long) - 1


def _lines(header: Header, raw: RawFile) -> Iterator[str]:
    """The lines of the text: one space between attributes, no tabs, no line ends in tags."""
    given = {word: value for word, value in vars(header).items() if value is not None}
    attributes = " ".join(f'{word}="{_attribute(str(value))}"' for word, value in given.items())
    yield f"<algo {attributes}>"
    gpus, blocks, steps = (
        _tags(name, elements)
        for name, elements in (("gpu", raw.gpus), ("tb", raw.blocks), ("step", raw.steps))
    )
    first_block = np.searchsorted(raw.blocks["gpu"], np.arange(len(gpus) + 1)).tolist()
    first_step = np.searchsorted(raw.steps["tb"], np.arange(len(blocks) + 1)).tolist()
    for rank, gpu in enumerate(gpus):
        yield f"  {gpu}>"
        for block in range(*first_block[rank : rank + 2]):
            yield f"    {blocks[block]}>"
            for step in steps[slice(*first_step[block : block + 2])]:
                yield f"      {step}/>"
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def _tags(name: str, elements: Elements) -> list[str]:
    """The tags of elements, without their ends."""
    words: dict[str, NDArray[Any]] = {
        "type": np.array([OPERATION_WORDS.get(op, "") for op in Op]),
        **dict.fromkeys(("srcbuf", "dstbuf"), np.array([buffer.word[0] for buffer in Buffer])),
    }
    attributes = ATTRIBUTES[name]
    tag = f"<{name} " + " ".join(f'{word}="%s"' for word in attributes)
    values = (words[a][elements[a]] if a in words else elements[a] for a in attributes)
    return [tag % row for row in zip(*(column.tolist() for column in values), strict=True)]
