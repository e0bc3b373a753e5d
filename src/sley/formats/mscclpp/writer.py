"""Writer: the execution plan of MSCCL++ for a Plan."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from sley.errors import Place
from sley.errors.formats import F443, F451, F456
from sley.errors.mscclpp import F475, F481, F482
from sley.formats.format import Target, target_among
from sley.formats.mscclpp.emission import Step, Steps, emit
from sley.formats.mscclpp.placing import Conflicts, Placing, Range, place
from sley.formats.mscclpp.targets import LOCAL_MEMORIES, TARGETS, PlanTarget
from sley.formats.mscclpp.threadblocks import (
    BlockPart,
    Channel,
    ThreadBlocks,
    arrange,
    merge_blocks,
)
from sley.formats.mscclpp.words import BUFFER_WORDS, MEMORY, NOP, PORT, PROTOCOLS, REDUCTIONS
from sley.formats.problems import Problems
from sley.ir.collectives import standard
from sley.ir.connections import Messages
from sley.ir.plan import Plan
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE, BoolArray, IntArray
from sley.ir.words import Protocol, is_integer

_BARRIERS = 2
"""The barriers of a part that follows another one and precedes a third."""

_RESERVED = (_BARRIERS, 6, 12, 20, 32)
"""Operations to leave free in the parts of a block, in turn until all parts fit: each has barriers,
and may need signals and semaphores for other parts."""

_MEETING = 2
"""The blocks of a barrier."""


@dataclass(frozen=True)
class _Parts:
    """The parts of a file."""

    plan: Plan
    placing: Placing
    blocks: ThreadBlocks
    steps: list[Steps]


def write(
    plan: Plan,
    target: str | Target,
    *,
    name: str | None = None,
    min_bytes: int | str = 0,
    max_bytes: int | str | None = None,
    threads: int | None = None,
    zero_copy: bool = False,
    ranks_per_node: int | None = None,
) -> str:
    """The execution plan (JSON) of a Plan, for MSCCL++. It depends on the arguments alone.

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
    Errors: F440, F443, F451, F456, F475, F481, F482, with up to 20 problems at once.
    """
    target = target_among(TARGETS, target, PlanTarget)
    problems = Problems()
    least, most = text_in_bytes(min_bytes), text_in_bytes(max_bytes)
    threads = target.threads if threads is None else threads
    _check_threads(target, threads, problems)
    parts = _parts(plan, target, problems, zero_copy=zero_copy, ranks_per_node=ranks_per_node)
    smallest, greatest = _bytes_of_calls(parts, target)
    most = greatest if most is None else most
    _check_range(least, most, range(smallest, greatest + 1), problems)
    problems.raise_any()
    packets = plan.protocol is Protocol.LL
    header: dict[str, Any] = {
        "name": plan.name if name is None else name,
        "collective": plan.collective.name,
        "protocol": plan.protocol.value,
        "inplace": plan.collective.in_place,
        "reuse_resources": False,
        "gpus": [_gpu(parts, rank) for rank in range(plan.collective.ranks)],
        "num_threads_per_block": threads,
        "use_double_scratch_buffer": packets,
        "buffer_alignment": target.vector_bytes,
        "min_message_size": max(least, smallest),
        "max_message_size": most,
    }
    return "\n".join(_lines(header)) + "\n"


def _lines(header: dict[str, Any]) -> Iterator[str]:
    """The lines of the text: one for each operation, and one for each entry of the lists of a GPU
    and of a block."""
    yield "{"
    gpus = header["gpus"]
    for word, value in header.items():
        if word != "gpus":
            yield f"  {json.dumps(word)}: {json.dumps(value)},"
    yield '  "gpus": ['
    for number, gpu in enumerate(gpus, 1):
        yield "    {"
        for word, value in gpu.items():
            if word != "threadblocks":
                yield f"      {json.dumps(word)}: {json.dumps(value)},"
        yield '      "threadblocks": ['
        for k, block in enumerate(gpu["threadblocks"], 1):
            yield f'        {{"id": {block["id"]},'
            for word in ("channels", "remote_buffer_refs"):
                yield f"          {json.dumps(word)}: {json.dumps(block[word])},"
            yield '          "ops": ['
            *most, last = map(json.dumps, block["ops"])
            yield from (f"            {op}," for op in most)
            yield f"            {last}"
            yield "          ]}" + ("," if k < len(gpu["threadblocks"]) else "")
        yield "      ]"
        yield "    }" + ("," if number < len(gpus) else "")
    yield "  ]"
    yield "}"


def check(plan: Plan, target: str | Target) -> None:
    """Refuses a plan that MSCCL++ can't run. Errors: as `write`, apart from those of settings."""
    target = target_among(TARGETS, target, PlanTarget)
    _parts(plan, target, Problems(), zero_copy=False, ranks_per_node=None)


def _check_threads(target: PlanTarget, threads: Any, problems: Problems) -> None:
    if not is_integer(threads) or not 32 <= threads <= target.threads or threads % 32:
        problems.add(
            F451,
            Place(detail="write"),
            expected=f"threads: a multiple of 32, up to {target.threads}",
            found=f"threads={threads!r}",
        )


def _check_range(least: Any, most: Any, sizes: range, problems: Problems) -> None:
    """Refuses a range of sizes that is empty or ends outside of the possible sizes."""
    are_sizes = is_integer(least) and is_integer(most)
    if not are_sizes or not 0 <= least <= most or most not in sizes:
        problems.add(
            F451,
            Place(detail="write"),
            expected="0 <= min_bytes <= max_bytes, max_bytes from "
            f"{sizes[0]}, a unit for each chunk, to {sizes[-1]}, below 4 GiB for each buffer",
            found=f"min_bytes={least!r}, max_bytes={most!r}",
        )


def _bytes_of_calls(parts: _Parts, target: PlanTarget) -> tuple[int, int]:
    """The smallest size of a call with data, on which the executor doesn't divide by 0, and the
    greatest one for which it computes all offsets."""
    c, unit = parts.plan.collective, target.vector_bytes
    copies = 4 if parts.plan.protocol is Protocol.LL else 1  # packets, and two copies
    chunks = max(
        int(c.input_chunks.max()),
        int(c.output_chunks.max()),
        int(parts.placing.scratch.max()) * copies,
    )
    own = int((c.output_chunks if c.name == "allgather" else c.input_chunks).max())
    return unit * own, target.offset_bytes // chunks // unit * unit * own


def _parts(
    plan: Plan,
    target: PlanTarget,
    problems: Problems,
    *,
    zero_copy: bool,
    ranks_per_node: int | None,
) -> _Parts:
    """The parts of a file; raises the problems, earlier ones included."""
    _check_plan(plan, problems)
    nodes = _nodes(plan, ranks_per_node, problems)
    problems.raise_any()
    messages = Messages.of(plan)
    rank = plan.rank
    ports = np.zeros(len(plan.instructions), bool)
    ports[messages.send] = nodes[rank[messages.send]] != nodes[rank[messages.receive]]
    if plan.protocol is Protocol.LL and ports.any():
        row = int(np.argmax(ports))
        problems.add(
            F456,
            plan.place(row),
            expected="Simple between hosts: packets go by memory channels alone",
            found="a message of LL to another host",
        )
        problems.raise_any()
    conflicts = Conflicts.of(plan, messages)
    placing = place(plan, messages, conflicts, ports, zero_copy=zero_copy)
    blocks, steps = _blocks(plan, messages, conflicts, placing, ports, target, problems)
    parts = _Parts(plan, placing, blocks, steps)
    _check_tables(parts, target, problems)
    problems.raise_any()
    return parts


def _check_plan(plan: Plan, problems: Problems) -> None:
    """Refuses a plan that no file can represent."""
    c, at = plan.collective, Place(detail=plan.name)
    if plan.protocol not in PROTOCOLS.values():
        problems.add(F456, at, expected="Simple or LL", found=plan.protocol.value)
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
    plan: Plan,
    messages: Messages,
    conflicts: Conflicts,
    placing: Placing,
    ports: BoolArray,
    target: PlanTarget,
    problems: Problems,
) -> tuple[ThreadBlocks, list[Steps]]:
    """The blocks and their steps: the plan's own blocks where a GPU has the semaphores for them,
    and blocks with too many operations cut. Raises the problems of blocks and GPUs for which that
    is not enough."""
    limits = [target.semaphores] * plan.collective.ranks
    while True:
        whole = merge_blocks(plan, conflicts, limits)
        blocks = arrange(plan, messages, conflicts, whole, ports)
        steps = _steps_of_whole(emit(plan, messages, placing, blocks, target), blocks, target)
        long = list(zip(whole, steps, strict=True))
        for reserved in _RESERVED:
            if all(len(of.steps) <= target.operations for of in steps):
                break
            parts = [part for block in long for part in _cut(*block, target, reserved)]
            blocks = arrange(plan, messages, conflicts, parts, ports)
            # More parts need no fewer semaphores and barriers, but fewer channels.
            if _lacks_numbers(blocks, target):
                break
            if not _lacks_channels(blocks, target):
                steps = list(emit(plan, messages, placing, blocks, target))
        # Parts of two blocks may need more than one semaphore.
        excess = [number - target.semaphores for number in blocks.semaphores]
        if not any(more > 0 < limits[rank] for rank, more in enumerate(excess)):
            _check_arrangement(plan, blocks, target, problems)
            return blocks, steps
        limits = [max(of - max(more, 0), 0) for of, more in zip(limits, excess, strict=True)]


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
            )
    return steps


def _lacks_numbers(blocks: ThreadBlocks, target: PlanTarget) -> bool:
    """Whether a GPU lacks semaphores or barriers."""
    return max(blocks.semaphores) > target.semaphores or max(blocks.barriers) > target.barriers


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
    """Refuses blocks with too many channels, and GPUs that lack semaphores or barriers."""
    for block, rows in enumerate(blocks.rows):
        for port in (False, True):
            number = _channels_of(blocks, block, port=port)
            if number > target.channels:
                expected = (
                    f"at most {target.channels} {PORT if port else MEMORY} channels in a block"
                )
                problems.add(F482, plan.place(rows[0]), expected=expected, found=f"{number}")
    _check_numbers("semaphores", blocks.semaphores, target.semaphores, problems)
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


def _check_tables(parts: _Parts, target: PlanTarget, problems: Problems) -> None:
    """Refuses blocks with more operations and references, and GPUs with more ports, than the
    executor's tables have."""
    blocks = parts.blocks
    for b, of in enumerate(parts.steps):
        at = parts.plan.place(blocks.rows[b][0])
        if len(of.steps) > target.operations:
            problems.add(
                F481,
                at,
                expected=f"at most {target.operations} operations in a block",
                found=f"{len(of.steps)}",
            )
        for port in (False, True):
            peers = len(set(_remote(of.steps, blocks.rank[b], port=port)))
            if peers > target.references:
                expected = f"at most {target.references} remote buffers in a block"
                problems.add(F482, at, expected=expected, found=f"{peers}")
    ranks = range(parts.plan.collective.ranks)
    steps: list[list[Step]] = [[] for _ in ranks]
    ports: list[set[Channel]] = [set() for _ in ranks]
    for rank, of, channels in zip(blocks.rank, parts.steps, blocks.channels, strict=True):
        steps[rank] += of.steps
        ports[rank].update(channel for channel in channels if channel.port)
    remote = [len(_remote(steps[rank], rank, port=True)) for rank in ranks]
    most = target.port_memories - LOCAL_MEMORIES
    _check_numbers("port channels", [len(of) for of in ports], target.port_channels, problems)
    _check_numbers("remote buffers of ports", remote, most, problems)


def _remote(steps: list[Step], rank: int, *, port: bool) -> list[tuple[int, str]]:
    """The remote buffers of steps, by ports or by memory channels, in the order of their first
    use."""
    found: dict[tuple[int, str], None] = {}
    for step in steps:
        if _is_port(step) is port:
            for item in step.destinations:
                if item.rank != rank:
                    found[item.rank, BUFFER_WORDS[item.buffer]] = None
    return list(found)


def _is_port(step: Step) -> bool:
    return bool(step.channels) and step.channels[0].port


def _gpu(parts: _Parts, rank: int) -> dict[str, Any]:
    """The part of the file for a rank."""
    c, blocks = parts.plan.collective, parts.blocks
    own = [b for b, of in enumerate(blocks.rank) if of == rank]
    channels = sorted({channel for b in own for channel in blocks.channels[b]})
    access: dict[tuple[int, str], list[str]] = defaultdict(list)
    for port, word in ((False, MEMORY), (True, PORT)):
        for b in own:
            for key in _remote(parts.steps[b].steps, rank, port=port):
                if word not in access[key]:
                    access[key].append(word)
    remote = sorted(access)
    numbers = {
        port: {channel: k for k, channel in enumerate(c for c in channels if c.port is port)}
        for port in (False, True)
    }
    return {
        "id": rank,
        "input_chunks": int(c.input_chunks[rank]),
        "output_chunks": int(c.output_chunks[rank]),
        "scratch_chunks": int(parts.placing.scratch[rank]),
        "threadblocks": [
            _threadblock(parts, b, k, numbers, {key: i for i, key in enumerate(remote)})
            for k, b in enumerate(own)
        ]
        # A kernel of no blocks can't be launched.
        or [{"id": 0, "ops": [{"name": NOP}], "channels": [], "remote_buffer_refs": []}],
        "channels": [
            {
                "channel_type": PORT if port else MEMORY,
                "connected_to": [channel.peer(rank) for channel in of_type],
            }
            for port, of_type in numbers.items()
            if of_type
        ],
        "remote_buffers": [
            {"rank": peer, "type": word, "access_channel_types": access[peer, word]}
            for peer, word in remote
        ],
        "semaphores": [{"init_value": 0}] * blocks.semaphores[rank],
    }


def _threadblock(
    parts: _Parts,
    block: int,
    number: int,
    channels: dict[bool, dict[Channel, int]],
    remote: dict[tuple[int, str], int],
) -> dict[str, Any]:
    """A block. channels: by whether they are ports, the numbers of the rank's channels; remote: the
    numbers of its remote buffers."""
    steps, rank = parts.steps[block].steps, parts.blocks.rank[block]
    own = {
        port: [channel for channel in parts.blocks.channels[block] if channel.port is port]
        for port in (False, True)
    }
    used = {port: _remote(steps, rank, port=port) for port in (False, True)}
    return {
        "id": number,
        "ops": [
            _operation(step, rank, own[_is_port(step)], used[_is_port(step)]) for step in steps
        ],
        "channels": [
            {
                "channel_type": PORT if port else MEMORY,
                "channel_ids": [channels[port][channel] for channel in of_type],
            }
            for port, of_type in own.items()
            if of_type
        ],
        "remote_buffer_refs": [
            {
                "access_channel_type": PORT if port else MEMORY,
                "remote_buffer_ids": [remote[key] for key in keys],
            }
            for port, keys in used.items()
            if keys
        ],
    }


def _operation(
    step: Step, rank: int, channels: list[Channel], remote: list[tuple[int, str]]
) -> dict[str, Any]:
    """An operation. channels, remote: those of the block, of the operation's type."""

    def operand(item: Range) -> dict[str, Any]:
        if item.rank == rank:
            where: dict[str, Any] = {"type": BUFFER_WORDS[item.buffer]}
        else:
            where = {"buffer_id": remote.index((item.rank, BUFFER_WORDS[item.buffer]))}
        return {**where, "index": item.index, "size": item.count}

    found: dict[str, Any] = {"name": step.name}
    if step.sources or step.destinations:
        found["src_buff"] = [operand(item) for item in step.sources]
        found["dst_buff"] = [operand(item) for item in step.destinations]
    is_remote = any(item.rank != rank for item in step.destinations)
    if step.channels or is_remote:
        found["channel_type"] = PORT if _is_port(step) else MEMORY
    if step.channels:
        found["channel_ids"] = [channels.index(channel) for channel in step.channels]
    if step.barrier != NONE:
        found.update(barrier_id=step.barrier, num_threadblocks=_MEETING)
    if step.semaphores:
        found["semaphore_ids"] = list(step.semaphores)
    if step.name in REDUCTIONS:
        found["reduce_op"] = "sum"
    return found
