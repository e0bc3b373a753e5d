"""Plan faults: contradictions that the verifier doesn't look for, since no pass makes them."""

from __future__ import annotations

from collections.abc import Callable
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
    c, s, i = plan.collective, plan.sources, plan.instructions
    t, e = plan.topology, plan.estimate
    buffers = (c.input_chunks, c.output_chunks, c.input_base, c.output_base, plan.scratch_chunks)
    # Each check relies on those before it.
    checks: tuple[tuple[str, Callable[[], Any], Any], ...] = (
        ("1 rank or more, of 1 chunk or more", lambda: min(c.ranks, c.chunks) > 0, c),
        (
            f"sizes and bases from 0 for the buffers of {c.ranks} ranks",
            lambda: all(len(one) == c.ranks and one.min() >= 0 for one in buffers),
            c,
        ),
        (
            "initial and expected for all chunks",
            lambda: [len(c.initial), len(c.expected)] == [_total(one) for one in buffers[:2]],
            f"{len(c.initial)} and {len(c.expected)}",
        ),
        ("0 and 1 in initial", lambda: _is_between(c.initial.view(np.uint8), 0, 2), c),
        ("buffers within the data in place", lambda: not c.in_place or _is_within_data(c), c),
        (f"a root below {c.ranks}", lambda: NONE <= c.root < c.ranks, c.root),
        (
            "values made of input chunks",
            lambda: _is_partition(c.values) and _is_between(c.values.target, 0, len(c.initial)),
            c.values,
        ),
        (
            "expected values that exist",
            lambda: _is_between(c.expected, NONE, len(c.values.offset) - 1),
            c.values,
        ),
        (
            "scratch that instructions use",
            lambda: _total(plan.scratch_chunks) <= max(FREE_SCRATCH, _total(i.count)),
            f"{_total(plan.scratch_chunks)} chunks",
        ),
        (
            "buffers, peers and channels that exist, of all instructions",
            lambda: (
                _is_between(i.src_buffer, NONE, len(Buffer))
                and _is_between(i.dst_buffer, NONE, len(Buffer))
                and _is_between(i.send_peer, NONE, c.ranks + len(plan.groups.offset) - 1)
                and _is_between(i.recv_peer, NONE, c.ranks + len(plan.groups.offset) - 1)
                and min(i.channel.min(initial=NONE), i.pipeline.min(initial=NONE)) >= NONE
            ),
            f"others in {len(i)} instructions",
        ),
        (
            "sources in the files, and their callers",
            lambda: (
                _is_between(s.file, 0, len(s.files))
                and _is_between(s.caller, NONE, len(s))
                and _depth(s) <= MOST_CALLERS
            ),
            f"others in {len(s)} lines of {len(s.files)} files",
        ),
        ("lines from 0", lambda: min(s.line.min(initial=0), s.position.min(initial=0)) >= 0, s),
        (
            "a time for each block",
            lambda: (
                e is None
                or (
                    len(e.busy_us) == len(plan.block_rank)
                    and _is_finite(e.busy_us, e.time_us, e.unmerged_us)
                )
            ),
            e,
        ),
        (
            f"a topology of at least {c.ranks} GPUs, whose kinds are known",
            lambda: (
                t is None
                or (
                    t.ranks >= c.ranks
                    and _is_between(t.vertices.kind, 0, len(VertexKind))
                    and _is_between(t.links.kind, 0, len(LinkKind))
                )
            ),
            t,
        ),
    )
    for expected, holds, found in checks:
        if not holds():
            return expected, str(found)
    return None


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


def _is_finite(values: NDArray[Any], *more: float) -> bool:
    return bool(np.isfinite(values).all() and np.isfinite(more).all())


def _depth(sources: Sources) -> int:
    """How many lines call one another; more than `MOST_CALLERS` if they do in a circle."""
    depth, caller = 0, sources.caller
    while len(caller) and depth <= MOST_CALLERS:
        caller = sources.caller[caller[caller != NONE]]
        depth += 1
    return depth
