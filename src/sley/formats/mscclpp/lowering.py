"""Lowering: the operations of a file as rows of the one-sided machine.

One operation becomes a row for each of its threads, or one for all of them (MSCCL++, by reading).
The iterations of a pipeline follow one another.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sley.errors.formats import F403, F420
from sley.errors.mscclpp import F493
from sley.formats.mscclpp import words
from sley.formats.mscclpp.cutting import Cutting
from sley.formats.mscclpp.raw import (
    Access,
    RawBlock,
    RawGpu,
    RawOperation,
    RawPlan,
    accesses_of,
    all_operations,
)
from sley.formats.mscclpp.targets import FLUSHED_PUT, PlanTarget
from sley.formats.problems import Problems
from sley.ir.collective import Collective
from sley.ir.one_sided import Action, Counters, OneSidedPlan, Operations, Ranges
from sley.ir.sources import Sources
from sley.ir.tables import NONE
from sley.ir.words import Buffer, Protocol

MAX_ROWS = 1_000_000
"""Limit of the rows of operations, and of those of ranges."""


def lower(
    raw: RawPlan, collective: Collective, cutting: Cutting, target: PlanTarget
) -> OneSidedPlan:
    """The plan of a checked file. collective: with the chunks of the file. Errors: F403, F420,
    F493."""
    _check_ranges(raw, collective)
    _check_rows(raw, cutting)
    rows = _Rows(raw, cutting, target)
    for rank, gpu in enumerate(raw.gpus):
        for block in gpu.blocks:
            rows.begin(rank)
            _Block(rows, rank, gpu, block).lower()
    return rows.plan(collective)


def scratch_room(raw: RawPlan, gpu: RawGpu) -> int:
    """The chunks of a GPU's scratch: with LL twice scratch_chunks, for data and flags."""
    return gpu.scratch_chunks * (2 if raw.protocol is Protocol.LL else 1)


def _check_ranges(raw: RawPlan, collective: Collective) -> None:
    """Refuses ranges outside of buffers, or in a buffer that begins elsewhere on the other rank.
    Errors: F420, F493."""
    problems = Problems()
    room = np.array([scratch_room(raw, gpu) for gpu in raw.gpus], np.int64)
    size = collective.layout(room).size.astype(np.int64).tolist()
    base = [collective.input_base.tolist(), collective.output_base.tolist()]
    for rank, number, op in all_operations(raw):
        gpu = raw.gpus[rank]
        at = raw.at(rank, number, op)
        for access in accesses_of(gpu, rank, gpu.blocks[number], op):
            first, last = access.index, access.index + access.size - 1
            if access.kind.packet:
                first, last = 2 * first, 2 * last + 1
            for target in access.ranks:
                name, has = access.buffer.name.lower(), size[access.buffer][target]
                begins = [] if access.buffer == Buffer.SCRATCH else base[access.buffer]
                if last >= has:
                    expected = f"chunks of rank {target}'s {name}, which has {has}"
                    problems.add(F420, at, expected, f"chunks {first} to {last}")
                elif begins and begins[rank] != begins[target]:
                    expected = (
                        f"a buffer that begins at the same chunk on ranks {rank} and {target}"
                    )
                    found = f"the {name} in place: {begins[rank]} and {begins[target]}"
                    problems.add(
                        F493,
                        at,
                        expected,
                        found,
                        "Access the larger buffer, with the index of the rank's part.",
                    )
                problems.raise_full()
    problems.raise_any()


def _check_rows(raw: RawPlan, cutting: Cutting) -> None:
    """Refuses plans with more rows than any needs. Errors: F403."""
    operations = ranges = 0
    for rank, gpu in enumerate(raw.gpus):
        for block in gpu.blocks:
            for op in block.operations:
                times = cutting.iterations(op) if op.unit_bytes else 1
                for one in op.inner or (op,):
                    lanes = len(one.channel_ids) + len(one.semaphores)
                    operations += times * max(3 * lanes, 1)
                    ranges += times * sum(
                        len(access.ranks) for access in accesses_of(gpu, rank, block, one)
                    )
    if max(operations, ranges) > MAX_ROWS:
        raise F403.error(
            at=raw.whole,
            expected=f"at most {MAX_ROWS} operations, and ranges, with all iterations",
            found=str(max(operations, ranges)),
        )


def _numbers_of_equal(values: Sequence[int]) -> list[int]:
    """The number of each value among the equal ones, from 0."""
    seen: Counter[int] = Counter()
    numbers = []
    for value in values:
        numbers.append(seen[value])
        seen[value] += 1
    return numbers


class _Rows:
    """The rows of a plan so far."""

    def __init__(self, raw: RawPlan, cutting: Cutting, target: PlanTarget) -> None:
        self.raw = raw
        self.cutting = cutting
        self.flushes = target.lacks(FLUSHED_PUT) is None
        self.operations: Columns = {name: array("q") for name in Operations.column_names()}
        self.ranges: Columns = {name: array("q") for name in Ranges.column_names()}
        self.words: dict[str, int] = {}
        self.lines: dict[int, int] = {}
        self.barriers: dict[tuple[int, int], int] = {}
        self.block_rank = array("q")
        self.block_offset = array("q")
        ports = [len(gpu.peers[words.PORT]) for gpu in raw.gpus]
        self.first_port: list[int] = np.cumsum([0, *ports]).tolist()
        self.pair_numbers = [
            {word: _numbers_of_equal(peers) for word, peers in gpu.peers.items()}
            for gpu in raw.gpus
        ]
        self._counters: dict[_Counter, int] = {}
        self._moves = 0

    def begin(self, rank: int) -> None:
        """Begins a block."""
        self.block_rank.append(rank)
        self.block_offset.append(len(self.operations["action"]))

    def add(
        self,
        op: RawOperation,
        action: Action,
        *,
        thread: int = NONE,
        target: int = NONE,
        port: int = NONE,
        relaxed: bool = False,
    ) -> None:
        """Adds a row of an operation."""
        row = self.operations
        row["action"].append(action)
        row["thread"].append(thread)
        row["target"].append(target)
        row["port"].append(port)
        row["relaxed"].append(relaxed)
        row["step"].append(op.number)
        row["word"].append(self.words.setdefault(op.name, len(self.words)))
        row["source"].append(self.lines.setdefault(op.line, len(self.lines)))

    def add_move(self, spans: Sequence[_Span]) -> None:
        """Adds a move of the last row. Packets that it writes where it alone reads them, as a
        gstorepkt does on its own rank, stay as they are, so it doesn't write them."""
        row, operation = self.ranges, len(self.operations["action"]) - 1
        read = [span for span in spans if not span.access.writes]
        kept = {(*read[0].access.ranks, *read[0].place)} if len(read) == 1 else set()
        for span in spans:
            for rank in span.access.ranks:
                if span.access.writes and span.access.kind.packet and (rank, *span.place) in kept:
                    continue
                row["operation"].append(operation)
                row["move"].append(self._moves)
                row["writes"].append(span.access.writes)
                row["rank"].append(rank)
                row["buffer"].append(span.access.buffer)
                row["index"].append(span.begin)
                row["count"].append(span.size)
                row["packet"].append(span.access.kind.packet)
        self._moves += 1

    def counter(self, key: _Counter) -> int:
        """The row of a counter."""
        return self._counters.setdefault(key, len(self._counters))

    def plan(self, collective: Collective) -> OneSidedPlan:
        """The plan of all rows."""
        raw, parts, lines = self.raw, self.cutting.parts, list(self.lines)
        room = [scratch_room(raw, gpu) * parts for gpu in raw.gpus]
        counters = list(self._counters)
        return OneSidedPlan(
            name=raw.name,
            collective=collective.refine(parts),
            protocol=raw.protocol,
            parts=parts,
            operations=Operations(*map(_column, self.operations.values())),
            ranges=Ranges(*map(_column, self.ranges.values())),
            counters=Counters(
                rank=np.array([key.rank for key in counters], np.int32),
                peer=np.array([key.peer for key in counters], np.int32),
                initial=np.array([self._initial(key) for key in counters], np.int32),
            ),
            block_rank=_column(self.block_rank),
            block_offset=np.array([*self.block_offset, len(self.operations["action"])]),
            ports=np.repeat(np.arange(len(raw.gpus)), np.diff(self.first_port)),
            scratch_chunks=np.array(room, np.int32),
            scratch_copies=2 if raw.doubles else 1,
            words=tuple(self.words),
            sources=Sources.of_file(raw.file, lines, whole=raw.whole),
        )

    def _initial(self, key: _Counter) -> int:
        """The first value of a counter: that of a semaphore, 0 for channels."""
        return 0 if key.kind else self.raw.gpus[key.rank].semaphores[key.number]


Columns = dict[str, "array[int]"]


def _column(values: array[int]) -> NDArray[Any]:
    return np.array(values, np.int64)


class _Counter(NamedTuple):
    """An end of a channel, or a semaphore. kind: the type of channel, "" for a semaphore. rank: the
    rank that waits. number: its number among the channels of this type of both ranks, or its id."""

    kind: str
    rank: int
    peer: int
    number: int


class _Span(NamedTuple):
    """The part of an access that a row moves, in parts of chunks."""

    access: Access
    begin: int
    size: int

    @property
    def place(self) -> tuple[Buffer, bool, int, int]:
        """Its place on a rank, and whether it holds packets."""
        return self.access.buffer, self.access.kind.packet, self.begin, self.size


class _Block:
    """The rows of a block."""

    def __init__(self, rows: _Rows, rank: int, gpu: RawGpu, block: RawBlock) -> None:
        self.rows = rows
        self.rank = rank
        self.gpu = gpu
        self.block = block

    def lower(self) -> None:
        for op in self.block.operations:
            if op.name != words.PIPELINE:
                self._operation(op)
                continue
            for iteration in range(self.rows.cutting.iterations(op)):
                for inner in op.inner:
                    self._operation(inner, op, iteration)

    def _operation(
        self, op: RawOperation, pipeline: RawOperation | None = None, iteration: int = 0
    ) -> None:
        if op.name in words.MOVES:
            spans = [
                self._span(access, op, pipeline, iteration)
                for access in accesses_of(self.gpu, self.rank, self.block, op)
            ]
            self._move(op, spans)
        elif op.name in words.SIGNALS:
            for thread in range(len(op.channel_ids)):
                self._signal(op, thread)
        elif op.name in words.WAITS:
            relaxed = op.name in words.RELAXED and op.channel_type == words.MEMORY
            for thread in range(len(op.channel_ids)):
                peer, number = self._channel(op, thread)
                target = self.rows.counter(_Counter(op.channel_type, self.rank, peer, number))
                self.rows.add(op, Action.WAIT, thread=thread, target=target, relaxed=relaxed)
        elif op.name in (words.ACQUIRE, words.RELEASE):
            action = Action.WAIT if op.name == words.ACQUIRE else Action.POST
            for thread, number in enumerate(op.semaphores):
                target = self.rows.counter(_Counter("", self.rank, self.rank, number))
                self.rows.add(op, action, thread=thread, target=target)
        elif op.name == words.NOP or (op.name == words.BARRIER and op.barrier_blocks == 1):
            self.rows.add(op, Action.JOIN)
        elif op.name == words.BARRIER:
            barriers = self.rows.barriers
            target = barriers.setdefault((self.rank, op.barrier), len(barriers))
            self.rows.add(op, Action.BARRIER, target=target)

    def _channel(self, op: RawOperation, thread: int) -> tuple[int, int]:
        """The peer of a thread's channel, and its number among the channels of its type between
        the two ranks: the channels with one number are the two ends of one."""
        channel = self.block.channels[op.channel_type][op.channel_ids[thread]]
        numbers = self.rows.pair_numbers[self.rank][op.channel_type]
        return self.gpu.peers[op.channel_type][channel], numbers[channel]

    def _port(self, op: RawOperation, thread: int) -> int:
        channel = self.block.channels[words.PORT][op.channel_ids[thread]]
        return self.rows.first_port[self.rank] + channel

    def _signal(self, op: RawOperation, thread: int) -> None:
        peer, number = self._channel(op, thread)
        target = self.rows.counter(_Counter(op.channel_type, peer, self.rank, number))
        if op.channel_type == words.PORT:
            port = self._port(op, thread)
            self.rows.add(op, Action.PUSH_POST, thread=thread, target=target, port=port)
        else:
            relaxed = op.name in words.RELAXED
            self.rows.add(op, Action.POST, thread=thread, target=target, relaxed=relaxed)

    def _span(
        self, access: Access, op: RawOperation, pipeline: RawOperation | None, iteration: int
    ) -> _Span:
        parts = self.rows.cutting.parts
        count = access.size * parts // op.shares
        begin = access.index * parts + op.share * count
        if pipeline is not None:
            step = parts * pipeline.unit_bytes // self.rows.cutting.chunk_bytes
            begin, count = begin + iteration * step, step
        return _Span(access, begin, count)

    def _move(self, op: RawOperation, spans: list[_Span]) -> None:
        rows, move = self.rows, words.MOVES[op.name]
        sources = [span for span in spans if not span.access.writes]
        destinations = [span for span in spans if span.access.writes]
        if op.channel_type == words.PORT and move.channels:
            if not move.paired:
                # All threads wait for the packets, and meet before the first push.
                rows.add(op, Action.MOVE)
                rows.add_move(sources)
                rows.add(op, Action.JOIN)
                sources *= len(destinations)
            for thread, pair in enumerate(zip(sources, destinations, strict=True)):
                port = self._port(op, thread)
                rows.add(op, Action.PUSH, thread=thread, port=port)
                rows.add_move(pair)
                if op.name in (words.PUT_SIGNAL, words.PUT_SIGNAL_FLUSH):
                    self._signal(op, thread)
                if op.name == words.PUT_SIGNAL_FLUSH and rows.flushes:
                    rows.add(op, Action.FLUSH, thread=thread, port=port)
            return
        rows.add(op, Action.MOVE)
        if move.paired:
            for pair in zip(sources, destinations, strict=True):
                rows.add_move(pair)
        else:
            rows.add_move(spans)
