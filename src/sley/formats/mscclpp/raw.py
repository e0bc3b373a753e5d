"""Raw: the rows of an execution plan's file, and the memory that its operations access.

A RawPlan is what reading a file gives and what writing a plan gives; below are the ways from a text
and to one. A text is read in bounded memory, as MSCCL++ reads it with nlohmann::json: no NaN, no
numbers beyond a double, and surrogates only in pairs. Python's parser makes objects without places,
so the lines of operations and channels come from the keys "name" and "connected_to" of the text, in
the order of the objects that have one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from sley.errors import Diagnostic, Place, Rule, SleyError, did_you_mean
from sley.errors.deployment import F506
from sley.errors.formats import F403, F404, F412, F422, F431
from sley.errors.mscclpp import F470, F472, F478, F479, F486
from sley.formats.format import content_of
from sley.formats.mscclpp import words
from sley.formats.mscclpp.words import Operand, Where, keys_of
from sley.formats.problems import MOST_REPORTED, Problems
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


MAX_TEXT_BYTES = 32 << 20
MAX_CONTAINERS = 2_000_000
"""Limit of the lists and objects of a text."""

_SHOWN_CHARS = 60

_SHORT_DIGITS = 308
"""An integer with at most as many digits is in the range of a double."""

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[-+.\w]+')
"""A string, a number or a word of JSON."""

_LONE = re.compile(r"\\u[dD][89abAB]..\\u[dD][c-fC-F]|\\(u[dD][89a-fA-F]..)|\\.")
"""An escape in a string; group 1 is a surrogate without its other half."""

Object = dict[str, Any]
"""An object of JSON."""

INT32 = (1 << 31) - 1
UINT32 = (1 << 32) - 1

_LOCATED = ("name", "connected_to")
_KEY = re.compile(rf'"(?:{"|".join(_LOCATED)})"[ \t\r\n]*:')
_MISSING = object()
_TYPES = {bool: "true or false", str: "a string", list: "a list", dict: "an object"}

_T = TypeVar("_T")


def parse(source: str | os.PathLike[str], file: str | None = None) -> RawPlan:
    """The raw plan of a path, or of text (a string with a "{" or a line end).

    file: the file's name in messages; the path by default. Errors: F403, F404, F412, F470, F472,
    F422, F478, F479 and F486, with up to 20 problems at once.
    """
    file, text, document = read_json(source, file)
    reader = _Reader(file, _lines(text, document))
    plan = reader.plan(document)
    reader.problems.raise_any()
    return plan


class Chunks(NamedTuple):
    """The chunks of a rank's buffers."""

    input: int
    output: int
    scratch: int


@dataclass(frozen=True)
class PlanHeader:
    """What MSCCL++ compares with a call before it runs a plan, and the numbers of its GPUs.

    min_bytes, max_bytes: the sizes of its calls, both included. alignment: the bytes of which a
    chunk is a multiple. chunks: those of each rank. operations: the most operations of a thread
    block, those inside pipelines included.
    """

    name: str
    collective: str
    in_place: bool
    alignment: int
    min_bytes: int
    max_bytes: int
    chunks: tuple[Chunks, ...]
    operations: int

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.chunks)


def read_header(path: Path) -> PlanHeader:
    """The header of a plan. It accepts more than `parse`: MSCCL++ reads only these fields when it
    looks for a plan, and finds other problems when a call has chosen it. A min_message_size above
    32 bits is read too, because such a plan is loaded and never chosen (by reading,
    src/core/executor/execution_plan.cc). Errors: F506 for a file that MSCCL++ can't read or can't
    run."""
    try:
        file, _, document = read_json(path)
        reader = _Reader(file, {})
        header = reader.header(document)
        reader.problems.raise_any()
    except SleyError as error:
        cause = error.diagnostics[0]
        remedy = F404.instead if cause.rule is F404 else ""
        raise F506.error(
            at=cause.places, expected=cause.expected, found=cause.found, remedy=remedy
        ) from error
    return header


def _lines(text: str, document: Object) -> dict[int, int]:
    """The line of each object with one of the keys `_LOCATED`, that of the last of them, by the id
    of the object; none if the keys of the text can't be told apart."""
    # One byte a character, so that positions in the bytes are those in the text.
    ends = np.flatnonzero(np.frombuffer(text.encode("latin-1", "replace"), np.uint8) == ord("\n"))
    keys = np.fromiter((m.start() for m in _KEY.finditer(text)), np.int64)
    owners = list(_located_objects(document))
    if len(owners) != len(keys):
        return {}
    numbers = (np.searchsorted(ends, keys) + 1).tolist()
    return dict(zip(map(id, owners), numbers, strict=True))


def _located_objects(document: Object) -> Iterator[Object]:
    """The objects with a key of `_LOCATED`, in the order of these keys in the text."""
    # Not by recursion, since a text may be deep; what comes first is last on the stack. A tuple,
    # which no JSON is, stands for the place of a key in its object.
    stack: list[Any] = [document]
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            yield value[0]
        elif isinstance(value, list):
            stack += reversed(value)
        elif isinstance(value, dict):
            for key, entry in reversed(value.items()):
                stack.append(entry)
                if key in _LOCATED:
                    stack.append((value,))


class _Fields:
    """Checked access to the keys of an object; wrong ones are problems, and have harmless
    values."""

    def __init__(self, reader: _Reader, values: Object, place: Place) -> None:
        self._reader = reader
        self.values = values
        self._known: set[str] = set()
        self.place = place

    def problem(self, rule: Rule, expected: str, found: str, remedy: str = "") -> None:
        """Adds a problem; ends reading after enough of them."""
        self._reader.problems.add(rule, self.place, expected, found, remedy)
        self._reader.problems.raise_full()

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def _value(self, key: str, default: object, fallback: _T) -> Any:
        self._known.add(key)
        if key in self.values:
            return self.values[key]
        if default is _MISSING:
            self.problem(F472, f"the key {key}", "no such key")
            return fallback
        return default

    def _wrong(self, key: str, expected: str, found: object) -> None:
        self.problem(F472, f"{key} to be {expected}", show(found))

    def typed(self, key: str, kind: type[_T], default: object = _MISSING) -> _T:
        """The value of a key, of a type."""
        found = self._value(key, default, kind())
        if type(found) is not kind:
            self._wrong(key, _TYPES[kind], found)
            return kind()
        return found

    def integer(
        self, key: str, least: int = 0, most: int = INT32, default: object = _MISSING
    ) -> int:
        found = self._value(key, default, least)
        if type(found) is not int:
            self._wrong(key, "an integer", found)
        elif least <= found <= most:
            return found
        else:
            self.problem(F422, f"{key} from {least} to {most}", f"{key}: {show(found)}")
        return least

    def word(self, key: str, words: Mapping[str, _T], default: object = _MISSING) -> _T:
        fallback = next(iter(words))
        found = self._value(key, default, fallback)
        if not isinstance(found, str) or found not in words:
            self._wrong(key, f"one of {', '.join(words)}", found)
            found = fallback
        return words[found]

    def integers(self, key: str, default: object = _MISSING) -> tuple[int, ...]:
        """A list of indices."""
        found = self.typed(key, list, default)
        for one in found:
            if type(one) is not int:
                self._wrong(key, "a list of integers", one)
                return ()
            if not 0 <= one <= INT32:
                self.problem(F422, f"{key} from 0 to {INT32}", f"{key}: {show(one)}")
                return ()
        return tuple(found)

    def objects(self, key: str, default: object = _MISSING) -> list[_Fields]:
        """A list of objects, in the place of this one."""
        found = self.typed(key, list, default)
        for one in found:
            if not isinstance(one, dict):
                self._wrong(key, "a list of objects", one)
                return []
        return [_Fields(self._reader, one, self.place) for one in found]

    def object(self, key: str) -> _Fields:
        return _Fields(self._reader, self.typed(key, dict), self.place)

    def finish(self, *later: str) -> None:
        """Notes the keys that the executor does not read: all but those that were read here, and
        those that will be read later."""
        for key in self.values:
            is_known = key in self._known or key in later
            if not is_known and len(self._reader.ignored) < MOST_REPORTED:
                self._reader.ignored.setdefault(key, self.place)


_CHANNELS: Mapping[str, str] = MappingProxyType({word: word for word in words.CHANNEL_TYPES})
_CHANNELS_OR_NONE: Mapping[str, str] = MappingProxyType({**_CHANNELS, "none": "none"})


class _Reader:
    """Reads one document."""

    def __init__(self, file: str, lines: Mapping[int, int]) -> None:
        self.file = file
        self.problems = Problems()
        self.ignored: dict[str, Place] = {}
        self._lines = lines

    def plan(self, document: Object) -> RawPlan:
        top = _Fields(self, document, Place(self.file))
        gpus = tuple(
            self._gpu(gpu, rank) for rank, gpu in enumerate(self._list(top, "gpus", "rank"))
        )
        plan = RawPlan(
            file=self.file,
            name=top.typed("name", str),
            collective=top.typed("collective", str),
            protocol=top.word("protocol", words.PROTOCOLS),
            in_place=top.typed("inplace", bool),
            reuses=top.typed("reuse_resources", bool, False),
            doubles=top.typed("use_double_scratch_buffer", bool, False),
            alignment=top.integer("buffer_alignment", 1, default=16),
            threads=top.integer("num_threads_per_block", 1, default=1024),
            # By reading, the executor takes min_message_size for an int.
            min_bytes=top.integer("min_message_size", default=0),
            max_bytes=top.integer("max_message_size", 0, MAX_SIZE, MAX_SIZE),
            gpus=gpus,
            ignored=self.ignored,
        )
        top.finish()
        return plan

    def header(self, document: Object) -> PlanHeader:
        top = _Fields(self, document, Place(self.file))
        gpus = self._list(top, "gpus", "rank")
        names = ("input_chunks", "output_chunks", "scratch_chunks")
        # MSCCL++ reads these too, and refuses another type.
        top.typed("protocol", str)
        for key in ("reuse_resources", "use_double_scratch_buffer"):
            top.typed(key, bool, False)
        return PlanHeader(
            name=top.typed("name", str),
            collective=top.typed("collective", str),
            in_place=top.typed("inplace", bool),
            alignment=top.integer("buffer_alignment", 1, default=16),
            min_bytes=top.integer("min_message_size", 0, MAX_SIZE, 0),
            max_bytes=top.integer("max_message_size", 0, MAX_SIZE, MAX_SIZE),
            chunks=tuple(Chunks(*map(gpu.integer, names)) for gpu in gpus),
            operations=max(map(_most_operations, gpus), default=0),
        )

    def _list(self, owner: _Fields, key: str, word: str) -> list[_Fields]:
        """The GPUs of a file or the blocks of a GPU, with their places, in the order of ids."""
        found = owner.objects(key)
        for number, one in enumerate(found):
            detail = f"{owner.place.detail} {word} {number}".strip()
            one.place = Place(self.file, detail=detail)
            if one.integer("id") != number:
                one.problem(F412, f"id {number}, the position in the list", "another id")
        return found

    def _gpu(self, gpu: _Fields, rank: int) -> RawGpu:
        peers, lines, groups = _by_type(), _by_type(), list[RawGroup]()
        for channel in gpu.objects("channels"):
            word = channel.word("channel_type", _CHANNELS)
            if word == words.SWITCH:
                groups += self._groups(channel)
            else:
                found = channel.integers("connected_to")
                peers[word] += found
                lines[word] += [self._line(channel)] * len(found)
            channel.finish()
        semaphores = gpu.objects("semaphores", [])
        for semaphore in semaphores:
            semaphore.finish("init_value")
        remote = tuple(map(self._remote, gpu.objects("remote_buffers")))
        blocks = tuple(
            self._block(block, rank, number)
            for number, block in enumerate(self._list(gpu, "threadblocks", "block"))
        )
        made = RawGpu(
            gpu.integer("input_chunks"),
            gpu.integer("output_chunks"),
            gpu.integer("scratch_chunks"),
            _tuples(peers),
            tuple(groups),
            remote,
            tuple(semaphore.integer("init_value") for semaphore in semaphores),
            blocks,
            _tuples(lines),
        )
        gpu.finish()
        return made

    def _groups(self, channel: _Fields) -> list[RawGroup]:
        buffer = channel.word("buffer_type", words.BUFFERS)
        groups = channel.objects("rank_groups")
        for group in groups:
            group.integer("size")
            group.finish("ranks")
        return [RawGroup(buffer, group.integers("ranks")) for group in groups]

    def _remote(self, remote: _Fields) -> RawRemote:
        types = remote.typed("access_channel_types", list)
        remote.finish("rank", "type")
        for word in types:
            if word not in words.CHANNEL_TYPES:
                known = ", ".join(words.CHANNEL_TYPES)
                remote.problem(F472, f"access_channel_types from {known}", show(word))
                types = []
        return RawRemote(remote.integer("rank"), remote.word("type", words.BUFFERS), tuple(types))

    def _block(self, block: _Fields, rank: int, number: int) -> RawBlock:
        channels, buffers = _by_type(), _by_type()
        for one in block.objects("channels"):
            channels[one.word("channel_type", _CHANNELS)] += one.integers("channel_ids")
            one.finish()
        for one in block.objects("remote_buffer_refs", []):
            buffers[one.word("access_channel_type", _CHANNELS)] += one.integers("remote_buffer_ids")
            one.finish()
        operations = self._operations(block, rank, number, first=0)
        block.finish()
        return RawBlock(_tuples(channels), _tuples(buffers), operations)

    def _operations(
        self, owner: _Fields, rank: int, block: int, first: int, *, inner: bool = False
    ) -> tuple[RawOperation, ...]:
        found: list[RawOperation] = []
        for fields in owner.objects("ops"):
            one = self._operation(fields, rank, block, first)
            if inner and one.name == words.PIPELINE:
                fields.problem(F486, "no pipeline inside of a pipeline", "one", words.INNER_RANGES)
            elif one.name == words.PIPELINE:
                own = self._operations(fields, rank, block, first + 1, inner=True)
                one = replace(one, inner=own)
            found.append(one)
            first += 1 + len(one.inner)
        return tuple(found)

    def _operation(self, fields: _Fields, rank: int, block: int, step: int) -> RawOperation:
        name = fields.typed("name", str)
        head = RawOperation(name if name in words.NAMES else "?", self._line(fields))
        fields.place = place_of_step(self.file, rank, block, step, head)
        if name not in words.NAMES:
            near = did_you_mean(name, words.NAMES)
            fields.problem(F478, "an operation of MSCCL++", f"name: {show(name)}", near)
            return head
        self._check_keys(fields, name)
        channel_type = fields.word("channel_type", _CHANNELS_OR_NONE, "none")
        share, shares = self._share(fields)
        iterations = fields.object("iter_context") if name == words.PIPELINE else None

        def unless(needed: bool, default: object) -> object:
            """The default of a key that some operations must have."""
            return _MISSING if needed else default

        is_move, is_barrier = name in words.MOVES, name == words.BARRIER
        signals, is_semaphore = (*words.SIGNALS, *words.WAITS), (words.ACQUIRE, words.RELEASE)
        return RawOperation(
            name,
            head.line,
            channel_type,
            fields.integers("channel_ids", unless(name in signals, [])),
            self._ranges(fields, "src_buff", unless(is_move, [])),
            self._ranges(fields, "dst_buff", unless(is_move, [])),
            share,
            shares,
            fields.integer("barrier_id", default=unless(is_barrier, 0)),
            fields.integer("num_threadblocks", default=unless(is_barrier, 0)),
            fields.integers("semaphore_ids", unless(name in is_semaphore, [])),
            iterations.integer("unit_size", most=UINT32) if iterations else 0,
            iterations.integer("num_chunks", 1) if iterations else 0,
            reduce_op=fields.typed("reduce_op", str, ""),
        )

    def _line(self, fields: _Fields) -> int:
        return self._lines.get(id(fields.values), 0)

    def _check_keys(self, fields: _Fields, name: str) -> None:
        own = keys_of(name)
        for group in words.KEY_GROUPS:
            for key in group:
                if key in fields and group is not own:
                    fields.problem(F479, f"only keys of a {name}", f"the key {key}")
        fields.finish(*words.COMMON_KEYS, *(key for group in words.KEY_GROUPS for key in group))

    def _share(self, fields: _Fields) -> tuple[int, int]:
        if "tbg_info" not in fields:
            return 0, 1
        info = fields.object("tbg_info")
        shares = info.integer("tbg_size", 1)
        info.finish("tb_id")
        return info.integer("tb_id", 0, shares - 1), shares

    def _ranges(self, fields: _Fields, key: str, default: object) -> tuple[RawRange, ...]:
        found: list[RawRange] = []
        for one in fields.objects(key, default):
            kinds = [where for where in Where if where.value in one]
            if len(kinds) != 1:
                known = ", ".join(where.value for where in Where)
                one.problem(F472, f"one of {known} in each range of {key}", f"{len(kinds)} of them")
                continue
            where = kinds[0]
            is_local = where is Where.LOCAL
            number = int(one.word("type", words.BUFFERS)) if is_local else one.integer(where.value)
            one.finish("index", "size")
            found.append(RawRange(where, number, one.integer("index"), one.integer("size")))
        return tuple(found)


def _most_operations(gpu: _Fields) -> int:
    """The most operations of a block of a GPU."""
    most = 0
    for block in gpu.objects("threadblocks"):
        own = block.objects("ops")
        inner = [one.values.get("ops") for one in own if one.values.get("name") == words.PIPELINE]
        most = max(most, len(own) + sum(len(ops) for ops in inner if isinstance(ops, list)))
    return most


def _by_type() -> dict[str, list[int]]:
    return {word: [] for word in words.CHANNEL_TYPES}


def _tuples(numbers: Mapping[str, list[int]]) -> dict[str, tuple[int, ...]]:
    return {word: tuple(of_type) for word, of_type in numbers.items()}


def ignored_notes(raw: RawPlan) -> list[Diagnostic]:
    """A remark for each key that the executor does not read (F431)."""
    return [
        F431.diagnostic(
            at=place,
            expected="only keys that MSCCL++ reads",
            found=f"the key {show(key)}",
            remedy="Remove the key, or check the version of the executor.",
        )
        for key, place in raw.ignored.items()
    ]


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
            {
                "rank": of.rank,
                "type": of.buffer.word[0],
                "access_channel_types": of.types,
            }
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


def read_json(source: str | os.PathLike[str], file: str | None = None) -> tuple[str, str, Object]:
    """The file's name in messages, the text and its object, by a path or a text. Errors:
    F403, F404, F470."""
    if isinstance(source, str) and ("{" in source or "\n" in source):
        file, text = file or "<text>", source
        if len(text) > MAX_TEXT_BYTES:
            _too_large(file, f"{MAX_TEXT_BYTES} bytes of text")
    else:
        file = file or os.fspath(source)
        text = _text_of(os.fspath(source), file)
    return file, text, _document(text, file)


def _text_of(path: str, file: str) -> str:
    content = content_of(path, file, MAX_TEXT_BYTES)
    if len(content) > MAX_TEXT_BYTES:
        _too_large(file, f"{MAX_TEXT_BYTES} bytes of text")
    try:
        return content.decode("utf-8-sig")
    except ValueError as problem:
        raise F470.error(at=Place(file), expected="text in UTF-8", found=str(problem)) from problem


def _too_large(file: str, limit: str) -> NoReturn:
    raise F403.error(at=Place(file), expected=f"at most {limit}", found="more")


class _NumberError(ValueError):
    """A word of the text, in the place of a number, that no double represents."""


def _document(text: str, file: str) -> Object:
    """The object of a JSON text. Errors: F403, F470."""
    if text.count("{") + text.count("[") > MAX_CONTAINERS:
        _too_large(file, f"{MAX_CONTAINERS} objects and lists")

    def refuse(found: str, place: int | None = None, cause: Exception | None = None) -> NoReturn:
        at = Place(file) if place is None else _place(file, text, place)
        raise F470.error(at=at, expected="an object in JSON", found=found) from cause

    try:
        document = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_no_number,
        )
        text.encode()
    except json.JSONDecodeError as problem:
        refuse(_fault(text, problem), problem.pos, problem)
    except RecursionError as problem:
        refuse("lists in lists, too deep", cause=problem)
    except UnicodeEncodeError as problem:
        refuse("half of a surrogate pair", problem.start, problem)
    except _NumberError as problem:
        word = str(problem)
        start = next((m.start() for m in _TOKEN.finditer(text) if m[0] == word), None)
        refuse(f"{_shortened(word)}, which is no finite number", start, problem)
    except ValueError as problem:  # a repeated key
        refuse(str(problem), cause=problem)
    if "\\u" in text:
        for escape in _LONE.finditer(text):
            if escape[1]:
                refuse(f"\\{escape[1]}, half of a surrogate pair", escape.start())
    if not isinstance(document, dict):
        refuse(f"a {_kind(document)}")
    return document


def _fault(text: str, problem: json.JSONDecodeError) -> str:
    """What is wrong at the place of a problem."""
    if not text.strip():
        return "an empty file"
    if text[problem.pos : problem.pos + 1] == '"' and problem.msg.startswith("Unterminated"):
        return "a string without its end"
    if not text[problem.pos :].strip():
        return f"the end of the file ({problem.msg})"
    return problem.msg


def _place(file: str, text: str, position: int) -> Place:
    """The line and the column of a position in a text."""
    before = text[:position]
    return Place(file, before.count("\n") + 1, position - before.rfind("\n"))


def _unique(pairs: list[tuple[str, Any]]) -> Object:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        again = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"the key {show(again)} twice in an object")
    return found


def _integer(word: str) -> int:
    if len(word) > _SHORT_DIGITS:
        _float(word)
    return int(word)


def _float(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        _no_number(word)
    return value


def _no_number(word: str) -> NoReturn:
    raise _NumberError(word)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."


def _kind(value: object) -> str:
    kinds: Mapping[type, str] = {dict: "object", list: "list", str: "string", bool: "Boolean"}
    return kinds.get(type(value), "null" if value is None else "number")


def show(value: object) -> str:
    """A value for messages: scalars as in JSON, others by their kind."""
    if isinstance(value, (dict, list)):
        return f"{'an' if isinstance(value, dict) else 'a'} {_kind(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 64:
        return "a number of more than 64 bits"
    return _shortened(json.dumps(value[:_SHOWN_CHARS] if isinstance(value, str) else value))
