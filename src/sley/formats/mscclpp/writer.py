"""Writer: the execution plan of MSCCL++ for a Plan."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sley.errors import Place
from sley.errors.formats import F451
from sley.formats.format import Target, target_among
from sley.formats.mscclpp.emission import Step
from sley.formats.mscclpp.fitting import (
    Parts,
    SwitchChannel,
    fit,
    is_port,
    remote_buffers,
    switch_channels,
)
from sley.formats.mscclpp.placing import Range
from sley.formats.mscclpp.targets import TARGETS, PlanTarget
from sley.formats.mscclpp.threadblocks import (
    Channel,
)
from sley.formats.mscclpp.words import BUFFER_WORDS, MEMORY, NOP, PORT, REDUCTIONS, SWITCH
from sley.formats.problems import Problems
from sley.ir.plan import Plan
from sley.ir.sizes import text_in_bytes
from sley.ir.tables import NONE
from sley.ir.words import Protocol, is_integer

_MEETING = 2
"""The blocks of a barrier."""


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
    Errors: F437, F438, F440, F443, F451, F441, F475, F481, F482, with up to 20 problems at once.
    """
    target = target_among(TARGETS, target, PlanTarget)
    problems = Problems()
    least, most = text_in_bytes(min_bytes), text_in_bytes(max_bytes)
    threads = target.threads if threads is None else threads
    _check_threads(target, threads, problems)
    parts = fit(plan, target, problems, zero_copy=zero_copy, ranks_per_node=ranks_per_node)
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
    fit(plan, target, Problems(), zero_copy=False, ranks_per_node=None)


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


def _bytes_of_calls(parts: Parts, target: PlanTarget) -> tuple[int, int]:
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


def _gpu(parts: Parts, rank: int) -> dict[str, Any]:
    """The part of the file for a rank."""
    c, blocks = parts.plan.collective, parts.blocks
    own = [b for b, of in enumerate(blocks.rank) if of == rank]
    channels = sorted({channel for b in own for channel in blocks.channels[b]})
    access: dict[tuple[int, str], list[str]] = defaultdict(list)
    for port, word in ((False, MEMORY), (True, PORT)):
        for b in own:
            for key in remote_buffers(parts.steps[b].steps, rank, port=port):
                if word not in access[key]:
                    access[key].append(word)
    remote = sorted(access)
    # All ranks of a switch channel make it together, with those that only have its memory.
    steps = (step for of in parts.steps for step in of.steps)
    switches = [channel for channel in switch_channels(steps) if rank in channel.ranks]
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
            _threadblock(parts, b, k, _Tables(numbers, remote, switches)) for k, b in enumerate(own)
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
        ]
        + [
            {
                "channel_type": SWITCH,
                "buffer_type": word,
                "rank_groups": [{"size": len(ranks), "ranks": list(ranks)}],
            }
            for ranks, word in switches
        ],
        "remote_buffers": [
            {"rank": peer, "type": word, "access_channel_types": access[peer, word]}
            for peer, word in remote
        ],
        "semaphores": [{"init_value": 0}] * blocks.semaphores[rank],
    }


@dataclass(frozen=True)
class _Tables:
    """The tables of a GPU, to whose entries blocks refer. channels: by whether they are ports, the
    numbers of its channels. remote, switches: its remote buffers and switch channels."""

    channels: dict[bool, dict[Channel, int]]
    remote: list[tuple[int, str]]
    switches: list[SwitchChannel]


def _threadblock(parts: Parts, block: int, number: int, tables: _Tables) -> dict[str, Any]:
    """A block."""
    steps, rank = parts.steps[block].steps, parts.blocks.rank[block]
    own = {
        port: [channel for channel in parts.blocks.channels[block] if channel.port is port]
        for port in (False, True)
    }
    used = {port: remote_buffers(steps, rank, port=port) for port in (False, True)}
    switches = switch_channels(steps)
    ids = {
        MEMORY: [tables.channels[False][channel] for channel in own[False]],
        PORT: [tables.channels[True][channel] for channel in own[True]],
        SWITCH: [tables.switches.index(key) for key in switches],
    }
    return {
        "id": number,
        "ops": [
            _operation(step, rank, own[is_port(step)], used[is_port(step)], switches)
            for step in steps
        ],
        "channels": [
            {"channel_type": word, "channel_ids": of_type}
            for word, of_type in ids.items()
            if of_type
        ],
        "remote_buffer_refs": [
            {
                "access_channel_type": PORT if port else MEMORY,
                "remote_buffer_ids": [tables.remote.index(key) for key in keys],
            }
            for port, keys in used.items()
            if keys
        ],
    }


def _operation(
    step: Step,
    rank: int,
    channels: list[Channel],
    remote: list[tuple[int, str]],
    switches: list[SwitchChannel],
) -> dict[str, Any]:
    """An operation. channels, remote: those of the block, of the operation's type. switches: the
    block's switch channels."""

    def operand(item: Range) -> dict[str, Any]:
        word = BUFFER_WORDS[item.buffer]
        if item.switch:
            where: dict[str, Any] = {"switch_channel_id": switches.index(SwitchChannel.of(item))}
        elif item.rank == rank:
            where = {"type": word}
        else:
            where = {"buffer_id": remote.index((item.rank, word))}
        return {**where, "index": item.index, "size": item.count}

    found: dict[str, Any] = {"name": step.name}
    if step.sources or step.destinations:
        found["src_buff"] = [operand(item) for item in step.sources]
        found["dst_buff"] = [operand(item) for item in step.destinations]
    is_remote = any(item.rank != rank for item in step.destinations)
    if any(item.switch for item in step.destinations):
        found["channel_type"] = SWITCH
    elif step.channels or is_remote:
        found["channel_type"] = PORT if is_port(step) else MEMORY
    if step.channels:
        found["channel_ids"] = [channels.index(channel) for channel in step.channels]
    if step.barrier != NONE:
        found.update(barrier_id=step.barrier, num_threadblocks=_MEETING)
    if step.semaphores:
        found["semaphore_ids"] = list(step.semaphores)
    if step.name in REDUCTIONS:
        found["reduce_op"] = "sum"
    return found
