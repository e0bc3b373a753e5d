"""Writer: the execution plan of MSCCL++ for a Plan, within the tables of its executor.

Blocks with too many operations are cut, until everything fits or nothing more can be done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from sley.errors import Place
from sley.errors.formats import F441, F443, F451
from sley.errors.mscclpp import F475, F482
from sley.formats.format import Problems, Target, refuse_varying_counts, target_among
from sley.formats.mscclpp.analysis import Analysis
from sley.formats.mscclpp.checks import check_gpu
from sley.formats.mscclpp.emission import Emitted, ThreadBlocks, arrange, emit
from sley.formats.mscclpp.placing import Placing, place
from sley.formats.mscclpp.raw import RawBlock, RawGpu, RawOperation, RawPlan
from sley.formats.mscclpp.targets import TARGETS, PlanTarget, refuse_absent
from sley.formats.mscclpp.words import CHANNEL_TYPES, NOP, PROTOCOLS, SWITCH
from sley.formats.rewriting import unfuse
from sley.ir.collectives import standard
from sley.ir.plan import Plan
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE, IntArray, by_key
from sley.ir.words import Op, Protocol, is_integer

_BARRIERS = 2
"""The barriers of a part that follows another one and precedes a third."""

_RESERVED = (_BARRIERS, 6, 12, 20, 32)
"""Operations to leave free in the parts of a block, in turn until all parts fit: each has barriers,
and may need signals and semaphores for other parts."""

_OPERATIONS = frozenset(Op) - {Op.COPY_SEND}
"""The operations that files can express: a put reads its source, but stores it only on the peer."""

_PACKETS = (
    "Compile the program with the protocol Simple, or with LL for one host: --protocol on the "
    "command line, options = { protocol = ... } in the table of a package."
)
"""The remedy for other protocols."""


_SETTINGS = Place(detail="write")

_EMPTY = RawBlock(
    dict.fromkeys(CHANNEL_TYPES, ()), dict.fromkeys(CHANNEL_TYPES, ()), (RawOperation(NOP),)
)
"""A block without an effect: a kernel of no blocks can't be launched."""


def raw_plan(
    plan: Plan,
    target: str | Target,
    *,
    name: str | None = None,
    min_bytes: int | str = 0,
    max_bytes: int | str | None = None,
    threads: int | None = None,
    zero_copy: bool = False,
    ranks_per_node: int | None = None,
) -> RawPlan:
    """The execution plan of a Plan, for MSCCL++. It depends on the arguments alone.

    name: the plan's name, by which MSCCL++ finds its resources; the plan's by default.
    min_bytes, max_bytes: the least and the greatest size for which the executor runs the plan, both
        included: of the output for AllGather, else of the input. At least one unit for each chunk,
        since a call of 0 bytes ends its process; at most, and by default, the size up to which its
        32-bit offsets are right.
    threads: threads of a block; by default the most, 1024.
    zero_copy: whether messages may go straight into the input and output of other ranks, and ports
        may read those of their own. Then these buffers must have the same offset in their
        allocation on all ranks, and with ports the offset 0; the executor doesn't check that.
    ranks_per_node: ranks of a host: between hosts channels are port channels. By default as in the
        plan's topology; without one all ranks are on one host.
    Errors: F437, F438, F440, F443, F451, F441, F475, F444, F482, with up to 20 problems at once.
    """
    target = target_among(TARGETS, target, PlanTarget)
    problems = Problems()
    least, most = text_in_bytes(min_bytes), text_in_bytes(max_bytes)
    threads = target.threads if threads is None else threads
    _check_threads(target, threads, problems)
    raw = _raw(plan, target, problems, zero_copy=zero_copy, ranks_per_node=ranks_per_node)
    most = raw.max_bytes if most is None else most
    _check_range(least, most, range(raw.min_bytes, raw.max_bytes + 1), problems)
    problems.raise_any()
    name = raw.name if name is None else name
    least = max(least, raw.min_bytes)
    return replace(raw, name=name, threads=threads, min_bytes=least, max_bytes=most)


def check(plan: Plan, target: str | Target) -> None:
    """Refuses a plan that MSCCL++ can't run. Errors: as `raw_plan`, apart from those of
    settings."""
    target = target_among(TARGETS, target, PlanTarget)
    _raw(plan, target, Problems(), zero_copy=False, ranks_per_node=None)


def _check_threads(target: PlanTarget, threads: Any, problems: Problems) -> None:
    if not is_integer(threads) or not 32 <= threads <= target.threads or threads % 32:
        expected = f"threads: a multiple of 32, up to {target.threads}"
        problems.add(F451, _SETTINGS, expected, f"threads={threads!r}")


def _check_range(least: Any, most: Any, sizes: range, problems: Problems) -> None:
    """Refuses a range of sizes that is empty or ends outside of the possible sizes."""
    are_sizes = is_integer(least) and is_integer(most)
    if not are_sizes or not 0 <= least <= most or most not in sizes:
        expected = (
            f"0 <= min_bytes <= max_bytes, max_bytes from {sizes[0]}, a unit for each chunk, "
            f"to {sizes[-1]}, below 4 GiB for each buffer"
        )
        problems.add(F451, _SETTINGS, expected, f"min_bytes={least!r}, max_bytes={most!r}")


def _raw(
    plan: Plan,
    target: PlanTarget,
    problems: Problems,
    *,
    zero_copy: bool,
    ranks_per_node: int | None,
) -> RawPlan:
    """The raw plan for all sizes that the executor can run; raises the problems, earlier ones
    included."""
    refuse_varying_counts(plan.collective)
    plan = unfuse(plan, _OPERATIONS)
    _check_plan(plan, problems)
    nodes = _nodes(plan, ranks_per_node, problems)
    problems.raise_any()
    analysis, packets = Analysis.of(plan, nodes, problems), plan.protocol is Protocol.LL
    if packets and analysis.ports.any():
        at = plan.place(int(np.argmax(analysis.ports)))
        expected = "Simple between hosts: packets go by memory channels alone"
        problems.add(F441, at, expected, "a message of LL to another host", _PACKETS)
        problems.raise_any()
    placing = place(analysis, zero_copy=zero_copy)
    gpus = _gpus(analysis, placing, *_blocks(analysis, placing, target, problems))
    c, unit = plan.collective, target.vector_bytes
    own = int((c.output_chunks if c.name == "allgather" else c.input_chunks).max())
    # Offsets of packets are twice as large, and scratch has two copies.
    scratch = int(placing.scratch.max()) * (4 if packets else 1)
    chunks = max(int(c.input_chunks.max()), int(c.output_chunks.max()), scratch)
    raw = RawPlan(
        file="",
        name=plan.name,
        collective=c.name,
        protocol=plan.protocol,
        in_place=c.in_place,
        reuses=False,
        doubles=packets,
        alignment=unit,
        threads=target.threads,
        # The executor divides by 0 if a call has no unit for each chunk.
        min_bytes=unit * own,
        # Beyond, offsets have more than 32 bits.
        max_bytes=target.offset_bytes // chunks // unit * unit * own,
        gpus=gpus,
    )
    for rank, gpu in enumerate(gpus):
        for block in gpu.blocks:
            for name in sorted({op.name for op in block.operations}):
                refuse_absent(problems, block.made_at or raw.whole, name, target)
        check_gpu(raw, rank, target, problems)
    problems.raise_any()
    return raw


def _gpus(
    analysis: Analysis, placing: Placing, blocks: ThreadBlocks, emitted: Sequence[Emitted]
) -> tuple[RawGpu, ...]:
    """The GPUs with their blocks, and the tables to which these refer."""
    c, made = analysis.plan.collective, zip(blocks.blocks, emitted, strict=True)
    own = by_key((block.rank, of.block) for block, of in made)
    return tuple(
        RawGpu(
            int(c.input_chunks[rank]),
            int(c.output_chunks[rank]),
            int(placing.scratch[rank]),
            {
                **{kind: tuple(one.peer(rank) for one in of) for kind, of in channels.items()},
                SWITCH: (),
            },
            tuple(placing.groups[rank]),
            tuple(placing.remote[rank]),
            (0,) * blocks.semaphores[rank],
            tuple(own.get(rank, (_EMPTY,))),
        )
        for rank, channels in enumerate(blocks.numbers)
    )


def _check_plan(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that no file can represent."""
    c, at = plan.collective, Place(detail=plan.name)
    if plan.protocol not in PROTOCOLS.values():
        problems.add(F441, at, "Simple or LL", plan.protocol.value, _PACKETS)
    as_xml = "Write it as MSCCL XML, whose runtimes have"
    if standard(c) is None:
        expected = "a standard collective: an execution plan has only a name of its collective"
        remedy = f'{as_xml} others: target="msccl", or --target msccl.'
        problems.add(F443, at, expected, str(c), remedy)
    elif c.root != NONE:
        expected = "a collective without a root: an execution plan has no entry for one"
        remedy = f"{as_xml} these collectives, or use one without a root, such as AllReduce."
        problems.add(F443, at, expected, str(c), remedy)
    for name, chunks in (("input", c.input_chunks), ("output", c.output_chunks)):
        if not chunks.all():
            found = f"none on rank {int(np.argmin(chunks))}: the loader divides by their number"
            problems.add(F475, at, f"{name} chunks on each rank", found)


def _nodes(plan: Plan, ranks_per_node: Any, problems: Problems) -> IntArray:
    """int32 (ranks,): the host of each rank."""
    ranks = plan.collective.ranks
    nowhere = np.zeros(ranks, np.int32)
    if ranks_per_node is None:
        return nowhere if plan.topology is None else plan.topology.node
    if not is_integer(ranks_per_node) or ranks_per_node < 1 or ranks % ranks_per_node:
        expected = f"ranks_per_node: a number that divides {ranks}"
        problems.add(F451, _SETTINGS, expected, f"ranks_per_node={ranks_per_node!r}")
        return nowhere
    return np.arange(ranks, dtype=np.int32) // np.int32(ranks_per_node)


def _blocks(
    analysis: Analysis, placing: Placing, target: PlanTarget, problems: Problems
) -> tuple[ThreadBlocks, list[Emitted]]:
    """The blocks: the plan's own ones, those with too many operations cut. Raises the problems of
    blocks and GPUs for which that is not enough."""
    plan = analysis.plan
    ends = pairwise(plan.block_offset.tolist())
    whole = [range(*rows) for rows in ends if rows[0] < rows[1]]
    blocks = arrange(analysis, ([rows] for rows in whole))
    emitted = _whole_blocks(emit(analysis, placing, blocks, target), blocks, target)
    uncut = emitted
    # Parts need operations for one another, whose number depends on where the blocks are cut: so
    # each try leaves more room for them, always from the same whole blocks.
    for reserved in _RESERVED:
        if all(len(of.block.operations) <= target.operations for of in emitted):
            break
        cut = [_cut(*one, target, reserved) for one in zip(whole, uncut, strict=True)]
        blocks = arrange(analysis, cut)
        # More parts need no fewer barriers, but fewer channels.
        if max(blocks.barriers) > target.barriers:
            break
        if all(len(of) <= target.channels for b in blocks.blocks for of in b.channels.values()):
            emitted = list(emit(analysis, placing, blocks, target))
    for block in blocks.blocks:
        for kind, of_kind in block.channels.items():
            if len(of_kind) > target.channels:
                expected = f"at most {target.channels} {kind} channels in a block"
                at = plan.place(block.rows[0])
                problems.add(F482, at, expected, f"{len(of_kind)}")
    rank = int(np.argmax(blocks.barriers))
    if (barriers := blocks.barriers[rank]) > target.barriers:
        at, expected = Place(detail=f"rank {rank}"), f"at most {target.barriers} barriers on a GPU"
        problems.add(F482, at, expected, f"{barriers}")
    problems.raise_any()
    return blocks, emitted


def _whole_blocks(
    found: Iterable[Emitted], blocks: ThreadBlocks, target: PlanTarget
) -> list[Emitted]:
    """The blocks that are not cut. Refuses a GPU whose blocks need too many barriers when they are,
    before all others are made, which may take long. Errors: F482."""
    emitted, barriers = list[Emitted](), [0] * len(blocks.barriers)
    for block, of in zip(blocks.blocks, found, strict=True):
        emitted.append(of)
        barriers[block.rank] += (len(of.block.operations) - 1) // target.operations
        if barriers[block.rank] > target.barriers:
            raise F482.error(
                at=Place(detail=f"rank {block.rank}"),
                expected=f"at most {target.barriers} barriers on a GPU",
                found=f"at least {barriers[block.rank]}, between parts of {target.operations} "
                "operations",
                remedy="Use fewer instances or channels: fewer blocks have fewer parts.",
            )
    return emitted


def _cut(rows: Sequence[int], of: Emitted, target: PlanTarget, reserved: int) -> list[list[int]]:
    """The rows of a block, cut if need be so that each part has at most the target's number of
    operations, with `reserved` operations left free."""
    operations = len(of.block.operations)
    # A whole block has no barriers.
    if operations <= target.operations - reserved + _BARRIERS:
        return [list(rows)]
    # Each part begins and ends with the signals of the whole block, at most.
    room = target.operations - of.begin - (operations - of.ends[-1]) - reserved
    # As late as possible: the fewest parts need the fewest barriers.
    parts, start = [list[int]()], of.begin
    for row, (before, after) in zip(rows, pairwise([of.begin, *of.ends]), strict=True):
        if parts[-1] and after - start > room:
            parts.append([])
            start = before
        parts[-1].append(row)
    return parts
