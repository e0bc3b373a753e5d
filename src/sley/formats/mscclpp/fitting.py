"""Fitting: the parts of an execution plan for a Plan, within the tables of MSCCL++'s executor.

Blocks with too many operations are cut, until everything fits or nothing more can be done.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sley.errors import Place
from sley.errors.formats import F441, F443, F451
from sley.errors.mscclpp import F475, F481, F482
from sley.formats.format import refuse_varying_counts
from sley.formats.mscclpp.analysis import Analysis
from sley.formats.mscclpp.checks import refuse_absent
from sley.formats.mscclpp.emission import Step, Steps, emit
from sley.formats.mscclpp.placing import Placing, Range, place
from sley.formats.mscclpp.switching import Switching
from sley.formats.mscclpp.targets import LOCAL_MEMORIES, PlanTarget
from sley.formats.mscclpp.threadblocks import (
    BlockPart,
    Channel,
    ThreadBlocks,
    arrange,
)
from sley.formats.mscclpp.words import BUFFER_WORDS, MEMORY, PORT, PROTOCOLS, SWITCH
from sley.formats.problems import Problems
from sley.formats.rewriting import unfuse
from sley.ir.collectives import standard
from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.tables import NONE, IntArray
from sley.ir.words import Op, Protocol, is_integer

_BARRIERS = 2
"""The barriers of a part that follows another one and precedes a third."""

_RESERVED = (_BARRIERS, 6, 12, 20, 32)
"""Operations to leave free in the parts of a block, in turn until all parts fit: each has barriers,
and may need signals and semaphores for other parts."""


OPERATIONS = frozenset(Op) - {Op.COPY_SEND}
"""The operations that files can express: a put reads its source, but stores it only on the peer."""


class SwitchChannel(NamedTuple):
    """A switch channel: its ranks, and the file's word for the buffer that it accesses."""

    ranks: tuple[int, ...]
    buffer: str

    @classmethod
    def of(cls, item: Range) -> SwitchChannel:
        """The channel that accesses a range of several ranks' memory."""
        return cls(item.switch, BUFFER_WORDS[item.buffer])


@dataclass(frozen=True)
class Parts:
    """The parts of a file. placing: where messages and their scratch are. steps: of each block."""

    plan: Plan
    placing: Placing
    blocks: ThreadBlocks
    steps: list[Steps]


_PROTOCOL = (
    "Compile the program with the protocol Simple, or with LL for one host: --protocol on the "
    "command line, options = { protocol = ... } in the table of a package."
)


def fit(
    plan: Plan,
    target: PlanTarget,
    problems: Problems,
    *,
    zero_copy: bool,
    ranks_per_node: int | None,
) -> Parts:
    """The parts of a file; raises the problems, earlier ones included."""
    refuse_varying_counts(plan.collective)
    plan = unfuse(plan, OPERATIONS)
    _check_plan(plan, problems)
    nodes = _nodes(plan, ranks_per_node, problems)
    problems.raise_any()
    messages = Messages.of(plan)
    switching = Switching.of(plan, messages, nodes, problems)
    problems.raise_any()
    analysis = Analysis.of(plan, messages, switching, nodes)
    if plan.protocol is Protocol.LL and analysis.ports.any():
        row = int(np.argmax(analysis.ports))
        problems.add(
            F441,
            plan.place(row),
            expected="Simple between hosts: packets go by memory channels alone",
            found="a message of LL to another host",
            remedy=_PROTOCOL,
        )
        problems.raise_any()
    placing = place(analysis, zero_copy=zero_copy)
    blocks, steps = _blocks(analysis, placing, target, problems)
    parts = Parts(plan, placing, blocks, steps)
    _check_tables(parts, target, problems)
    problems.raise_any()
    return parts


def _check_plan(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that no file can represent."""
    c, at = plan.collective, Place(detail=plan.name)
    if plan.protocol not in PROTOCOLS.values():
        problems.add(F441, at, expected="Simple or LL", found=plan.protocol.value, remedy=_PROTOCOL)
    as_xml = "Write it as MSCCL XML, whose runtimes have"
    if standard(c) is None:
        expected = "a standard collective: an execution plan has only a name of its collective"
        remedy = f'{as_xml} others: target="msccl", or --target msccl.'
        problems.add(F443, at, expected=expected, found=str(c), remedy=remedy)
    elif c.root != NONE:
        expected = "a collective without a root: an execution plan has no entry for one"
        remedy = f"{as_xml} these collectives, or use one without a root, such as AllReduce."
        problems.add(F443, at, expected=expected, found=str(c), remedy=remedy)
    for name, chunks in (("input", c.input_chunks), ("output", c.output_chunks)):
        if not chunks.all():
            problems.add(
                F475,
                at,
                expected=f"{name} chunks on each rank",
                found=f"none on rank {int(np.argmin(chunks))}: the loader divides by their number",
            )


def _nodes(plan: Plan, ranks_per_node: Any, problems: Problems) -> IntArray:
    """int32 (ranks,): the host of each rank."""
    ranks = plan.collective.ranks
    nowhere = np.zeros(ranks, np.int32)
    if ranks_per_node is None:
        return nowhere if plan.topology is None else plan.topology.node
    if not is_integer(ranks_per_node) or ranks_per_node < 1 or ranks % ranks_per_node:
        problems.add(
            F451,
            Place(detail="write"),
            expected=f"ranks_per_node: a number that divides {ranks}",
            found=f"ranks_per_node={ranks_per_node!r}",
        )
        return nowhere
    return np.arange(ranks, dtype=np.int32) // np.int32(ranks_per_node)


def _blocks(
    analysis: Analysis, placing: Placing, target: PlanTarget, problems: Problems
) -> tuple[ThreadBlocks, list[Steps]]:
    """The blocks and their steps: the plan's own blocks, those with too many operations cut. Raises
    the problems of blocks and GPUs for which that is not enough."""
    plan, switching = analysis.plan, analysis.switching
    ends = pairwise(plan.block_offset.tolist())
    whole = [BlockPart(list(range(*rows))) for rows in ends if rows[0] < rows[1]]
    blocks = arrange(analysis, whole)
    steps = _steps_of_whole(emit(plan, switching, placing, blocks, target), blocks, target)
    long = list(zip(whole, steps, strict=True))
    for reserved in _RESERVED:
        if all(len(of.steps) <= target.operations for of in steps):
            break
        parts = [part for block in long for part in _cut(*block, target, reserved)]
        blocks = arrange(analysis, parts)
        # More parts need no fewer barriers, but fewer channels.
        if max(blocks.barriers) > target.barriers:
            break
        if not _lacks_channels(blocks, target):
            steps = list(emit(plan, switching, placing, blocks, target))
    _check_arrangement(plan, blocks, target, problems)
    return blocks, steps


def _steps_of_whole(
    found: Iterable[Steps], blocks: ThreadBlocks, target: PlanTarget
) -> list[Steps]:
    """The steps of blocks that are not cut. Refuses early a GPU whose blocks need too many barriers
    when they are. Errors: F482."""
    steps, barriers = list[Steps](), [0] * len(blocks.barriers)
    for rank, of in zip(blocks.rank, found, strict=True):
        steps.append(of)
        barriers[rank] += (len(of.steps) - 1) // target.operations
        if barriers[rank] > target.barriers:
            raise F482.error(
                at=Place(detail=f"rank {rank}"),
                expected=f"at most {target.barriers} barriers on a GPU",
                found=f"at least {barriers[rank]}, between parts of {target.operations} operations",
                remedy="Use fewer instances or channels: fewer blocks have fewer parts.",
            )
    return steps


def _channels_of(blocks: ThreadBlocks, block: int, *, port: bool) -> int:
    return sum(channel.port is port for channel in blocks.channels[block])


def _lacks_channels(blocks: ThreadBlocks, target: PlanTarget) -> bool:
    """Whether a block has too many channels of a type."""
    return any(
        _channels_of(blocks, block, port=port) > target.channels
        for block in range(len(blocks.rank))
        for port in (False, True)
    )


def _check_arrangement(
    plan: Plan, blocks: ThreadBlocks, target: PlanTarget, problems: Problems
) -> None:
    """Refuses blocks with too many channels, and GPUs that lack barriers."""
    for block, rows in enumerate(blocks.rows):
        for port in (False, True):
            number = _channels_of(blocks, block, port=port)
            if number > target.channels:
                expected = (
                    f"at most {target.channels} {PORT if port else MEMORY} channels in a block"
                )
                problems.add(F482, plan.place(rows[0]), expected=expected, found=f"{number}")
    _check_numbers("barriers", blocks.barriers, target.barriers, problems)
    problems.raise_any()


def _check_numbers(word: str, numbers: list[int], most: int, problems: Problems) -> None:
    """Refuses the GPU with the greatest number of something. numbers: by rank."""
    rank = int(np.argmax(numbers))
    if numbers[rank] > most:
        at, expected = Place(detail=f"rank {rank}"), f"at most {most} {word} on a GPU"
        problems.add(F482, at, expected=expected, found=f"{numbers[rank]}")


def _cut(block: BlockPart, steps: Steps, target: PlanTarget, reserved: int) -> list[BlockPart]:
    """A block, cut if need be so that each part has at most the target's number of operations, with
    `reserved` operations left free."""
    # A whole block has no barriers.
    if len(steps.steps) <= target.operations - reserved + _BARRIERS:
        return [block]
    end = len(steps.steps) - steps.ends[-1]
    room = target.operations - steps.begin - end - reserved
    parts = [BlockPart([])]
    start = steps.begin
    for row, (before, after) in zip(block.rows, pairwise([start, *steps.ends]), strict=True):
        if parts[-1].rows and after - start > room:
            parts.append(BlockPart([], follows=True))
            start = before
        parts[-1].rows.append(row)
    return parts


def _check_tables(parts: Parts, target: PlanTarget, problems: Problems) -> None:
    """Refuses operations that the executor lacks, and blocks with more operations and references,
    and GPUs with more ports, than its tables have."""
    blocks = parts.blocks
    for b, of in enumerate(parts.steps):
        at = parts.plan.place(blocks.rows[b][0])
        for name in sorted({step.name for step in of.steps}):
            refuse_absent(problems, at, name, target)
        if len(of.steps) > target.operations:
            problems.add(
                F481,
                at,
                expected=f"at most {target.operations} operations in a block",
                found=f"{len(of.steps)}",
            )
        for port in (False, True):
            peers = len(set(remote_buffers(of.steps, blocks.rank[b], port=port)))
            if peers > target.references:
                expected = f"at most {target.references} remote buffers in a block"
                problems.add(F482, at, expected=expected, found=f"{peers}")
        if (switches := len(switch_channels(of.steps))) > target.channels:
            expected = f"at most {target.channels} {SWITCH} channels in a block"
            problems.add(F482, at, expected=expected, found=f"{switches}")
    ranks = range(parts.plan.collective.ranks)
    steps: list[list[Step]] = [[] for _ in ranks]
    ports: list[set[Channel]] = [set() for _ in ranks]
    for rank, of, channels in zip(blocks.rank, parts.steps, blocks.channels, strict=True):
        steps[rank] += of.steps
        ports[rank].update(channel for channel in channels if channel.port)
    remote = [len(remote_buffers(steps[rank], rank, port=True)) for rank in ranks]
    most = target.port_memories - LOCAL_MEMORIES
    _check_numbers("port channels", [len(of) for of in ports], target.port_channels, problems)
    _check_numbers("remote buffers of ports", remote, most, problems)


def remote_buffers(steps: list[Step], rank: int, *, port: bool) -> list[tuple[int, str]]:
    """The remote buffers of steps, by ports or by memory channels, in the order of their first
    use."""
    found: dict[tuple[int, str], None] = {}
    for step in steps:
        if is_port(step) is port:
            for item in step.destinations:
                if item.rank != rank:
                    found[item.rank, BUFFER_WORDS[item.buffer]] = None
    return list(found)


def switch_channels(steps: Iterable[Step]) -> list[SwitchChannel]:
    """The switch channels of steps, ascending: so any two ranks have those that they share in one
    order, in which the executor connects them."""
    ranges = (item for step in steps for item in (*step.sources, *step.destinations))
    return sorted({SwitchChannel.of(item) for item in ranges if item.switch})


def is_port(step: Step) -> bool:
    """Whether a step uses port channels."""
    return bool(step.channels) and step.channels[0].port
