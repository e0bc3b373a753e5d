"""Raw: the rows of an execution plan's file, the memory that its operations access, and its text.

A RawPlan is what reading a file gives and what writing a plan gives.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from sley.errors import Place
from sley.formats.mscclpp import words
from sley.formats.mscclpp.document import Object
from sley.formats.mscclpp.words import Operand, Where
from sley.ir.words import Buffer, Protocol

MAX_SIZE = (1 << 64) - 1
"""The value of max_message_size that means no limit."""


@dataclass(frozen=True, slots=True)
class RawRange:
    """A source or destination. number: the Buffer of a local one, otherwise the index of a remote
    buffer or switch channel in the lists of the block."""

    where: Where
    number: int
    index: int
    size: int


@dataclass(frozen=True, slots=True)
class RawOperation:
    """An operation. line: 0 if it is not known. Keys that the file does not have are empty, "",
    "none" or 0; share and shares are 0 and 1 without tbg_info."""

    name: str
    line: int = field(default=0, compare=False)
    channel_type: str = "none"
    channel_ids: tuple[int, ...] = ()
    sources: tuple[RawRange, ...] = ()
    destinations: tuple[RawRange, ...] = ()
    share: int = 0
    shares: int = 1
    barrier: int = 0
    barrier_blocks: int = 0
    semaphores: tuple[int, ...] = ()
    unit_bytes: int = 0
    chunks: int = 0
    inner: tuple[RawOperation, ...] = ()
    reduce_op: str = ""


@dataclass(frozen=True, slots=True)
class RawBlock:
    """A thread block. channels, buffers: by type of channel, the numbers of the GPU's channels and
    of its remote buffers, in the order in which operations count them. made_at: the place in the
    plan that it was made of, if it is from no file."""

    channels: Mapping[str, tuple[int, ...]]
    buffers: Mapping[str, tuple[int, ...]]
    operations: tuple[RawOperation, ...]
    made_at: Place | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RawRemote:
    """A remote buffer, and the types of channel that access it."""

    rank: int
    buffer: Buffer
    types: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RawGroup:
    """A switch channel: a buffer of several ranks."""

    buffer: Buffer
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RawGpu:
    """A GPU. peers: by type of channel, the peer of each channel. semaphores: initial values.
    lines: by type of channel, the line of each; empty if there is no text."""

    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    peers: Mapping[str, tuple[int, ...]]
    groups: tuple[RawGroup, ...]
    remote: tuple[RawRemote, ...]
    semaphores: tuple[int, ...]
    blocks: tuple[RawBlock, ...]
    lines: Mapping[str, tuple[int, ...]] = field(default_factory=dict, compare=False)

    @property
    def port_buffers(self) -> int:
        """The number of remote buffers that ports access; one for each time it is named."""
        return sum(remote.types.count(words.PORT) for remote in self.remote)


@dataclass(frozen=True)
class RawPlan:
    """What a file says. file: its name in messages. ignored: the keys that the executor does not
    read, with the first place of each."""

    file: str = field(compare=False)
    name: str
    collective: str
    protocol: Protocol
    in_place: bool
    reuses: bool
    doubles: bool
    alignment: int
    threads: int
    min_bytes: int
    max_bytes: int
    gpus: tuple[RawGpu, ...]
    ignored: Mapping[str, Place] = field(default_factory=dict, compare=False)

    @cached_property
    def operations(self) -> Sequence[Located]:
        """All operations, those of a pipeline after it."""
        blocks = ((r, n) for r, gpu in enumerate(self.gpus) for n in range(len(gpu.blocks)))
        return [one for block in blocks for one in self.operations_of(*block)]

    def operations_of(self, rank: int, number: int) -> Iterator[Located]:
        """The operations of a block."""
        step = 0
        for op in self.gpus[rank].blocks[number].operations:
            yield Located(self, rank, number, step, op)
            for k, inner in enumerate(op.inner, step + 1):
                yield Located(self, rank, number, k, inner, op)
            step += 1 + len(op.inner)

    @property
    def whole(self) -> Place:
        """The place of the file as a whole."""
        return Place(self.file)

    def at_channel(self, rank: int, word: str, channel: int) -> Place:
        """The place of a GPU's channel of a type."""
        lines = self.gpus[rank].lines
        line = lines[word][channel] if lines else 0
        return Place(self.file, line, detail=f"rank {rank} {word} channel {channel}")


def place_of(file: str, rank: int, block: int = -1) -> Place:
    """The place of a GPU or a block."""
    return Place(file, detail=f"rank {rank}" if block < 0 else f"rank {rank} block {block}")


def place_of_step(file: str, rank: int, block: int, step: int, op: RawOperation) -> Place:
    """The place of an operation."""
    return Place(file, op.line, detail=f"rank {rank} block {block} operation {step} ({op.name})")


class Located(NamedTuple):
    """An operation in its plan: on a rank, in the block of a number, and inside of a pipeline, if
    any. step: its place among the operations of its block, those of a pipeline after it."""

    raw: RawPlan
    rank: int
    number: int
    step: int
    op: RawOperation
    pipeline: RawOperation | None = None

    @property
    def gpu(self) -> RawGpu:
        """Its GPU."""
        return self.raw.gpus[self.rank]

    @property
    def block(self) -> RawBlock:
        """Its block."""
        return self.gpu.blocks[self.number]

    @property
    def at(self) -> Place:
        """Its place."""
        made = self.block.made_at
        return made or place_of_step(self.raw.file, self.rank, self.number, self.step, self.op)

    @property
    def accesses(self) -> list[Access]:
        """What it accesses, first its sources; its entries exist."""
        op, move = self.op, words.MOVES.get(self.op.name)
        if move is None:
            return []
        sides = (move.sources, op.sources, False), (move.destinations, op.destinations, True)
        return [
            Access(writes, kind, *self._memory(one), one.index, one.size)
            for operands, ranges, writes in sides
            for number, one in enumerate(ranges)
            if (kind := operands.at(number)) is not None
        ]

    def _memory(self, one: RawRange) -> tuple[Buffer, tuple[int, ...]]:
        """The buffer and the ranks of a range."""
        if one.where is Where.LOCAL:
            return Buffer(one.number), (self.rank,)
        if one.where is Where.SWITCH:
            group = self.gpu.groups[self.block.channels[words.SWITCH][one.number]]
            return group.buffer, group.ranks
        remote = self.gpu.remote[self.block.buffers[self.op.channel_type][one.number]]
        return remote.buffer, (remote.rank,)


@dataclass(frozen=True, slots=True)
class Access:
    """A source or destination of an operation.

    ranks: the ranks whose memory it is; several for a switch.
    """

    writes: bool
    kind: Operand
    buffer: Buffer
    ranks: tuple[int, ...]
    index: int
    size: int


def serialise(raw: RawPlan) -> str:
    """The text of a raw plan, of which `parse` makes the same one: a line for each operation, and
    one for each list of a GPU and of a block."""
    gpus = ",\n".join(_gpu_text(rank, gpu) for rank, gpu in enumerate(raw.gpus))
    header = {
        "name": raw.name,
        "collective": raw.collective,
        "protocol": raw.protocol.value,
        "inplace": raw.in_place,
        "reuse_resources": raw.reuses,
        "num_threads_per_block": raw.threads,
        "use_double_scratch_buffer": raw.doubles,
        "buffer_alignment": raw.alignment,
        "min_message_size": raw.min_bytes,
        "max_message_size": raw.max_bytes,
    }
    return f'{{\n{_keys(2, header)}  "gpus": [\n{gpus}\n  ]\n}}\n'


def _keys(indent: int, values: Object) -> str:
    """Lines with a key each, before others of the same object."""
    return "".join(f"{'':{indent}}{json.dumps(k)}: {json.dumps(v)},\n" for k, v in values.items())


def _gpu_text(rank: int, gpu: RawGpu) -> str:
    blocks = ",\n".join(_block_text(number, block) for number, block in enumerate(gpu.blocks))
    switches = [
        {
            "channel_type": words.SWITCH,
            "buffer_type": group.buffer.word[0],
            "rank_groups": [{"size": len(group.ranks), "ranks": group.ranks}],
        }
        for group in gpu.groups
    ]
    values = {
        "id": rank,
        "input_chunks": gpu.input_chunks,
        "output_chunks": gpu.output_chunks,
        "scratch_chunks": gpu.scratch_chunks,
        "channels": _entries("channel_type", "connected_to", gpu.peers) + switches,
        "remote_buffers": [
            {"rank": of.rank, "type": of.buffer.word[0], "access_channel_types": of.types}
            for of in gpu.remote
        ],
        "semaphores": [{"init_value": value} for value in gpu.semaphores],
    }
    return f'    {{\n{_keys(6, values)}      "threadblocks": [\n{blocks}\n      ]\n    }}'


def _entries(word: str, key: str, numbers: Mapping[str, tuple[int, ...]]) -> list[Object]:
    """A list of objects with the numbers of a type of channel each, if there are any."""
    return [{word: kind, key: of_kind} for kind, of_kind in numbers.items() if of_kind]


def _block_text(number: int, block: RawBlock) -> str:
    operations = ",\n".join(f"{'':12}{json.dumps(_object(op))}" for op in block.operations)
    buffers = _entries("access_channel_type", "remote_buffer_ids", block.buffers)
    channels = _entries("channel_type", "channel_ids", block.channels)
    head = _keys(10, {"channels": channels, "remote_buffer_refs": buffers})
    head = f'        {{"id": {number},\n{head}'
    return f'{head}          "ops": [\n{operations}\n          ]}}'


def _object(op: RawOperation) -> Object:
    """An operation, with the keys that it must have, and those with other values than without
    the key."""
    found: Object = {"name": op.name}
    if op.name in words.MOVES or op.sources or op.destinations:
        found["src_buff"] = [_operand(one) for one in op.sources]
        found["dst_buff"] = [_operand(one) for one in op.destinations]
    if op.channel_type != "none":
        found["channel_type"] = op.channel_type
    if op.channel_ids or op.name in (*words.SIGNALS, *words.WAITS):
        found["channel_ids"] = op.channel_ids
    if op.shares > 1:
        found["tbg_info"] = {"tb_id": op.share, "tbg_size": op.shares}
    if op.name == words.BARRIER:
        found |= {"barrier_id": op.barrier, "num_threadblocks": op.barrier_blocks}
    if op.name in (words.ACQUIRE, words.RELEASE):
        found["semaphore_ids"] = op.semaphores
    if op.name == words.PIPELINE:
        found["iter_context"] = {"unit_size": op.unit_bytes, "num_chunks": op.chunks}
        found["ops"] = [_object(one) for one in op.inner]
    if op.reduce_op:
        found["reduce_op"] = op.reduce_op
    return found


def _operand(one: RawRange) -> Object:
    number = Buffer(one.number).word[0] if one.where is Where.LOCAL else one.number
    return {one.where.value: number, "index": one.index, "size": one.size}
