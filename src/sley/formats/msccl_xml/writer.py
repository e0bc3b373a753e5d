"""Writer: the MSCCL XML of a Plan, for a target."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
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
    rows_of_plan,
)
from sley.formats.msccl_xml.steps import Peers, Steps, peers_of, steps_of
from sley.formats.msccl_xml.targets import TARGETS, XmlTarget
from sley.formats.msccl_xml.words import (
    BUFFER_WORDS,
    BUFFERS,
    OPERATION_WORDS,
    name_and_chunks,
)
from sley.formats.problems import Problems
from sley.ir.plan import Plan
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE
from sley.ir.words import READS_SOURCE, WRITES_DESTINATION, Op, is_integer

_NOT_XML_TEXT = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_IN_ATTRIBUTE = {'"': "&quot;", "\t": "&#9;", "\n": "&#10;", "\r": "&#13;"}
_OTHER_NAME = "Pass another name: sley.save(plan, path, name=...)."
_LARGEST_BYTES = (1 << 62) - 1


@dataclass(frozen=True)
class _Parts:
    """The parts of a file.

    word: the target's name of the collective. chunks: the number of chunks of a call's count.
    plain: the plan without instructions that the target doesn't run.
    """

    word: str
    chunks: int
    plain: Plan
    peers: Peers
    steps: Steps


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
    parts = _parts(plan, target, problems)
    limit = target.no_limit_bytes
    if most is not None:
        limit = most if target.max_is_inclusive else most + 1
    header = {
        "name": name,
        "proto": plan.protocol.value,
        "nchannels": parts.plain.channels,
        "nchunksperloop": parts.chunks,
        "ngpus": plan.collective.ranks,
        "coll": parts.word,
        "inplace": int(plan.collective.in_place),
        "outofplace": int(not plan.collective.in_place),
        "minBytes": least,
        "maxBytes": limit,
    }
    if threads is not None:
        header["nthreads"] = threads
    return "\n".join(_lines(header, parts)) + "\n"


def check(plan: Plan, target: str | Target) -> None:
    """Refuses a plan that the target (msccl, executor, rccl) can't run. Errors: those of `write`
    but F451."""
    _parts(plan, target_among(TARGETS, target, XmlTarget), Problems())


def _parts(plan: Plan, target: XmlTarget, problems: Problems) -> _Parts:
    """The parts of a file; raises the problems, earlier ones included."""
    refuse_varying_counts(plan.collective)
    word, chunks = _collective(plan, target, problems)
    check_order(plan, problems)
    check_tables(plan, problems)
    problems.raise_any()
    refuse_groups(plan)
    plain = target.simulated(plan)
    peers, steps = peers_of(plain), steps_of(plain, target.reduce_run)
    check_peers(plain, peers, problems)
    check_memory(plain, target, problems)
    check_limits(rows_of_plan(plain, peers, steps), target, problems)
    problems.raise_any()
    return _Parts(word, chunks, plain, peers, steps)


def _collective(plan: Plan, target: XmlTarget, problems: Problems) -> tuple[str, int]:
    """The target's name of the plan's collective, and the number of chunks of a call's count; adds
    a problem if the target has no name."""
    collective = plan.collective
    word, chunks = name_and_chunks(collective, target)
    if word is None:
        known = target.collectives.get(collective.name)
        problems.add(
            F443,
            Place(detail=plan.name),
            expected=f"one of {', '.join(sorted(target.collectives))}, for {target.name}",
            found=f"{collective}"
            + ("" if known is None else f", which isn't what {target.name} means by that name"),
        )
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
        problems.add(F451, at, expected=expected, found=found, remedy=_OTHER_NAME)
    most = target.attribute_chars
    if most is not None and bad is None and len(_attribute(name).encode()) > most:
        problems.add(
            F451,
            at,
            expected=f"a name of at most {most} characters, for {target.name}",
            found=f"{len(_attribute(name).encode())}",
            remedy=_OTHER_NAME,
        )
    greatest = _LARGEST_BYTES if max_bytes is None else max_bytes
    are_sizes = is_integer(min_bytes) and is_integer(greatest)
    if not are_sizes or not 0 <= min_bytes <= greatest <= _LARGEST_BYTES or greatest < 1:
        problems.add(
            F451,
            at,
            expected=f"0 <= min_bytes <= max_bytes, max_bytes from 1 to {_LARGEST_BYTES}",
            found=f"min_bytes={min_bytes!r}, max_bytes={max_bytes!r}",
        )
    if threads is not None and not (target.takes_threads and is_integer(threads) and threads >= 1):
        problems.add(
            F451,
            at,
            expected="threads of at least 1, for a target that reads it"
            if target.takes_threads
            else f"no threads: {target.name} doesn't read it",
            found=f"threads={threads!r}",
        )


def _attribute(text: str) -> str:
    """Text, escaped for the value of an attribute."""
    return escape(text, _IN_ATTRIBUTE)


def _lines(header: dict[str, str | int], parts: _Parts) -> Iterator[str]:
    """The lines of the text: one space between attributes, no tabs, no line ends in tags."""
    plan, peers, steps = parts.plain, parts.peers, parts.steps
    attributes = " ".join(f'{key}="{_attribute(str(value))}"' for key, value in header.items())
    yield f"<algo {attributes}>"
    collective = plan.collective
    texts = _step_lines(plan, steps)
    for rank in range(collective.ranks):
        yield (
            f'  <gpu id="{rank}" i_chunks="{collective.input_chunks[rank]}" '
            f'o_chunks="{collective.output_chunks[rank]}" s_chunks="{plan.scratch_chunks[rank]}">'
        )
        for block in range(int(plan.rank_block[rank]), int(plan.rank_block[rank + 1])):
            yield (
                f'    <tb id="{plan.block_number[block]}" send="{peers.send[block]}" '
                f'recv="{peers.recv[block]}" chan="{peers.chan[block]}">'
            )
            yield from texts[int(steps.offset[block]) : int(steps.offset[block + 1])]
            yield "    </tb>"
        yield "  </gpu>"
    yield "</algo>"


def _step_lines(plan: Plan, steps: Steps) -> list[str]:
    """The <step> lines. If an operation has only one operand, the other repeats it, since that is
    always inside its buffer."""
    t = plan.instructions
    words = np.array([OPERATION_WORDS.get(op, "") for op in Op])
    buffers = np.array([BUFFER_WORDS[buffer] for buffer in BUFFERS.values()])
    has_src, has_dst = READS_SOURCE[t.op], WRITES_DESTINATION[t.op]
    row = steps.instruction

    def per_step(values: NDArray[np.integer], of_nop: int) -> NDArray[np.integer]:
        return np.where(steps.is_nop, of_nop, values[row])

    columns = (
        steps.position,
        words[per_step(t.op, Op.NOP)],
        buffers[per_step(np.where(has_src, t.src_buffer, t.dst_buffer), BUFFERS["i"])],
        per_step(np.where(has_src, t.src_index, t.dst_index), NONE),
        buffers[per_step(np.where(has_dst, t.dst_buffer, t.src_buffer), BUFFERS["o"])],
        per_step(np.where(has_dst, t.dst_index, t.src_index), NONE),
        per_step(t.count, 0),
        steps.depid,
        steps.deps,
        steps.hasdep.astype(np.int8),
    )
    return [
        f'      <step s="{s}" type="{kind}" srcbuf="{srcbuf}" srcoff="{srcoff}" '
        f'dstbuf="{dstbuf}" dstoff="{dstoff}" cnt="{count}" depid="{depid}" deps="{deps}" '
        f'hasdep="{hasdep}"/>'
        for s, kind, srcbuf, srcoff, dstbuf, dstoff, count, depid, deps, hasdep in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
