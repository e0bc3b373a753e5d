"""Parse: a file's text as a RawPlan, or only what a call is compared with.

Python's parser of JSON makes objects without places, so the lines of operations and channels come
from the keys "name" and "connected_to" of the text, in the order of the objects that have one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sley.errors import Diagnostic, Place, Rule, SleyError, did_you_mean
from sley.errors.deployment import F506
from sley.errors.formats import F404, F412, F422, F431
from sley.errors.mscclpp import F472, F478, F479, F486
from sley.formats.format import MOST_REPORTED, Problems
from sley.formats.mscclpp import words
from sley.formats.mscclpp.document import INT32, UINT32, Object, read_json, show
from sley.formats.mscclpp.raw import (
    MAX_SIZE,
    RawBlock,
    RawGpu,
    RawGroup,
    RawOperation,
    RawPlan,
    RawRange,
    RawRemote,
    place_of_step,
)
from sley.formats.mscclpp.words import Where, keys_of

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
