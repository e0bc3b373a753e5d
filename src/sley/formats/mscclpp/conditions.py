"""Conditions: the circumstances under which MSCCL++ executes a plan as it was read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from math import gcd

import numpy as np

from sley.errors import counted, span_texts
from sley.formats.mscclpp import words
from sley.formats.mscclpp.lowering import Cutting
from sley.formats.mscclpp.raw import MAX_SIZE, RawPlan
from sley.formats.mscclpp.targets import FIRST, FLUSHED_PUT, LOCAL_MEMORIES, VERSIONS, PlanTarget
from sley.formats.mscclpp.words import Operand
from sley.ir.collective import Collective
from sley.ir.conditions import Choice, ChunkBytes, Condition, Offset
from sley.ir.sizes import SizeRange
from sley.ir.words import Buffer, Protocol

_MOST = (1 << 32) - 1
"""The bytes of the largest allocation of which all offsets have 32 bits."""


def conditions(
    raw: RawPlan, collective: Collective, cutting: Cutting, target: PlanTarget
) -> tuple[Condition, ...]:
    """The conditions of a file: about chunks, sizes, allocations, hosts, buffers, calls and the
    version."""
    return (
        _about_chunks(raw, cutting, target),
        *_about_sizes(raw, collective, cutting),
        *_about_allocations(raw, collective),
        *(Condition("hosts", text) for text in _about_hosts(raw)),
        *sorted(_about_buffers(raw), key=str),
        *_about_calls(raw, target),
        *(Condition("version", text) for text in _about_versions(raw, target)),
    )


def _about_chunks(raw: RawPlan, cutting: Cutting, target: PlanTarget) -> Condition:
    """The sizes of chunks; about "chunks" if they end before those of the calls."""
    about = "sizes"
    least, most, multiple = cutting.least_bytes, cutting.most_bytes or None, cutting.multiple_bytes
    for limit in (_most_with_shared_scratch(raw, target), _most_with_offsets(raw, target)):
        if limit is not None and (most is None or limit < most):
            most, about = limit, "chunks"
    demand = ChunkBytes(multiple, least, most)
    if least == most:
        return Condition(about, f"chunks of {most} bytes", demand)
    least = -(-least // multiple) * multiple
    span = f", {SizeRange(least, most)}" if most is not None or least > multiple else ""
    return Condition(about, f"chunks of a multiple of {multiple} bytes{span}", demand)


def own_chunks(raw: RawPlan, collective: Collective) -> int:
    """The chunks of the buffer whose size chooses a plan: of the output for AllGather, else of the
    input."""
    is_output = raw.collective == "allgather"
    return int((collective.output_chunks if is_output else collective.input_chunks).max())


def _about_sizes(raw: RawPlan, collective: Collective, cutting: Cutting) -> Iterator[Condition]:
    side = "an output" if raw.collective == "allgather" else "an input"
    end = raw.max_bytes if raw.max_bytes < MAX_SIZE else None
    if raw.min_bytes or end is not None:
        # A call of 0 bytes ends the process, which divides by 0.
        text = f"{side} of {SizeRange(max(raw.min_bytes, cutting.multiple_bytes), end)}"
        own = own_chunks(raw, collective)
        demand = ChunkBytes(least=-(-raw.min_bytes // own), most=raw.max_bytes // own)
        yield Condition("sizes", text, demand)


def _about_allocations(raw: RawPlan, collective: Collective) -> Iterator[Condition]:
    end = raw.max_bytes if raw.max_bytes < MAX_SIZE else None
    c = collective
    of_ranks = c.data_chunks if c.in_place else np.maximum(c.input_chunks, c.output_chunks)
    chunks = int(of_ranks.max())
    demand = ChunkBytes(most=_MOST // chunks)
    yield Condition("allocations", "allocations of less than 4 GiB", demand)
    is_halved = raw.doubles and not raw.reuses and any(gpu.scratch_chunks for gpu in raw.gpus)
    switched = [group.buffer for gpu in raw.gpus for group in gpu.groups]
    if any(buffer != Buffer.SCRATCH or not raw.reuses for buffer in switched):
        # A switch channel has the size of the lowest rank's buffer, which depends on the caller's
        # buffers, but for the scratch that plans with reuse_resources share.
        yield Condition("allocations", "allocations of one size on all ranks")
    elif is_halved:
        enough = "" if end is None else f", or of {SizeRange(end, None)}"
        yield Condition("allocations", f"allocations of one size on all ranks{enough}")
    if is_halved:
        copies = 2 * (2 if raw.protocol is Protocol.LL else 1)
        scratch = raw.gpus[0].scratch_chunks * copies
        unit = 2 * raw.alignment // gcd(2 * raw.alignment, scratch)
        if unit > 1:
            parts = raw.gpus[0].input_chunks
            text = f"allocations of which 1/{parts}, rounded up, is a multiple of {unit} bytes"
            longest = ((_MOST - 1) // parts + 1) // unit * unit * parts
            demand = ChunkBytes(most=min(longest, _MOST) // chunks)
            yield Condition("allocations", text, demand)


def _most_with_shared_scratch(raw: RawPlan, target: PlanTarget) -> int | None:
    """The largest chunk for which a plan with reuse_resources keeps its chunks of scratch apart,
    also in the iterations of its pipelines; None without a limit."""
    most = max(gpu.scratch_chunks for gpu in raw.gpus)
    if not raw.reuses or not most:
        return None
    room = target.shared_scratch_bytes // (2 if raw.doubles else 1) // most
    longest = max((one.op.chunks for one in raw.operations if one.op.unit_bytes), default=1)
    return room // longest // raw.alignment * raw.alignment


def _most_with_offsets(raw: RawPlan, target: PlanTarget) -> int | None:
    """The largest chunk for which offsets in the scratch fit into 32 bits; None if max_message_size
    or the buffers of the caller leave less."""
    copies = (2 if raw.protocol is Protocol.LL else 1) * (2 if raw.doubles else 1)
    scratch = max(gpu.scratch_chunks for gpu in raw.gpus) * copies
    chunks = max(max(gpu.input_chunks, gpu.output_chunks) for gpu in raw.gpus)
    own = raw.gpus[0].output_chunks if raw.collective == "allgather" else raw.gpus[0].input_chunks
    if scratch <= chunks or raw.max_bytes // own * scratch <= target.offset_bytes:
        return None
    return target.offset_bytes // scratch // raw.alignment * raw.alignment


def _about_hosts(raw: RawPlan) -> Iterator[str]:
    """The ranks that must be on one host, since memory or switch channels connect them, and the
    hosts of switch channels."""
    if any(gpu.groups for gpu in raw.gpus):
        yield "H100s or later GPUs, around switches that reduce and multicast"
    # Each channel merges the hosts of its ends, so in the end equal hosts are connected ones,
    # whatever the order of the channels.
    host = list(range(len(raw.gpus)))
    for rank, gpu in enumerate(raw.gpus):
        groups = [group.ranks for group in gpu.groups]
        for peer in {*gpu.peers.get(words.MEMORY, ()), *(one for ranks in groups for one in ranks)}:
            one, other = sorted((host[rank], host[peer]))
            host = [one if of == other else of for of in host]
    together = [[r for r, of in enumerate(host) if of == one] for one in sorted(set(host))]
    if len(together) == 1 and len(host) > 1:
        yield "all ranks on one host"
    else:
        for ranks in together:
            if len(ranks) > 1:
                yield f"{_named(ranks)} on one host"


def _named(ranks: list[int]) -> str:
    """Ascending ranks for messages: "rank 2", "ranks 0-3, 6"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(span_texts(ranks))}"


def _about_buffers(raw: RawPlan) -> Iterator[Condition]:
    switched, kept, common = set[Buffer](), set[Buffer](), set[Buffer]()
    first: dict[Buffer, set[int]] = defaultdict(set)
    for one in raw.operations:
        op = one.op
        for access in one.accesses:
            pushes = op.channel_type == words.PORT and bool(words.MOVES[op.name].channels)
            local = access.kind in (Operand.LOCAL, Operand.LOCAL_PACKETS)
            if access.buffer == Buffer.SCRATCH or (local and not pushes):
                continue
            if access.kind is Operand.SWITCH:
                switched.add(access.buffer)
            if raw.reuses:
                kept.add(access.buffer)
            if local or op.name == words.GET:
                first[access.buffer] |= {one.rank, *access.ranks}
            else:
                common.add(access.buffer)
    every = tuple(range(len(raw.gpus)))
    for buffer in Buffer:
        name = f"the {buffer.name.lower()}"
        if buffer in switched:
            text = f"{name} in memory of cuMemMap, such as MSCCL++'s GpuBuffer"
            yield Condition("buffers", text)
        if buffer in kept:
            yield Condition("buffers", f"{name} at the same place in all calls")
        if ranks := sorted(first[buffer]):
            on = "" if len(ranks) == len(every) else f" on {_named(ranks)}"
            text = f"{name} at the start of its allocation{on}"
            yield Condition("buffers", text, Offset(buffer, tuple(ranks), zero=True))
        if buffer in common:
            text = f"{name} at the same offset of its allocation on all ranks"
            yield Condition("buffers", text, Offset(buffer, every))


def _about_versions(raw: RawPlan, target: PlanTarget) -> Iterator[str]:
    """The first version that executes the file in this way, if it is not the oldest one."""
    names = {one.op.name for one in raw.operations}
    if words.PUT_SIGNAL_FLUSH in names and not target.lacks(FLUSHED_PUT):
        names.add(FLUSHED_PUT)
    used = [word for word in FIRST if word in names]
    if used:
        first = max((VERSIONS[FIRST[word]] for word in used), key=lambda commit: commit.day)
        of = ", ".join(word for word in used if VERSIONS[FIRST[word]] == first)
        yield f"an executor of {first.day} or later, from commit {first.name} on, for {of}"


def _about_calls(raw: RawPlan, target: PlanTarget) -> Iterator[Condition]:
    names = {one.op.name for one in raw.operations}
    if names & words.REDUCTIONS:
        yield Condition("calls", "sum", Choice.one_of("reduction", "sum"))
    if words.GROUP_REDUCE_STORE in names:
        bits = Choice.one_of("element bits", 16, 32)
        yield Condition("calls", "elements of 16 or 32 bits", bits)
    yield from (Condition("calls", text) for text in _about_series_of_calls(raw, target))


def _about_series_of_calls(raw: RawPlan, target: PlanTarget) -> Iterator[str]:
    """What concerns other calls as well, and the hardware."""
    kinds = {
        access.kind.packet
        for one in raw.operations
        for access in one.accesses
        if access.buffer == Buffer.SCRATCH
    }
    packets = True in kinds
    # Chunks of other sizes overlap others of the call before. Each pair of allocations has its own
    # scratch.
    whose = "" if raw.reuses else " whose buffers are in the same allocations"
    one_size = f"one size for all calls{whose}"
    if kinds == {True, False}:
        yield one_size
    elif kinds:
        yield f"{one_size}, or all ranks meet between two sizes"
    if packets or raw.doubles:
        yield "all ranks execute the same plans in the same order"
    scratch = any(gpu.scratch_chunks for gpu in raw.gpus)
    if raw.doubles and scratch:
        same = "" if raw.reuses else " with the same buffers"
        yield f"between two calls{same} no other execution, or one in which all ranks meet"
    if not raw.reuses:
        # Making the resources of a plan is a meeting of all ranks.
        yield "new allocations on all ranks at once"
    if raw.reuses and scratch:
        yield "no execution of another plan with reuse_resources"
    if channels := max(len(gpu.peers[words.PORT]) for gpu in raw.gpus):
        # All plans of an executor have one proxy, which never forgets what it has registered.
        own = LOCAL_MEMORIES + max(gpu.port_buffers for gpu in raw.gpus)
        yield (
            f"an executor that has made at most {target.port_memories - own} memories and "
            f"{target.port_channels - channels} port channels for other plans and allocations"
        )
    blocks = max(len(gpu.blocks) for gpu in raw.gpus)
    if blocks > 1:
        # Blocks wait for one another, and the executor's launch is not a cooperative one.
        yield f"GPUs that run {blocks} blocks of {counted(raw.threads, 'thread')} at once"
