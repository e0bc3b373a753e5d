"""Plan faults: contradictions that the verifier doesn't look for, since no pass makes them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sley.formats.plan_header import MOST_CALLERS
from sley.ir.collective import Collective
from sley.ir.fabric import LinkKind, VertexKind
from sley.ir.plan import Plan
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Edges
from sley.ir.words import Buffer

FREE_SCRATCH = 1 << 20
"""The chunks of scratch that a plan may have even if no instruction uses them. A proof has a value
for each chunk, and no bytes of a file stand for them."""


def fault_of(plan: Plan) -> tuple[str, str] | None:
    """The first of these contradictions of a plan: what is expected, and what is found; None if
    there is none. A buffer that doesn't exist is one even where an instruction doesn't use it:
    pictures, lifting and kernels look at it without a look at the operation."""
    # Each check relies on those before it, so none is made after the first fault.
    faults = chain(_of_collective(plan), _of_instructions(plan), _of_rest(plan))
    return next(((expected, str(found)) for expected, found in faults), None)


_Faults = Iterator[tuple[str, object]]


def _of_collective(plan: Plan) -> _Faults:
    c = plan.collective
    if min(c.ranks, c.chunks) <= 0:
        yield "1 rank or more, of 1 chunk or more", c
    buffers = (c.input_chunks, c.output_chunks, c.input_base, c.output_base, plan.scratch_chunks)
    if not all(len(one) == c.ranks and one.min() >= 0 for one in buffers):
        yield f"sizes and bases from 0 for the buffers of {c.ranks} ranks", c
    if [len(c.initial), len(c.expected)] != [_total(one) for one in buffers[:2]]:
        yield "initial and expected for all chunks", f"{len(c.initial)} and {len(c.expected)}"
    if not _is_between(c.initial.view(np.uint8), 0, 2):
        yield "0 and 1 in initial", c
    if c.in_place and not _is_within_data(c):
        yield "buffers within the data in place", c
    if not NONE <= c.root < c.ranks:
        yield f"a root below {c.ranks}", c.root
    if not (_is_partition(c.values) and _is_between(c.values.target, 0, len(c.initial))):
        yield "values made of input chunks", c.values
    if not _is_between(c.expected, NONE, len(c.values.offset) - 1):
        yield "expected values that exist", c.values


def _of_instructions(plan: Plan) -> _Faults:
    i, scratch = plan.instructions, _total(plan.scratch_chunks)
    if scratch > max(FREE_SCRATCH, _total(i.count)):
        yield "scratch that instructions use", f"{scratch} chunks"
    buffers, peers = (i.src_buffer, i.dst_buffer), (i.send_peer, i.recv_peer)
    most = plan.collective.ranks + len(plan.groups.offset) - 1
    if not (
        all(_is_between(one, NONE, len(Buffer)) for one in buffers)
        and all(_is_between(one, NONE, most) for one in peers)
        and min(i.channel.min(initial=NONE), i.pipeline.min(initial=NONE)) >= NONE
    ):
        found = f"others in {len(i)} instructions"
        yield "buffers, peers and channels that exist, of all instructions", found


def _of_rest(plan: Plan) -> _Faults:
    s, e, t, ranks = plan.sources, plan.estimate, plan.topology, plan.collective.ranks
    if not (
        _is_between(s.file, 0, len(s.files))
        and _is_between(s.caller, NONE, len(s))
        and _depth(s) <= MOST_CALLERS
    ):
        found = f"others in {len(s)} lines of {len(s.files)} files"
        yield "sources in the files, and their callers", found
    if min(s.line.min(initial=0), s.position.min(initial=0)) < 0:
        yield "lines from 0", s
    if e is not None and not (
        len(e.busy_us) == len(plan.block_rank)
        and np.isfinite(e.busy_us).all()
        and np.isfinite((e.time_us, e.unmerged_us)).all()
    ):
        yield "a time for each block", e
    if t is not None and not (
        t.ranks >= ranks
        and _is_between(t.vertices.kind, 0, len(VertexKind))
        and _is_between(t.links.kind, 0, len(LinkKind))
    ):
        yield f"a topology of at least {ranks} GPUs, whose kinds are known", t


def _total(column: NDArray[Any]) -> int:
    return int(column.sum(dtype=np.int64))


# More data than both buffers have would take memory for which no bytes of the file stand.
def _is_within_data(c: Collective) -> bool:
    """Whether no buffer in place begins or ends where there is no data."""
    size = c.input_chunks.astype(np.int64) + c.output_chunks
    ends = (c.input_base + c.input_chunks.astype(np.int64), c.output_base + size - c.input_chunks)
    return bool((np.maximum(*ends) <= size).all())


def _is_partition(edges: Edges) -> bool:
    offset = edges.offset
    whole = len(offset) and offset[0] == 0 and offset[-1] == len(edges.target)
    return bool(whole and (offset[1:] >= offset[:-1]).all())


def _is_between(values: NDArray[Any], least: int, end: int) -> bool:
    return not len(values) or bool(values.min() >= least and values.max() < end)


def _depth(sources: Sources) -> int:
    """How many lines call one another; more than `MOST_CALLERS` if they do in a circle."""
    depth, caller = 0, sources.caller
    while len(caller) and depth <= MOST_CALLERS:
        caller = sources.caller[caller[caller != NONE]]
        depth += 1
    return depth
