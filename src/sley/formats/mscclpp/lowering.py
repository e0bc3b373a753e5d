"""Lowering: the operations of a file as rows of the one-sided machine.

Blocks with tbg_info and iterations of pipelines move parts of a chunk. The executor cuts ranges in
units of buffer_alignment (MSCCL++, by reading): part g of k begins at unit
g * (n // k) + min(g, n % k) of the range's n.

One operation becomes a row for each of its threads, or one for all of them (MSCCL++, by reading).
The iterations of a pipeline follow one another.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from sley.errors.formats import F403, F420, F422
from sley.errors.mscclpp import F493
from sley.formats.format import Problems
from sley.formats.mscclpp import words
from sley.formats.mscclpp.raw import Access, Located, RawGpu, RawOperation, RawPlan
from sley.formats.mscclpp.targets import FLUSHED_PUT, PlanTarget
from sley.ir.collective import Collective
from sley.ir.one_sided import Action, Counters, OneSidedPlan, Operations, Ranges
from sley.ir.sources import Sources
from sley.ir.tables import NONE, Table
from sley.ir.words import MAX_NUMBER, Buffer, Protocol

T = TypeVar("T", bound=Table)

MAX_ROWS = 1_000_000
"""Limit of the rows of operations, and of those of ranges."""


@dataclass(frozen=True)
class Cutting:
    """How the chunks of a plan are cut in a modelled call.

    parts: parts of a chunk.
    chunk_bytes: the size of a chunk if the plan has pipelines, otherwise 0.
    least_bytes: the least size of a chunk.
    multiple_bytes: a chunk's size is a multiple of it.
    most_bytes: the largest size of a chunk, or 0 if any is possible.
    """

    parts: int
    chunk_bytes: int
    least_bytes: int
    multiple_bytes: int
    most_bytes: int

    def iterations(self, pipeline: RawOperation) -> int:
        """The iterations of a pipeline in the modelled call."""
        return pipeline.chunks * self.chunk_bytes // pipeline.unit_bytes


def cut(raw: RawPlan, units: int, target: PlanTarget) -> Cutting:
    """The cutting for chunks of `units` units of the pipelines. Errors: F403, F422."""
    shared = [
        (item.size, one.op.shares)
        for one in raw.operations
        if one.op.name in words.MOVES and one.pipeline is None
        for item in one.op.sources + one.op.destinations
        if item.size % one.op.shares
    ]
    parts = 1
    # Checked after each cut: of many coprime cuts the least common multiple has very many digits.
    for size, shares in set(shared):
        parts = math.lcm(parts, shares // math.gcd(shares, size))
        _check_parts(raw, parts)
    alignment = raw.alignment
    pipelines = [one.op for one in raw.operations if one.op.unit_bytes]
    if not pipelines:
        # The parts of single chunks, cut by one number of blocks, are the same parts everywhere.
        exact = len({shares for _, shares in shared}) <= 1 and all(size == 1 for size, _ in shared)
        multiple = alignment if exact else parts * alignment
        return Cutting(parts, 0, parts * alignment, multiple, 0)
    sizes = {pipeline.unit_bytes for pipeline in pipelines}
    ones = all(pipeline.chunks == 1 for pipeline in pipelines)
    if len(sizes) == 1 and ones and parts == 1:
        (unit,) = sizes
        found = Cutting(units, units * unit, (units - 1) * unit + 1, alignment, units * unit)
    else:
        chunk = units * math.lcm(*sizes, parts * alignment)
        parts = math.lcm(parts, chunk // math.gcd(*sizes, chunk))
        found = Cutting(parts, chunk, chunk, chunk, chunk)
    _check_parts(raw, found.parts)
    _check_iterations(raw, found, target)
    return found


def _check_parts(raw: RawPlan, parts: int) -> None:
    if parts > MAX_NUMBER:
        raise F403.error(
            at=raw.whole,
            expected=f"chunks cut into at most {MAX_NUMBER} parts, by tbg_size and unit_size",
            found=str(parts),
        )


def _check_iterations(raw: RawPlan, cutting: Cutting, target: PlanTarget) -> None:
    problems, limit = Problems(), target.iterations
    for one in raw.operations:
        if one.op.unit_bytes and (found := cutting.iterations(one.op)) > limit:
            expected = f"at most {limit} iterations of a pipeline"
            problems.add(F422, one.at, expected, str(found))
            problems.raise_full()
    problems.raise_any()


def lower(
    raw: RawPlan, collective: Collective, cutting: Cutting, target: PlanTarget
) -> OneSidedPlan:
    """The plan of a checked file. collective: with the chunks of the file. Errors: F403, F420,
    F493."""
    _check_ranges(raw, collective)
    _check_rows(raw, cutting)
    rows = _Rows(raw, cutting, target)
    # Rank after rank, as the plan's columns are: a block's rows follow one another.
    for rank, gpu in enumerate(raw.gpus):
        for number in range(len(gpu.blocks)):
            rows.begin(rank)
            operations = list(raw.operations_of(rank, number))
            for one in operations:
                if one.op.name == words.PIPELINE:
                    own = operations[one.step + 1 :][: len(one.op.inner)]
                    for iteration in range(cutting.iterations(one.op)):
                        for inner in own:
                            rows.lower(inner, iteration)
                elif one.pipeline is None:
                    rows.lower(one)
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
    for one in raw.operations:
        rank = one.rank
        for access in one.accesses:
            first, last = access.index, access.index + access.size - 1
            if access.kind.packet:
                first, last = 2 * first, 2 * last + 1
            for target in access.ranks:
                name, has = access.buffer.name.lower(), size[access.buffer][target]
                begins = [] if access.buffer == Buffer.SCRATCH else base[access.buffer]
                if last >= has:
                    expected = f"chunks of rank {target}'s {name}, which has {has}"
                    problems.add(F420, one.at, expected, f"chunks {first} to {last}")
                elif begins and begins[rank] != begins[target]:
                    same = f"a buffer that begins at the same chunk on ranks {rank} and {target}"
                    found = f"the {name} in place: {begins[rank]} and {begins[target]}"
                    remedy = "Access the larger buffer, with the index of the rank's part."
                    problems.add(F493, one.at, same, found, remedy)
                problems.raise_full()
    problems.raise_any()


def _check_rows(raw: RawPlan, cutting: Cutting) -> None:
    """Refuses plans with more rows than any needs, before they are made. Errors: F403."""
    operations = ranges = 0
    for one in raw.operations:
        if one.op.inner:  # counted by itself
            continue
        pipeline = one.pipeline or one.op
        times = cutting.iterations(pipeline) if pipeline.unit_bytes else 1
        lanes = len(one.op.channel_ids) + len(one.op.semaphores)
        operations += times * max(3 * lanes, 1)  # of a pwsf: a push, a signal and a flush
        ranges += times * sum(len(access.ranks) for access in one.accesses)
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
        self._raw = raw
        self._cutting = cutting
        self._flushes = target.lacks(FLUSHED_PUT) is None
        self._operations, self._ranges = array("q"), array("q")
        self._words: dict[str, int] = {}
        self._lines: dict[int, int] = {}
        self._barriers: dict[tuple[int, int], int] = {}
        self._block_rank = array("q")
        self._block_offset = array("q")
        ports = [len(gpu.peers[words.PORT]) for gpu in raw.gpus]
        self._first_port: list[int] = np.cumsum([0, *ports]).tolist()
        self._pair_numbers = [
            {word: _numbers_of_equal(peers) for word, peers in gpu.peers.items()}
            for gpu in raw.gpus
        ]
        # A counter is an end of a channel, or a semaphore: the type of channel, "" for a semaphore;
        # the rank that waits, and its peer; the number among the channels of this type of both
        # ranks, or the semaphore's id.
        self._counters: dict[tuple[str, int, int, int], int] = {}
        self._moves = 0

    def begin(self, rank: int) -> None:
        """Begins a block."""
        self._block_rank.append(rank)
        self._block_offset.append(self._rows)

    @property
    def _rows(self) -> int:
        """The number of rows of operations."""
        return len(self._operations) // len(Operations.column_names())

    def _add(
        self,
        one: Located,
        action: Action,
        *,
        thread: int = NONE,
        target: int = NONE,
        port: int = NONE,
        relaxed: bool = False,
    ) -> None:
        """Adds a row of an operation."""
        word = self._words.setdefault(one.op.name, len(self._words))
        source = self._lines.setdefault(one.op.line, len(self._lines))
        self._operations.extend((action, thread, target, port, relaxed, one.step, word, source))

    def _add_move(self, spans: Sequence[Access]) -> None:
        """Adds a move of the last row. Packets that it writes where it alone reads them, as a
        gstorepkt does on its own rank, stay as they are, so it doesn't write them."""
        operation = self._rows - 1
        read = [span for span in spans if not span.writes]
        # Of several sources the sum is written, which is no packet that was read.
        kept = {(*read[0].ranks, *_place(read[0]))} if len(read) == 1 else set()
        for span in spans:
            for rank in span.ranks:
                if span.writes and span.kind.packet and (rank, *_place(span)) in kept:
                    continue
                place = (rank, span.buffer, span.index, span.size)
                kind = span.kind.packet, span.kind.where is words.Where.SWITCH
                self._ranges.extend((operation, self._moves, span.writes, *place, *kind))
        self._moves += 1

    def lower(self, one: Located, iteration: int = 0) -> None:
        """Adds the rows of an operation. iteration: of its pipeline."""
        op = one.op
        if op.name in words.MOVES:
            spans = [self._span(one, access, iteration) for access in one.accesses]
            self._move(one, spans)
        elif op.name in words.SIGNALS:
            for thread in range(len(op.channel_ids)):
                self._signal(one, thread)
        elif op.name in words.WAITS:
            relaxed = op.name in words.RELAXED and op.channel_type == words.MEMORY
            for thread in range(len(op.channel_ids)):
                peer, number = self._channel(one, thread)
                target = self._counter(op.channel_type, one.rank, peer, number)
                self._add(one, Action.WAIT, thread=thread, target=target, relaxed=relaxed)
        elif op.name in (words.ACQUIRE, words.RELEASE):
            action = Action.WAIT if op.name == words.ACQUIRE else Action.POST
            for thread, number in enumerate(op.semaphores):
                target = self._counter("", one.rank, one.rank, number)
                self._add(one, action, thread=thread, target=target)
        elif op.name == words.NOP or (op.name == words.BARRIER and op.barrier_blocks == 1):
            self._add(one, Action.JOIN)
        elif op.name == words.BARRIER:
            target = self._barriers.setdefault((one.rank, op.barrier), len(self._barriers))
            self._add(one, Action.BARRIER, target=target)

    def _counter(self, kind: str, rank: int, peer: int, number: int) -> int:
        """The row of a counter."""
        return self._counters.setdefault((kind, rank, peer, number), len(self._counters))

    def _channel(self, one: Located, thread: int) -> tuple[int, int]:
        """The peer of a thread's channel, and its number among the channels of its type between
        the two ranks: the channels with one number are the two ends of one."""
        word = one.op.channel_type
        channel = one.block.channels[word][one.op.channel_ids[thread]]
        return one.gpu.peers[word][channel], self._pair_numbers[one.rank][word][channel]

    def _port(self, one: Located, thread: int) -> int:
        channel = one.block.channels[words.PORT][one.op.channel_ids[thread]]
        return self._first_port[one.rank] + channel

    def _signal(self, one: Located, thread: int) -> None:
        op, (peer, number) = one.op, self._channel(one, thread)
        target = self._counter(op.channel_type, peer, one.rank, number)
        if op.channel_type == words.PORT:
            port = self._port(one, thread)
            self._add(one, Action.PUSH_POST, thread=thread, target=target, port=port)
        else:
            relaxed = op.name in words.RELAXED
            self._add(one, Action.POST, thread=thread, target=target, relaxed=relaxed)

    def _span(self, one: Located, access: Access, iteration: int) -> Access:
        """The part of an access that a row moves, in parts of chunks."""
        parts = self._cutting.parts
        count = access.size * parts // one.op.shares
        begin = access.index * parts + one.op.share * count
        if one.pipeline is not None:
            step = parts * one.pipeline.unit_bytes // self._cutting.chunk_bytes
            begin, count = begin + iteration * step, step
        return Access(access.writes, access.kind, access.buffer, access.ranks, begin, count)

    def _move(self, one: Located, spans: list[Access]) -> None:
        op, move = one.op, words.MOVES[one.op.name]
        sources = [span for span in spans if not span.writes]
        destinations = [span for span in spans if span.writes]
        pairs: Iterable[Sequence[Access]] = [spans]
        if move.paired:
            pairs = zip(sources, destinations, strict=True)
        if op.channel_type != words.PORT or not move.channels:
            self._add(one, Action.MOVE)
            for pair in pairs:
                self._add_move(pair)
            return
        if not move.paired:
            # All threads wait for the packets, and meet before the first push.
            self._add(one, Action.MOVE)
            self._add_move(sources)
            self._add(one, Action.JOIN)
            pairs = ((*sources, destination) for destination in destinations)
        for thread, pair in enumerate(pairs):
            port = self._port(one, thread)
            self._add(one, Action.PUSH, thread=thread, port=port)
            self._add_move(pair)
            if op.name in (words.PUT_SIGNAL, words.PUT_SIGNAL_FLUSH):
                self._signal(one, thread)
            if op.name == words.PUT_SIGNAL_FLUSH and self._flushes:
                self._add(one, Action.FLUSH, thread=thread, port=port)

    def plan(self, collective: Collective) -> OneSidedPlan:
        """The plan of all rows."""
        raw, parts, lines = self._raw, self._cutting.parts, list(self._lines)
        room = [scratch_room(raw, gpu) * parts for gpu in raw.gpus]
        counters = [
            (rank, peer, 0 if kind else raw.gpus[rank].semaphores[number])  # channels begin with 0
            for kind, rank, peer, number in self._counters
        ]
        return OneSidedPlan(
            name=raw.name,
            collective=collective.refine(parts),
            protocol=raw.protocol,
            parts=parts,
            operations=_table(Operations, self._operations),
            ranges=_table(Ranges, self._ranges),
            counters=_table(Counters, counters),
            block_rank=np.array(self._block_rank, np.int32),
            block_offset=np.array([*self._block_offset, self._rows]),
            ports=np.repeat(np.arange(len(raw.gpus)), np.diff(self._first_port)),
            scratch_chunks=np.array(room, np.int32),
            scratch_copies=2 if raw.doubles else 1,
            words=tuple(self._words),
            sources=Sources.of_file(raw.file, lines, whole=raw.whole),
        )


def _table(kind: type[T], rows: Any) -> T:
    """A table of its rows, one value after another."""
    columns = kind.column_names()
    return kind(*np.array(rows, np.int64).reshape(-1, len(columns)).T)


def _place(span: Access) -> tuple[Buffer, bool, int, int]:
    """Its place on a rank, and whether it holds packets."""
    return span.buffer, span.kind.packet, span.index, span.size
