"""Writer: the MSCCL XML of a Plan, for a target; and what a target can't run, in files too.

The runtimes check some of their limits when they load a file, and refuse to start; others they
don't check, and compute wrong results or hang.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import NDArray

from sley.errors import Place, counted
from sley.errors.formats import F438, F441, F443, F444, F451, F454
from sley.errors.verifier import V201, V202, V208
from sley.formats.format import Problems, Target, refuse_varying_counts, target_among
from sley.formats.msccl_xml.raw import ATTRIBUTES, PARENT, Elements, Header, RawFile
from sley.formats.msccl_xml.targets import OPERATION_WORDS, TARGETS, XmlTarget, name_and_chunks
from sley.ir.faults import faults, overlap_faults
from sley.ir.plan import Plan
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE, LongArray, offsets_of
from sley.ir.words import (
    FIFO_PROTOCOLS,
    READS_SOURCE,
    RECEIVES,
    SENDS,
    WRITES_DESTINATION,
    Buffer,
    LoopOrder,
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
    """Each block with its peers and channel; the last ones if it has several, which `check_peers`
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
    # The lines of an instruction are one after another, a wait on each: by its targets, so that the
    # text depends on the plan alone.
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
    # The latest row that begins a run, here or before: rows that join count as 0, which is no
    # maximum.
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


_FEWER_BLOCKS = "Use fewer instances, blocks that serve both directions, or more channels."

_LARGER_CHUNKS = "Use fewer, larger chunks, or transfers of fewer chunks in the program."
_SHORTER_BLOCKS = (
    "Distribute the work over more channels, use fewer instances, or write for msccl (256)."
)
_FEWER_ELEMENTS = "Use fewer instances or chunks."

_FIXED_NODES = 1
"""<algo>, which counts as a node of each GPU."""


def check_order(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that is not tile-major, or whose messages are not sent through slots."""
    at = Place(detail=plan.name)
    if plan.protocol not in FIFO_PROTOCOLS:
        remedy = (
            "Compile the program with another protocol: --protocol simple, or "
            'sley.compile(..., protocol="simple").'
        )
        problems.add(F441, at, "Simple, LL or LL128", plan.protocol.value, remedy)
    if plan.loop_order is not LoopOrder.TILE:
        remedy = (
            "Write the tile-major plan of the same program: --loop-order tile, or "
            'sley.compile(..., loop_order="tile").'
        )
        found = f"one in {plan.loop_order.value}-major order"
        problems.add(F441, at, "a plan in tile-major order", found, remedy)


def refuse_groups(plan: Plan) -> None:
    """Refuses a plan with groups of peers, which no XML has. Errors: F438."""
    if len(plan.grouped):
        raise F438.error(
            at=plan.place(int(plan.grouped[0])),
            expected="one rank at the other end of a message",
            found=f"{counted(len(plan.grouped), 'instruction')} with a group of ranks",
        )


def check_tables(plan: Plan, problems: Problems) -> None:
    """Refuses tables that contradict one another, and waits of instructions for themselves or for
    later ones of their block."""
    found = faults(plan)
    for fault in found[: problems.room]:
        problems.add(V201, plan.places(fault.rows)[0], expected=fault.expected, found=fault.found)
    if found:
        return
    source, target = plan.waits.source, plan.waits.target
    late = source[(plan.block[target] == plan.block[source]) & (target >= source)]
    problems.add_each(
        late,
        V201,
        plan.place,
        "waits for other blocks' instructions",
        lambda row: f"waits for instructions {', '.join(map(str, plan.waits[row].tolist()))}",
    )


_ONLY_IN_PLACE = (
    'If the plan is meant for calls in place alone, write outofplace="0" in <algo>; else use '
    "scratch or the output for partial results."
)


def check_peers(plan: Plan, raw: RawFile, problems: Problems) -> None:
    """Refuses a block with several connections in one direction. raw: of the plan."""
    t = plan.instructions
    sends, receives = SENDS[t.op], RECEIVES[t.op]
    for word, mask, mine, attribute in (
        ("send peer", sends, t.send_peer, "send"),
        ("receive peer", receives, t.recv_peer, "recv"),
        ("channel", sends | receives, t.channel, "chan"),
    ):
        own = raw.blocks[attribute][plan.block]
        problems.add_each(
            mask & (mine != own),
            F441,
            plan.place,
            f"one {word} in a block",
            lambda row, mine=mine, own=own, word=word: (  # type: ignore[misc]
                f"{word}s {mine[row]} and {own[row]} in one block"
            ),
            "Give each pair of peers and channel its own block, as sley.compile does "
            "with --allocate connection and without --max-blocks.",
        )


def check_memory(
    plan: Plan, target: XmlTarget, problems: Problems, *, declares_both: bool = False
) -> None:
    """Refuses an out-of-place plan that overwrites its input, and operands that overlap.
    declares_both: whether the plan's file is for calls in place too."""
    for fault in overlap_faults(plan)[: problems.room]:
        problems.add(V208, plan.places(fault.rows), expected=fault.expected, found=fault.found)
    if plan.collective.in_place or not target.keeps_input:
        return
    rows = plan.input_writes[: problems.room]
    for row, cell in zip(rows.tolist(), plan.destination_cells(rows).tolist(), strict=True):
        expected = f"the input to be kept, for {target.name}"
        found = f"a write to {plan.layout.name(cell)}, out of place"
        remedy = _ONLY_IN_PLACE if declares_both else ""
        problems.add(F454, plan.place(row), expected, found, remedy)


def check_limits(raw: RawFile, target: XmlTarget, problems: Problems) -> None:
    """Refuses what doesn't fit into the target's tables."""
    ranks, steps, ops = raw.header.ngpus, raw.steps, raw.steps["type"]
    is_nop = ops == Op.NOP
    offset = np.maximum(
        np.where(READS_SOURCE[ops], steps["srcoff"], NONE),
        np.where(WRITES_DESTINATION[ops], steps["dstoff"], NONE),
    )
    of_block = np.bincount(steps["tb"], minlength=len(raw.blocks))
    nops = np.bincount(steps["tb"][is_nop], minlength=len(raw.blocks))
    blocks = np.bincount(raw.block_rank, minlength=ranks)
    of_rank = np.bincount(raw.block_rank[steps["tb"]], minlength=ranks)
    nodes = _FIXED_NODES + ranks + blocks + of_rank
    most_children = np.array([max(ranks, int(blocks.max(initial=0)))])

    def refuse(
        values: NDArray[Any],
        most: int | None,
        place: Callable[[int], Place],
        texts: tuple[str, str],
        remedy: str,
        *more: NDArray[Any],
    ) -> None:
        """Adds a problem if a value is above a limit: the highest, since one cause, such as too
        many instances, has many of them. texts: what is expected, with the limit, and what is
        found, with the value and `more` of the row."""
        above = 0 if most is None else int((values > most).sum())
        if above:
            row = int(np.argmax(values))
            expected = f"{texts[0].format(most)}, for {target.name}"
            others = f"; {above - 1} more above the limit" * (above > 1)
            found = texts[1].format(values[row], *(of_row[row] for of_row in more)) + others
            problems.add(F444, place(row), expected, found, remedy)

    _check_ends(raw, target, problems)
    counts, texts = np.where(is_nop, 0, steps["cnt"]), ("at most {} chunks in a step", "{} chunks")
    refuse(counts, target.count, steps.place, texts, _LARGER_CHUNKS)
    texts = ("offsets up to {}", "offset {}")
    refuse(offset, target.offset, steps.place, texts, "Use fewer chunks.")
    if (blocks <= target.blocks).all():  # with too many blocks, such waits follow from them
        texts = ("waits for blocks up to {}", "a wait for block {}")
        refuse(steps["depid"], target.waited_block, steps.place, texts, _FEWER_BLOCKS)
    texts = ("at most {} steps in a block", "{} steps, {} of them nops for further waits")
    refuse(of_block, target.steps_per_block, raw.blocks.place, texts, _SHORTER_BLOCKS, nops)
    texts = ("at most {} blocks on a GPU", "{} blocks")
    refuse(blocks, target.blocks, _rank_place, texts, _FEWER_BLOCKS)
    found = f"{{}}: <algo>, {ranks} GPUs, {{}} blocks, {{}} steps"
    texts = ("at most {} elements for a GPU", found)
    refuse(nodes, target.nodes, _rank_place, texts, _FEWER_ELEMENTS, blocks, of_rank)
    found = f"{ranks} GPUs, and up to {blocks.max(initial=0)} blocks in one"
    texts = ("at most {} children of an element", found)
    algo = Place(detail="<algo>")
    refuse(most_children, target.children, lambda _: algo, texts, _FEWER_ELEMENTS)


def _rank_place(rank: int) -> Place:
    return Place(detail=f"rank {rank}")


def _check_ends(raw: RawFile, target: XmlTarget, problems: Problems) -> None:
    """Refuses channels beyond the target's, connections with several blocks at one end, and too
    many blocks of a GPU that send, or that receive, on one channel."""
    ranks, channels, chan = raw.header.ngpus, raw.header.nchannels, raw.blocks["chan"]
    if channels > target.channels:
        highest = int(chan.max(initial=NONE))
        problems.add(
            F444,
            raw.blocks.place(int(np.argmax(chan))) if len(chan) else Place(),
            expected=f"channels below {target.channels}, for {target.name}",
            found=f"channel {highest}" if highest >= target.channels else f"{channels} channels",
            remedy="Use fewer instances, or use a channel for several connections.",
        )
    for word, peer in (("sending", raw.blocks["send"]), ("receiving", raw.blocks["recv"])):
        used = np.flatnonzero(peer != NONE)
        on_channel = raw.block_rank[used] * channels + chan[used]
        # The first block of each connection, and for each block the number of its connection.
        _, first, again = np.unique(
            on_channel * ranks + peer[used], return_index=True, return_inverse=True
        )
        others = np.flatnonzero(first[again] != np.arange(len(used)))
        for k in others[: problems.room].tolist():
            block = int(used[k])
            places = [raw.blocks.place(block), raw.blocks.place(int(used[first[again[k]]]))]
            expected = f"one {word} block for a connection"
            found = f"another one with peer {peer[block]} and channel {chan[block]}"
            remedy = "Give one of the blocks another channel, at both ends."
            problems.add(V202, places, expected, found, remedy)
        busy, count = np.unique(on_channel, return_counts=True)
        problems.add_each(
            count > target.peers_per_channel,
            F444,
            lambda row, busy=busy: _rank_place(busy[row] // channels),  # type: ignore[misc]
            f"at most {target.peers_per_channel} blocks on a channel, for {target.name}",
            lambda row, busy=busy, count=count: (  # type: ignore[misc]
                f"{count[row]} on channel {busy[row] % channels}"
            ),
            _FEWER_BLOCKS,
        )
